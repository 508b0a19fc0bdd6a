// One row of one quantised block, spread out: what the bits mean, whether they come from the file or
// from a packed block. Dequantisation, packing, the scalar definition of the products and the tests
// all read weights through it.
//
// Ownership: plain values. Threads: pure functions. Errors: none.
// Design:    docs/format/numerics_products.md
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernel/weight_packed.h"

namespace reprise {

// weight[k] = d * scales[k / kSub] * (codes[k] - kOffset) - min * mins[k / kSub]; Q4_1 and Q5_1, whose
// minimum is added, have it negated by mins = -1.
struct BlockRow {
  uint8_t codes[256];
  int8_t scales[16];  // 1 where the format has one scale per block
  int8_t mins[8];
  float d, min;
};

namespace gguf {

template <class Block>
void Read(const Block& block, BlockRow& out) {
  Codes(block, out.codes);
  out.d = FloatOfF16(block.d);
  if constexpr (std::is_same_v<Block, Q6_K>) {
    for (int s = 0; s < 16; ++s) out.scales[s] = block.scales[s];
  } else if constexpr (Block::kColumns == 256) {
    out.min = FloatOfF16(block.dmin);
    for (int s = 0; s < 8; ++s) {
      const ScaleMin sub = UnpackScaleMin([&](int i) { return block.scales[i]; }, s);
      out.scales[s] = static_cast<int8_t>(sub.scale), out.mins[s] = static_cast<int8_t>(sub.min);
    }
  } else {
    out.scales[0] = 1;
    if constexpr (requires { block.m; }) out.min = FloatOfF16(block.m), out.mins[0] = -1;
  }
}

}  // namespace gguf

namespace packed {

// The 32 codes that 4 lines of nibbles (and a line of fifth bits, or null) hold for a row.
inline void ReadCodes32(const uint8_t (*q)[64], const uint8_t* high, int row, uint8_t* codes) {
  for (int i = 0; i < 4; ++i) {
    for (int t = 0; t < 4; ++t) {
      const int lane = row * 4 + t;
      const int fifth = high != nullptr ? high[lane] : 0;
      codes[i * 4 + t] = (q[i][lane] & 15) | (fifth >> i & 1) << 4;
      codes[16 + i * 4 + t] = q[i][lane] >> 4 | (fifth >> (4 + i) & 1) << 4;
    }
  }
}
inline void ReadCodes(const Q4_0& block, int row, uint8_t* codes) { ReadCodes32(block.q, nullptr, row, codes); }
inline void ReadCodes(const Q4_1& block, int row, uint8_t* codes) { ReadCodes32(block.q, nullptr, row, codes); }
inline void ReadCodes(const Q5_0& block, int row, uint8_t* codes) { ReadCodes32(block.q, block.high, row, codes); }
inline void ReadCodes(const Q5_1& block, int row, uint8_t* codes) { ReadCodes32(block.q, block.high, row, codes); }
inline void ReadCodes(const Q8_0& block, int row, uint8_t* codes) {
  for (int k = 0; k < 32; ++k) codes[k] = block.q[k / 4][row * 4 + k % 4];
}
inline void ReadCodes(const Q4_K& block, int row, uint8_t* codes) {
  for (int s = 0; s < 8; ++s) ReadCodes32(block.sub[s].q, nullptr, row, codes + s * 32);
}
inline void ReadCodes(const Q5_K& block, int row, uint8_t* codes) {
  for (int s = 0; s < 8; ++s) ReadCodes32(block.sub[s].q, block.sub[s].high, row, codes + s * 32);
}
inline void ReadCodes(const Q6_K& block, int row, uint8_t* codes) {
  for (int s = 0; s < 8; ++s) {
    const Q6_K::Pair& pair = block.pair[s];
    ReadCodes32(pair.q, nullptr, row, codes + s * 32);
    for (int k = 0; k < 32; ++k) {
      codes[s * 32 + k] |= (pair.high[k / 16][row * 4 + k % 4] >> kHighShift[k / 4 % 4] & 3) << 4;
    }
  }
}

template <class Block>
void Read(const Block& block, int row, BlockRow& out) {
  ReadCodes(block, row, out.codes);
  out.d = FloatOfF16(block.d[row]);
  if constexpr (std::is_same_v<Block, Q6_K>) {
    for (int s = 0; s < 16; ++s) out.scales[s] = block.scales[s][row];
  } else if constexpr (kIsK<Block>) {
    out.min = FloatOfF16(block.dmin[row]);
    for (int s = 0; s < 8; ++s) {
      const ScaleMin sub = UnpackScaleMin([&](int i) { return block.scales[i][row]; }, s);
      out.scales[s] = static_cast<int8_t>(sub.scale), out.mins[s] = static_cast<int8_t>(sub.min);
    }
  } else {
    out.scales[0] = 1;
    if constexpr (Block::kMin) out.min = FloatOfF16(block.m[row]), out.mins[0] = -1;
  }
}

}  // namespace packed
}  // namespace reprise
