// Packed weights: the same blocks of 16 consecutive rows side by side, interleaved every 4 columns, so
// that 64 bytes hold 16 rows x 4 columns: one 512-bit register, two of 256 bits or four of 128. Byte
// counts are GGUF's. A 4-group is 4 consecutive columns; byte row * 4 + t of a 64-byte line belongs to
// `row`, column 4 * group + t. Groups of 16 rows follow each other, blocks in column order inside.
//
// Ownership: plain bytes; `PackedWeight` (matmul.h) is the view.
// Threads:   pure functions. Errors: none.
// Design:    docs/format/numerics_products.md
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernel/matmul.h"
#include "kernel/weight_gguf.h"

namespace reprise {

inline constexpr int kGroupRows = 16;

namespace packed {

// kSub: columns that share one scale; kOffset: what is taken off every code; kMin: has minimums.
struct Q4_0 {
  using Gguf = gguf::Q4_0;
  static constexpr int kColumns = 32, kSub = 32, kOffset = 8;
  static constexpr bool kMin = false;
  uint16_t d[16];
  uint8_t q[4][64];  // low nibbles: 4-group i, high nibbles: 4-group 4 + i
};
struct Q4_1 {
  using Gguf = gguf::Q4_1;
  static constexpr int kColumns = 32, kSub = 32, kOffset = 0;
  static constexpr bool kMin = true;
  uint16_t d[16], m[16];
  uint8_t q[4][64];
};
struct Q5_0 {
  using Gguf = gguf::Q5_0;
  static constexpr int kColumns = 32, kSub = 32, kOffset = 16;
  static constexpr bool kMin = false;
  uint16_t d[16];
  uint8_t high[64];  // bit i: the fifth bit of 4-group i
  uint8_t q[4][64];
};
struct Q5_1 {
  using Gguf = gguf::Q5_1;
  static constexpr int kColumns = 32, kSub = 32, kOffset = 0;
  static constexpr bool kMin = true;
  uint16_t d[16], m[16];
  uint8_t high[64];
  uint8_t q[4][64];
};
struct Q8_0 {
  using Gguf = gguf::Q8_0;
  static constexpr int kColumns = 32, kSub = 32, kOffset = 128;
  static constexpr bool kMin = false;
  uint16_t d[16];
  uint8_t q[8][64];  // GGUF's signed byte + 128
};
struct Q4_K {
  using Gguf = gguf::Q4_K;
  static constexpr int kColumns = 256, kSub = 32, kOffset = 0;
  static constexpr bool kMin = true;
  struct Sub {
    uint8_t q[4][64];  // as in Q4_0
  };
  uint16_t d[16], dmin[16];
  uint8_t scales[12][16];  // GGUF's 12 bytes, byte by byte across rows
  Sub sub[8];
};
struct Q5_K {
  using Gguf = gguf::Q5_K;
  static constexpr int kColumns = 256, kSub = 32, kOffset = 0;
  static constexpr bool kMin = true;
  struct Sub {
    uint8_t q[4][64];
    uint8_t high[64];  // as in Q5_0
  };
  uint16_t d[16], dmin[16];
  uint8_t scales[12][16];
  Sub sub[8];
};
struct Q6_K {
  using Gguf = gguf::Q6_K;
  static constexpr int kColumns = 256, kSub = 16, kOffset = 32;
  static constexpr bool kMin = false;
  struct Pair {  // two sub-blocks of 16: low nibbles the first, high nibbles the second
    uint8_t q[4][64];
    uint8_t high[2][64];  // bits kHighShift[i], + 1: bits 4 and 5 of 4-group i of sub-block 0, 1
  };
  uint16_t d[16];
  int8_t scales[16][16];  // [sub-block][row]
  Pair pair[8];
};
// Where kernels find them with one shift by 0, 2 right or 2, 4 left.
inline constexpr int kHighShift[4] = {4, 6, 2, 0};

struct F32 {
  using Gguf = gguf::F32;
  static constexpr int kColumns = 1;
  float w[16];
};
struct F16 {
  using Gguf = gguf::F16;
  static constexpr int kColumns = 1;
  uint16_t w[16];
};
struct BF16 {
  using Gguf = gguf::BF16;
  static constexpr int kColumns = 1;
  uint16_t w[16];
};

template <class Block>
inline constexpr bool kIsFloat = Block::kColumns == 1;
template <class Block>
inline constexpr bool kIsK = Block::kColumns == 256;

// Every format spends the bytes of 16 GGUF blocks, and starts its lines where vectors want them.
template <class... Blocks>
inline constexpr bool kSameSize = ((sizeof(Blocks) == 16 * sizeof(typename Blocks::Gguf)) && ...);
static_assert(kSameSize<Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K, F32, F16, BF16>);

inline float ToFloat(const F32& block, int row) { return block.w[row]; }
inline float ToFloat(const F16& block, int row) { return FloatOfF16(block.w[row]); }
inline float ToFloat(const BF16& block, int row) { return FloatOfBf16(block.w[row]); }

}  // namespace packed

// Calls visit(std::type_identity<packed::X>) for a type with a kernel of ours; false for any other.
template <class Visit>
bool VisitPacked(WeightType type, Visit&& visit) {
  switch (type) {
    case WeightType::kF32:
      return visit(std::type_identity<packed::F32>()), true;
    case WeightType::kF16:
      return visit(std::type_identity<packed::F16>()), true;
    case WeightType::kBF16:
      return visit(std::type_identity<packed::BF16>()), true;
    case WeightType::kQ4_0:
      return visit(std::type_identity<packed::Q4_0>()), true;
    case WeightType::kQ4_1:
      return visit(std::type_identity<packed::Q4_1>()), true;
    case WeightType::kQ5_0:
      return visit(std::type_identity<packed::Q5_0>()), true;
    case WeightType::kQ5_1:
      return visit(std::type_identity<packed::Q5_1>()), true;
    case WeightType::kQ8_0:
      return visit(std::type_identity<packed::Q8_0>()), true;
    case WeightType::kQ4_K:
      return visit(std::type_identity<packed::Q4_K>()), true;
    case WeightType::kQ5_K:
      return visit(std::type_identity<packed::Q5_K>()), true;
    case WeightType::kQ6_K:
      return visit(std::type_identity<packed::Q6_K>()), true;
  }
  return false;
}

}  // namespace reprise
