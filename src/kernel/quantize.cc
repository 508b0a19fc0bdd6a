#include "kernel/quantize.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

namespace reprise {
namespace {

// The definition. Magnitudes are compared as integers, where NaN and infinity are the largest.
template <int kColumns>
float QuantizeBlock(const float* x, int8_t* q) {
  uint32_t bits = 0;
  for (int k = 0; k < kColumns; ++k) bits = std::max(bits, std::bit_cast<uint32_t>(x[k]) & 0x7fffffff);
  const float amax = std::bit_cast<float>(bits);
  std::memset(q, 0, kColumns);
  if (!std::isfinite(amax)) return std::numeric_limits<float>::quiet_NaN();
  if (amax < 1e-30f) return 0.0f;
  const float inverse = 127.0f / amax;
  for (int k = 0; k < kColumns; ++k) q[k] = static_cast<int8_t>(std::lrint(x[k] * inverse));
  return amax / 127.0f;
}

}  // namespace

void QuantizeRow256(Isa isa, const float* x, uint32_t blocks, std::byte* first, uint64_t step_bytes) {
#if defined(__x86_64__)
  if (isa != Isa::kPortable) return QuantizeRow256Avx2(x, blocks, first, step_bytes, isa == Isa::kAvx2);
#endif
  for (uint32_t b = 0; b < blocks; ++b) {
    auto& block = *reinterpret_cast<InputBlock256*>(first + b * step_bytes);
    block.d = QuantizeBlock<256>(x + b * 256, block.q);
  }
}

void QuantizeRow32(Isa isa, const float* x, uint32_t blocks, std::byte* first, uint64_t step_bytes) {
#if defined(__x86_64__)
  if (isa != Isa::kPortable) return QuantizeRow32Avx2(x, blocks, first, step_bytes, isa == Isa::kAvx2);
#endif
  for (uint32_t b = 0; b < blocks; ++b) {
    auto& block = *reinterpret_cast<InputBlock32*>(first + b * step_bytes);
    block.d = QuantizeBlock<32>(x + b * 32, block.q);
  }
}

}  // namespace reprise
