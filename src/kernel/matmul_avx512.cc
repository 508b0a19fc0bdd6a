// Products with 512-bit vectors: one register holds 16 rows, vpdpbusd adds 4 columns of codes times
// inputs straight into int32. Weights are unpacked in registers; a kernel keeps all its sums in
// registers over all columns, so there is nothing between the packed weights and the result.
#if defined(__x86_64__)
// gcc 12 takes the undefined pass-through operand of unmasked intrinsics for a mistake of ours.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>

#include <type_traits>

#include "kernel/matmul_tile.h"

namespace reprise {
namespace {

#define REPRISE_INLINE __attribute__((always_inline)) inline
#define REPRISE_UNROLL _Pragma("GCC unroll 16")

// One input reads K-quants at the speed of memory if a part of the lines is fetched ahead into the
// second cache: 30 GB/s, against 22 without, 22 with all lines (the hardware's own prefetcher then sees
// no misses to learn from) and 28 into the first cache. Blocks of 32 columns are fastest without.
constexpr int kPrefetchBytes = 2048;
constexpr int kPrefetchLines = 3;  // of every 32 columns
constexpr int kInputsAtMemorySpeed = 4;

REPRISE_INLINE __m512i Load(const void* p) { return _mm512_loadu_si512(p); }
// A line of codes. Blocks start at half lines, and a 64-byte load across two lines waits for both: at the
// speed of memory two half loads are 3 to 10 % faster; for many inputs 1 to 3 % slower.
template <bool kHalves>
REPRISE_INLINE __m512i LoadLine(const uint8_t* p) {
  if constexpr (!kHalves) return Load(p);
  __m256i low = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  __m256i high = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 32));
  asm("" : "+v"(low), "+v"(high));  // or gcc makes them one load again
  return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
}
REPRISE_INLINE __m512i Broadcast(const void* p) {
  int value;
  __builtin_memcpy(&value, p, sizeof(value));
  return _mm512_set1_epi32(value);
}
REPRISE_INLINE __m512 Halfs(const uint16_t* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
REPRISE_INLINE __m512i LowNibbles(__m512i v) { return _mm512_and_si512(v, _mm512_set1_epi8(15)); }
// (v & mask) | nibbles
REPRISE_INLINE __m512i OrMasked(__m512i nibbles, __m512i v, __m512i mask) {
  return _mm512_ternarylogic_epi32(nibbles, v, mask, 0xf8);
}

// The codes of 4-group i < 8 of 32 columns.
template <bool kHalves>
REPRISE_INLINE __m512i Nibbles(const uint8_t (*q)[64], int i) {
  const __m512i line = LoadLine<kHalves>(q[i % 4]);
  return LowNibbles(i < 4 ? line : _mm512_srli_epi16(line, 4));
}
template <bool kHalves>
REPRISE_INLINE __m512i FiveBits(const uint8_t (*q)[64], const uint8_t* high, int i) {
  const __m512i bits = LoadLine<kHalves>(high);
  const __m512i shifted = i < 4 ? _mm512_slli_epi16(bits, 4 - i) : _mm512_srli_epi16(bits, i - 4);
  return OrMasked(Nibbles<kHalves>(q, i), shifted, _mm512_set1_epi8(16));
}
template <bool kHalves>
REPRISE_INLINE __m512i Code(const packed::Q4_0& w, int, int i) {
  return Nibbles<kHalves>(w.q, i);
}
template <bool kHalves>
REPRISE_INLINE __m512i Code(const packed::Q4_1& w, int, int i) {
  return Nibbles<kHalves>(w.q, i);
}
template <bool kHalves>
REPRISE_INLINE __m512i Code(const packed::Q5_0& w, int, int i) {
  return FiveBits<kHalves>(w.q, w.high, i);
}
template <bool kHalves>
REPRISE_INLINE __m512i Code(const packed::Q5_1& w, int, int i) {
  return FiveBits<kHalves>(w.q, w.high, i);
}
template <bool kHalves>
REPRISE_INLINE __m512i Code(const packed::Q8_0& w, int, int i) {
  return LoadLine<kHalves>(w.q[i]);
}
template <bool kHalves>
REPRISE_INLINE __m512i Code(const packed::Q4_K& w, int s, int i) {
  return Nibbles<kHalves>(w.sub[s].q, i);
}
template <bool kHalves>
REPRISE_INLINE __m512i Code(const packed::Q5_K& w, int s, int i) {
  return FiveBits<kHalves>(w.sub[s].q, w.sub[s].high, i);
}
template <bool kHalves>
REPRISE_INLINE __m512i Code(const packed::Q6_K& w, int s, int i) {
  const __m512i bits = LoadLine<kHalves>(w.pair[s].high[i / 4]);
  const int shift = 4 - packed::kHighShift[i % 4];
  const __m512i shifted = shift >= 0 ? _mm512_slli_epi16(bits, shift) : _mm512_srli_epi16(bits, -shift);
  return OrMasked(Nibbles<kHalves>(w.pair[s].q, i), shifted, _mm512_set1_epi8(0x30));
}

// Integer scales of a block, one vector of 16 rows per sub-block, and minimums of two neighbouring
// sub-blocks as int16 pairs.
template <class Packed>
struct Scales {  // Q4_K, Q5_K
  alignas(64) uint8_t scales[8][16];
  alignas(64) uint8_t mins[8][16];

  REPRISE_INLINE explicit Scales(const Packed& w) {
    const __m512i a = Load(w.scales[0]), b = Load(w.scales[4]), c = Load(w.scales[8]);
    const __m512i six = _mm512_set1_epi8(63), upper = _mm512_set1_epi8(0x30);
    _mm512_store_si512(scales[0], _mm512_and_si512(a, six));
    _mm512_store_si512(mins[0], _mm512_and_si512(b, six));
    _mm512_store_si512(scales[4], OrMasked(LowNibbles(c), _mm512_srli_epi16(a, 2), upper));
    _mm512_store_si512(mins[4], OrMasked(LowNibbles(_mm512_srli_epi16(c, 4)), _mm512_srli_epi16(b, 2), upper));
  }
  REPRISE_INLINE __m512i Scale(int s) const {
    return _mm512_cvtepu8_epi32(_mm_load_si128(reinterpret_cast<const __m128i*>(scales[s])));
  }
  REPRISE_INLINE __m512i MinPair(int p) const {
    const __m128i even = _mm_load_si128(reinterpret_cast<const __m128i*>(mins[2 * p]));
    const __m128i odd = _mm_load_si128(reinterpret_cast<const __m128i*>(mins[2 * p + 1]));
    return _mm512_cvtepu8_epi16(_mm256_set_m128i(_mm_unpackhi_epi8(even, odd), _mm_unpacklo_epi8(even, odd)));
  }
};
template <>
struct Scales<packed::Q6_K> {
  const packed::Q6_K& w;
  REPRISE_INLINE explicit Scales(const packed::Q6_K& w) : w(w) {}
  REPRISE_INLINE __m512i Scale(int s) const {
    return _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(w.scales[s])));
  }
};

