#include "model/gguf.h"

#include <ggml.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "model/status_macros.h"

namespace reprise {
namespace {

constexpr uint32_t kTypes = 13;
constexpr uint64_t kMagicBytes = 4;
constexpr uint64_t kKeyBytesLeast = 8 + 4 + 1;         // length, type, a value
constexpr uint64_t kTensorBytesLeast = 8 + 4 + 4 + 8;  // length, dimensions, type, offset

// For messages: no control characters, no megabytes.
std::string Quoted(std::string_view text) {
  const std::string escaped = absl::CHexEscape({text.data(), std::min<size_t>(text.size(), 64)});
  return absl::StrCat("'", escaped, text.size() > 64 ? "..." : "", "'");
}

// Bytes of one element; 0 for strings and arrays.
uint64_t ScalarBytes(GgufType type) {
  switch (type) {
    case GgufType::kU8:
    case GgufType::kI8:
    case GgufType::kBool:
      return 1;
    case GgufType::kU16:
    case GgufType::kI16:
      return 2;
    case GgufType::kU32:
    case GgufType::kI32:
    case GgufType::kF32:
      return 4;
    case GgufType::kU64:
    case GgufType::kI64:
    case GgufType::kF64:
      return 8;
    case GgufType::kString:
    case GgufType::kArray:
      return 0;
  }
  return 0;
}

template <class T>
double As(const std::byte* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof(T));
  return static_cast<double>(value);
}

// Integers beyond 2^53 lose their last bits; every limit of ours is far below.
double Number(GgufType type, const std::byte* bytes) {
  switch (type) {
    case GgufType::kU8:
    case GgufType::kBool:
      return As<uint8_t>(bytes);
    case GgufType::kI8:
      return As<int8_t>(bytes);
    case GgufType::kU16:
      return As<uint16_t>(bytes);
    case GgufType::kI16:
      return As<int16_t>(bytes);
    case GgufType::kU32:
      return As<uint32_t>(bytes);
    case GgufType::kI32:
      return As<int32_t>(bytes);
    case GgufType::kF32:
      return As<float>(bytes);
    case GgufType::kU64:
      return As<uint64_t>(bytes);
    case GgufType::kI64:
      return As<int64_t>(bytes);
    case GgufType::kF64:
      return As<double>(bytes);
    case GgufType::kString:
    case GgufType::kArray:
      break;
  }
  return 0;
}

bool IsInteger(GgufType type) {
  return type != GgufType::kF32 && type != GgufType::kF64 && type != GgufType::kString && type != GgufType::kArray &&
         type != GgufType::kBool;
}

absl::Status Damaged(std::string_view where, std::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("GGUF: ", std::string(where), ": ", std::string(what)));
}

}  // namespace

std::string_view Name(GgufType type) {
  constexpr std::array<std::string_view, kTypes> kNames = {"u8",   "i8",     "u16",   "i16", "u32", "i32", "f32",
                                                           "bool", "string", "array", "u64", "i64", "f64"};
  return kNames[static_cast<uint32_t>(type)];
}

// One pass over the head of a file, through a small buffer.
class GgufParser {
 public:
  explicit GgufParser(const ByteSource& source)
      : source_(source), buffer_(std::min<uint64_t>(source.size(), kBuffer)) {}

  absl::StatusOr<Gguf> Parse() {
    RETURN_IF_ERROR(ParseHeader());
    for (uint64_t i = 0; i < keys_; ++i) RETURN_IF_ERROR(ParseValue(i));
    RETURN_IF_ERROR(FindAlignment());
    for (uint64_t i = 0; i < tensors_; ++i) RETURN_IF_ERROR(ParseTensor(i));
    RETURN_IF_ERROR(PlaceTensors());
    return std::move(out_);
  }

 private:
  static constexpr uint64_t kBuffer = 64 << 10;

  uint64_t left() const { return source_.size() - at_; }

  // `where_` names what is being read in every message.
  absl::Status Take(std::span<std::byte> out) {
    if (out.size() > left())
      return Damaged(where_, absl::StrCat("needs ", out.size(), " B more, the file ends after ", left(), " B"));
    while (!out.empty()) {
      if (at_ < buffer_start_ || at_ >= buffer_start_ + buffer_filled_) {
        buffer_start_ = at_;
        buffer_filled_ = std::min<uint64_t>(buffer_.size(), left());
        RETURN_IF_ERROR(source_.Read(buffer_start_, std::span(buffer_).first(buffer_filled_)));
      }
      const uint64_t from = at_ - buffer_start_;
      const uint64_t count = std::min<uint64_t>(out.size(), buffer_filled_ - from);
      std::memcpy(out.data(), buffer_.data() + from, count);
      out = out.subspan(count);
      at_ += count;
    }
    return absl::OkStatus();
  }

