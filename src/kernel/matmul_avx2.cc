// Products with 256-bit vectors, weights unpacked in registers: the way for few inputs, where reading
// the weights is what costs. Bytes are multiplied and added in pairs into int16 (maddubs), summed there
// over a run, and widened once with the scale.
#if defined(__x86_64__)
#include "kernel/matmul_avx2_inl.h"

namespace reprise {
namespace {

// K-quants are fetched ahead of the weights, each line once at most: with some lines asked for twice it
// is slower than with none. Blocks of 32 columns are 20 to 40 % faster without.
constexpr int kPrefetchBytes = 4096;
constexpr uint32_t kInputsMax = 4;  // of one kernel: 8 running sums, 2 codes, 1 input and masks fill 16 registers

// A group of 16 rows times kInputs inputs over all columns; K-quants.
template <class Packed, int kInputs>
void MultiplyBlocks256(const Packed* w, uint32_t blocks, const std::byte* inputs, uint64_t step, OutputRows out) {
  __m256 sum_memory[2][kInputs] = {};
  __m256i isum_memory[2][kInputs];
  auto* sum = sum_memory;
  auto* isum = isum_memory;
  if (kInputs > 2) {
    REPRISE_IN_MEMORY(sum);
    REPRISE_IN_MEMORY(isum);
  }
  for (uint32_t b = 0; b < blocks; ++b, ++w, inputs += step) {
    const auto* x = reinterpret_cast<const InputBlock256*>(inputs);
    const Scales<Packed> scales(*w);
    REPRISE_UNROLL for (int v = 0; v < 2; ++v) {
      REPRISE_UNROLL for (int c = 0; c < kInputs; ++c) isum[v][c] = _mm256_setzero_si256();
    }
    for (int s = 0; s < 8; ++s) {
      constexpr int kEighth = sizeof(Packed) / 8;
      const char* ahead = reinterpret_cast<const char*>(w) + kPrefetchBytes + s * kEighth;
      REPRISE_UNROLL for (int l = 0; l + 64 <= kEighth; l += 64) _mm_prefetch(ahead + l, _MM_HINT_T0);
      REPRISE_UNROLL for (int h = 0; h < 32 / kRun<Packed>; ++h) {
        constexpr int kGroups = kRun<Packed> / 4;
        __m256i dot[2][kInputs];
        REPRISE_UNROLL for (int i = 0; i < kGroups; ++i) {
          const __m256i code[2] = {Code(*w, s, h * kGroups + i, 0), Code(*w, s, h * kGroups + i, 1)};
          REPRISE_UNROLL for (int c = 0; c < kInputs; ++c) {
            const __m256i q = Broadcast(x[c].q + s * 32 + (h * kGroups + i) * 4);
            REPRISE_UNROLL for (int v = 0; v < 2; ++v) {
              const __m256i products = _mm256_maddubs_epi16(code[v], q);
              if (i > 0) {
                dot[v][c] = _mm256_add_epi16(dot[v][c], products);
              } else if (Packed::kOffset != 0) {
                dot[v][c] = _mm256_add_epi16(products, Broadcast(&x[c].start32[s * 2 + h]));
              } else {
                dot[v][c] = products;
              }
              if (kInputs > 1) REPRISE_PIN(dot[v][c]);
            }
          }
        }
        REPRISE_UNROLL for (int v = 0; v < 2; ++v) {
          const __m256i scale = scales.Scale((s * 32 + h * kRun<Packed>) / Packed::kSub, v);
          REPRISE_UNROLL for (int c = 0; c < kInputs; ++c) {
            isum[v][c] = _mm256_add_epi32(isum[v][c], _mm256_madd_epi16(dot[v][c], scale));
          }
        }
      }
    }
    REPRISE_UNROLL for (int v = 0; v < 2; ++v) {
      const __m256 d = Halfs(w->d + v * 8);
      REPRISE_UNROLL for (int c = 0; c < kInputs; ++c) {
        __m256 term = _mm256_mul_ps(d, _mm256_cvtepi32_ps(isum[v][c]));
        if constexpr (Packed::kMin) {
          __m256i msum = _mm256_setzero_si256();
          REPRISE_UNROLL for (int p = 0; p < 4; ++p) {
            msum = _mm256_add_epi32(msum, _mm256_madd_epi16(scales.MinPair(p, v), Broadcast(&x[c].sum[p * 2])));
          }
          term = _mm256_fnmadd_ps(Halfs(w->dmin + v * 8), _mm256_cvtepi32_ps(msum), term);
        }
        sum[v][c] = _mm256_fmadd_ps(_mm256_set1_ps(x[c].d), term, sum[v][c]);
      }
    }
  }
  REPRISE_UNROLL for (int v = 0; v < 2; ++v) {
    REPRISE_UNROLL for (int c = 0; c < kInputs; ++c) _mm256_storeu_ps(out.data + c * out.stride + v * 8, sum[v][c]);
  }
}

// isum of 8 rows and 32 columns, per input.
template <class Packed, int kInputs>
REPRISE_INLINE void Dots32(const Packed& w, const InputBlock32* x, int v, __m256i* isum) {
  const __m256i ones = _mm256_set1_epi16(1);
  if constexpr (std::is_same_v<Packed, packed::Q8_0>) {  // |w| times x with the sign of w
    REPRISE_UNROLL for (int i = 0; i < 8; ++i) {
      const __m256i code = SignedCode(w, i, v), magnitude = _mm256_abs_epi8(code);
      REPRISE_UNROLL for (int c = 0; c < kInputs; ++c) {
        const __m256i q = _mm256_sign_epi8(Broadcast(x[c].q + i * 4), code);
        const __m256i products = _mm256_madd_epi16(_mm256_maddubs_epi16(magnitude, q), ones);
        isum[c] = i > 0 ? _mm256_add_epi32(isum[c], products) : products;
        if (kInputs > 1) REPRISE_PIN(isum[c]);
      }
    }
  } else {
    __m256i code[8];
    REPRISE_UNROLL for (int i = 0; i < 8; ++i) code[i] = Code(w, 0, i, v);
    REPRISE_UNROLL for (int c = 0; c < kInputs; ++c) {
      __m256i half[2];  // two runs of 16 columns; one where int16 can hold all 32
      REPRISE_UNROLL for (int h = 0; h < 2; ++h) {
        half[h] = _mm256_maddubs_epi16(code[h * 4], Broadcast(x[c].q + h * 16));
        if constexpr (Packed::kOffset != 0) {
          if (h == 0) half[h] = _mm256_add_epi16(half[h], Start<Packed>(x[c]));
        }
        REPRISE_UNROLL for (int i = 1; i < 4; ++i) {
          half[h] =
              _mm256_add_epi16(half[h], _mm256_maddubs_epi16(code[h * 4 + i], Broadcast(x[c].q + h * 16 + i * 4)));
        }
        if (kInputs > 1) REPRISE_PIN(half[h]);
      }
      isum[c] = kRun<Packed> == 32
                    ? _mm256_madd_epi16(_mm256_add_epi16(half[0], half[1]), ones)
                    : _mm256_add_epi32(_mm256_madd_epi16(half[0], ones), _mm256_madd_epi16(half[1], ones));
    }
  }
}

template <class Packed, int kInputs>
void MultiplyBlocks32(const Packed* w, uint32_t blocks, const std::byte* inputs, uint64_t step, OutputRows out) {
  __m256 sum_memory[2][kInputs] = {};
  auto* sum = sum_memory;
  if (kInputs > 2) REPRISE_IN_MEMORY(sum);
  for (uint32_t b = 0; b < blocks; ++b, ++w, inputs += step) {
    const auto* x = reinterpret_cast<const InputBlock32*>(inputs);
    REPRISE_UNROLL for (int v = 0; v < 2; ++v) {
      __m256i isum[kInputs];
      Dots32<Packed, kInputs>(*w, x, v, isum);
      const __m256 d = Halfs(w->d + v * 8);
      REPRISE_UNROLL for (int c = 0; c < kInputs; ++c) {
        __m256 term = _mm256_mul_ps(d, _mm256_cvtepi32_ps(isum[c]));
        if constexpr (Packed::kMin) term = _mm256_fmadd_ps(Halfs(w->m + v * 8), _mm256_set1_ps(x[c].sum), term);
        sum[v][c] = _mm256_fmadd_ps(_mm256_set1_ps(x[c].d), term, sum[v][c]);
      }
    }
  }
  REPRISE_UNROLL for (int v = 0; v < 2; ++v) {
    REPRISE_UNROLL for (int c = 0; c < kInputs; ++c) _mm256_storeu_ps(out.data + c * out.stride + v * 8, sum[v][c]);
  }
}

REPRISE_INLINE __m256 Weights(const packed::F32& w, int v) { return _mm256_loadu_ps(w.w + v * 8); }
REPRISE_INLINE __m256 Weights(const packed::F16& w, int v) { return Halfs(w.w + v * 8); }
REPRISE_INLINE __m256 Weights(const packed::BF16& w, int v) {
  const __m128i brain = _mm_loadu_si128(reinterpret_cast<const __m128i*>(w.w + v * 8));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(brain), 16));
}

