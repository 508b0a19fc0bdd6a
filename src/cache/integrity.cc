// KvCache::CheckIntegrity: everything that can be counted twice is counted twice.
#include <algorithm>

#include "base/bytes.h"
#include "base/check.h"
#include "cache/kv_cache_impl.h"

namespace reprise {

void KvCache::Impl::CheckIntegrity() const {
  tree.CheckIntegrity();
  eviction.CheckIntegrity();
  for (const Group& group : groups) CheckGroup(group);
  CheckNodes();
  CheckSequences();
  CheckNamespaces();
  CheckShared();
  CheckAges();
  CheckSoftPins();
}

// Slots: each is free, pinned by sequences as often as it says, or reusable; and reservations can be met.
void KvCache::Impl::CheckGroup(const Group& group) const {
  group.pool.CheckIntegrity();
  std::vector<uint32_t> pins(group.pool.size());
  uint64_t worst = 0, pinned = 0;
  for (uint32_t index = 0; index < options.sequences_max; ++index) {
    if (!memory.sequences[index].admitted) continue;
    uint32_t own = 0;
    for (SlotId slot : table(index, group.id)) {
      if (slot == kNoSlot) continue;
      ++pins[slot.value()];
      ++own;
    }
    const Claim& claimed = memory.claims[size_t{index} * groups.size() + group.id.value()];
    CHECK_EQ(claimed.pinned, own);
    CHECK_LE(own, claimed.need);
    worst += claimed.need;
    pinned += own;
  }
  CHECK_EQ(group.reserved, group.window == 0 ? worst - pinned : worst);
  CHECK_LE(group.reserved, group.window == 0 ? group.pool.free() + group.pool.reusable() : uint64_t{group.pool.size()});

  std::vector<bool> listed(group.pool.size());
  group.reusable.ForEach([&](SlotId slot) { listed[slot.value()] = true; });
  CHECK_EQ(group.reusable.size(), group.window == 0 ? 0 : group.pool.reusable());
  std::vector<uint32_t> held(Tenants());
  for (uint32_t i = 0; i < group.pool.size(); ++i) {
    const SlotId slot(i);
    const bool sealed = group.pool.state(slot) == SlotState::kSealed;
    CHECK_EQ(group.pool.pins(slot), pins[i]);
    CHECK_EQ(sealed, group.owner[i] != kNoNode);
    if (group.window != 0) {
      CHECK_EQ(listed[i], sealed && pins[i] == 0);
      held[sealed ? group.reusable.list(slot) / kKeepLevels : 0] += sealed;
      CHECK(!sealed || group.reusable.list(slot) / kKeepLevels == TenantOf(group.owner[i]));
    }
    if (options.tier != nullptr) CHECK(!group.to_store.Contains(slot) || (sealed && !IsStored(group, slot)));
    if (!sealed) continue;
    CHECK_EQ(node_slot(group.owner[i], group.id), slot);
    // In a full group a pinned block pins its parent.
    const NodeId parent = BlockBefore(group.owner[i]);
    if (group.window != 0 || tree.IsRoot(parent)) continue;
    const SlotId above = node_slot(parent, group.id);
    CHECK(above != kNoSlot);
    CHECK(pins[i] == 0 || pins[above.value()] > 0);
  }
  CHECK(held == group.held);
}

void KvCache::Impl::CheckNodes() const {
  std::vector<uint32_t> owned(groups.size());
  for (const Group& group : groups)
    for (NodeId node : group.owner) owned[group.id.value()] += node != kNoNode;
  for (uint32_t i = 0; i < tree.nodes_max(); ++i) {
    const NodeId node(i);
    CHECK(!tree.Exists(node) || !tree.IsFreeLeaf(node) || !HasNoSlots(node));  // nothing is kept for nothing
    // What nobody uses and nothing follows can be evicted, nothing else.
    if (has_full)
      CHECK_EQ(eviction.evictable(node),
               tree.Exists(node) && !tree.IsRoot(node) && tree.IsFreeLeaf(node) && !IsPinned(node));
    for (const Group& group : groups) {
      const SlotId slot = node_slot(node, group.id);
      if (slot == kNoSlot) continue;
      CHECK_EQ(group.owner[slot.value()], node);
      CHECK(tree.Exists(node) && !tree.IsRoot(node));
      CHECK(IsWhole(node));
      --owned[group.id.value()];
    }
  }
  for (uint32_t left : owned) CHECK_EQ(left, 0u);
}

// What nobody uses is listed from the oldest on.
void KvCache::Impl::CheckAges() const {
  if (ages.empty()) return;
  std::vector<bool> listed(tree.nodes_max());
  uint64_t last_ms = 0;
  for (NodeId node = ages.oldest(); node != kNoNode; node = ages.next(node)) {
    CHECK(ages.Contains(node) && tree.Exists(node) && !IsPinned(node));
    CHECK_LE(last_ms, ages.since_ms(node));
    last_ms = ages.since_ms(node);
    listed[node.value()] = true;
  }
  for (uint32_t i = 0; i < listed.size(); ++i) {
    const NodeId node(i);
    CHECK_EQ(listed[i], ages.Contains(node));
    if (tree.Exists(node) && !tree.IsRoot(node) && !HasNoSlots(node)) CHECK_EQ(listed[i], !IsPinned(node));
  }
}

// Paths: a running sequence's sealed blocks are the ancestors of its tip, in place and with its tokens.
void KvCache::Impl::CheckSequences() const {
  uint32_t admitted = 0;
  for (uint32_t index = 0; index < options.sequences_max; ++index) {
    const Sequence& mine = memory.sequences[index];
    if (!mine.admitted) continue;
    ++admitted;
    CHECK(mine.length <= mine.prepared && mine.prepared <= std::max(mine.dirty, mine.length));
    CHECK_LE(mine.prepared, mine.tokens_max);
    CHECK_EQ(tree.root_index(mine.tip), mine.root);
    NodeId node = tree.LastBlock(mine.tip);
    for (uint32_t block = mine.sealed; block > 0; --block, node = BlockBefore(node)) {
      CHECK_EQ(path(index)[block - 1], node);
      const std::span<const TokenId> have = tree.tokens(node);
      CHECK(std::equal(have.begin(), have.end(), tokens(index).begin() + (block - 1) * block_tokens()));
    }
    CHECK(tree.IsRoot(node));
    // The windows of a fetching sequence are those of where it goes.
    const bool fetching = !fetches.empty() && fetches[index].active;
    const uint32_t used = fetching ? 0 : static_cast<uint32_t>(CeilDiv(mine.prepared, block_tokens()));
    for (const Group& group : groups) {
      const std::span<const SlotId> slots = table(index, group.id);
      const uint32_t first = FirstBlock(group, mine.length);
      const uint32_t reach = memory.claims[size_t{index} * groups.size() + group.id.value()].first;
      if (!fetching) CHECK_LE(reach, first);
      for (uint32_t block = 0; block < slots.size(); ++block) {
        if (block >= first && block < used && (!group.recurrent || block + 1 == used)) CHECK(slots[block] != kNoSlot);
        if (block >= mine.blocks || block < reach) CHECK_EQ(slots[block], kNoSlot);
        if (slots[block] == kNoSlot || block >= mine.sealed) continue;
        CHECK_EQ(slots[block], node_slot(path(index)[block], group.id));
      }
    }
  }
  CHECK_EQ(admitted + free_sequences, options.sequences_max);
}

// Every root is in the list once, with the sequences that run in it.
void KvCache::Impl::CheckNamespaces() const {
  std::vector<uint32_t> running(memory.namespaces.size());
  for (const Sequence& sequence : memory.sequences)
    if (sequence.admitted) ++running[sequence.root];
  for (uint32_t index = oldest_namespace; index != kNoNamespace; index = memory.namespaces[index].newer)
    if (const NodeId above = tree.above(memory.namespaces[index].root); above != kNoNode)
      ++running[tree.root_index(above)];
  uint32_t listed = 0, last = kNoNamespace;
  for (uint32_t index = oldest_namespace; index != kNoNamespace; index = memory.namespaces[index].newer) {
    const Namespace& each = memory.namespaces[index];
    ++listed;
    CHECK_EQ(each.older, last);
    CHECK(tree.IsRoot(each.root));
    CHECK_EQ(tree.root_index(each.root), index);
    const NodeId above = tree.above(each.root);
    const Digest digest =
        above == kNoNode ? each.digests.id.digest : hasher.Reroot(tree.digest(above), each.digests.id);
    CHECK(tree.digest(each.root) == digest);
    CHECK_EQ(each.users, running[index]);
    CHECK(!each.purged || each.users > 0);
    CHECK_EQ(tree.FindRoot(NamespaceId{digest}) == each.root, !each.purged);
    running[index] = 0;
    last = index;
  }
  CHECK_EQ(newest_namespace, last);
  CHECK_EQ(listed, tree.roots());
  for (uint32_t left : running) CHECK_EQ(left, 0u);
}

}  // namespace reprise
