#include "cache/reuse_list.h"

#include "base/check.h"

namespace reprise {

uint64_t ReuseLists::FootprintBytes(uint32_t slots) { return Measure<Layout>(slots); }

ReuseLists::ReuseLists(std::string_view component, uint32_t slots, uint32_t lists, Ledger& ledger)
    : region_(ledger.Take(component, FootprintBytes(slots))),
      links_(Carve<Layout>(region_, slots).links),
      ends_(lists) {}

void ReuseLists::Add(SlotId slot) {
  Link& link = links_[slot.value()];
  CHECK(!link.listed);
  Ends& ends = ends_[link.list];
  link.listed = true;
  link.older = ends.youngest;
  link.younger = kNoSlot;
  (ends.youngest == kNoSlot ? ends.oldest : links_[ends.youngest.value()].younger) = slot;
  ends.youngest = slot;
  ++size_;
}

void ReuseLists::Remove(SlotId slot) {
  Link& link = links_[slot.value()];
  CHECK(link.listed);
  Ends& ends = ends_[link.list];
  (link.older == kNoSlot ? ends.oldest : links_[link.older.value()].younger) = link.younger;
  (link.younger == kNoSlot ? ends.youngest : links_[link.younger.value()].older) = link.older;
  link.listed = false;
  --size_;
}

std::optional<SlotId> ReuseLists::Oldest(uint32_t list) const {
  return ends_[list].oldest == kNoSlot ? std::nullopt : std::optional(ends_[list].oldest);
}

void ReuseLists::Move(SlotId slot, uint32_t list) {
  Link& link = links_[slot.value()];
  if (link.list == list) return;
  const bool listed = link.listed;
  if (listed) Remove(slot);
  link.list = list;
  if (listed) Add(slot);
}

}  // namespace reprise
