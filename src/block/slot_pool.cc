#include "block/slot_pool.h"

#include <utility>

#include "base/check.h"

namespace reprise {

std::vector<Footprint> SlotPool::Footprints(const SlotPoolOptions& options) {
  return {{options.name, options.slot_bytes * options.slots}, {options.name + " slots", Measure<Layout>(options)}};
}

SlotPool::SlotPool(const SlotPoolOptions& options, Ledger& ledger)
    : options_(options),
      arena_(ledger.Take(options.name, options.slot_bytes * options.slots)),
      region_(ledger.Take(options.name + " slots", Measure<Layout>(options))),
      random_(options.shuffle_seed) {
  const Layout layout = Carve<Layout>(region_, options);
  slots_ = layout.slots;
  free_ = layout.free;
  for (uint32_t i = options.slots; i > 0; --i) PushFree(SlotId(i - 1));
}

void SlotPool::PushFree(SlotId id) {
  slots_[id.value()].state = SlotState::kFree;
  free_[free_count_++] = id;
}

std::optional<SlotId> SlotPool::TryReserve() {
  if (free_count_ == 0) return std::nullopt;
  if (options_.shuffle_seed != 0) {
    random_ = random_ * 6364136223846793005u + 1442695040888963407u;
    std::swap(free_[(random_ >> 33) % free_count_], free_[free_count_ - 1]);
  }
  const SlotId id = free_[--free_count_];
  slots_[id.value()] = {.pins = 1, .state = SlotState::kReserved};
  ++pinned_;
  return id;
}

void SlotPool::Fill(SlotId id) {
  Slot& slot = slots_[Index(id)];
  CHECK(slot.state == SlotState::kReserved);
  slot.state = SlotState::kFilled;
}

void SlotPool::Seal(SlotId id) {
  Slot& slot = slots_[Index(id)];
  CHECK(slot.state == SlotState::kFilled);
  CHECK_EQ(slot.pins, 1u);
  slot.state = SlotState::kSealed;
}

void SlotPool::Unseal(SlotId id) {
  Slot& slot = slots_[Index(id)];
  CHECK(slot.state == SlotState::kSealed);
  CHECK_EQ(slot.pins, 1u);
  slot.state = SlotState::kReserved;
}

void SlotPool::Pin(SlotId id) {
  Slot& slot = slots_[Index(id)];
  CHECK(slot.state == SlotState::kSealed);
  if (slot.pins++ == 0) ++pinned_;
}

void SlotPool::Unpin(SlotId id) {
  Slot& slot = slots_[Index(id)];
  CHECK_GT(slot.pins, 0u);
  if (--slot.pins > 0) return;
  --pinned_;
  if (slot.state != SlotState::kSealed) PushFree(id);
}

void SlotPool::Free(SlotId id) {
  const Slot& slot = slots_[Index(id)];
  CHECK(slot.state == SlotState::kSealed);
  CHECK_EQ(slot.pins, 0u);
  PushFree(id);
}

void SlotPool::CheckIntegrity() const {
  uint32_t free = 0, pinned = 0;
  for (const Slot& slot : slots_) {
    free += slot.state == SlotState::kFree;
    pinned += slot.pins > 0;
    CHECK(slot.state != SlotState::kFree || slot.pins == 0);
    // Only readers share, and only published slots stay without a pin.
    CHECK(slot.state == SlotState::kFree || slot.state == SlotState::kSealed || slot.pins == 1);
  }
  CHECK_EQ(free, free_count_);
  CHECK_EQ(pinned, pinned_);
  for (uint32_t i = 0; i < free_count_; ++i) CHECK(slots_[Index(free_[i])].state == SlotState::kFree);
}

}  // namespace reprise
