// Little-endian encoding, the only one that our formats use, and sizes for people.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "absl/status/statusor.h"

namespace reprise {

static_assert(std::endian::native == std::endian::little, "formats are little-endian and written by copying");

// Appends to a byte string. Not thread-safe.
class ByteWriter {
 public:
  template <class T>
  requires std::is_arithmetic_v<T>
  void Put(T value) {
    for (std::byte byte : std::bit_cast<std::array<std::byte, sizeof(T)>>(value)) bytes_.push_back(byte);
  }
  void PutBytes(std::span<const std::byte> bytes) { bytes_.insert(bytes_.end(), bytes.begin(), bytes.end()); }
  void PutText(std::string_view text) { PutBytes(std::as_bytes(std::span(text.data(), text.size()))); }
  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
};

// "1.50 GiB", "32 KiB", "17 B": binary units, three significant digits.
std::string HumanBytes(uint64_t bytes);

// "6GiB", "20GB", "512 MiB", "1048576" (bytes). Error: names the text and the units accepted.
absl::StatusOr<uint64_t> ParseBytes(std::string_view text);

inline constexpr uint64_t RoundUp(uint64_t value, uint64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}
inline constexpr uint64_t CeilDiv(uint64_t value, uint64_t divisor) { return (value + divisor - 1) / divisor; }

}  // namespace reprise