  template <class T>
  absl::Status Take(T& out) {
    return Take(std::as_writable_bytes(std::span(&out, 1)));
  }

  // A string of at most `bytes_max`.
  absl::Status TakeText(std::string_view what, uint64_t bytes_max, std::string& out) {
    uint64_t bytes = 0;
    RETURN_IF_ERROR(Take(bytes));
    if (bytes == 0) return Damaged(where_, absl::StrCat("the ", std::string(what), " is empty"));
    if (bytes > bytes_max)
      return Damaged(
          where_, absl::StrCat("the ", std::string(what), " has ", bytes, " B, at most ", bytes_max, " are allowed"));
    out.resize(bytes);
    return Take(std::as_writable_bytes(std::span(out)));
  }

  // Hashes `bytes` of the value; the first ones go to `kept`.
  absl::Status Hash(uint64_t bytes, std::string* kept) {
    if (bytes > left())
      return Damaged(where_, absl::StrCat("a value of ", bytes, " B, the file ends after ", left(), " B"));
    std::array<std::byte, 4096> piece;
    while (bytes > 0) {
      const std::span<std::byte> part = std::span(piece).first(std::min<uint64_t>(bytes, piece.size()));
      RETURN_IF_ERROR(Take(part));
      sha_.Update(part);
      if (kept != nullptr) kept->append(reinterpret_cast<const char*>(part.data()), part.size());
      bytes -= part.size();
    }
    return absl::OkStatus();
  }

  absl::Status HashString(std::string* kept) {
    uint64_t bytes = 0;
    RETURN_IF_ERROR(Take(bytes));
    sha_.Update(std::as_bytes(std::span(&bytes, 1)));
    return Hash(bytes, bytes <= kGgufTextKept ? kept : nullptr);
  }

  absl::Status ParseHeader() {
    where_ = "header";
    std::array<char, kMagicBytes> magic;
    RETURN_IF_ERROR(Take(magic));
    if (std::string_view(magic.data(), magic.size()) != "GGUF")
      return Damaged(where_, absl::StrCat("not a GGUF file: it starts with ", Quoted({magic.data(), magic.size()})));
    uint32_t version = 0;
    RETURN_IF_ERROR(Take(version));
    if (version != 2 && version != 3)
      return Damaged(where_, (version & 0xffff) == 0 ? std::string("a big-endian file; only little-endian is supported")
                                                     : absl::StrCat("version ", version, "; 2 and 3 are supported"));
    RETURN_IF_ERROR(Take(tensors_));
    RETURN_IF_ERROR(Take(keys_));
    RETURN_IF_ERROR(CheckCount("tensor count", tensors_, kGgufTensorsMax, kTensorBytesLeast));
    return CheckCount("metadata count", keys_, kGgufKeysMax, kKeyBytesLeast);
  }

  absl::Status CheckCount(std::string_view what, uint64_t count, uint64_t max, uint64_t bytes_least) const {
    if (count > max)
      return Damaged(where_, absl::StrCat(std::string(what), " is ", count, ", at most ", max, " are supported"));
    if (count * bytes_least > left())
      return Damaged(where_, absl::StrCat(std::string(what), " is ", count, ", which needs at least ",
                                          count * bytes_least, " B; the file ends after ", left(), " B"));
    return absl::OkStatus();
  }

  absl::Status TakeType(std::string_view what, GgufType& out) {
    uint32_t type = 0;
    RETURN_IF_ERROR(Take(type));
    if (type >= kTypes)
      return Damaged(where_,
                     absl::StrCat(std::string(what), " ", type, " is unknown; 0 to ", kTypes - 1, " are known"));
    out = static_cast<GgufType>(type);
    return absl::OkStatus();
  }

