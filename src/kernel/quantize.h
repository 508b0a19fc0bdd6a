// Quantised inputs of a product. The rule, per block of 256 columns (K-quants) or 32 (the rest):
//   amax = max |x|;  d = amax / 127;  q = round_to_even(x * (127 / amax)), so |q| <= 127;
//   amax < 1e-30: d = 0, q = 0;  a NaN or an infinity in the block: d = NaN, q = 0, so that every
//   output of that row is NaN.
// Inputs are kept in panels of kPanelInputs rows whose blocks lie side by side, so that a kernel finds
// the same block of the next input at a constant distance.
//
// Ownership: views into the caller's scratch.
// Threads:   functions of their arguments. Errors: none.
// Design:    docs/format/numerics_products.md
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernel/isa.h"

namespace reprise {

inline constexpr uint32_t kPanelInputs = 8;

// `start...` are what accumulators over codes start at, to take the codes' offset off: -offset * the sum
// of q. AVX-512 wants one int32 per lane; AVX2 sums pairs in int16, so it wants (columns 0, 1 of each
// 4-group) in the low half and (columns 2, 3) in the high half. Portable code does not read them; among
// K-quants only Q6_K does.
struct alignas(32) InputBlock256 {
  int8_t q[256];
  uint32_t start32[16];  // offset 32, per 16 columns
  int16_t sum[8];        // per 32 columns
  float d;
};
struct InputBlock32 {
  int8_t q[32];
  float d;
  float sum;
  uint32_t start16;  // offset 16; for offset 8 it is halved
  int32_t start128;  // offset 128, one int32 on both
};
static_assert(sizeof(InputBlock256) == 352 && sizeof(InputBlock32) == 48);

// All inputs of one format. Panel p holds inputs 8p ... 8p + width(p) - 1, block by block.
struct Panels {
  std::byte* data = nullptr;
  uint32_t inputs = 0;
  uint32_t blocks = 0;       // per input
  uint32_t block_bytes = 0;  // sizeof(InputBlock...)

  uint32_t width(uint32_t panel) const {
    const uint32_t left = inputs - panel * kPanelInputs;
    return left < kPanelInputs ? left : kPanelInputs;
  }
  std::byte* panel(uint32_t panel) const { return data + uint64_t{panel} * kPanelInputs * blocks * block_bytes; }
};

// x: [columns of `blocks` blocks]; block b is written to first + b * step_bytes.
void QuantizeRow256(Isa isa, const float* x, uint32_t blocks, std::byte* first, uint64_t step_bytes);
void QuantizeRow32(Isa isa, const float* x, uint32_t blocks, std::byte* first, uint64_t step_bytes);

// Per instruction set; called through the two above.
void QuantizeRow256Avx2(const float* x, uint32_t blocks, std::byte* first, uint64_t step_bytes, bool starts_in_pairs);
void QuantizeRow32Avx2(const float* x, uint32_t blocks, std::byte* first, uint64_t step_bytes, bool starts_in_pairs);

}  // namespace reprise
