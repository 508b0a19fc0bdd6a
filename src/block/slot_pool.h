// A SlotPool owns the KV bytes of one layer group and hands them out in slots of one size. It knows
// nothing of tokens or prefixes.
//
//   free --TryReserve--> reserved --Fill--> filled --Seal--> sealed --Free--> free
//   reserved and filled slots go back to free with their last pin; a sealed one stays, reusable.
//
// Ownership: the pool owns the bytes, taken from the ledger in the constructor (huge pages from 2 MiB
//            on); slots never move. Callers hold pins; a slot without a pin may be freed at any time.
// Threads:   one thread, the engine's. Nothing allocates after construction.
// Errors:    an exhausted pool is an outcome (nullopt). Misuse aborts.
// Design:    DESIGN 6, docs/format/block.md
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/carver.h"
#include "base/ids.h"
#include "base/kv_view.h"
#include "base/ledger.h"

namespace reprise {

struct SlotPoolOptions {
  std::string name;  // in plans: "kv pool 0 full"
  uint64_t slot_bytes = 0;
  uint32_t slots = 0;
  uint64_t shuffle_seed = 0;  // not 0: hand out slots in a shuffled order
};

enum class SlotState : uint8_t { kFree = 0, kReserved, kFilled, kSealed };

class SlotPool {
 public:
  // The bytes of the slots, and what is kept about them.
  static std::vector<Footprint> Footprints(const SlotPoolOptions& options);
  SlotPool(const SlotPoolOptions& options, Ledger& ledger);

  // A free slot, now reserved with one pin.
  std::optional<SlotId> TryReserve();
  // Its rows are written and final. REQUIRES: reserved.
  void Fill(SlotId id);
  // Published: readers may pin it, nobody writes to it. REQUIRES: filled.
  void Seal(SlotId id);
  // Takes it back from publication, to be written again. REQUIRES: sealed, one pin (the caller's).
  void Unseal(SlotId id);
  // REQUIRES: sealed.
  void Pin(SlotId id);
  // Drops a pin. The last one frees a slot that is not sealed. REQUIRES: pinned.
  void Unpin(SlotId id);
  // REQUIRES: sealed, not pinned.
  void Free(SlotId id);

  SlotState state(SlotId id) const { return slots_[Index(id)].state; }
  uint32_t pins(SlotId id) const { return slots_[Index(id)].pins; }
  std::span<std::byte> bytes(SlotId id) const {
    return arena_.bytes().subspan(Index(id) * options_.slot_bytes, options_.slot_bytes);
  }
  KvGroupView view() const { return {.base = arena_.bytes().data(), .slots = options_.slots}; }

  uint32_t size() const { return options_.slots; }
  uint32_t free() const { return free_count_; }
  uint32_t pinned() const { return pinned_; }
  uint32_t reusable() const { return size() - free_count_ - pinned_; }

  // Aborts unless every slot is free exactly once or in use. O(slots).
  void CheckIntegrity() const;

 private:
  struct Slot {
    uint32_t pins;
    SlotState state;
  };
  struct Layout {
    std::span<Slot> slots;
    std::span<SlotId> free;  // a stack; the last is next
    Layout(const SlotPoolOptions& options, Carver& carver)
        : slots(carver.Array<Slot>(options.slots)), free(carver.Array<SlotId>(options.slots)) {}
  };

  size_t Index(SlotId id) const {
    CHECK_LT(id.value(), options_.slots);
    return id.value();
  }
  void PushFree(SlotId id);

  const SlotPoolOptions options_;
  Region arena_;
  Region region_;
  std::span<Slot> slots_;
  std::span<SlotId> free_;
  uint32_t free_count_ = 0;
  uint32_t pinned_ = 0;
  uint64_t random_;
};

}  // namespace reprise