// Fetches a part of a later block and of the next inputs into the first cache. For 8 inputs, weights from
// memory: 3 blocks ahead 332, 1 ahead 316, none 300 GFLOP/s (Q4_K); weights from the second cache: +1 to
// 5 %. Slower for fewer inputs.
template <class Packed>
REPRISE_INLINE void FetchEighth(const Packed* next, const std::byte* next_inputs, int s) {
  constexpr size_t kEighth = sizeof(Packed) / 8;
  const char* weights = reinterpret_cast<const char*>(next) + s * kEighth;
  REPRISE_UNROLL for (size_t at = 0; at + 64 <= kEighth; at += 64) _mm_prefetch(weights + at, _MM_HINT_T0);
  const char* inputs = reinterpret_cast<const char*>(next_inputs) + s * sizeof(InputBlock256);
  REPRISE_UNROLL for (size_t at = 0; at < sizeof(InputBlock256); at += 64) _mm_prefetch(inputs + at, _MM_HINT_T0);
}

// A group of 16 rows times kInputs inputs over all columns; K-quants.
template <class Packed, int kInputs>
void MultiplyBlocks256(const Packed* w, uint32_t blocks, const std::byte* inputs, uint64_t step, OutputRows out) {
  constexpr bool kHalves = kInputs <= kInputsAtMemorySpeed;
  __m512 sum[kInputs];
  REPRISE_UNROLL for (int c = 0; c < kInputs; ++c) sum[c] = _mm512_setzero_ps();
  for (uint32_t b = 0; b < blocks; ++b, ++w, inputs += step) {
    const auto* x = reinterpret_cast<const InputBlock256*>(inputs);
    const Scales<Packed> scales(*w);
    __m512i isum[kInputs];
    REPRISE_UNROLL for (int c = 0; c < kInputs; ++c) isum[c] = _mm512_setzero_si512();
    for (int s = 0; s < 8; ++s) {  // 32 columns: one sub-block of 32 or two of 16
      if constexpr (kInputs == kPanelInputs) FetchEighth(w + 3, inputs + step, s);
      if constexpr (kInputs == 1) {
        const char* ahead = reinterpret_cast<const char*>(w) + kPrefetchBytes + s * (sizeof(Packed) / 8);
        REPRISE_UNROLL for (int l = 0; l < kPrefetchLines; ++l) _mm_prefetch(ahead + l * 64, _MM_HINT_T1);
      }
      REPRISE_UNROLL for (int h = 0; h < 32 / Packed::kSub; ++h) {
        constexpr int kGroups = Packed::kSub / 4;
        __m512i dot[kInputs];
        REPRISE_UNROLL for (int c = 0; c < kInputs; ++c) {
          dot[c] = Packed::kOffset != 0 ? Broadcast(&x[c].start32[s * 2 + h]) : _mm512_setzero_si512();
        }
        REPRISE_UNROLL for (int i = 0; i < kGroups; ++i) {
          const __m512i code = Code<kHalves>(*w, s, h * kGroups + i);
          REPRISE_UNROLL for (int c = 0; c < kInputs; ++c) {
            dot[c] = _mm512_dpbusd_epi32(dot[c], code, Broadcast(x[c].q + s * 32 + (h * kGroups + i) * 4));
          }
        }
        const __m512i scale = scales.Scale(s * 32 / Packed::kSub + h);
        REPRISE_UNROLL for (int c = 0; c < kInputs; ++c) {
          isum[c] = _mm512_add_epi32(isum[c], _mm512_mullo_epi32(dot[c], scale));
        }
      }
    }
    const __m512 d = Halfs(w->d);
    __m512 term[kInputs];
    REPRISE_UNROLL for (int c = 0; c < kInputs; ++c) term[c] = _mm512_mul_ps(d, _mm512_cvtepi32_ps(isum[c]));
    if constexpr (Packed::kMin) {
      const __m512 dmin = Halfs(w->dmin);
      __m512i msum[kInputs];
      REPRISE_UNROLL for (int c = 0; c < kInputs; ++c) msum[c] = _mm512_setzero_si512();
      REPRISE_UNROLL for (int p = 0; p < 4; ++p) {
        const __m512i mins = scales.MinPair(p);
        REPRISE_UNROLL for (int c = 0; c < kInputs; ++c) {
          msum[c] = _mm512_dpwssd_epi32(msum[c], mins, Broadcast(&x[c].sum[p * 2]));
        }
      }
      REPRISE_UNROLL for (int c = 0; c < kInputs; ++c) {
        term[c] = _mm512_fnmadd_ps(dmin, _mm512_cvtepi32_ps(msum[c]), term[c]);
      }
    }
    REPRISE_UNROLL for (int c = 0; c < kInputs; ++c) sum[c] = _mm512_fmadd_ps(_mm512_set1_ps(x[c].d), term[c], sum[c]);
  }
  REPRISE_UNROLL for (int c = 0; c < kInputs; ++c) _mm512_storeu_ps(out.data + c * out.stride, sum[c]);
}

