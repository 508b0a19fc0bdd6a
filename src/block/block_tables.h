// Block tables of all sequences: for each sequence and group an array, entry i = slot of block i, or
// kNoSlot. Attention reads them in place.
//
// Ownership: owns the arrays, taken from the ledger in the constructor; knows nothing of pins.
// Threads:   one thread. Nothing allocates after construction.
// Design:    DESIGN 5, 6
#pragma once

#include <cstdint>
#include <span>

#include "base/carver.h"
#include "base/ids.h"
#include "base/ledger.h"

namespace reprise {

struct BlockTablesOptions {
  uint32_t sequences = 0;
  uint32_t groups = 0;
  uint32_t blocks_max = 0;  // of one sequence
};

class BlockTables {
 public:
  static uint64_t FootprintBytes(const BlockTablesOptions& options);
  BlockTables(const BlockTablesOptions& options, Ledger& ledger);

  // [blocks_max]
  std::span<SlotId> table(uint32_t sequence, uint32_t group) const {
    return slots_.subspan((size_t{sequence} * options_.groups + group) * options_.blocks_max, options_.blocks_max);
  }
  // [groups][blocks]: the heads of a sequence's tables; valid until the next call for this sequence.
  std::span<const std::span<const SlotId>> Heads(uint32_t sequence, uint32_t blocks);

 private:
  struct Layout {
    std::span<SlotId> slots;                   // [sequences][groups][blocks_max]
    std::span<std::span<const SlotId>> heads;  // [sequences][groups]
    Layout(const BlockTablesOptions& options, Carver& carver);
  };

  const BlockTablesOptions options_;
  Region region_;
  std::span<SlotId> slots_;
  std::span<std::span<const SlotId>> heads_;
};

}  // namespace reprise
