// Storing behind: what is sealed waits in a list per group until the tier has room for a copy of it. What is evicted
// before that is lost to the tier, never waited for.
#include <algorithm>
#include <array>

#include "base/check.h"
#include "cache/kv_cache_impl.h"

namespace reprise {
namespace {

// What one record holds at most: long enough that its header does not count, short enough that little is lost with it.
constexpr uint32_t kRecordTokens = 256;

}  // namespace

bool KvCache::Impl::IsStored(const Group& group, SlotId slot) const {
  return memory.stored[group.first_slot + slot.value()];
}
void KvCache::Impl::SetStored(const Group& group, SlotId slot, bool stored) {
  if (!memory.stored.empty()) memory.stored[group.first_slot + slot.value()] = stored;
}

// A sealed slot that is worth storing: of a block in groups that are kept whole, of a tail, or needed to resume at an
// edge.
void KvCache::Impl::Offer(Group& group, SlotId slot) {
  if (options.tier == nullptr || !options.tier->writable()) return;
  if (!IsStored(group, slot) && !group.to_store.Contains(slot)) group.to_store.Add(slot);
}

// The slot holds something else from now on, or nothing.
void KvCache::Impl::Withdraw(Group& group, SlotId slot) {
  if (options.tier == nullptr) return;
  if (group.to_store.Contains(slot)) group.to_store.Remove(slot);
  SetStored(group, slot, false);
}

bool KvCache::Impl::Poll(uint64_t store_bytes) {
  if (options.tier == nullptr) return false;
  options.tier->Drain([this](const TierFetched& fetched) { TakeFetched(fetched); });
  for (uint32_t index = 0; index < options.sequences_max; ++index)
    if (fetches[index].active) AdvanceFetch(index);
  // A round of the groups at a time, so that what one prefix needs in all of them is stored together.
  bool more = true;
  while (more && store_bytes > 0) {
    more = false;
    for (Group& group : groups) {
      const uint64_t bytes = StoreNext(group);
      store_bytes -= std::min(store_bytes, bytes);
      more |= bytes > 0;
    }
  }
  return std::any_of(groups.begin(), groups.end(), [](const Group& group) { return group.to_store.size() > 0; });
}

// Gives the tier the group's oldest block that waits, and those that go on from it. Returns the bytes; 0: none waits,
// or there is no room.
uint64_t KvCache::Impl::StoreNext(Group& group) {
  const std::optional<SlotId> oldest = group.to_store.Oldest(0);
  const uint64_t slot_bytes = SlotBytes(options.geometry, group.id);
  if (!oldest || !options.tier->HasRoomFor(slot_bytes)) return 0;
  const NodeId first = group.owner[oldest->value()];
  const Namespace& name_space = memory.namespaces[tree.root_index(first)];

  std::array<BlockKey, kRecordTokens / 16> keys;
  std::array<std::span<const std::byte>, kRecordTokens / 16> payloads;
  std::array<TokenId, kRecordTokens> record_tokens;
  uint32_t blocks = 0, count = 0;
  const uint32_t blocks_at_most = tree.IsTail(first) ? 1 : std::max(1u, kRecordTokens / block_tokens());
  NodeId last = tree.parent(first);
  while (blocks < blocks_at_most) {
    const std::optional<SlotId> slot = group.to_store.Oldest(0);
    if (!slot) break;
    const NodeId node = group.owner[slot->value()];
    if (tree.parent(node) != last || (blocks > 0 && tree.IsTail(node))) break;
    if (blocks > 0 && !options.tier->HasRoomFor((blocks + 1) * slot_bytes)) break;
    const std::span<const TokenId> tokens = tree.tokens(node);
    if (!tree.IsTail(node)) keys[blocks] = BlockKey{tree.digest(node)};
    payloads[blocks++] = group.pool.bytes(*slot);
    std::copy(tokens.begin(), tokens.end(), record_tokens.begin() + count);
    count += static_cast<uint32_t>(tokens.size());
    group.to_store.Remove(*slot);
    SetStored(group, *slot, true);
    last = node;
  }
  if (name_space.purged) return blocks * slot_bytes;
  uint32_t depth = 0;
  for (NodeId node = BlockBefore(first); !tree.IsRoot(node); node = BlockBefore(node)) ++depth;
  const TierRecord record{.name_space = name_space.digests,
                          .group = group.id,
                          .parent = tree.digest(tree.parent(first)),
                          .first_token = depth * block_tokens(),
                          .keys = std::span(keys).first(tree.IsTail(first) ? 0 : blocks),
                          .tokens = std::span(record_tokens).first(count),
                          .payloads = std::span(payloads).first(blocks)};
  (void)options.tier->Store(record);  // declined after HasRoomFor: a breaker opened just now; the tier counts it
  return blocks * slot_bytes;
}

}  // namespace reprise
