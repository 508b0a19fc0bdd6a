// Memory is planned: a component describes what it needs once, as a layout over a Carver. The same
// layout measured gives its Footprint, and carved out of a Region gives its memory, so the planner
// and the allocator are one function (DESIGN 1.3).
//
//   struct Layout {
//     std::span<float> norms;
//     Layout(const Options& o, Carver& carver) : norms(carver.Array<float>(o.rows_max)) {}
//   };
//   uint64_t Thing::Footprint(const Options& o) { return Measure<Layout>(o); }
//   Thing::Thing(const Options& o, Ledger& ledger)
//       : region_(ledger.Take("thing", Footprint(o))), layout_(Carve<Layout>(region_, o)) {}
//
// Ownership: views; the Region owns the bytes. Threads: a Carver belongs to one. Errors: misuse aborts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include "base/bytes.h"
#include "base/check.h"
#include "base/ledger.h"

namespace reprise {

// Hands out consecutive arrays, each aligned to 64 bytes; over no memory it only measures.
class Carver {
 public:
  Carver() = default;  // measures
  explicit Carver(std::span<std::byte> memory) : memory_(memory), measuring_(false) {}

  // While measuring, the span is empty. Elements are zero bytes: T must be trivial enough for that.
  template <class T>
  std::span<T> Array(uint64_t count) {
    static_assert(std::is_trivially_destructible_v<T> && alignof(T) <= 64);
    const uint64_t at = used_;
    used_ = at + RoundUp(count * sizeof(T), 64);
    if (measuring_) return {};
    CHECK_LE(used_, memory_.size());
    return {reinterpret_cast<T*>(memory_.data() + at), count};
  }
  uint64_t used_bytes() const { return used_; }
  bool measuring() const { return measuring_; }

 private:
  std::span<std::byte> memory_;
  uint64_t used_ = 0;
  bool measuring_ = true;
};

template <class Layout, class... Args>
uint64_t Measure(const Args&... args) {
  Carver carver;
  Layout layout(args..., carver);
  (void)layout;
  return carver.used_bytes();
}

template <class Layout, class... Args>
Layout Carve(const Region& region, const Args&... args) {
  Carver carver(region.bytes());
  Layout layout(args..., carver);
  CHECK_EQ(carver.used_bytes(), region.bytes().size());
  return layout;
}

}  // namespace reprise
