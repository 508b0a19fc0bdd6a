// Products with weight types that have no kernel of ours: ggml's dot product, one row of W and one row
// of x at a time, so that an output still depends on its two rows alone. The bits are those of the
// ggml build, which the numerics name.
//
// Ownership: views. Threads: see matmul.h. Errors: an unknown type aborts (Multipliable is asked first).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernel/matmul.h"

namespace reprise {

// `scratch` holds `n` rows of x in the type that the weight's dot product wants.
void MultiplyGgml(const Compute& compute, const float* x, uint32_t x_stride, uint32_t n, const Product& product,
                  std::span<std::byte> scratch);

}  // namespace reprise
