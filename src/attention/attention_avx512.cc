#include "attention/attention_tile.h"
#include "kernel/lanes_avx512.h"

namespace reprise {
namespace {

struct Vector {
  static constexpr uint32_t kWidth = 16;
  __m512 v;

  template <ElementType type>
  [[gnu::always_inline]] static inline Vector Load(const StoredAs<type>* from) {
    if constexpr (type == ElementType::kF16) return {LanesAvx512::LoadF16(from).v};
    if constexpr (type == ElementType::kBf16) return {LanesAvx512::LoadBf16(from).v};
    if constexpr (type == ElementType::kF32) return {_mm512_loadu_ps(from)};
  }
  [[gnu::always_inline]] static inline Vector Zero() { return {_mm512_setzero_ps()}; }
  [[gnu::always_inline]] static inline Vector Set(float x) { return {_mm512_set1_ps(x)}; }
  [[gnu::always_inline]] static inline Vector Fma(Vector a, Vector b, Vector c) {
    return {_mm512_fmadd_ps(a.v, b.v, c.v)};
  }
  [[gnu::always_inline]] inline void Store(float* to) const { _mm512_storeu_ps(to, v); }
  [[gnu::always_inline]] static inline void Prefetch(const void* at) { LanesAvx512::Prefetch(at); }
};

// 32 registers: up to 12 x 2 sums; a group of up to 8 heads is one tile.
struct Shape {
  static constexpr bool Takes(uint32_t rows) { return rows <= 8 || rows == 12; }
  static constexpr uint32_t Take(uint32_t rows) {
    if (rows >= 12) return 12;
    return rows > 8 ? (rows + 1) / 2 : rows;
  }
  static constexpr uint32_t ScoreRegisters(uint32_t rows) { return rows <= 6 ? 4 : 2; }
  static constexpr uint32_t ValueRegisters(uint32_t rows) { return rows <= 6 ? 4 : 2; }
};

}  // namespace

const AttentionTable kAttentionAvx512 = AttentionTile<LanesAvx512, Vector, Shape>::Table();

}  // namespace reprise
