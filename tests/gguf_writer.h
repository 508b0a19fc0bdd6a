// Writes GGUF files for tests: right ones, and ones that are wrong in exactly one place.
//
// Ownership: owns the bytes. Threads: one.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "model/gguf.h"

namespace reprise {

class GgufWriter {
 public:
  // A value's bytes as they stand in a file, after the key.
  struct Value {
    std::string key;
    std::string bytes;  // type and value
  };
  struct Tensor {
    std::string name;
    uint32_t type = 0;
    std::vector<uint64_t> dims;
    std::string data;
    uint64_t offset = 0;  // from the start of the data; set by Layout
  };

  void U32(std::string key, uint32_t value);
  void F32(std::string key, float value);
  void Bool(std::string key, bool value);
  void Text(std::string key, std::string_view value);
  void U32Array(std::string key, const std::vector<uint32_t>& values);
  void BoolArray(std::string key, const std::vector<bool>& values);
  void F32Array(std::string key, const std::vector<float>& values);
  void TextArray(std::string key, const std::vector<std::string>& values);
  void AddTensor(std::string name, uint32_t type, std::vector<uint64_t> dims, std::string data);

  Value* FindValue(std::string_view key);
  Tensor* FindTensor(std::string_view name);
  void EraseValue(std::string_view key);
  void EraseTensor(std::string_view name);

  // Gives every tensor its place, one behind the other.
  void Layout();
  // The file. REQUIRES: Layout, after which places may have been spoilt on purpose.
  std::string Bytes() const;

  std::string magic = "GGUF";
  uint32_t version = 3;
  uint64_t alignment = 32;
  int64_t extra_tensors = 0;  // added to the true counts
  int64_t extra_values = 0;
  std::vector<Value> values;
  std::vector<Tensor> tensors;
};

// A source over bytes in memory.
class MemorySource final : public ByteSource {
 public:
  explicit MemorySource(std::string_view bytes) : bytes_(bytes) {}
  uint64_t size() const override { return bytes_.size(); }
  absl::Status Read(uint64_t offset, std::span<std::byte> out) const override;

 private:
  std::string_view bytes_;
};

void WriteFile(const std::string& path, std::string_view bytes);

}  // namespace reprise
