// The blocks of quantised weights as GGUF stores them, and what their bits mean: the ground that
// packing, dequantisation and the tests stand on.
//
// A weight is scale * (code - kOffset), minus a minimum where the format has one. `code` is unsigned
// in every format (Q8_0: its signed byte + 128).
//
// Ownership: plain bytes, at any address (all members are bytes or are copied out).
// Threads:   pure functions. Errors: none.
// Design:    docs/format/numerics_products.md
#pragma once

#include <cstdint>
#include <cstring>

#include "kernel/half.h"

namespace reprise {

// Q4_K and Q5_K: the 6-bit scale and minimum of sub-block j < 8, out of 12 bytes. `byte(i)` is byte i.
struct ScaleMin {
  uint8_t scale;
  uint8_t min;
};
template <class Byte>
inline ScaleMin UnpackScaleMin(const Byte& byte, int j) {
  if (j < 4) return {static_cast<uint8_t>(byte(j) & 63), static_cast<uint8_t>(byte(j + 4) & 63)};
  return {static_cast<uint8_t>((byte(j + 4) & 15) | (byte(j - 4) >> 6 << 4)),
          static_cast<uint8_t>((byte(j + 4) >> 4) | (byte(j) >> 6 << 4))};
}

namespace gguf {

struct Q4_0 {
  static constexpr int kColumns = 32;
  uint16_t d;
  uint8_t q[16];
};
struct Q4_1 {
  static constexpr int kColumns = 32;
  uint16_t d, m;
  uint8_t q[16];
};
struct Q5_0 {
  static constexpr int kColumns = 32;
  uint16_t d;
  uint8_t high[4];
  uint8_t q[16];
};
struct Q5_1 {
  static constexpr int kColumns = 32;
  uint16_t d, m;
  uint8_t high[4];
  uint8_t q[16];
};
struct Q8_0 {
  static constexpr int kColumns = 32;
  uint16_t d;
  int8_t q[32];
};
struct Q4_K {
  static constexpr int kColumns = 256;
  uint16_t d, dmin;
  uint8_t scales[12];
  uint8_t q[128];
};
struct Q5_K {
  static constexpr int kColumns = 256;
  uint16_t d, dmin;
  uint8_t scales[12];
  uint8_t high[32];
  uint8_t q[128];
};
struct Q6_K {
  static constexpr int kColumns = 256;
  uint8_t low[128];
  uint8_t high[64];
  int8_t scales[16];
  uint16_t d;
};
struct F32 {
  static constexpr int kColumns = 1;
  float w;
};
struct F16 {
  static constexpr int kColumns = 1;
  uint16_t w;
};
struct BF16 {
  static constexpr int kColumns = 1;
  uint16_t w;
};

// The codes of one block, in column order: codes [kColumns].
template <class Block>
inline void Nibbles(const Block& block, uint8_t* codes) {
  for (int k = 0; k < 16; ++k) codes[k] = block.q[k] & 15, codes[16 + k] = block.q[k] >> 4;
}
template <class Block>
inline void FifthBits(const Block& block, uint8_t* codes) {
  uint32_t high;
  std::memcpy(&high, block.high, 4);
  for (int k = 0; k < 32; ++k) codes[k] |= ((high >> k) & 1) << 4;
}
inline void Codes(const Q4_0& block, uint8_t* codes) { Nibbles(block, codes); }
inline void Codes(const Q4_1& block, uint8_t* codes) { Nibbles(block, codes); }
inline void Codes(const Q5_0& block, uint8_t* codes) { Nibbles(block, codes), FifthBits(block, codes); }
inline void Codes(const Q5_1& block, uint8_t* codes) { Nibbles(block, codes), FifthBits(block, codes); }
inline void Codes(const Q8_0& block, uint8_t* codes) {
  for (int k = 0; k < 32; ++k) codes[k] = static_cast<uint8_t>(block.q[k]) ^ 0x80;
}
inline void Codes(const Q4_K& block, uint8_t* codes) {
  for (int k = 0; k < 128; ++k) {  // 32 low nibbles, then the 32 high nibbles of the same bytes
    const int at = k / 32 * 64 + k % 32;
    codes[at] = block.q[k] & 15, codes[at + 32] = block.q[k] >> 4;
  }
}
inline void Codes(const Q5_K& block, uint8_t* codes) {
  for (int k = 0; k < 128; ++k) {
    const int at = k / 32 * 64 + k % 32;
    const int bits = block.high[k % 32] >> (k / 32 * 2);
    codes[at] = (block.q[k] & 15) | (bits & 1) << 4, codes[at + 32] = block.q[k] >> 4 | (bits & 2) << 3;
  }
}
inline void Codes(const Q6_K& block, uint8_t* codes) {
  for (int half = 0; half < 2; ++half) {
    for (int l = 0; l < 32; ++l) {  // four weights, 32 columns apart, share one byte of high bits
      const uint8_t* low = block.low + half * 64 + l;
      const uint8_t high = block.high[half * 32 + l];
      uint8_t* out = codes + half * 128 + l;
      out[0] = (low[0] & 15) | (high & 3) << 4, out[32] = (low[32] & 15) | (high >> 2 & 3) << 4;
      out[64] = low[0] >> 4 | (high >> 4 & 3) << 4, out[96] = low[32] >> 4 | (high >> 6) << 4;
    }
  }
}

inline float ToFloat(const F32& block) { return block.w; }
inline float ToFloat(const F16& block) { return FloatOfF16(block.w); }
inline float ToFloat(const BF16& block) { return FloatOfBf16(block.w); }

}  // namespace gguf
}  // namespace reprise