// Float weights; inputs are rows of x, `stride` floats apart.
template <class Packed, int kInputs>
void MultiplyFloats(const Packed* w, uint32_t cols, const float* x, uint64_t stride, OutputRows out) {
  __m256 sum[2][kInputs] = {};
  for (uint32_t k = 0; k < cols; ++k, ++x) {
    const __m256 weights[2] = {Weights(w[k], 0), Weights(w[k], 1)};
    REPRISE_UNROLL for (int c = 0; c < kInputs; ++c) {
      const __m256 value = _mm256_set1_ps(x[c * stride]);
      REPRISE_UNROLL for (int v = 0; v < 2; ++v) sum[v][c] = _mm256_fmadd_ps(weights[v], value, sum[v][c]);
    }
  }
  REPRISE_UNROLL for (int v = 0; v < 2; ++v) {
    REPRISE_UNROLL for (int c = 0; c < kInputs; ++c) _mm256_storeu_ps(out.data + c * out.stride + v * 8, sum[v][c]);
  }
}

template <class Packed, int kInputs>
REPRISE_INLINE void MultiplyInputs(const Tile& tile, uint32_t group, uint32_t input, OutputRows out) {
  const Packed* w = GroupBlocks<Packed>(tile, group);
  if constexpr (packed::kIsFloat<Packed>) {
    const float* x = tile.x + uint64_t{input} * tile.x_stride;
    MultiplyFloats<Packed, kInputs>(w, tile.product->weight->cols, x, tile.x_stride, out);
  } else {
    const Panels& panels = *tile.panels;
    const uint32_t panel = input / kPanelInputs;
    const std::byte* inputs = panels.panel(panel) + input % kPanelInputs * panels.block_bytes;
    const uint64_t step = uint64_t{panels.width(panel)} * panels.block_bytes;
    if constexpr (packed::kIsK<Packed>) {
      MultiplyBlocks256<Packed, kInputs>(w, panels.blocks, inputs, step, out);
    } else {
      MultiplyBlocks32<Packed, kInputs>(w, panels.blocks, inputs, step, out);
    }
  }
}

