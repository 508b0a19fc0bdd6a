// Products with 256-bit vectors for many inputs: the codes of up to four groups of rows are unpacked,
// 256 columns at a time, into bytes that stay in the first cache, and all inputs pass over them, four
// at a time. Sums wait in memory between two chunks of columns: a store and a load change no bit.
#if defined(__x86_64__)
#include <algorithm>

#include "kernel/matmul_avx2_inl.h"

namespace reprise {
namespace {

constexpr int kChunk = 256;         // columns
constexpr uint32_t kInputsMax = 4;  // of one kernel
constexpr uint32_t kGroupsMax = 4;  // unpacked at a time: they and the inputs of a chunk share the first cache
constexpr uint64_t kLine = 64;      // bytes of a cache line

// Weights of one group, one chunk. q[4-group][row * 4 + t].
struct alignas(64) Unpacked256 {
  uint8_t q[kChunk / 4][64];
  int16_t scale[16][2][16];  // [run][row half]: (scale, scale) per row
  int16_t mins[4][2][16];    // [pair of sub-blocks][row half]
  float d[16], dmin[16];
};
struct alignas(64) Unpacked32 {
  uint8_t q[kChunk / 4][64];
  float d[8][16], m[8][16];
};
// Signed codes widened to int16: columns 0 and 2 of a 4-group, then columns 1 and 3.
struct alignas(64) Unpacked8 {
  int16_t q[kChunk / 4][2][2][16];  // [4-group][even, odd][row half]
  float d[8][16];
};
// Inputs widened in the same way, for Unpacked8.
struct alignas(64) Wide {
  int16_t q[kInputsMax][kChunk / 4][2][2];  // [input][4-group][even, odd]
};
template <class Packed>
using Unpacked = std::conditional_t<packed::kIsK<Packed>, Unpacked256,
                                    std::conditional_t<std::is_same_v<Packed, packed::Q8_0>, Unpacked8, Unpacked32>>;

struct Scratch {
  union {
    Unpacked256 k[kGroupsMax];
    Unpacked32 small[kGroupsMax];
    Unpacked8 bytes[kGroupsMax];
  };
  Wide wide;  // then the sums: float [inputs / 4][groups][4][16]
};

REPRISE_INLINE void Store(void* p, __m256i v) { _mm256_store_si256(static_cast<__m256i*>(p), v); }

// 32 columns of 8 rows: all loads before the first store, or the stores hold the loads back.
template <class Packed>
REPRISE_INLINE void UnpackCodes(const Packed& w, int s, int v, uint8_t (*out)[64]) {
  __m256i code[8];
  REPRISE_UNROLL for (int i = 0; i < 8; ++i) code[i] = Code(w, s, i, v);
  REPRISE_UNROLL for (int i = 0; i < 8; ++i) Store(out[i] + v * 32, code[i]);
}

template <class Packed>
void Unpack(const Packed* w, int, Unpacked256& out) {
  const Scales<Packed> scales(*w);
  REPRISE_UNROLL for (int v = 0; v < 2; ++v) {
    REPRISE_UNROLL for (int r = 0; r < kChunk / kRun<Packed>; ++r) {
      Store(out.scale[r][v], scales.Scale(r * kRun<Packed> / Packed::kSub, v));
    }
    _mm256_store_ps(out.d + v * 8, Halfs(w->d + v * 8));
    if constexpr (Packed::kMin) {
      REPRISE_UNROLL for (int p = 0; p < 4; ++p) Store(out.mins[p][v], scales.MinPair(p, v));
      _mm256_store_ps(out.dmin + v * 8, Halfs(w->dmin + v * 8));
    }
  }
  for (int s = 0; s < 8; ++s) {
    REPRISE_UNROLL for (int v = 0; v < 2; ++v) UnpackCodes(*w, s, v, out.q + s * 8);
  }
}
template <class Packed>
void Unpack(const Packed* w, int blocks, Unpacked32& out) {
  for (int b = 0; b < blocks; ++b, ++w) {
    REPRISE_UNROLL for (int v = 0; v < 2; ++v) {
      UnpackCodes(*w, 0, v, out.q + b * 8);
      _mm256_store_ps(out.d[b] + v * 8, Halfs(w->d + v * 8));
      if constexpr (Packed::kMin) _mm256_store_ps(out.m[b] + v * 8, Halfs(w->m + v * 8));
    }
  }
}
REPRISE_INLINE __m256i EvenBytes(__m256i v) { return _mm256_srai_epi16(_mm256_slli_epi16(v, 8), 8); }
REPRISE_INLINE __m256i OddBytes(__m256i v) { return _mm256_srai_epi16(v, 8); }
void Unpack(const packed::Q8_0* w, int blocks, Unpacked8& out) {
  for (int b = 0; b < blocks; ++b, ++w) {
    REPRISE_UNROLL for (int v = 0; v < 2; ++v) {
      REPRISE_UNROLL for (int i = 0; i < 8; ++i) {
        const __m256i code = SignedCode(*w, i, v);
        Store(out.q[b * 8 + i][0][v], EvenBytes(code));
        Store(out.q[b * 8 + i][1][v], OddBytes(code));
      }
      _mm256_store_ps(out.d[b] + v * 8, Halfs(w->d + v * 8));
    }
  }
}
void Widen(const InputBlock32* x, int inputs, int blocks, uint64_t step_bytes, Wide& out) {
  for (int b = 0; b < blocks; ++b) {
    for (int c = 0; c < inputs; ++c) {
      const __m256i q = Load(x[c].q);
      const __m256i even = EvenBytes(q), odd = OddBytes(q);
      const __m256i low = _mm256_unpacklo_epi32(even, odd), high = _mm256_unpackhi_epi32(even, odd);
      Store(out.q[c][b * 8], _mm256_permute2x128_si256(low, high, 0x20));
      Store(out.q[c][b * 8 + 4], _mm256_permute2x128_si256(low, high, 0x31));
    }
    x = reinterpret_cast<const InputBlock32*>(reinterpret_cast<const std::byte*>(x) + step_bytes);
  }
}

// Where the sums of kInputs inputs and 16 rows come from and go to.
struct Sums {
  const float* from;  // [inputs][16]
  float* to;
  uint64_t to_stride;  // floats
};

template <class Packed, int kInputs>
void MultiplyChunk(const Unpacked256& w, int, const InputBlock256* x, uint64_t, const Wide&, const Sums& sums) {
  constexpr int kGroups = kRun<Packed> / 4;
  __m256i isum_memory[2][kInputs];
  auto* isum = isum_memory;
  REPRISE_IN_MEMORY(isum);
  REPRISE_UNROLL for (int v = 0; v < 2; ++v) {  // not by {}: gcc then clears memory with `rep stos`, 10 % in all
    REPRISE_UNROLL for (int c = 0; c < kInputs; ++c) isum[v][c] = _mm256_setzero_si256();
  }
  for (int r = 0; r < kChunk / kRun<Packed>; ++r) {
    __m256i dot[2][kInputs];
    REPRISE_UNROLL for (int i = 0; i < kGroups; ++i) {
      const __m256i code[2] = {Load(w.q[r * kGroups + i]), Load(w.q[r * kGroups + i] + 32)};
      REPRISE_UNROLL for (int c = 0; c < kInputs; ++c) {
        const __m256i q = Broadcast(x[c].q + (r * kGroups + i) * 4);
        REPRISE_UNROLL for (int v = 0; v < 2; ++v) {
          const __m256i products = _mm256_maddubs_epi16(code[v], q);
          if (i > 0) {
            dot[v][c] = _mm256_add_epi16(dot[v][c], products);
          } else if (Packed::kOffset != 0) {
            dot[v][c] = _mm256_add_epi16(products, Broadcast(&x[c].start32[r]));
          } else {
            dot[v][c] = products;
          }
        }
        REPRISE_PIN(dot[0][c]);
        REPRISE_PIN(dot[1][c]);
      }
    }
    const __m256i scale[2] = {Load(w.scale[r][0]), Load(w.scale[r][1])};
    REPRISE_UNROLL for (int c = 0; c < kInputs; ++c) {
      REPRISE_UNROLL for (int v = 0; v < 2; ++v) {
        isum[v][c] = _mm256_add_epi32(isum[v][c], _mm256_madd_epi16(dot[v][c], scale[v]));
      }
    }
  }
  REPRISE_UNROLL for (int v = 0; v < 2; ++v) {
    const __m256 d = _mm256_load_ps(w.d + v * 8);
    REPRISE_UNROLL for (int c = 0; c < kInputs; ++c) {
      __m256 term = _mm256_mul_ps(d, _mm256_cvtepi32_ps(isum[v][c]));
      if constexpr (Packed::kMin) {
        __m256i msum = _mm256_setzero_si256();
        REPRISE_UNROLL for (int p = 0; p < 4; ++p) {
          msum = _mm256_add_epi32(msum, _mm256_madd_epi16(Load(w.mins[p][v]), Broadcast(&x[c].sum[p * 2])));
        }
        term = _mm256_fnmadd_ps(_mm256_load_ps(w.dmin + v * 8), _mm256_cvtepi32_ps(msum), term);
      }
      const __m256 sum = _mm256_load_ps(sums.from + c * 16 + v * 8);
      _mm256_storeu_ps(sums.to + c * sums.to_stride + v * 8, _mm256_fmadd_ps(_mm256_set1_ps(x[c].d), term, sum));
    }
  }
}

template <class Packed, int kInputs>
REPRISE_INLINE void Dots(const Unpacked32& w, int b, const InputBlock32* x, __m256i (*isum)[kInputs]) {
  constexpr int kGroups = kRun<Packed> / 4;
  const __m256i ones = _mm256_set1_epi16(1);
  REPRISE_UNROLL for (int h = 0; h < 32 / kRun<Packed>; ++h) {
    __m256i dot[2][kInputs];
    REPRISE_UNROLL for (int i = 0; i < kGroups; ++i) {
      const uint8_t* line = w.q[b * 8 + h * kGroups + i];
      const __m256i code[2] = {Load(line), Load(line + 32)};
      REPRISE_UNROLL for (int c = 0; c < kInputs; ++c) {
        const __m256i q = Broadcast(x[c].q + (h * kGroups + i) * 4);
        REPRISE_UNROLL for (int v = 0; v < 2; ++v) {
          const __m256i products = _mm256_maddubs_epi16(code[v], q);
          if (i > 0) {
            dot[v][c] = _mm256_add_epi16(dot[v][c], products);
          } else if constexpr (Packed::kOffset != 0) {
            dot[v][c] = _mm256_add_epi16(products, Start<Packed>(x[c]));
          } else {
            dot[v][c] = products;
          }
        }
        REPRISE_PIN(dot[0][c]);
        REPRISE_PIN(dot[1][c]);
      }
    }
    REPRISE_UNROLL for (int c = 0; c < kInputs; ++c) {
      REPRISE_UNROLL for (int v = 0; v < 2; ++v) {
        const __m256i wide = _mm256_madd_epi16(dot[v][c], ones);
        isum[v][c] = h > 0 ? _mm256_add_epi32(isum[v][c], wide) : wide;
      }
    }
  }
}
template <int kInputs>
REPRISE_INLINE void Dots(const Unpacked8& w, int b, const Wide& x, __m256i (*isum)[kInputs]) {
  REPRISE_UNROLL for (int i = 0; i < 16; ++i) {
    const auto& line = w.q[b * 8 + i / 2][i % 2];
    const __m256i code[2] = {Load(line[0]), Load(line[1])};
    REPRISE_UNROLL for (int c = 0; c < kInputs; ++c) {
      const __m256i q = Broadcast(x.q[c][b * 8 + i / 2][i % 2]);
      REPRISE_UNROLL for (int v = 0; v < 2; ++v) {
        const __m256i products = _mm256_madd_epi16(code[v], q);
        isum[v][c] = i > 0 ? _mm256_add_epi32(isum[v][c], products) : products;
      }
      REPRISE_PIN(isum[0][c]);
      REPRISE_PIN(isum[1][c]);
    }
  }
}

template <class Packed, int kInputs>
void MultiplyChunk(const Unpacked<Packed>& w, int blocks, const InputBlock32* x, uint64_t step_bytes, const Wide& wide,
                   const Sums& sums) {
  __m256 sum_memory[2][kInputs];
  auto* sum = sum_memory;
  REPRISE_IN_MEMORY(sum);
  REPRISE_UNROLL for (int v = 0; v < 2; ++v) {
    REPRISE_UNROLL for (int c = 0; c < kInputs; ++c) sum[v][c] = _mm256_load_ps(sums.from + c * 16 + v * 8);
  }
  for (int b = 0; b < blocks; ++b) {
    __m256i isum[2][kInputs];
    if constexpr (std::is_same_v<Packed, packed::Q8_0>) {
      Dots<kInputs>(w, b, wide, isum);
    } else {
      Dots<Packed, kInputs>(w, b, x, isum);
    }
    REPRISE_UNROLL for (int v = 0; v < 2; ++v) {
      const __m256 d = _mm256_load_ps(w.d[b] + v * 8);
      REPRISE_UNROLL for (int c = 0; c < kInputs; ++c) {
        __m256 term = _mm256_mul_ps(d, _mm256_cvtepi32_ps(isum[v][c]));
        if constexpr (Packed::kMin) {
          term = _mm256_fmadd_ps(_mm256_load_ps(w.m[b] + v * 8), _mm256_set1_ps(x[c].sum), term);
        }
        sum[v][c] = _mm256_fmadd_ps(_mm256_set1_ps(x[c].d), term, sum[v][c]);
      }
    }
    x = reinterpret_cast<const InputBlock32*>(reinterpret_cast<const std::byte*>(x) + step_bytes);
  }
  REPRISE_UNROLL for (int v = 0; v < 2; ++v) {
    REPRISE_UNROLL for (int c = 0; c < kInputs; ++c) {
      _mm256_storeu_ps(sums.to + c * sums.to_stride + v * 8, sum[v][c]);
    }
  }
}

// All groups and inputs of a tile, one chunk of columns.
template <class Packed>
class ChunkedTile {
 public:
  using InputBlock = std::conditional_t<packed::kIsK<Packed>, InputBlock256, InputBlock32>;
  static constexpr uint32_t kChunkBlocks = kChunk / Packed::kColumns;

