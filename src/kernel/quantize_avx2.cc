// Input quantisation with 256-bit vectors; used by AVX-512 too (it is a small part of any product).
#if defined(__x86_64__)
#include <immintrin.h>

#include <cstring>

#include "kernel/quantize.h"

namespace reprise {
namespace {

#define REPRISE_INLINE __attribute__((always_inline)) inline

REPRISE_INLINE uint32_t MaxLane(__m256i v) {
  __m128i m = _mm_max_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0x4e));
  m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0xb1));
  return static_cast<uint32_t>(_mm_cvtsi128_si32(m));
}

// The rule of quantize.h; same bits as its scalar definition.
template <int kColumns>
REPRISE_INLINE float QuantizeBlock(const float* x, int8_t* q) {
  const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
  __m256i largest[4] = {};
  for (int k = 0; k < kColumns; k += 32) {
    for (int j = 0; j < 4; ++j) {
      const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x + k + j * 8));
      largest[j] = _mm256_max_epi32(largest[j], _mm256_and_si256(bits, magnitude));
    }
  }
  const uint32_t bits =
      MaxLane(_mm256_max_epi32(_mm256_max_epi32(largest[0], largest[1]), _mm256_max_epi32(largest[2], largest[3])));
  float amax;
  std::memcpy(&amax, &bits, sizeof(amax));
  if (bits >= 0x7f800000 || amax < 1e-30f) {
    std::memset(q, 0, kColumns);
    return bits >= 0x7f800000 ? __builtin_nanf("") : 0.0f;
  }
  const __m256 inverse = _mm256_set1_ps(127.0f / amax);
  for (int k = 0; k < kColumns; k += 32) {
    __m256i v[4];
    for (int j = 0; j < 4; ++j) {
      v[j] = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + k + j * 8), inverse));
    }
    const __m256i packed = _mm256_packs_epi16(_mm256_packs_epi32(v[0], v[1]), _mm256_packs_epi32(v[2], v[3]));
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);  // undoes the packing per 128-bit half
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(q + k), _mm256_permutevar8x32_epi32(packed, order));
  }
  return amax / 127.0f;
}

// Sums over 16 columns each: low half of an element is columns 0 and 1 of its 4-groups, high half 2 and 3.
struct PairSums {
  int16_t low[2], high[2];
};
REPRISE_INLINE PairSums SumPairs(const int8_t* q) {
  const __m256i codes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(q));
  __m256i pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), codes);
  pairs = _mm256_add_epi16(pairs, _mm256_shuffle_epi32(pairs, 0x4e));
  pairs = _mm256_add_epi16(pairs, _mm256_shuffle_epi32(pairs, 0xb1));
  const int first = _mm_cvtsi128_si32(_mm256_castsi256_si128(pairs));
  const int second = _mm_cvtsi128_si32(_mm256_extracti128_si256(pairs, 1));
  return {{static_cast<int16_t>(first), static_cast<int16_t>(second)},
          {static_cast<int16_t>(first >> 16), static_cast<int16_t>(second >> 16)}};
}

REPRISE_INLINE uint32_t Start(int offset, int low, int high, bool in_pairs) {
  if (!in_pairs) return static_cast<uint32_t>(-offset * (low + high));
  return static_cast<uint16_t>(-offset * low) | static_cast<uint32_t>(static_cast<uint16_t>(-offset * high)) << 16;
}

}  // namespace

void QuantizeRow256Avx2(const float* x, uint32_t blocks, std::byte* first, uint64_t step_bytes, bool starts_in_pairs) {
  for (uint32_t b = 0; b < blocks; ++b, x += 256, first += step_bytes) {
    auto& block = *reinterpret_cast<InputBlock256*>(first);
    block.d = QuantizeBlock<256>(x, block.q);
    for (int s = 0; s < 8; ++s) {
      const PairSums sums = SumPairs(block.q + s * 32);
      block.start32[s * 2] = Start(32, sums.low[0], sums.high[0], starts_in_pairs);
      block.start32[s * 2 + 1] = Start(32, sums.low[1], sums.high[1], starts_in_pairs);
      block.sum[s] = static_cast<int16_t>(sums.low[0] + sums.high[0] + sums.low[1] + sums.high[1]);
    }
  }
}

void QuantizeRow32Avx2(const float* x, uint32_t blocks, std::byte* first, uint64_t step_bytes, bool starts_in_pairs) {
  for (uint32_t b = 0; b < blocks; ++b, x += 32, first += step_bytes) {
    auto& block = *reinterpret_cast<InputBlock32*>(first);
    block.d = QuantizeBlock<32>(x, block.q);
    const PairSums sums = SumPairs(block.q);
    const int low = sums.low[0] + sums.low[1], high = sums.high[0] + sums.high[1];
    block.sum = static_cast<float>(low + high);
    block.start16 = Start(16, low, high, starts_in_pairs);
    block.start128 = -128 * (low + high);
  }
}

}  // namespace reprise
#endif
