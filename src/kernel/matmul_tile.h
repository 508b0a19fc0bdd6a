// A tile is what one piece of a product computes: some groups of 16 rows of W times some inputs. One
// function per instruction set; all give the bits of the portable one.
//
// Ownership: views. Threads: a tile belongs to one worker; tiles of one product do not overlap.
// Errors:    none; the driver (matmul.cc) has checked everything.
// Design:    docs/format/numerics_products.md
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernel/matmul.h"
#include "kernel/quantize.h"
#include "kernel/weight_packed.h"

namespace reprise {

struct Tile {
  const Product* product = nullptr;
  uint32_t first_group = 0, last_group = 0;  // of 16 rows of the weight
  uint32_t first_input = 0, last_input = 0;  // first is a multiple of kPanelInputs
  const Panels* panels = nullptr;            // quantised weights read their inputs here,
  const float* x = nullptr;                  // float weights here
  uint32_t x_stride = 0;                     // floats
  std::byte* scratch = nullptr;              // TileScratchBytes, of this worker, aligned to 64
};

// The driver never makes a tile of more inputs.
inline constexpr uint32_t kTileInputsMax = 512;

void MultiplyTilePortable(const Tile& tile);
void MultiplyTileAvx2(const Tile& tile);
void MultiplyTileAvx512(const Tile& tile);

// What each needs as scratch of its worker.
uint64_t TileScratchBytesPortable(uint32_t inputs_max);
uint64_t TileScratchBytesAvx2(uint32_t inputs_max);

// Internal linkage on purpose: these are compiled for several instruction sets.

template <class Packed>
static inline const Packed* GroupBlocks(const Tile& tile, uint32_t group) {
  const PackedWeight& weight = *tile.product->weight;
  return reinterpret_cast<const Packed*>(weight.data) + uint64_t{group} * (weight.cols / Packed::kColumns);
}

// Where a kernel may store 16 floats per input: the output itself or, for the last rows of a weight
// that has no multiple of 16, `spare`; Finish then copies them and adds the bias.
struct OutputRows {
  float* data;
  uint64_t stride;  // floats from one input to the next
};
static inline OutputRows OutputOf(const Tile& tile, uint32_t group, uint32_t input, float* spare) {
  const Product& product = *tile.product;
  if ((group + 1) * kGroupRows > product.weight->rows) return {spare, kGroupRows};
  return {product.out + uint64_t{input} * product.out_stride + group * kGroupRows, product.out_stride};
}
static inline void Finish(const Tile& tile, uint32_t group, uint32_t input, uint32_t inputs, const OutputRows& from) {
  const Product& product = *tile.product;
  const uint32_t row = group * kGroupRows;
  const uint32_t rows = product.weight->rows - row < kGroupRows ? product.weight->rows - row : kGroupRows;
  if (rows == kGroupRows && product.bias == nullptr) return;
  for (uint32_t i = 0; i < inputs; ++i) {
    float* out = product.out + uint64_t{input + i} * product.out_stride + row;
    const float* values = from.data + i * from.stride;
    for (uint32_t r = 0; r < rows; ++r)
      out[r] = product.bias != nullptr ? values[r] + product.bias[row + r] : values[r];
  }
}

}  // namespace reprise
