#include "attention/attention_tile.h"
#include "kernel/lanes_portable.h"

namespace reprise {
namespace {

struct Vector {
  static constexpr uint32_t kWidth = 16;
  LanesPortable v;

  template <ElementType type>
  static Vector Load(const StoredAs<type>* from) {
    if constexpr (type == ElementType::kF16) return {LanesPortable::LoadF16(from)};
    if constexpr (type == ElementType::kBf16) return {LanesPortable::LoadBf16(from)};
    if constexpr (type == ElementType::kF32) return {LanesPortable::Load(from)};
  }
  static Vector Zero() { return Set(0.0f); }
  static Vector Set(float x) { return {LanesPortable::Set(x)}; }
  static Vector Fma(const Vector& a, const Vector& b, const Vector& c) { return {LanesPortable::Fma(a.v, b.v, c.v)}; }
  void Store(float* to) const { v.Store(to); }
  static void Prefetch(const void*) {}
};

struct Shape {
  static constexpr bool Takes(uint32_t rows) { return rows == 1; }
  static constexpr uint32_t Take(uint32_t) { return 1; }
  static constexpr uint32_t ScoreRegisters(uint32_t) { return 1; }
  static constexpr uint32_t ValueRegisters(uint32_t, bool) { return 1; }
};

}  // namespace

const AttentionTable kAttentionPortable = AttentionTile<LanesPortable, Vector, Shape>::Table();

}  // namespace reprise
