#include "block/block_tables.h"

#include <algorithm>

#include "base/check.h"

namespace reprise {

BlockTables::Layout::Layout(const BlockTablesOptions& options, Carver& carver)
    : slots(carver.Array<SlotId>(uint64_t{options.sequences} * options.groups * options.blocks_max)),
      heads(carver.Array<std::span<const SlotId>>(uint64_t{options.sequences} * options.groups)) {}

uint64_t BlockTables::FootprintBytes(const BlockTablesOptions& options) { return Measure<Layout>(options); }

BlockTables::BlockTables(const BlockTablesOptions& options, Ledger& ledger)
    : options_(options), region_(ledger.Take("block tables", FootprintBytes(options))) {
  const Layout layout = Carve<Layout>(region_, options);
  slots_ = layout.slots;
  heads_ = layout.heads;
  std::fill(slots_.begin(), slots_.end(), kNoSlot);
}

std::span<const std::span<const SlotId>> BlockTables::Heads(uint32_t sequence, uint32_t blocks) {
  CHECK_LT(sequence, options_.sequences);
  CHECK_LE(blocks, options_.blocks_max);
  const std::span<std::span<const SlotId>> heads = heads_.subspan(size_t{sequence} * options_.groups, options_.groups);
  for (uint32_t g = 0; g < options_.groups; ++g) heads[g] = table(sequence, g).first(blocks);
  return heads;
}

}  // namespace reprise