  absl::Status ParseValue(uint64_t index) {
    where_ = absl::StrCat("metadata ", index, " of ", keys_);
    GgufValue value;
    RETURN_IF_ERROR(TakeText("key", kGgufKeyBytesMax, value.key));
    where_ = absl::StrCat("metadata ", Quoted(value.key));
    if (!out_.value_index_.emplace(value.key, out_.values_.size()).second)
      return Damaged(where_, "the key appears twice");

    RETURN_IF_ERROR(TakeType("value type", value.type));
    value.element = value.type;
    const bool array = value.type == GgufType::kArray;
    if (array) {
      RETURN_IF_ERROR(TakeType("element type", value.element));
      RETURN_IF_ERROR(Take(value.count));
      if (value.element == GgufType::kArray) return Damaged(where_, "an array of arrays is not supported");
    }
    const std::array<uint64_t, 3> head = {static_cast<uint64_t>(value.type), static_cast<uint64_t>(value.element),
                                          value.count};
    sha_.Update(std::as_bytes(std::span(head)));

    const uint64_t least = value.element == GgufType::kString ? 8 : ScalarBytes(value.element);
    if (value.count > left() / least)
      return Damaged(
          where_, absl::StrCat(value.count, " elements of at least ", least, " B; the file ends after ", left(), " B"));
    if (value.element == GgufType::kString) {
      for (uint64_t i = 0; i < value.count; ++i) RETURN_IF_ERROR(HashString(array ? nullptr : &value.text));
    } else {
      const bool keep = value.count <= kGgufNumbersKept;
      std::string bytes;
      RETURN_IF_ERROR(Hash(value.count * least, keep ? &bytes : nullptr));
      for (uint64_t i = 0; keep && i < value.count; ++i)
        value.numbers.push_back(Number(value.element, reinterpret_cast<const std::byte*>(bytes.data()) + i * least));
    }
    value.digest = sha_.Finish();
    out_.values_.push_back(std::move(value));
    return absl::OkStatus();
  }

  absl::Status FindAlignment() {
    const GgufValue* value = out_.Find("general.alignment");
    if (value == nullptr) return absl::OkStatus();
    where_ = "metadata 'general.alignment'";
    if (value->type != GgufType::kU32)
      return Damaged(where_, absl::StrCat("is ", std::string(Name(value->type)), ", must be u32"));
    alignment_ = static_cast<uint64_t>(value->numbers[0]);
    if (!std::has_single_bit(alignment_)) return Damaged(where_, absl::StrCat(alignment_, " is not a power of two"));
    return absl::OkStatus();
  }

  absl::Status ParseTensor(uint64_t index) {
    where_ = absl::StrCat("tensor ", index, " of ", tensors_);
    GgufTensor tensor;
    RETURN_IF_ERROR(TakeText("name", kGgufNameBytesMax, tensor.name));
    where_ = absl::StrCat("tensor ", Quoted(tensor.name));
    if (!out_.tensor_index_.emplace(tensor.name, out_.tensors_.size()).second)
      return Damaged(where_, "the name appears twice");

    RETURN_IF_ERROR(Take(tensor.dimensions));
    if (tensor.dimensions < 1 || tensor.dimensions > tensor.dims.size())
      return Damaged(where_, absl::StrCat(tensor.dimensions, " dimensions; 1 to 4 are supported"));
    tensor.elements = 1;
    for (uint32_t d = 0; d < tensor.dimensions; ++d) {
      RETURN_IF_ERROR(Take(tensor.dims[d]));
      if (tensor.dims[d] == 0) return Damaged(where_, absl::StrCat("dimension ", d, " is 0"));
      if (tensor.dims[d] > INT64_MAX / tensor.elements)
        return Damaged(where_, absl::StrCat("dimension ", d, " is ", tensor.dims[d], ": more elements than 2^63"));
      tensor.elements *= tensor.dims[d];
    }
    RETURN_IF_ERROR(Take(tensor.type));
    RETURN_IF_ERROR(Take(tensor.offset));
    RETURN_IF_ERROR(MeasureTensor(tensor));
    out_.tensors_.push_back(std::move(tensor));
    return absl::OkStatus();
  }

  absl::Status MeasureTensor(GgufTensor& tensor) const {
    if (tensor.type >= GGML_TYPE_COUNT || ggml_blck_size(static_cast<ggml_type>(tensor.type)) == 0)
      return Damaged(where_, absl::StrCat("element type ", tensor.type, " is unknown"));
    const ggml_type type = static_cast<ggml_type>(tensor.type);
    const uint64_t block = static_cast<uint64_t>(ggml_blck_size(type));
    if (tensor.dims[0] % block != 0)
      return Damaged(where_, absl::StrCat("rows of ", tensor.dims[0], " elements are not whole blocks of ", block, " (",
                                          ggml_type_name(type), ")"));
    const uint64_t blocks = tensor.elements / block;
    if (blocks > source_.size() / ggml_type_size(type))
      return Damaged(where_, absl::StrCat(blocks, " blocks of ", ggml_type_size(type), " B are more than the file's ",
                                          source_.size(), " B"));
    tensor.bytes = blocks * ggml_type_size(type);
    if (tensor.offset % alignment_ != 0)
      return Damaged(where_,
                     absl::StrCat("offset ", tensor.offset, " is not a multiple of the alignment ", alignment_));
    return absl::OkStatus();
  }

