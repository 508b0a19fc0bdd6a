// How much memory a KvCache takes, and how a budget is shared between its groups.
#include <algorithm>
#include <bit>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/check.h"
#include "cache/kv_cache_impl.h"

namespace reprise {
namespace {

// One checkpoint edge beyond those of running sequences per this many tokens of the full groups. Gemma-3-270M
// (15 window layers of 512, 15 KiB per token, against 3 full layers, 3 KiB): an edge is 9 blocks of 64 tokens
// = 8.4 MiB, 4096 tokens in full layers 12 MiB, so edges take 41 % of what is beyond the running sequences.
// At 2048 it would be 58 %, at 8192 26 %, with edges too few for conversations of common length.
constexpr uint64_t kTokensPerEdge = 4096;

struct Shares {
  uint64_t blocks = 0;     // in full groups
  uint64_t sequences = 1;  // running ones that windows are for
  bool edges = true;       // each running one's two (end of prompt, end of turn), and those of kTokensPerEdge
};

// Slots of each group. Models with window groups only give them all there is.
std::vector<uint32_t> SlotsFor(const KvCacheOptions& options, const Shares& shares) {
  const Geometry& geometry = options.geometry;
  const uint64_t block_tokens = geometry.block_tokens;
  const bool has_full = HasFullGroup(geometry);
  std::vector<uint32_t> slots;
  for (uint32_t g = 0; g < geometry.groups.size(); ++g) {
    const LayerGroup& group = geometry.groups[g];
    uint64_t count = shares.blocks;
    if (!IsKeptWhole(group.kind) && has_full) {
      const uint64_t resident = ResidentBlocks(geometry, GroupId(g), options.context_max, options.in_flight_max);
      const uint64_t edge_blocks =
          group.kind == GroupKind::kRecurrent ? 1 : CeilDiv(group.window - 1, block_tokens) + 1;
      const uint64_t edges = shares.edges ? 2 * shares.sequences + shares.blocks * block_tokens / kTokensPerEdge : 0;
      // What is kept in a window group is kept in full groups too.
      count = shares.sequences * resident + std::min(edges * edge_blocks, shares.blocks);
    }
    slots.push_back(static_cast<uint32_t>(std::min<uint64_t>(count, UINT32_MAX / 4)));
  }
  return slots;
}

uint64_t TotalBytes(KvCacheOptions options, const std::vector<uint32_t>& slots) {
  options.slots = slots;
  options.memory = nullptr;  // the budget is for the slots' bytes too
  uint64_t bytes = 0;
  for (const Footprint& line : KvCache::Footprints(options)) bytes += line.bytes;
  return bytes;
}

uint64_t WindowBytes(const KvCacheOptions& options, const std::vector<uint32_t>& slots) {
  uint64_t bytes = 0;
  for (uint32_t g = 0; g < slots.size(); ++g)
    if (!IsKeptWhole(options.geometry.groups[g].kind)) bytes += slots[g] * SlotBytes(options.geometry, GroupId(g));
  return bytes;
}

}  // namespace

bool HasFullGroup(const Geometry& geometry) {
  return std::any_of(geometry.groups.begin(), geometry.groups.end(),
                     [](const LayerGroup& group) { return IsKeptWhole(group.kind); });
}

KvCache::Impl::Layout::Layout(const KvCacheOptions& options, Carver& carver) {
  const uint64_t count = options.sequences_max;
  const uint64_t groups = options.geometry.groups.size();
  const PrefixTreeOptions tree = TreeOptions(options);
  uint64_t slots = 0;
  for (uint32_t each : options.slots) slots += each;
  namespaces = carver.Array<Namespace>(tree.roots_max);
  sequences = carver.Array<Sequence>(count);
  askers = carver.Array<NamespaceDigests>(count);
  free = carver.Array<uint32_t>(count);
  claims = carver.Array<Claim>(count * groups);
  tokens = carver.Array<TokenId>(count * options.context_max);
  paths = carver.Array<NodeId>(count * TableOptions(options).blocks_max);
  node_slots = carver.Array<SlotId>((uint64_t{tree.blocks_max} + tree.roots_max) * groups);
  owners = carver.Array<NodeId>(slots);
  // Two fingerprints per evicted block: remembers about the last two fillings of the cache.
  evicted = carver.Array<uint64_t>(std::bit_ceil(uint64_t{4} * tree.blocks_max));
  if (options.reusable_ttl_s > 0) ages = carver.Array<AgeList::Age>(uint64_t{tree.blocks_max} + tree.roots_max);
  soft_pins = carver.Array<SoftPin>(options.soft_pin_blocks);
  if (options.soft_pin_blocks > 0) soft_pins_of = carver.Array<uint32_t>(uint64_t{tree.blocks_max} + tree.roots_max);
  if (!options.tiered) return;
  const uint64_t blocks = TableOptions(options).blocks_max;
  stored = carver.Array<bool>(slots);
  pieces = carver.Array<FetchPiece>(count * (blocks + 1) * groups);
  missing = carver.Array<uint32_t>(count * (blocks + 1));
  fetch_keys = carver.Array<BlockKey>(count * blocks);
  survey_keys = carver.Array<BlockKey>(blocks);
  survey_nodes = carver.Array<NodeId>(blocks);
  survey_pool = carver.Array<uint32_t>(blocks);
  survey_tier = carver.Array<uint32_t>(blocks);
}

PrefixTreeOptions TreeOptions(const KvCacheOptions& options) {
  const Geometry& geometry = options.geometry;
  CHECK_EQ(options.slots.size(), geometry.groups.size());
  uint64_t blocks = UINT64_MAX;
  if (HasFullGroup(geometry)) {  // a block or tail takes a slot in every full group
    for (uint32_t g = 0; g < geometry.groups.size(); ++g)
      if (IsKeptWhole(geometry.groups[g].kind)) blocks = std::min<uint64_t>(blocks, options.slots[g]);
  } else {  // the head of a chain keeps its nodes when its window slots are gone
    blocks = 4 * uint64_t{*std::max_element(options.slots.begin(), options.slots.end())} +
             CeilDiv(options.context_max, geometry.block_tokens);
  }
  // What runs is in its own namespace, and keeps that of a shared prefix.
  const uint64_t running = uint64_t{options.sequences_max} * (options.shared_prefixes.empty() ? 1 : 2);
  return {.block_tokens = geometry.block_tokens,
          .blocks_max = static_cast<uint32_t>(blocks),
          .roots_max = static_cast<uint32_t>(std::min<uint64_t>(blocks, kIdleNamespacesMax) + running)};
}

EvictionOptions OrderOptions(const KvCacheOptions& options) {
  const PrefixTreeOptions tree = TreeOptions(options);
  EvictionOptions order{.policy = options.eviction};
  double rest = 1;
  for (const TenantQuota& quota : options.quotas) {
    CHECK(quota.share > 0 && quota.share <= 1);
    order.shares.push_back(quota.share);
    rest -= quota.share;
  }
  CHECK(rest >= -1e-9);
  order.shares.push_back(std::max(rest, 0.0));
  if (!HasFullGroup(options.geometry)) return order;  // no block is evicted whole
  order.nodes_max = tree.blocks_max + tree.roots_max;
  order.blocks_max = tree.blocks_max;
  return order;
}

uint32_t StoreSlots(const KvCacheOptions& options, uint32_t group) { return options.tiered ? options.slots[group] : 0; }

uint32_t ReuseSlots(const KvCacheOptions& options, uint32_t group) {
  return IsKeptWhole(options.geometry.groups[group].kind) ? 0 : options.slots[group];
}

BlockTablesOptions TableOptions(const KvCacheOptions& options) {
  return {.sequences = options.sequences_max,
          .groups = static_cast<uint32_t>(options.geometry.groups.size()),
          .blocks_max = static_cast<uint32_t>(CeilDiv(options.context_max, options.geometry.block_tokens))};
}

SlotPoolOptions PoolOptions(const KvCacheOptions& options, uint32_t group) {
  const std::string_view kind = Name(options.geometry.groups[group].kind);
  return {.name = absl::StrCat("kv pool ", group, " ", std::string(kind)),
          .slot_bytes = options.memory != nullptr ? 0 : SlotBytes(options.geometry, GroupId(group)),
          .slots = options.slots[group],
          .shuffle_seed = options.shuffle_seed == 0 ? 0 : options.shuffle_seed + group};
}

std::optional<Footprint> SharedPrefixFootprint(const KvCacheOptions& options) {
  uint64_t tokens = 0;
  for (const std::vector<TokenId>& prefix : options.shared_prefixes) tokens += prefix.size();
  if (tokens == 0) return std::nullopt;
  return Footprint{"shared prefixes", tokens * sizeof(TokenId)};
}

std::vector<Footprint> KvCache::Footprints(const KvCacheOptions& options) {
  std::vector<Footprint> lines;
  for (uint32_t g = 0; g < options.geometry.groups.size(); ++g) {
    const SlotPoolOptions pool = PoolOptions(options, g);
    for (Footprint& line : SlotPool::Footprints(pool)) lines.push_back(std::move(line));
    if (const uint32_t slots = ReuseSlots(options, g); slots > 0)
      lines.push_back({pool.name + " order", ReuseLists::FootprintBytes(slots)});
    if (const uint32_t slots = StoreSlots(options, g); slots > 0)
      lines.push_back({pool.name + " to store", ReuseLists::FootprintBytes(slots)});
  }
  lines.push_back({"prefix tree", PrefixTree::FootprintBytes(TreeOptions(options))});
  for (Footprint& line : EvictionOrder::Footprints(OrderOptions(options))) lines.push_back(std::move(line));
  lines.push_back({"block tables", BlockTables::FootprintBytes(TableOptions(options))});
  lines.push_back({"kv sequences", Measure<Impl::Layout>(options)});
  if (std::optional<Footprint> line = SharedPrefixFootprint(options)) lines.push_back(*std::move(line));
  return lines;
}

absl::StatusOr<std::vector<uint32_t>> KvCache::PlanSlots(const KvCacheOptions& options, uint64_t budget_bytes) {
  const Geometry& geometry = options.geometry;
  const auto bytes = [&](const Shares& shares) { return TotalBytes(options, SlotsFor(options, shares)); };
  Shares shares;
  shares.blocks = 1;  // one sequence of context_max tokens
  for (uint32_t g = 0; g < geometry.groups.size(); ++g)
    shares.blocks =
        std::max(shares.blocks, ResidentBlocks(geometry, GroupId(g), options.context_max, options.in_flight_max));
  shares.edges = bytes(shares) <= budget_bytes;  // where every slot is needed to run, nothing is kept
  if (bytes(shares) > budget_bytes)
    return absl::ResourceExhaustedError(absl::StrCat("the KV cache of one sequence of ", options.context_max,
                                                     " tokens needs ", HumanBytes(bytes(shares)), ", the budget is ",
                                                     HumanBytes(budget_bytes)));

  // Windows of as many sequences as half of the budget holds: beyond that they would take from what all
  // sequences can remember.
  const auto affordable = [&](const Shares& more) {
    return WindowBytes(options, SlotsFor(options, more)) <= budget_bytes / 2 && bytes(more) <= budget_bytes;
  };
  for (Shares more = shares; more.sequences < options.sequences_max;) {
    ++more.sequences;
    if (!affordable(more)) break;
    shares = more;
  }

  uint64_t too_many = shares.blocks + 1;
  const auto fit = [&](uint64_t blocks) {
    Shares more = shares;
    more.blocks = blocks;
    return bytes(more) <= budget_bytes;
  };
  while (fit(too_many)) {
    shares.blocks = too_many;
    too_many *= 2;
    CHECK_LT(too_many, UINT32_MAX / 8);
  }
  while (too_many - shares.blocks > 1) {
    const uint64_t middle = shares.blocks + (too_many - shares.blocks) / 2;
    (fit(middle) ? shares.blocks : too_many) = middle;
  }
  return SlotsFor(options, shares);
}

}  // namespace reprise