template <class Packed>
void MultiplyTileOf(const Tile& tile) {
  alignas(64) float spare[kInputsMax * kGroupRows];
  for (uint32_t group = tile.first_group; group < tile.last_group; ++group) {
    for (uint32_t input = tile.first_input; input < tile.last_input; input += kInputsMax) {
      const uint32_t left = tile.last_input - input, inputs = left < kInputsMax ? left : kInputsMax;
      const OutputRows out = OutputOf(tile, group, input, spare);
      switch (inputs) {
        case 1:
          MultiplyInputs<Packed, 1>(tile, group, input, out);
          break;
        case 2:
          MultiplyInputs<Packed, 2>(tile, group, input, out);
          break;
        case 3:
          MultiplyInputs<Packed, 3>(tile, group, input, out);
          break;
        default:
          MultiplyInputs<Packed, 4>(tile, group, input, out);
      }
      Finish(tile, group, input, inputs, out);
    }
  }
}

// Up to this many inputs unpacking again for every four is cheaper than unpacking once into memory.
template <class Packed>
constexpr uint32_t kUnpackAgainMax = 4;
template <>
constexpr uint32_t kUnpackAgainMax<packed::Q4_K> = 16;
template <>
constexpr uint32_t kUnpackAgainMax<packed::Q8_0> = 64;

}  // namespace

void MultiplyTileAvx2(const Tile& tile) {
  VisitPacked(tile.product->weight->type, [&](auto format) {
    using Packed = typename decltype(format)::type;
    if (packed::kIsFloat<Packed> || tile.last_input - tile.first_input <= kUnpackAgainMax<Packed>) {
      MultiplyTileOf<Packed>(tile);
    } else {
      MultiplyUnpackedTileAvx2(tile);
    }
  });
}

}  // namespace reprise
#endif
