#include "attention/attention_tile.h"
#include "kernel/lanes_avx512.h"

namespace reprise {
namespace {

// The products run on 256-bit registers, of which there are 32 here: on Zen 4 the conversion of f16 to
// 512 bits takes slots of the multiply-add units (1.25 each), that to 256 bits takes none. Measured
// share of the multiply-add peak while scoring 3 / 4 / 7 rows: 0.70 / 0.77 / 0.85 with 512 bits.
struct Vector {
  static constexpr uint32_t kWidth = 8;
  __m256 v;

  template <ElementType type>
  [[gnu::always_inline]] static inline Vector Load(const StoredAs<type>* from) {
    if constexpr (type == ElementType::kF32) {
      return {_mm256_loadu_ps(from)};
    } else {
      const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
      if constexpr (type == ElementType::kF16) return {_mm256_cvtph_ps(half)};
      return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16))};
    }
  }
  [[gnu::always_inline]] static inline Vector Zero() { return {_mm256_setzero_ps()}; }
  [[gnu::always_inline]] static inline Vector Set(float x) { return {_mm256_set1_ps(x)}; }
  [[gnu::always_inline]] static inline Vector Fma(Vector a, Vector b, Vector c) {
    return {_mm256_fmadd_ps(a.v, b.v, c.v)};
  }
  [[gnu::always_inline]] inline void Store(float* to) const { _mm256_storeu_ps(to, v); }
  [[gnu::always_inline]] static inline void Prefetch(const void* at) { LanesAvx512::Prefetch(at); }
};

// Up to 5 x 4 sums, and 6 x 2, which fill the multiply-add units as well and need fewer operands. Where
// rows of V are long, 4 x 2 and 5 x 2, too: then two passes over a block share each cache line, and from
// memory that is 6-17 % faster.
struct Shape {
  static constexpr bool Takes(uint32_t rows) { return rows <= 6; }
  static constexpr uint32_t Take(uint32_t rows) {
    if (rows % 6 == 0 || rows >= 11) return 6;
    return rows <= 6 ? rows : (rows + 1) / 2;
  }
  static constexpr uint32_t ScoreRegisters(uint32_t rows) { return rows == 6 ? 2 : 4; }
  static constexpr uint32_t ValueRegisters(uint32_t rows, bool long_row) {
    if (rows <= 2) return 8;
    return rows == 6 || (rows > 3 && long_row) ? 2 : 4;
  }
};

}  // namespace

const AttentionTable kAttentionAvx512 = AttentionTile<LanesAvx512, Vector, Shape>::Table();

}  // namespace reprise
