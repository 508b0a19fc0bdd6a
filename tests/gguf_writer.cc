#include "tests/gguf_writer.h"

#include <algorithm>
#include <cstring>
#include <fstream>

#include "base/bytes.h"
#include "base/check.h"

namespace reprise {
namespace {

template <class T>
void Put(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

void PutText(std::string& out, std::string_view text) {
  Put<uint64_t>(out, text.size());
  out.append(text);
}

std::string Head(GgufType type) {
  std::string out;
  Put(out, static_cast<uint32_t>(type));
  return out;
}

std::string ArrayHead(GgufType element, uint64_t count) {
  std::string out = Head(GgufType::kArray);
  Put(out, static_cast<uint32_t>(element));
  Put(out, count);
  return out;
}

template <class T>
std::string Scalar(GgufType type, T value) {
  std::string out = Head(type);
  Put(out, value);
  return out;
}

}  // namespace

void GgufWriter::U32(std::string key, uint32_t value) {
  values.push_back({std::move(key), Scalar(GgufType::kU32, value)});
}
void GgufWriter::F32(std::string key, float value) {
  values.push_back({std::move(key), Scalar(GgufType::kF32, value)});
}
void GgufWriter::Bool(std::string key, bool value) {
  values.push_back({std::move(key), Scalar(GgufType::kBool, static_cast<uint8_t>(value))});
}
void GgufWriter::Text(std::string key, std::string_view value) {
  std::string bytes = Head(GgufType::kString);
  PutText(bytes, value);
  values.push_back({std::move(key), std::move(bytes)});
}
void GgufWriter::U32Array(std::string key, const std::vector<uint32_t>& array) {
  std::string bytes = ArrayHead(GgufType::kU32, array.size());
  for (const uint32_t value : array) Put(bytes, value);
  values.push_back({std::move(key), std::move(bytes)});
}
void GgufWriter::BoolArray(std::string key, const std::vector<bool>& array) {
  std::string bytes = ArrayHead(GgufType::kBool, array.size());
  for (const bool value : array) Put(bytes, static_cast<uint8_t>(value));
  values.push_back({std::move(key), std::move(bytes)});
}
void GgufWriter::F32Array(std::string key, const std::vector<float>& array) {
  std::string bytes = ArrayHead(GgufType::kF32, array.size());
  for (const float value : array) Put(bytes, value);
  values.push_back({std::move(key), std::move(bytes)});
}
void GgufWriter::TextArray(std::string key, const std::vector<std::string>& array) {
  std::string bytes = ArrayHead(GgufType::kString, array.size());
  for (const std::string& value : array) PutText(bytes, value);
  values.push_back({std::move(key), std::move(bytes)});
}
void GgufWriter::AddTensor(std::string name, uint32_t type, std::vector<uint64_t> dims, std::string data) {
  tensors.push_back({std::move(name), type, std::move(dims), std::move(data)});
}

GgufWriter::Value* GgufWriter::FindValue(std::string_view key) {
  const auto it = std::find_if(values.begin(), values.end(), [&](const Value& v) { return v.key == key; });
  return it == values.end() ? nullptr : &*it;
}
GgufWriter::Tensor* GgufWriter::FindTensor(std::string_view name) {
  const auto it = std::find_if(tensors.begin(), tensors.end(), [&](const Tensor& t) { return t.name == name; });
  return it == tensors.end() ? nullptr : &*it;
}
void GgufWriter::EraseValue(std::string_view key) {
  std::erase_if(values, [&](const Value& v) { return v.key == key; });
}
void GgufWriter::EraseTensor(std::string_view name) {
  std::erase_if(tensors, [&](const Tensor& t) { return t.name == name; });
}

void GgufWriter::Layout() {
  uint64_t at = 0;
  for (Tensor& tensor : tensors) {
    tensor.offset = at;
    at = RoundUp(at + tensor.data.size(), alignment);
  }
}

std::string GgufWriter::Bytes() const {
  std::string out = magic;
  Put(out, version);
  Put<uint64_t>(out, tensors.size() + static_cast<uint64_t>(extra_tensors));
  Put<uint64_t>(out, values.size() + static_cast<uint64_t>(extra_values));
  for (const Value& value : values) {
    PutText(out, value.key);
    out += value.bytes;
  }
  for (const Tensor& tensor : tensors) {
    PutText(out, tensor.name);
    Put(out, static_cast<uint32_t>(tensor.dims.size()));
    for (const uint64_t dim : tensor.dims) Put(out, dim);
    Put(out, tensor.type);
    Put(out, tensor.offset);
  }
  out.resize(RoundUp(out.size(), alignment));
  for (const Tensor& tensor : tensors) {
    out += tensor.data;
    out.resize(RoundUp(out.size(), alignment));
  }
  return out;
}

absl::Status MemorySource::Read(uint64_t offset, std::span<std::byte> out) const {
  CHECK_LE(offset, bytes_.size());
  CHECK_LE(out.size(), bytes_.size() - offset);
  std::memcpy(out.data(), bytes_.data() + offset, out.size());
  return absl::OkStatus();
}

void WriteFile(const std::string& path, std::string_view bytes) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  out.close();
  CHECK(out.good());
}

}  // namespace reprise