  explicit ChunkedTile(const Tile& tile)
      : tile_(tile),
        scratch_(*reinterpret_cast<Scratch*>(tile.scratch)),
        sums_(reinterpret_cast<float*>(tile.scratch + sizeof(Scratch))),
        groups_(tile.last_group - tile.first_group) {}

  void Run() {
    const uint32_t blocks = tile_.panels->blocks;
    for (uint32_t block = 0; block < blocks; block += kChunkBlocks) {
      const uint32_t count = std::min(kChunkBlocks, blocks - block);
      for (uint32_t g = 0; g < groups_; ++g) {
        Unpack(GroupBlocks<Packed>(tile_, tile_.first_group + g) + block, static_cast<int>(count), unpacked()[g]);
      }
      for (uint32_t input = tile_.first_input; input < tile_.last_input; input += kInputsMax) {
        PrefetchInputs(block, input + kInputsMax);
        RunInputs(block, count, input);
      }
    }
  }

 private:
  Unpacked<Packed>* unpacked() {
    if constexpr (packed::kIsK<Packed>) {
      return scratch_.k;
    } else if constexpr (std::is_same_v<Packed, packed::Q8_0>) {
      return scratch_.bytes;
    } else {
      return scratch_.small;
    }
  }

  // Brings the next weights of a group nearer, a part with every kernel: bursts are slower than none. After
  // the last chunk comes the first one of the tile that follows. Inlined, or gcc takes a function that only
  // fetches for one without effect and drops its calls.
  REPRISE_INLINE void PrefetchNext(uint32_t group, uint32_t block, uint32_t input) {
    const uint32_t kernels = (tile_.last_input - tile_.first_input + kInputsMax - 1) / kInputsMax;
    const uint32_t step = (input - tile_.first_input) / kInputsMax, steps = std::min(kernels, 16u);
    if (step >= steps) return;
    if (block >= tile_.panels->blocks) block = 0, group += groups_;
    const char* next = reinterpret_cast<const char*>(GroupBlocks<Packed>(tile_, group) + block);
    constexpr uint32_t lines = kChunkBlocks * sizeof(Packed) / kLine + 1;
    for (uint32_t l = lines * step / steps; l < lines * (step + 1) / steps; ++l) {
      _mm_prefetch(next + l * kLine, _MM_HINT_T1);
    }
  }

