#include "cache/reuse_list.h"

#include "base/check.h"

namespace reprise {

uint64_t ReuseList::FootprintBytes(uint32_t slots) { return Measure<Layout>(slots); }

ReuseList::ReuseList(std::string_view component, uint32_t slots, Ledger& ledger)
    : region_(ledger.Take(component, FootprintBytes(slots))), links_(Carve<Layout>(region_, slots).links) {}

void ReuseList::Add(SlotId slot) {
  Link& link = links_[slot.value()];
  CHECK(!link.listed);
  Ends& ends = EndsOf(slot);
  link.listed = true;
  link.older = ends.youngest;
  link.younger = kNoSlot;
  (ends.youngest == kNoSlot ? ends.oldest : links_[ends.youngest.value()].younger) = slot;
  ends.youngest = slot;
  ++size_;
}

void ReuseList::Remove(SlotId slot) {
  Link& link = links_[slot.value()];
  CHECK(link.listed);
  Ends& ends = EndsOf(slot);
  (link.older == kNoSlot ? ends.oldest : links_[link.older.value()].younger) = link.younger;
  (link.younger == kNoSlot ? ends.youngest : links_[link.younger.value()].older) = link.older;
  link.listed = false;
  --size_;
}

std::optional<SlotId> ReuseList::Oldest() const {
  for (const Ends& ends : ends_)
    if (ends.oldest != kNoSlot) return ends.oldest;
  return std::nullopt;
}

void ReuseList::Keep(SlotId slot) {
  Link& link = links_[slot.value()];
  if (link.kept) return;
  const bool listed = link.listed;
  if (listed) Remove(slot);
  link.kept = true;
  if (listed) Add(slot);
}

void ReuseList::Forget(SlotId slot) {
  CHECK(!links_[slot.value()].listed);
  links_[slot.value()].kept = false;
}

}  // namespace reprise