  // Offsets count from the aligned end of the tensor list.
  absl::Status PlaceTensors() {
    const uint64_t start = RoundUp(at_, alignment_);
    std::vector<const GgufTensor*> by_offset;
    for (GgufTensor& tensor : out_.tensors_) {
      const uint64_t data = source_.size() - std::min(start, source_.size());
      if (tensor.offset > data || tensor.bytes > data - tensor.offset)
        return Damaged(absl::StrCat("tensor ", Quoted(tensor.name)),
                       absl::StrCat("offset ", tensor.offset, " + ", tensor.bytes, " B run past the end of the data, ",
                                    data, " B"));
      tensor.offset += start;
      by_offset.push_back(&tensor);
    }
    std::sort(by_offset.begin(), by_offset.end(),
              [](const GgufTensor* a, const GgufTensor* b) { return a->offset < b->offset; });
    for (size_t i = 1; i < by_offset.size(); ++i)
      if (by_offset[i]->offset < by_offset[i - 1]->offset + by_offset[i - 1]->bytes)
        return Damaged(absl::StrCat("tensor ", Quoted(by_offset[i]->name)),
                       absl::StrCat("its data overlap those of ", Quoted(by_offset[i - 1]->name)));
    return absl::OkStatus();
  }

  const ByteSource& source_;
  std::vector<std::byte> buffer_;
  uint64_t buffer_start_ = 0;
  uint64_t buffer_filled_ = 0;
  uint64_t at_ = 0;
  std::string where_;
  Sha256 sha_;
  uint64_t tensors_ = 0;
  uint64_t keys_ = 0;
  uint64_t alignment_ = 32;
  Gguf out_;
};

absl::StatusOr<Gguf> Gguf::Parse(const ByteSource& source) { return GgufParser(source).Parse(); }

const GgufValue* Gguf::Find(std::string_view key) const {
  const auto it = value_index_.find(std::string(key));
  return it == value_index_.end() ? nullptr : &values_[it->second];
}

const GgufTensor* Gguf::FindTensor(std::string_view name) const {
  const auto it = tensor_index_.find(std::string(name));
  return it == tensor_index_.end() ? nullptr : &tensors_[it->second];
}

absl::StatusOr<std::optional<uint64_t>> Gguf::Integer(std::string_view key, uint64_t min, uint64_t max) const {
  const GgufValue* value = Find(key);
  if (value == nullptr) return std::nullopt;
  const std::string where = absl::StrCat("metadata ", Quoted(key));
  if (!IsInteger(value->type))
    return Damaged(where, absl::StrCat("is ", std::string(Name(value->type)), ", must be an integer"));
  const double number = value->numbers[0];
  if (!(number >= static_cast<double>(min) && number <= static_cast<double>(max)))
    return Damaged(where, absl::StrCat(number, " is outside ", min, " to ", max));
  return static_cast<uint64_t>(number);
}

absl::StatusOr<std::optional<float>> Gguf::Float(std::string_view key, float min, float max) const {
  const GgufValue* value = Find(key);
  if (value == nullptr) return std::nullopt;
  const std::string where = absl::StrCat("metadata ", Quoted(key));
  if (value->type != GgufType::kF32 && value->type != GgufType::kF64)
    return Damaged(where, absl::StrCat("is ", std::string(Name(value->type)), ", must be f32"));
  const float number = static_cast<float>(value->numbers[0]);
  if (!(number >= min && number <= max)) return Damaged(where, absl::StrCat(number, " is outside ", min, " to ", max));
  return number;
}

absl::StatusOr<std::optional<std::string>> Gguf::Text(std::string_view key) const {
  const GgufValue* value = Find(key);
  if (value == nullptr) return std::nullopt;
  if (value->type != GgufType::kString)
    return Damaged(absl::StrCat("metadata ", Quoted(key)),
                   absl::StrCat("is ", std::string(Name(value->type)), ", must be a string"));
  return value->text;
}

absl::StatusOr<uint64_t> Gguf::RequiredInteger(std::string_view key, uint64_t min, uint64_t max) const {
  ASSIGN_OR_RETURN(const std::optional<uint64_t> value, Integer(key, min, max));
  if (!value) return Damaged(absl::StrCat("metadata ", Quoted(key)), "is missing");
  return *value;
}

absl::StatusOr<float> Gguf::RequiredFloat(std::string_view key, float min, float max) const {
  ASSIGN_OR_RETURN(const std::optional<float> value, Float(key, min, max));
  if (!value) return Damaged(absl::StrCat("metadata ", Quoted(key)), "is missing");
  return *value;
}

}  // namespace reprise