  // The next inputs of K-quants, into the first cache: 4 % for Q4_K and Q6_K, nothing for the others.
  REPRISE_INLINE void PrefetchInputs(uint32_t block, uint32_t input) const {
    if (!packed::kIsK<Packed> || input >= tile_.last_input) return;
    const char* next = reinterpret_cast<const char*>(InputsAt(block, input));
    for (uint64_t at = 0; at < kInputsMax * sizeof(InputBlock); at += kLine) _mm_prefetch(next + at, _MM_HINT_T0);
  }

  const InputBlock* InputsAt(uint32_t block, uint32_t input) const {
    const uint32_t panel = input / kPanelInputs;
    return reinterpret_cast<const InputBlock*>(tile_.panels->panel(panel)) +
           uint64_t{block} * tile_.panels->width(panel) + input % kPanelInputs;
  }

  void RunInputs(uint32_t block, uint32_t count, uint32_t input) {
    switch (std::min(kInputsMax, tile_.last_input - input)) {
      case 1:
        return RunKernels<1>(block, count, input);
      case 2:
        return RunKernels<2>(block, count, input);
      case 3:
        return RunKernels<3>(block, count, input);
      default:
        return RunKernels<4>(block, count, input);
    }
  }

  template <int kInputs>
  void RunKernels(uint32_t block, uint32_t count, uint32_t input) {
    alignas(64) static constexpr float kZeros[kInputsMax * kGroupRows] = {};
    const Panels& panels = *tile_.panels;
    const InputBlock* x = InputsAt(block, input);
    const uint64_t step = uint64_t{panels.width(input / kPanelInputs)} * sizeof(InputBlock);
    const int blocks = static_cast<int>(count);
    if constexpr (std::is_same_v<Packed, packed::Q8_0>) Widen(x, kInputs, blocks, step, scratch_.wide);
    for (uint32_t g = 0; g < groups_; ++g) {
      PrefetchNext(tile_.first_group + g, block + count, input);
      const uint32_t slot = (input - tile_.first_input) / kInputsMax * groups_ + g;
      float* waiting = sums_ + uint64_t{slot} * kInputsMax * kGroupRows;
      OutputRows out = {waiting, kGroupRows};
      const bool last = block + count == panels.blocks;
      if (last) out = OutputOf(tile_, tile_.first_group + g, input, waiting);
      const Sums sums = {block == 0 ? kZeros : waiting, out.data, out.stride};
      MultiplyChunk<Packed, kInputs>(unpacked()[g], blocks, x, step, scratch_.wide, sums);
      if (last) Finish(tile_, tile_.first_group + g, input, kInputs, out);
    }
  }

  const Tile& tile_;
  Scratch& scratch_;
  float* const sums_;
  const uint32_t groups_;
};

}  // namespace

uint64_t TileScratchBytesAvx2(uint32_t inputs_max) {
  const uint64_t slots = uint64_t{(inputs_max + kInputsMax - 1) / kInputsMax} * kGroupsMax;
  return sizeof(Scratch) + slots * kInputsMax * kGroupRows * sizeof(float);
}

void MultiplyUnpackedTileAvx2(const Tile& tile) {
  VisitPacked(tile.product->weight->type, [&](auto format) {
    using Packed = typename decltype(format)::type;
    if constexpr (!packed::kIsFloat<Packed>) {
      Tile part = tile;
      for (uint32_t group = tile.first_group; group < tile.last_group; group = part.last_group) {
        part.first_group = group;
        part.last_group = std::min(tile.last_group, group + kGroupsMax);
        ChunkedTile<Packed>(part).Run();
      }
    }
  });
}

}  // namespace reprise
#endif
