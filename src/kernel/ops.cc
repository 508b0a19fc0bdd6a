#include "kernel/ops.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/bytes.h"
#include "base/check.h"
#include "kernel/ops_rows.h"
#include "kernel/run_pieces.h"

namespace reprise {
namespace {

// A piece is worth waking a worker for: some microseconds.
constexpr uint64_t kPlainPiece = 1 << 15;     // floats of an addition
constexpr uint64_t kFunctionPiece = 1 << 12;  // floats of exp or tanh

const OpsTable& TableOf(Isa isa) {
  switch (isa) {
    case Isa::kAvx2:
      return kOpsAvx2;
    case Isa::kAvx512:
      return kOpsAvx512;
    case Isa::kPortable:
      break;
  }
  return kOpsPortable;
}

// body(first, count) for pieces of up to `piece` elements.
template <class Body>
void Split(const Compute& compute, uint64_t count, uint64_t piece, Body body) {
  RunPieces(compute, static_cast<uint32_t>(CeilDiv(count, piece)), [&](uint32_t index, uint32_t) {
    const uint64_t first = index * piece;
    body(first, std::min(piece, count - first));
  });
}

}  // namespace

void RmsNorm(const Compute& compute, const float* x, float* out, uint32_t n, uint32_t dim, uint32_t stride,
             std::span<const float> weight, float epsilon) {
  CHECK_EQ(weight.size(), dim);
  const OpsTable& table = TableOf(compute.isa);
  Split(compute, n, std::max<uint64_t>(1, kPlainPiece / dim), [&](uint64_t first, uint64_t rows) {
    for (uint64_t r = first; r < first + rows; ++r) {
      table.rms_norm(x + r * stride, out + r * stride, weight.data(), dim, epsilon);
    }
  });
}

void RmsNormHeads(const Compute& compute, float* x, uint32_t n, uint32_t heads, uint32_t dim, uint32_t row_stride,
                  std::span<const float> weight, float epsilon) {
  CHECK_EQ(weight.size(), dim);
  const OpsTable& table = TableOf(compute.isa);
  const uint64_t row_floats = uint64_t{heads} * dim;
  Split(compute, n, std::max<uint64_t>(1, kPlainPiece / row_floats), [&](uint64_t first, uint64_t rows) {
    for (uint64_t r = first; r < first + rows; ++r) {
      for (uint32_t h = 0; h < heads; ++h) {
        float* head = x + r * row_stride + h * dim;
        table.rms_norm(head, head, weight.data(), dim, epsilon);
      }
    }
  });
}

void AddRows(const Compute& compute, float* x, const float* y, uint64_t count) {
  Split(compute, count, kPlainPiece, [&](uint64_t first, uint64_t length) {
    for (uint64_t i = first; i < first + length; ++i) x[i] += y[i];
  });
}

void AddScaledRows(const Compute& compute, float* x, float scale, const float* y, uint64_t count) {
  const OpsTable& table = TableOf(compute.isa);
  Split(compute, count, kPlainPiece,
        [&](uint64_t first, uint64_t length) { table.add_scaled(x + first, scale, y + first, length); });
}

void ScaleRows(const Compute& compute, float* x, float scale, uint64_t count) {
  Split(compute, count, kPlainPiece, [&](uint64_t first, uint64_t length) {
    for (uint64_t i = first; i < first + length; ++i) x[i] *= scale;
  });
}

void SiluMultiply(const Compute& compute, float* gate, const float* up, uint64_t count) {
  const OpsTable& table = TableOf(compute.isa);
  Split(compute, count, kFunctionPiece,
        [&](uint64_t first, uint64_t length) { table.silu_multiply(gate + first, up + first, length); });
}

void GeluTanhMultiply(const Compute& compute, float* gate, const float* up, uint64_t count) {
  const OpsTable& table = TableOf(compute.isa);
  Split(compute, count, kFunctionPiece,
        [&](uint64_t first, uint64_t length) { table.gelu_tanh_multiply(gate + first, up + first, length); });
}

void SoftCap(const Compute& compute, float* x, float cap, uint64_t count) {
  const OpsTable& table = TableOf(compute.isa);
  Split(compute, count, kFunctionPiece,
        [&](uint64_t first, uint64_t length) { table.soft_cap(x + first, cap, length); });
}

uint32_t ArgMax(std::span<const float> values) {
  size_t best = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    if (std::isnan(values[i])) return static_cast<uint32_t>(values.size());
    if (values[i] > values[best]) best = i;
  }
  return static_cast<uint32_t>(best);
}

bool AllFinite(std::span<const float> values) {
  constexpr uint32_t kExponent = 0x7f800000;
  uint32_t infinite = 0;  // no early exit: a loop without a branch reads memory at full speed
  for (const float value : values) infinite |= (std::bit_cast<uint32_t>(value) & kExponent) == kExponent;
  return infinite == 0;
}

double LogSumExp(std::span<const float> values) {
  double most = -INFINITY;
  for (const float value : values) most = std::max<double>(most, value);
  if (!std::isfinite(most)) return most;
  double sum = 0.0;
  for (const float value : values) sum += std::exp(value - most);
  return most + std::log(sum);
}

float ExpReference(float x) {
  kOpsPortable.exp(&x, 1);
  return x;
}

float TanhReference(float x) {
  kOpsPortable.tanh(&x, 1);
  return x;
}

}  // namespace reprise
