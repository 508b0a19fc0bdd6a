// Matrix products y = W x with quantised or float weights. The value of one output never depends on
// how many rows x has, on its place among them, on threads, or on the instruction set: the integer
// sum inside a quantisation block is exact, and blocks are added in order by one fused multiply-add
// chain per output (DESIGN 9; the rule of each format: docs/format/numerics.md).
//
// Ownership: PackedWeight is a view; the model owns the bytes. Scratch belongs to the caller.
// Threads:   functions of their arguments; two calls may not share scratch.
// Errors:    shapes and types are checked when a model is loaded; here a wrong one aborts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "kernel/isa.h"

namespace reprise {

// Numbered as in GGUF (ggml_type), so that a file's number can be looked up.
enum class WeightType : uint32_t {
  kF32 = 0,
  kF16 = 1,
  kQ4_0 = 2,
  kQ4_1 = 3,
  kQ5_0 = 6,
  kQ5_1 = 7,
  kQ8_0 = 8,
  kQ4_K = 12,
  kQ5_K = 13,
  kQ6_K = 14,
  kBF16 = 30,
};
// Any other ggml type with a vec_dot is accepted too, through ggml, row by row: exact across batches,
// not across instruction sets, so the numerics name it.

// Is the type multiplied by a kernel of ours (else through ggml)?
bool HasKernel(WeightType type);
// Can it be multiplied at all, with this many columns (a whole number of quantisation blocks)?
bool Multipliable(WeightType type, uint32_t cols);
std::string_view Name(WeightType type);             // ggml's name: "Q4_K"
uint64_t RowBytes(WeightType type, uint32_t cols);  // of one GGUF row

// W: [rows, cols], packed in groups of 16 rows; rows are padded with zeros to a multiple of 16.
struct PackedWeight {
  WeightType type = WeightType::kF32;
  uint32_t rows = 0;
  uint32_t cols = 0;
  std::byte* data = nullptr;  // PackedBytes(type, rows, cols), aligned to 64
};
uint64_t PackedBytes(WeightType type, uint32_t rows, uint32_t cols);
// Packs GGUF rows [16 * first_group, 16 * last_group) of the matrix, which start at `gguf_rows`; the
// last group may have fewer rows than 16. Independent groups may be packed from several threads.
void PackGroups(const PackedWeight& weight, const std::byte* gguf_rows, uint32_t first_group, uint32_t last_group);
// One GGUF row to floats, by the format's definition (embedding lookup, small tensors): out [cols].
void DequantizeRow(WeightType type, const std::byte* gguf_row, std::span<float> out);
// The same from a packed matrix.
void DequantizePackedRow(const PackedWeight& weight, uint32_t row, std::span<float> out);

// One product of a group that shares its input.
struct Product {
  const PackedWeight* weight = nullptr;
  const float* bias = nullptr;  // [weight->rows] or null: added after the chain, one addition
  float* out = nullptr;         // [n][out_stride], the first weight->rows of each row are written
  uint32_t out_stride = 0;      // floats
};

// For products of up to `rows_max` input rows and `cols_max` columns.
uint64_t MultiplyScratchBytes(uint32_t rows_max, uint32_t cols_max, uint32_t threads);

// For every product p and every row i < n: p.out[i] = p.weight x[i] (+ bias). x: [n][x_stride] f32,
// products share cols. x is quantised once per activation format; one parallel region where possible.
// Does not allocate. `scratch` is aligned to 64.
void Multiply(const Compute& compute, const float* x, uint32_t x_stride, uint32_t n, std::span<const Product> products,
              std::span<std::byte> scratch);

}  // namespace reprise
