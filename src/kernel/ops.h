// Row-wise arithmetic of the forward pass. Every function gives the same bits on every instruction
// set, and each row's result depends on that row alone (DESIGN 9): reductions use 16 virtual lanes
// (lane = index mod 16) and one fixed tree; exp, sin, cos and tanh are our own polynomials.
//
// Ownership: views. Threads: functions of their arguments. Large inputs are split over compute.pool.
// Errors:    none.
// Design:    docs/format/numerics_attention.md
#pragma once

#include <cstdint>
#include <span>

#include "kernel/isa.h"

namespace reprise {

// out[i] = x[i] / sqrt(mean(x[i]^2) + epsilon) * weight; x, out: [n][stride], weight: [dim]. out may be x.
// Zhang & Sennrich, 2019. Use with groups of heads: n = rows * heads, stride = dim = head_dim.
void RmsNorm(const Compute& compute, const float* x, float* out, uint32_t n, uint32_t dim, uint32_t stride,
             std::span<const float> weight, float epsilon);
// The same with strides for x and out, and rows inside rows (heads of a wider row):
// row r < n, head h < heads at x + r * row_stride + h * dim.
void RmsNormHeads(const Compute& compute, float* x, uint32_t n, uint32_t heads, uint32_t dim, uint32_t row_stride,
                  std::span<const float> weight, float epsilon);

void AddRows(const Compute& compute, float* x, const float* y, uint64_t count);  // x += y
void AddScaledRows(const Compute& compute, float* x, float scale, const float* y,
                   uint64_t count);                                                           // x += scale * y, fused
void ScaleRows(const Compute& compute, float* x, float scale, uint64_t count);                // x *= scale
void SiluMultiply(const Compute& compute, float* gate, const float* up, uint64_t count);      // gate = silu(gate) * up
void GeluTanhMultiply(const Compute& compute, float* gate, const float* up, uint64_t count);  // tanh form
void SoftCap(const Compute& compute, float* x, float cap, uint64_t count);                    // x = cap * tanh(x / cap)

// How positions turn into angles, resolved from a model's metadata once.
enum class RopeType : uint8_t { kNone = 0, kNormal = 1, kNeox = 2 };  // pairs (2i, 2i+1) or (i, i + dims/2)
struct RopeParameters {
  RopeType type = RopeType::kNone;
  uint32_t dims = 0;  // rotated dimensions of a head; the rest is copied
  float base = 10000.0f;
  float scale = 1.0f;  // linear: position * scale (1 / factor)
  // YaRN (Peng et al., 2023); ext_factor 0 = off.
  float ext_factor = 0.0f;
  float attn_factor = 1.0f;
  float beta_fast = 32.0f;
  float beta_slow = 1.0f;
  uint32_t original_context = 0;
  std::span<const float> factors;  // [dims / 2] per-dimension divisors, or empty
};
// Table of one position: out[2 * i] = cos, out[2 * i + 1] = sin of pair i < dims / 2, the attention
// factor included. Angles are computed in double, so that they are the same everywhere.
void RopeTable(const RopeParameters& rope, uint32_t position, float* out);
// Rotates heads in place; x: [n][row_stride], heads of head_dim floats; tables: [n][dims] by RopeTable.
void Rope(const Compute& compute, const RopeParameters& rope, const float* tables, float* x, uint32_t n, uint32_t heads,
          uint32_t head_dim, uint32_t row_stride);

// Index of the largest value, the first of equals; values.size() if one is NaN.
uint32_t ArgMax(std::span<const float> values);
bool AllFinite(std::span<const float> values);
// ln(sum(exp(x))), in double, in index order: for log-probabilities.
double LogSumExp(std::span<const float> values);

// Scalar definitions that every instruction set must match bit for bit.
float ExpReference(float x);
float TanhReference(float x);

}  // namespace reprise