// The value that takes the offset off 32 columns of codes.
template <int kOffset>
REPRISE_INLINE __m512i Start(const InputBlock32& x) {
  if constexpr (kOffset == 0) return _mm512_setzero_si512();
  if constexpr (kOffset == 8) return _mm512_srai_epi32(Broadcast(&x.start16), 1);
  if constexpr (kOffset == 16) return Broadcast(&x.start16);
  if constexpr (kOffset == 128) return Broadcast(&x.start128);
}

// The same for blocks of 32 columns.
template <class Packed, int kInputs>
void MultiplyBlocks32(const Packed* w, uint32_t blocks, const std::byte* inputs, uint64_t step, OutputRows out) {
  constexpr bool kHalves = kInputs <= kInputsAtMemorySpeed;
  __m512 sum[kInputs];
  REPRISE_UNROLL for (int c = 0; c < kInputs; ++c) sum[c] = _mm512_setzero_ps();
  for (uint32_t b = 0; b < blocks; ++b, ++w, inputs += step) {
    const auto* x = reinterpret_cast<const InputBlock32*>(inputs);
    if constexpr (kInputs == kPanelInputs) {  // +7 to 12 % from memory, nothing from the second cache
      const char* ahead = reinterpret_cast<const char*>(w) + kPrefetchBytes;
      REPRISE_UNROLL for (size_t at = 0; at + 64 <= sizeof(Packed); at += 64) _mm_prefetch(ahead + at, _MM_HINT_T0);
    }
    __m512i dot[kInputs];
    REPRISE_UNROLL for (int c = 0; c < kInputs; ++c) dot[c] = Start<Packed::kOffset>(x[c]);
    REPRISE_UNROLL for (int i = 0; i < 8; ++i) {
      const __m512i code = Code<kHalves>(*w, 0, i);
      REPRISE_UNROLL for (int c = 0; c < kInputs; ++c) {
        dot[c] = _mm512_dpbusd_epi32(dot[c], code, Broadcast(x[c].q + i * 4));
      }
    }
    const __m512 d = Halfs(w->d);
    REPRISE_UNROLL for (int c = 0; c < kInputs; ++c) {
      __m512 term = _mm512_mul_ps(d, _mm512_cvtepi32_ps(dot[c]));
      if constexpr (Packed::kMin) term = _mm512_fmadd_ps(Halfs(w->m), _mm512_set1_ps(x[c].sum), term);
      sum[c] = _mm512_fmadd_ps(_mm512_set1_ps(x[c].d), term, sum[c]);
    }
  }
  REPRISE_UNROLL for (int c = 0; c < kInputs; ++c) _mm512_storeu_ps(out.data + c * out.stride, sum[c]);
}

