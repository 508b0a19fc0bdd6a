#include "attention/attention_tile.h"
#include "kernel/lanes_avx2.h"

namespace reprise {
namespace {

struct Vector {
  static constexpr uint32_t kWidth = 8;
  __m256 v;

  template <ElementType type>
  [[gnu::always_inline]] static inline Vector Load(const StoredAs<type>* from) {
    if constexpr (type == ElementType::kF16) return {_mm256_cvtph_ps(LanesAvx2::Half(from))};
    if constexpr (type == ElementType::kBf16)
      return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(LanesAvx2::Half(from)), 16))};
    if constexpr (type == ElementType::kF32) return {_mm256_loadu_ps(from)};
  }
  [[gnu::always_inline]] static inline Vector Zero() { return {_mm256_setzero_ps()}; }
  [[gnu::always_inline]] static inline Vector Set(float x) { return {_mm256_set1_ps(x)}; }
  [[gnu::always_inline]] static inline Vector Fma(Vector a, Vector b, Vector c) {
    return {_mm256_fmadd_ps(a.v, b.v, c.v)};
  }
  [[gnu::always_inline]] inline void Store(float* to) const { _mm256_storeu_ps(to, v); }
  [[gnu::always_inline]] static inline void Prefetch(const void* at) { LanesAvx2::Prefetch(at); }
};

// 16 registers: 6 x 2, 4 x 2, 3 x 4, 2 x 4, 1 x 4 (values 1 x 8) sums, the rest for operands. Seven
// rows, a group of 14 heads over 2, go as 4 + 3, eight as 6 + 2: 4 x 2 sums are just too few to fill the
// latency of the multiply-add (0.89 of its peak; 6 x 2: 0.98).
struct Shape {
  static constexpr bool Takes(uint32_t rows) { return rows <= 4 || rows == 6; }
  static constexpr uint32_t Take(uint32_t rows) {
    if (rows % 6 == 0 || rows >= 8) return 6;
    if (rows == 7) return 4;
    return rows == 5 ? 3 : rows;
  }
  static constexpr uint32_t ScoreRegisters(uint32_t rows) { return rows <= 3 ? 4 : 2; }
  static constexpr uint32_t ValueRegisters(uint32_t rows, bool) { return rows == 1 ? 8 : rows <= 3 ? 4 : 2; }
};

}  // namespace

const AttentionTable kAttentionAvx2 = AttentionTile<LanesAvx2, Vector, Shape>::Table();

}  // namespace reprise
