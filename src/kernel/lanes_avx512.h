// Sixteen float lanes as one 512-bit register; the members and the bits of LanesPortable. Only for
// sources that are compiled for AVX-512 (F, BW, DQ, VL).
//
// Ownership: values. Threads: any. Errors: none.
#pragma once

#include <immintrin.h>

#include <cstdint>

// gcc 12 takes the undefined operand inside its own intrinsics for one of ours.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"

namespace reprise {

struct LanesAvx512 {
  static constexpr uint32_t kLanes = 16;
  __m512 v;

#define REPRISE_LANES [[gnu::always_inline]] static inline
  REPRISE_LANES LanesAvx512 Load(const float* from) { return {_mm512_loadu_ps(from)}; }
  REPRISE_LANES __m256i Half(const uint16_t* from) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  }
  REPRISE_LANES LanesAvx512 LoadF16(const uint16_t* from) { return {_mm512_cvtph_ps(Half(from))}; }
  REPRISE_LANES LanesAvx512 LoadBf16(const uint16_t* from) {
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(Half(from)), 16))};
  }
  REPRISE_LANES LanesAvx512 Set(float x) { return {_mm512_set1_ps(x)}; }
  [[gnu::always_inline]] inline void Store(float* to) const { _mm512_storeu_ps(to, v); }
  [[gnu::always_inline]] inline void StoreF16(uint16_t* to) const {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
  }
  [[gnu::always_inline]] inline void StoreBf16(uint16_t* to) const {
    const __m512i bits = _mm512_castps_si512(v);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
    const __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
    const __m512i wide = _mm512_srli_epi32(_mm512_mask_blend_epi32(nan, rounded, quiet), 16);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtepi32_epi16(wide));
  }

  REPRISE_LANES LanesAvx512 Add(LanesAvx512 a, LanesAvx512 b) { return {_mm512_add_ps(a.v, b.v)}; }
  REPRISE_LANES LanesAvx512 Sub(LanesAvx512 a, LanesAvx512 b) { return {_mm512_sub_ps(a.v, b.v)}; }
  REPRISE_LANES LanesAvx512 Mul(LanesAvx512 a, LanesAvx512 b) { return {_mm512_mul_ps(a.v, b.v)}; }
  REPRISE_LANES LanesAvx512 Div(LanesAvx512 a, LanesAvx512 b) { return {_mm512_div_ps(a.v, b.v)}; }
  REPRISE_LANES LanesAvx512 Fma(LanesAvx512 a, LanesAvx512 b, LanesAvx512 c) {
    return {_mm512_fmadd_ps(a.v, b.v, c.v)};
  }
  REPRISE_LANES LanesAvx512 Max(LanesAvx512 a, LanesAvx512 b) { return {_mm512_max_ps(a.v, b.v)}; }
  REPRISE_LANES LanesAvx512 Min(LanesAvx512 a, LanesAvx512 b) { return {_mm512_min_ps(a.v, b.v)}; }
  REPRISE_LANES LanesAvx512 Abs(LanesAvx512 a) { return {_mm512_abs_ps(a.v)}; }
  REPRISE_LANES LanesAvx512 CopySign(LanesAvx512 magnitude, LanesAvx512 sign) {
    const __m512 bit = _mm512_set1_ps(-0.0f);
    return {_mm512_or_ps(_mm512_andnot_ps(bit, magnitude.v), _mm512_and_ps(bit, sign.v))};
  }
  REPRISE_LANES LanesAvx512 SelectLess(LanesAvx512 a, LanesAvx512 b, LanesAvx512 yes, LanesAvx512 no) {
    return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ), no.v, yes.v)};
  }
  REPRISE_LANES LanesAvx512 ExponentFromLowBits(LanesAvx512 a) {
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(a.v), 23))};
  }
  REPRISE_LANES float TreeSum(LanesAvx512 a) {
    const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
  }
  REPRISE_LANES float Largest(LanesAvx512 a) {
    const __m256 eight = _mm256_max_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
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
