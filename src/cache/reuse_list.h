// The order in which reusable slots of one group are evicted: least recently used first, and kept ones
// (needed to resume at a checkpoint edge) after all others.
//
// A slot joins at the young end. Sequences let go of their blocks from the last to the first, so in a
// full group a block is always older than its parent: eviction meets children before parents without
// looking for leaves.
//
// Ownership: one link per slot, taken from the ledger in the constructor.
// Threads:   one thread. Nothing allocates after construction. All methods O(1).
// Design:    DESIGN 6
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "base/carver.h"
#include "base/ids.h"
#include "base/ledger.h"

namespace reprise {

class ReuseList {
 public:
  static uint64_t FootprintBytes(uint32_t slots);
  ReuseList(std::string_view component, uint32_t slots, Ledger& ledger);

  // Adds at the young end of its class. REQUIRES: not in the list.
  void Add(SlotId slot);
  // REQUIRES: in the list.
  void Remove(SlotId slot);
  bool Contains(SlotId slot) const { return links_[slot.value()].listed; }
  // Next to be evicted.
  std::optional<SlotId> Oldest() const;

  // Moves the slot to the kept class for as long as its content lives, in the list or not.
  void Keep(SlotId slot);
  // The content is gone. REQUIRES: not in the list.
  void Forget(SlotId slot);
  bool kept(SlotId slot) const { return links_[slot.value()].kept; }

  uint32_t size() const { return size_; }

  // From the oldest on: f(SlotId).
  template <class F>
  void ForEach(F f) const {
    for (const Ends& ends : ends_)
      for (SlotId slot = ends.oldest; slot != kNoSlot; slot = links_[slot.value()].younger) f(slot);
  }

 private:
  struct Link {
    SlotId older, younger;
    bool listed, kept;
  };
  struct Ends {
    SlotId oldest = kNoSlot, youngest = kNoSlot;
  };
  struct Layout {
    std::span<Link> links;
    Layout(uint32_t slots, Carver& carver) : links(carver.Array<Link>(slots)) {}
  };
  Ends& EndsOf(SlotId slot) { return ends_[links_[slot.value()].kept]; }

  Region region_;
  std::span<Link> links_;
  Ends ends_[2];  // ordinary, kept
  uint32_t size_ = 0;
};

}  // namespace reprise
