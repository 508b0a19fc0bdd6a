// Sixteen float lanes as two 256-bit registers; the members and the bits of LanesPortable. Only for
// sources that are compiled for AVX2, FMA and F16C.
//
// Ownership: values. Threads: any. Errors: none.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace reprise {

struct LanesAvx2 {
  static constexpr uint32_t kLanes = 16;
  __m256 lo, hi;

#define REPRISE_LANES [[gnu::always_inline]] static inline
  REPRISE_LANES LanesAvx2 Load(const float* from) { return {_mm256_loadu_ps(from), _mm256_loadu_ps(from + 8)}; }
  REPRISE_LANES __m128i Half(const uint16_t* from) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from)); }
  REPRISE_LANES LanesAvx2 LoadF16(const uint16_t* from) {
    return {_mm256_cvtph_ps(Half(from)), _mm256_cvtph_ps(Half(from + 8))};
  }
  REPRISE_LANES LanesAvx2 LoadBf16(const uint16_t* from) {
    return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(Half(from)), 16)),
            _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(Half(from + 8)), 16))};
  }
  REPRISE_LANES LanesAvx2 Set(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
  [[gnu::always_inline]] inline void Store(float* to) const {
    _mm256_storeu_ps(to, lo);
    _mm256_storeu_ps(to + 8, hi);
  }
  [[gnu::always_inline]] inline void StoreF16(uint16_t* to) const {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm256_cvtps_ph(lo, _MM_FROUND_TO_NEAREST_INT));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + 8), _mm256_cvtps_ph(hi, _MM_FROUND_TO_NEAREST_INT));
  }
  [[gnu::always_inline]] inline void StoreBf16(uint16_t* to) const {
    const __m256i packed = _mm256_packus_epi32(RoundToBf16(lo), RoundToBf16(hi));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm256_permute4x64_epi64(packed, 0xd8));
  }
  REPRISE_LANES __m256i RoundToBf16(__m256 x) {
    const __m256i bits = _mm256_castps_si256(x);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    return _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16);
  }

  REPRISE_LANES LanesAvx2 Add(LanesAvx2 a, LanesAvx2 b) {
    return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)};
  }
  REPRISE_LANES LanesAvx2 Sub(LanesAvx2 a, LanesAvx2 b) {
    return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)};
  }
  REPRISE_LANES LanesAvx2 Mul(LanesAvx2 a, LanesAvx2 b) {
    return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)};
  }
  REPRISE_LANES LanesAvx2 Div(LanesAvx2 a, LanesAvx2 b) {
    return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)};
  }
  REPRISE_LANES LanesAvx2 Fma(LanesAvx2 a, LanesAvx2 b, LanesAvx2 c) {
    return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
  }
  REPRISE_LANES LanesAvx2 Max(LanesAvx2 a, LanesAvx2 b) {
    return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)};
  }
  REPRISE_LANES LanesAvx2 Min(LanesAvx2 a, LanesAvx2 b) {
    return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)};
  }
  REPRISE_LANES LanesAvx2 Abs(LanesAvx2 a) {
    const __m256 sign = _mm256_set1_ps(-0.0f);
    return {_mm256_andnot_ps(sign, a.lo), _mm256_andnot_ps(sign, a.hi)};
  }
  REPRISE_LANES LanesAvx2 CopySign(LanesAvx2 magnitude, LanesAvx2 sign) {
    const __m256 bit = _mm256_set1_ps(-0.0f);
    return {_mm256_or_ps(_mm256_andnot_ps(bit, magnitude.lo), _mm256_and_ps(bit, sign.lo)),
            _mm256_or_ps(_mm256_andnot_ps(bit, magnitude.hi), _mm256_and_ps(bit, sign.hi))};
  }
  REPRISE_LANES LanesAvx2 SelectLess(LanesAvx2 a, LanesAvx2 b, LanesAvx2 yes, LanesAvx2 no) {
    return {_mm256_blendv_ps(no.lo, yes.lo, _mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ)),
            _mm256_blendv_ps(no.hi, yes.hi, _mm256_cmp_ps(a.hi, b.hi, _CMP_LT_OQ))};
  }
  REPRISE_LANES LanesAvx2 ExponentFromLowBits(LanesAvx2 a) {
    return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(a.lo), 23)),
            _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(a.hi), 23))};
  }
  REPRISE_LANES float TreeSum(LanesAvx2 a) {
    const __m256 eight = _mm256_add_ps(a.lo, a.hi);
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
  }
  REPRISE_LANES float Largest(LanesAvx2 a) {
    const __m256 eight = _mm256_max_ps(a.lo, a.hi);
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
  }
  // Into the second cache: the first one's few outstanding misses would limit reading to 12 GB/s per
  // thread (Zen 4).
  REPRISE_LANES void Prefetch(const void* at) { _mm_prefetch(static_cast<const char*>(at), _MM_HINT_T1); }
#undef REPRISE_LANES
};

}  // namespace reprise
