// GGUF, the container of weights and metadata (versions 2 and 3), read from bytes that nobody vouches
// for. Every count, length, offset and type is checked before it is used; what is kept is bounded by
// kGgufKeysMax and kGgufTensorsMax, not by what the file claims.
//
// Ownership: values; nothing refers to the source after Parse.
// Threads:   immutable after Parse.
// Errors:    InvalidArgument naming the key or tensor, what it says and the limit.
// Design:    docs/decisions/0004-gguf-reader.md
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "absl/status/statusor.h"
#include "base/hash.h"
#include "model/model_file.h"

namespace reprise {

inline constexpr uint64_t kGgufKeysMax = 4096;
inline constexpr uint64_t kGgufTensorsMax = 65536;
inline constexpr uint64_t kGgufKeyBytesMax = 256;
inline constexpr uint64_t kGgufNameBytesMax = 63;   // ggml's own
inline constexpr uint64_t kGgufTextKept = 1024;     // longer strings are hashed, not kept
inline constexpr uint64_t kGgufNumbersKept = 1024;  // the same for arrays of numbers

enum class GgufType : uint32_t {
  kU8 = 0,
  kI8 = 1,
  kU16 = 2,
  kI16 = 3,
  kU32 = 4,
  kI32 = 5,
  kF32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kU64 = 10,
  kI64 = 11,
  kF64 = 12,
};
std::string_view Name(GgufType type);

struct GgufValue {
  std::string key;
  GgufType type = GgufType::kU8;
  GgufType element = GgufType::kU8;  // of an array, else == type
  uint64_t count = 1;                // elements of an array
  std::vector<double> numbers;       // [count]; empty for strings and beyond kGgufNumbersKept
  std::string text;                  // a string up to kGgufTextKept
  Digest digest;                     // of type, element type, count and the value's bytes
};

struct GgufTensor {
  std::string name;
  uint32_t type = 0;  // ggml_type, known to ggml
  uint32_t dimensions = 0;
  std::array<uint64_t, 4> dims = {1, 1, 1, 1};  // dims[0]: elements of one row
  uint64_t elements = 0;
  uint64_t offset = 0;  // in the file
  uint64_t bytes = 0;
};

class Gguf {
 public:
  // Reads header, metadata and tensor list; no tensor data.
  static absl::StatusOr<Gguf> Parse(const ByteSource& source);

  const std::vector<GgufValue>& values() const { return values_; }
  const std::vector<GgufTensor>& tensors() const { return tensors_; }
  const GgufValue* Find(std::string_view key) const;
  const GgufTensor* FindTensor(std::string_view name) const;

  // Typed access. Absent is nullopt; another type, or a value outside [min, max], is an error. Any
  // integer type is taken for an integer.
  absl::StatusOr<std::optional<uint64_t>> Integer(std::string_view key, uint64_t min, uint64_t max) const;
  absl::StatusOr<std::optional<float>> Float(std::string_view key, float min, float max) const;
  absl::StatusOr<std::optional<std::string>> Text(std::string_view key) const;
  // The same for what must be there: absent is an error too.
  absl::StatusOr<uint64_t> RequiredInteger(std::string_view key, uint64_t min, uint64_t max) const;
  absl::StatusOr<float> RequiredFloat(std::string_view key, float min, float max) const;

 private:
  friend class GgufParser;
  std::vector<GgufValue> values_;
  std::vector<GgufTensor> tensors_;
  std::unordered_map<std::string, size_t> value_index_;
  std::unordered_map<std::string, size_t> tensor_index_;
};

}  // namespace reprise
