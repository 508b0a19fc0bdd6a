#include "base/crc32c.h"

#include <nmmintrin.h>

#include <array>
#include <cstring>

namespace reprise {
namespace {

constexpr uint32_t kPolynomial = 0x82f63b78;  // reflected

// [8][256]: entry [k][b] is the register after the byte `b` and k bytes of zero.
constexpr std::array<std::array<uint32_t, 256>, 8> MakeByteTables() {
  std::array<std::array<uint32_t, 256>, 8> tables{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = crc & 1 ? crc >> 1 ^ kPolynomial : crc >> 1;
    tables[0][byte] = crc;
  }
  for (int zeros = 1; zeros < 8; ++zeros)
    for (uint32_t byte = 0; byte < 256; ++byte) {
      const uint32_t before = tables[zeros - 1][byte];
      tables[zeros][byte] = before >> 8 ^ tables[0][before & 0xff];
    }
  return tables;
}
constexpr auto kByteTables = MakeByteTables();

// The instruction has a latency of 3 cycles and one begins in each: three lanes at once, joined by running the
// registers of the first two over as many zeros as follow them. 1 KiB: joining costs 5 %, and less than 3 KiB, which
// go through one lane, are a header.
constexpr size_t kLaneBytes = 1024;

// A register run over kLaneBytes of zeros is linear in it: [4][256], by its bytes.
using ZerosTable = std::array<std::array<uint32_t, 256>, 4>;
constexpr ZerosTable MakeZerosTable() {
  std::array<uint32_t, 32> columns{};  // of the linear map, by bit
  for (int bit = 0; bit < 32; ++bit) {
    uint32_t crc = 1u << bit;
    for (size_t i = 0; i < kLaneBytes; ++i) crc = crc >> 8 ^ kByteTables[0][crc & 0xff];
    columns[bit] = crc;
  }
  ZerosTable table{};
  for (int at = 0; at < 4; ++at)
    for (uint32_t byte = 0; byte < 256; ++byte)
      for (int bit = 0; bit < 8; ++bit)
        if (byte >> bit & 1) table[at][byte] ^= columns[8 * at + bit];
  return table;
}
constexpr ZerosTable kLaneOfZeros = MakeZerosTable();

uint32_t AfterALaneOfZeros(uint32_t crc) {
  return kLaneOfZeros[0][crc & 0xff] ^ kLaneOfZeros[1][crc >> 8 & 0xff] ^ kLaneOfZeros[2][crc >> 16 & 0xff] ^
         kLaneOfZeros[3][crc >> 24];
}

uint64_t Word(const std::byte* at) {
  uint64_t word;
  std::memcpy(&word, at, sizeof(word));
  return word;
}

__attribute__((target("sse4.2"))) uint32_t Crc32cSse42(std::span<const std::byte> bytes, uint32_t crc) {
  const std::byte* at = bytes.data();
  size_t left = bytes.size();
  uint64_t first = ~crc;
  for (; left >= 3 * kLaneBytes; left -= 3 * kLaneBytes, at += 3 * kLaneBytes) {
    uint64_t second = 0, third = 0;
    for (size_t i = 0; i < kLaneBytes; i += 8) {
      first = _mm_crc32_u64(first, Word(at + i));
      second = _mm_crc32_u64(second, Word(at + kLaneBytes + i));
      third = _mm_crc32_u64(third, Word(at + 2 * kLaneBytes + i));
    }
    second ^= AfterALaneOfZeros(static_cast<uint32_t>(first));
    first = third ^ AfterALaneOfZeros(static_cast<uint32_t>(second));
  }
  for (; left >= 8; left -= 8, at += 8) first = _mm_crc32_u64(first, Word(at));
  uint32_t out = static_cast<uint32_t>(first);
  for (; left > 0; --left, ++at) out = _mm_crc32_u8(out, static_cast<uint8_t>(*at));
  return ~out;
}

}  // namespace

uint32_t Crc32cPortable(std::span<const std::byte> bytes, uint32_t crc) {
  const std::byte* at = bytes.data();
  size_t left = bytes.size();
  crc = ~crc;
  for (; left >= 8; left -= 8, at += 8) {
    const uint64_t word = Word(at) ^ crc;
    crc = 0;
    for (int byte = 0; byte < 8; ++byte) crc ^= kByteTables[7 - byte][word >> 8 * byte & 0xff];
  }
  for (; left > 0; --left, ++at) crc = crc >> 8 ^ kByteTables[0][(crc ^ static_cast<uint8_t>(*at)) & 0xff];
  return ~crc;
}

uint32_t Crc32c(std::span<const std::byte> bytes, uint32_t crc) {
  static const bool kInstruction = __builtin_cpu_supports("sse4.2");
  return kInstruction ? Crc32cSse42(bytes, crc) : Crc32cPortable(bytes, crc);
}

}  // namespace reprise
