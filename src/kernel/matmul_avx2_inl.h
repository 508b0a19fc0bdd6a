// What the two AVX2 sources share: loading codes, scales and minimums of packed blocks, 8 rows at a
// time. Included by *_avx2.cc only; everything has internal linkage, because code compiled for an
// instruction set must not be picked by the linker for machines without it.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "kernel/matmul_tile.h"

namespace reprise {
namespace {

#define REPRISE_INLINE __attribute__((always_inline)) inline
#define REPRISE_UNROLL _Pragma("GCC unroll 16")
// gcc 12 spills the wrong registers of such kernels unless the running sums are pinned (0.8 x -> 1.5 x).
#define REPRISE_PIN(v) asm volatile("" : "+x"(v))
// Keeps an array in memory, where it costs less than what it would push out of registers.
#define REPRISE_IN_MEMORY(pointer) asm volatile("" : "+r"(pointer))

// Sums of products are kept in int16 over a run of columns: the largest that cannot overflow. A lane
// sums half of the run: 16 x 15 x 127 and 8 x 31 x 127 fit; with an offset the true sum counts, so
// 16 x 16 x 127 of Q5_0 and 8 x 32 x 127 of Q6_K do too, whatever wraps on the way.
template <class Packed>
inline constexpr int kRun = 32;
template <>
inline constexpr int kRun<packed::Q5_1> = 16;
template <>
inline constexpr int kRun<packed::Q5_K> = 16;
template <>
inline constexpr int kRun<packed::Q6_K> = 16;

REPRISE_INLINE __m256i Load(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
REPRISE_INLINE __m256i Broadcast(const void* p) {
  int value;
  __builtin_memcpy(&value, p, sizeof(value));
  return _mm256_set1_epi32(value);
}
REPRISE_INLINE __m256 Halfs(const uint16_t* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
REPRISE_INLINE __m256i LowNibbles(__m256i v) { return _mm256_and_si256(v, _mm256_set1_epi8(15)); }

// The codes of rows 8v ... 8v + 7 in 4-group i < 8 of 32 columns.
REPRISE_INLINE __m256i Nibbles(const uint8_t (*q)[64], int i, int v) {
  const __m256i line = Load(q[i % 4] + v * 32);
  return LowNibbles(i < 4 ? line : _mm256_srli_epi16(line, 4));
}
REPRISE_INLINE __m256i FiveBits(const uint8_t (*q)[64], const uint8_t* high, int i, int v) {
  const __m256i bits = Load(high + v * 32);
  const __m256i shifted = i < 4 ? _mm256_slli_epi16(bits, 4 - i) : _mm256_srli_epi16(bits, i - 4);
  return _mm256_or_si256(Nibbles(q, i, v), _mm256_and_si256(shifted, _mm256_set1_epi8(16)));
}
REPRISE_INLINE __m256i Code(const packed::Q4_0& w, int, int i, int v) { return Nibbles(w.q, i, v); }
REPRISE_INLINE __m256i Code(const packed::Q4_1& w, int, int i, int v) { return Nibbles(w.q, i, v); }
REPRISE_INLINE __m256i Code(const packed::Q5_0& w, int, int i, int v) { return FiveBits(w.q, w.high, i, v); }
REPRISE_INLINE __m256i Code(const packed::Q5_1& w, int, int i, int v) { return FiveBits(w.q, w.high, i, v); }
REPRISE_INLINE __m256i Code(const packed::Q4_K& w, int s, int i, int v) { return Nibbles(w.sub[s].q, i, v); }
REPRISE_INLINE __m256i Code(const packed::Q5_K& w, int s, int i, int v) {
  return FiveBits(w.sub[s].q, w.sub[s].high, i, v);
}
REPRISE_INLINE __m256i Code(const packed::Q6_K& w, int s, int i, int v) {
  const __m256i bits = Load(w.pair[s].high[i / 4] + v * 32);
  const int shift = 4 - packed::kHighShift[i % 4];
  const __m256i shifted = shift >= 0 ? _mm256_slli_epi16(bits, shift) : _mm256_srli_epi16(bits, -shift);
  return _mm256_or_si256(Nibbles(w.pair[s].q, i, v), _mm256_and_si256(shifted, _mm256_set1_epi8(0x30)));
}
// Q8_0 as signed bytes.
REPRISE_INLINE __m256i SignedCode(const packed::Q8_0& w, int i, int v) {
  return _mm256_xor_si256(Load(w.q[i] + v * 32), _mm256_set1_epi8(-128));
}

// Integer scales of a block of 256 as int16 pairs (scale, scale), rows 8v ... 8v + 7; minimums of
// sub-blocks 2p and 2p + 1 as pairs.
REPRISE_INLINE __m256i Spread(const void* bytes, __m256i order) {
  int64_t eight;
  __builtin_memcpy(&eight, bytes, sizeof(eight));
  return _mm256_shuffle_epi8(_mm256_set1_epi64x(eight), order);
}
template <class Packed>
struct Scales {  // Q4_K, Q5_K
  alignas(32) uint8_t scales[8][16];
  alignas(32) uint8_t mins[8][16];

  REPRISE_INLINE explicit Scales(const Packed& w) {
    const __m256i six = _mm256_set1_epi8(63), upper = _mm256_set1_epi8(0x30);
    REPRISE_UNROLL for (int j = 0; j < 4; j += 2) {
      const __m256i a = Load(w.scales[j]), b = Load(w.scales[4 + j]), c = Load(w.scales[8 + j]);
      const __m256i a_high = _mm256_and_si256(_mm256_srli_epi16(a, 2), upper);
      const __m256i b_high = _mm256_and_si256(_mm256_srli_epi16(b, 2), upper);
      Store(scales[j], _mm256_and_si256(a, six));
      Store(mins[j], _mm256_and_si256(b, six));
      Store(scales[4 + j], _mm256_or_si256(LowNibbles(c), a_high));
      Store(mins[4 + j], _mm256_or_si256(LowNibbles(_mm256_srli_epi16(c, 4)), b_high));
    }
  }
  REPRISE_INLINE static void Store(uint8_t* to, __m256i v) { _mm256_store_si256(reinterpret_cast<__m256i*>(to), v); }
  REPRISE_INLINE __m256i Scale(int s, int v) const {
    const __m256i order = _mm256_setr_epi8(0, -1, 0, -1, 1, -1, 1, -1, 2, -1, 2, -1, 3, -1, 3, -1, 4, -1, 4, -1, 5, -1,
                                           5, -1, 6, -1, 6, -1, 7, -1, 7, -1);
    return Spread(scales[s] + v * 8, order);
  }
  REPRISE_INLINE __m256i MinPair(int p, int v) const {
    const __m128i even = _mm_load_si128(reinterpret_cast<const __m128i*>(mins[2 * p]));
    const __m128i odd = _mm_load_si128(reinterpret_cast<const __m128i*>(mins[2 * p + 1]));
    return _mm256_cvtepu8_epi16(v == 0 ? _mm_unpacklo_epi8(even, odd) : _mm_unpackhi_epi8(even, odd));
  }
};
template <>
struct Scales<packed::Q6_K> {
  const packed::Q6_K& w;
  REPRISE_INLINE explicit Scales(const packed::Q6_K& w) : w(w) {}
  REPRISE_INLINE __m256i Scale(int s, int v) const {
    const __m256i order = _mm256_setr_epi8(-1, 0, -1, 0, -1, 1, -1, 1, -1, 2, -1, 2, -1, 3, -1, 3, -1, 4, -1, 4, -1, 5,
                                           -1, 5, -1, 6, -1, 6, -1, 7, -1, 7);
    return _mm256_srai_epi16(Spread(w.scales[s] + v * 8, order), 8);
  }
};

// What the int16 sums of a run start at, to take the offset off.
template <class Packed>
REPRISE_INLINE __m256i Start(const InputBlock32& x) {
  static_assert(Packed::kOffset == 8 || Packed::kOffset == 16);
  const __m256i start = Broadcast(&x.start16);
  return Packed::kOffset == 8 ? _mm256_srai_epi16(start, 1) : start;
}

}  // namespace

// Many inputs: unpacks a tile's weights once (matmul_unpacked_avx2.cc).
void MultiplyUnpackedTileAvx2(const Tile& tile);

}  // namespace reprise
