// Memory is planned: a component describes what it needs once, as a layout over a Carver. The same
// layout measured gives its Footprint, and carved out of a Region gives its memory, so the planner
// and the allocator are one function (DESIGN 1.3). A component takes its Region from the one Ledger
// in its constructor, and nothing afterwards.
//
//   struct Layout {
//     std::span<float> norms;
//     Layout(const Options& o, Carver& carver) : norms(carver.Array<float>(o.rows_max)) {}
//   };
//   uint64_t Thing::Footprint(const Options& o) { return Measure<Layout>(o); }
//   Thing::Thing(const Options& o, Ledger& ledger)
//       : region_(ledger.Take("thing", Footprint(o))), layout_(Carve<Layout>(region_, o)) {}
//
// Ownership: a Region owns its bytes and gives them back to the Ledger, which must outlive it.
// Threads:   Ledger is safe from any thread; a Region and a Carver belong to one.
// Errors:    running past the ledger's limit is a planning bug: plans are checked before anything is
//            taken (`Fits`), so Take aborts, naming the component, what it asked and what was left.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "base/bytes.h"
#include "base/check.h"

namespace reprise {

// One line of a plan.
struct Footprint {
  std::string component;
  uint64_t bytes = 0;
};

class Ledger;

// Zeroed bytes, aligned to 64 (to 2 MiB, with huge pages asked for, from 2 MiB on).
class Region {
 public:
  Region() = default;
  Region(Region&& other) noexcept { *this = std::move(other); }
  Region& operator=(Region&& other) noexcept;
  ~Region() { Release(); }

  std::span<std::byte> bytes() const { return {data_, size_}; }

 private:
  friend class Ledger;
  void Release();

  Ledger* ledger_ = nullptr;
  std::string component_;
  std::byte* data_ = nullptr;
  uint64_t size_ = 0;
};

class Ledger {
 public:
  // `limit_bytes`: what all components together may take (--memory).
  explicit Ledger(uint64_t limit_bytes) : limit_bytes_(limit_bytes) {}
  ~Ledger();

  // REQUIRES: bytes fit below the limit. Maps memory; does not touch it.
  Region Take(std::string_view component, uint64_t bytes);
  // Accounts for memory that a library takes on our behalf (the tokenizer's tables): same limit, same
  // report, no bytes handed out.
  Region Account(std::string_view component, uint64_t bytes);

  bool Fits(uint64_t bytes) const;
  uint64_t limit_bytes() const { return limit_bytes_; }
  uint64_t taken_bytes() const;
  std::map<std::string, uint64_t> taken_by_component() const;

 private:
  friend class Region;
  Region Reserve(std::string_view component, uint64_t bytes);
  void Return(const std::string& component, uint64_t bytes);

  const uint64_t limit_bytes_;
  mutable std::mutex mutex_;
  uint64_t taken_bytes_ = 0;                      // guarded by mutex_
  std::map<std::string, uint64_t> by_component_;  // guarded by mutex_
};

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
