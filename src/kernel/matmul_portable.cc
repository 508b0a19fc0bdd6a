// The definition of the products, in plain C++: what every instruction set must match bit for bit.
#include <cmath>

#include "kernel/matmul_tile.h"
#include "kernel/weight_row.h"

namespace reprise {
namespace {

// One block of one output: t = d * isum (- min * msum), both sums exact in int32.
template <class Packed>
float BlockTerm(const BlockRow& w, const int8_t* q) {
  int32_t isum = 0, msum = 0;
  for (int s = 0; s < Packed::kColumns / Packed::kSub; ++s) {
    int32_t dot = 0, sum = 0;
    for (int k = s * Packed::kSub; k < (s + 1) * Packed::kSub; ++k) {
      dot += (w.codes[k] - Packed::kOffset) * q[k];
      sum += q[k];
    }
    isum += w.scales[s] * dot;
    if constexpr (Packed::kMin) msum += w.mins[s] * sum;
  }
  const float t = w.d * static_cast<float>(isum);
  return Packed::kMin ? std::fma(-w.min, static_cast<float>(msum), t) : t;
}

// Blocks in order, one fused multiply-add chain per output, started at zero.
template <class Packed>
void MultiplyGroup(const Tile& tile, uint32_t group, float* sums) {
  using InputBlock = std::conditional_t<packed::kIsK<Packed>, InputBlock256, InputBlock32>;
  const Packed* blocks = GroupBlocks<Packed>(tile, group);
  for (uint32_t b = 0; b < tile.panels->blocks; ++b) {
    for (int row = 0; row < kGroupRows; ++row) {
      BlockRow w;
      Read(blocks[b], row, w);
      for (uint32_t i = tile.first_input; i < tile.last_input; ++i) {
        const uint32_t panel = i / kPanelInputs, width = tile.panels->width(panel);
        const auto* inputs = reinterpret_cast<const InputBlock*>(tile.panels->panel(panel));
        const InputBlock& x = inputs[b * width + i % kPanelInputs];
        float& sum = sums[(i - tile.first_input) * kGroupRows + row];
        sum = std::fma(x.d, BlockTerm<Packed>(w, x.q), sum);
      }
    }
  }
}

// Float weights: one chain over the columns.
template <class Packed>
void MultiplyFloatGroup(const Tile& tile, uint32_t group, float* sums) {
  const Packed* blocks = GroupBlocks<Packed>(tile, group);
  for (uint32_t i = tile.first_input; i < tile.last_input; ++i) {
    const float* x = tile.x + uint64_t{i} * tile.x_stride;
    float* sum = sums + (i - tile.first_input) * kGroupRows;
    for (uint32_t k = 0; k < tile.product->weight->cols; ++k) {
      for (int row = 0; row < kGroupRows; ++row) sum[row] = std::fma(ToFloat(blocks[k], row), x[k], sum[row]);
    }
  }
}

}  // namespace

uint64_t TileScratchBytesPortable(uint32_t inputs_max) { return uint64_t{inputs_max} * kGroupRows * sizeof(float); }

void MultiplyTilePortable(const Tile& tile) {
  const uint32_t inputs = tile.last_input - tile.first_input;
  float* sums = reinterpret_cast<float*>(tile.scratch);
  VisitPacked(tile.product->weight->type, [&](auto format) {
    using Packed = typename decltype(format)::type;
    for (uint32_t group = tile.first_group; group < tile.last_group; ++group) {
      for (uint32_t j = 0; j < inputs * kGroupRows; ++j) sums[j] = 0.0f;
      if constexpr (packed::kIsFloat<Packed>) {
        MultiplyFloatGroup<Packed>(tile, group, sums);
      } else {
        MultiplyGroup<Packed>(tile, group, sums);
      }
      const Product& product = *tile.product;
      for (uint32_t i = 0; i < inputs; ++i) {
        for (uint32_t r = 0; r < kGroupRows && group * kGroupRows + r < product.weight->rows; ++r) {
          const uint32_t row = group * kGroupRows + r;
          const float sum = sums[i * kGroupRows + r];
          product.out[uint64_t{tile.first_input + i} * product.out_stride + row] =
              product.bias != nullptr ? sum + product.bias[row] : sum;
        }
      }
    }
  });
}

}  // namespace reprise
