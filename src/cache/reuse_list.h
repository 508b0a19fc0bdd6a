// Lists of the reusable slots of one window or recurrent group, each in the order in which its slots were let go of.
// Which list a slot belongs to is said by its owner, for as long as its content lives, in the list or not.
//
// Ownership: one link per slot, taken from the ledger in the constructor.
// Threads:   one thread. Nothing allocates after construction. All methods O(1).
// Design:    DESIGN 6
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "base/carver.h"
#include "base/ids.h"
#include "base/ledger.h"

namespace reprise {

class ReuseLists {
 public:
  static uint64_t FootprintBytes(uint32_t slots);
  ReuseLists(std::string_view component, uint32_t slots, uint32_t lists, Ledger& ledger);

  // Adds at the young end of its list. REQUIRES: not listed.
  void Add(SlotId slot);
  // REQUIRES: listed.
  void Remove(SlotId slot);
  bool Contains(SlotId slot) const { return links_[slot.value()].listed; }
  std::optional<SlotId> Oldest(uint32_t list) const;

  // The slot belongs to `list` from now on; listed, it goes to the young end there.
  void Move(SlotId slot, uint32_t list);
  // 0 after construction.
  uint32_t list(SlotId slot) const { return links_[slot.value()].list; }

  uint32_t size() const { return size_; }

  // From the oldest on, list after list: f(SlotId).
  template <class F>
  void ForEach(F f) const {
    for (const Ends& ends : ends_)
      for (SlotId slot = ends.oldest; slot != kNoSlot; slot = links_[slot.value()].younger) f(slot);
  }

 private:
  struct Link {
    SlotId older, younger;
    uint32_t list;
    bool listed;
  };
  struct Ends {
    SlotId oldest = kNoSlot, youngest = kNoSlot;
  };
  struct Layout {
    std::span<Link> links;
    Layout(uint32_t slots, Carver& carver) : links(carver.Array<Link>(slots)) {}
  };

  Region region_;
  std::span<Link> links_;
  std::vector<Ends> ends_;  // [lists]
  uint32_t size_ = 0;
};

}  // namespace reprise