REPRISE_INLINE __m512 Weights(const packed::F32& w) { return _mm512_loadu_ps(w.w); }
REPRISE_INLINE __m512 Weights(const packed::F16& w) { return Halfs(w.w); }
REPRISE_INLINE __m512 Weights(const packed::BF16& w) {
  const __m256i brain = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(w.w));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(brain), 16));
}

// Float weights; inputs are rows of x, `stride` floats apart.
template <class Packed, int kInputs>
void MultiplyFloats(const Packed* w, uint32_t cols, const float* x, uint64_t stride, OutputRows out) {
  __m512 sum[kInputs];
  REPRISE_UNROLL for (int c = 0; c < kInputs; ++c) sum[c] = _mm512_setzero_ps();
  for (uint32_t k = 0; k < cols; ++k, ++x) {
    const __m512 weights = Weights(w[k]);
    REPRISE_UNROLL for (int c = 0; c < kInputs; ++c) {
      sum[c] = _mm512_fmadd_ps(weights, _mm512_set1_ps(x[c * stride]), sum[c]);
    }
  }
  REPRISE_UNROLL for (int c = 0; c < kInputs; ++c) _mm512_storeu_ps(out.data + c * out.stride, sum[c]);
}

template <class Packed, int kInputs>
REPRISE_INLINE void MultiplyPanel(const Tile& tile, uint32_t group, uint32_t input, OutputRows out) {
  const Packed* w = GroupBlocks<Packed>(tile, group);
  if constexpr (packed::kIsFloat<Packed>) {
    const float* x = tile.x + uint64_t{input} * tile.x_stride;
    MultiplyFloats<Packed, kInputs>(w, tile.product->weight->cols, x, tile.x_stride, out);
  } else {
    const Panels& panels = *tile.panels;
    const std::byte* inputs = panels.panel(input / kPanelInputs);
    const uint64_t step = uint64_t{kInputs} * panels.block_bytes;
    if constexpr (packed::kIsK<Packed>) {
      MultiplyBlocks256<Packed, kInputs>(w, panels.blocks, inputs, step, out);
    } else {
      MultiplyBlocks32<Packed, kInputs>(w, panels.blocks, inputs, step, out);
    }
  }
}

// A panel stays in the first cache while the groups of the tile pass; the groups stay in the second.
template <class Packed>
void MultiplyTileOf(const Tile& tile) {
  alignas(64) float spare[kPanelInputs * kGroupRows];
  for (uint32_t input = tile.first_input; input < tile.last_input; input += kPanelInputs) {
    const uint32_t left = tile.last_input - input, width = left < kPanelInputs ? left : kPanelInputs;
    for (uint32_t group = tile.first_group; group < tile.last_group; ++group) {
      const OutputRows out = OutputOf(tile, group, input, spare);
      switch (width) {
        case 1:
          MultiplyPanel<Packed, 1>(tile, group, input, out);
          break;
        case 2:
          MultiplyPanel<Packed, 2>(tile, group, input, out);
          break;
        case 3:
          MultiplyPanel<Packed, 3>(tile, group, input, out);
          break;
        case 4:
          MultiplyPanel<Packed, 4>(tile, group, input, out);
          break;
        case 5:
          MultiplyPanel<Packed, 5>(tile, group, input, out);
          break;
        case 6:
          MultiplyPanel<Packed, 6>(tile, group, input, out);
          break;
        case 7:
          MultiplyPanel<Packed, 7>(tile, group, input, out);
          break;
        default:
          MultiplyPanel<Packed, 8>(tile, group, input, out);
      }
      Finish(tile, group, input, width, out);
    }
  }
}

}  // namespace

void MultiplyTileAvx512(const Tile& tile) {
  VisitPacked(tile.product->weight->type, [&](auto format) { MultiplyTileOf<typename decltype(format)::type>(tile); });
}

}  // namespace reprise
#endif
