#include "kernel/matmul_ggml.h"

#include <algorithm>

#include "base/bytes.h"
#include "base/check.h"
#include "ggml-cpu.h"
#include "ggml.h"
#include "kernel/run_pieces.h"

namespace reprise {
namespace {

constexpr uint32_t kRowsPerPiece = 32;

}  // namespace

void MultiplyGgml(const Compute& compute, const float* x, uint32_t x_stride, uint32_t n, const Product& product,
                  std::span<std::byte> scratch) {
  static const bool initialized = (ggml_cpu_init(), true);
  CHECK(initialized);
  const PackedWeight& weight = *product.weight;
  const ggml_type_traits_cpu* traits = ggml_get_type_traits_cpu(static_cast<ggml_type>(weight.type));
  const auto from_float = ggml_get_type_traits_cpu(traits->vec_dot_type)->from_float;
  const uint64_t input_bytes = ggml_row_size(traits->vec_dot_type, weight.cols);
  const uint64_t row_bytes = RowBytes(weight.type, weight.cols);
  CHECK_LE(n * input_bytes, scratch.size());

  RunPieces(compute, n, [&](uint32_t i, uint32_t) {
    from_float(x + uint64_t{i} * x_stride, scratch.data() + i * input_bytes, weight.cols);
  });
  const auto pieces = static_cast<uint32_t>(CeilDiv(weight.rows, kRowsPerPiece));
  RunPieces(compute, pieces, [&](uint32_t piece, uint32_t) {
    const uint32_t last = std::min(weight.rows, (piece + 1) * kRowsPerPiece);
    for (uint32_t row = piece * kRowsPerPiece; row < last; ++row) {
      for (uint32_t i = 0; i < n; ++i) {
        float sum = 0.0f;
        traits->vec_dot(static_cast<int>(weight.cols), &sum, 0, weight.data + row * row_bytes, 0,
                        scratch.data() + i * input_bytes, 0, 1);
        product.out[uint64_t{i} * product.out_stride + row] = product.bias != nullptr ? sum + product.bias[row] : sum;
      }
    }
  });
}

}  // namespace reprise
