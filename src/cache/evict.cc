// Slots and nodes: taking, pinning, letting go, evicting.
#include "base/check.h"
#include "cache/kv_cache_impl.h"

namespace reprise {

bool KvCache::Impl::HasAllSlots(NodeId node) const {
  for (const Group& group : groups)
    if (node_slot(node, group.id) == kNoSlot) return false;
  return true;
}

bool KvCache::Impl::HasNoSlots(NodeId node) const {
  for (const Group& group : groups)
    if (node_slot(node, group.id) != kNoSlot) return false;
  return true;
}

bool KvCache::Impl::IsWhole(NodeId node) const {
  for (const Group& group : groups)
    if ((group.window == 0 || tree.IsTail(node)) && node_slot(node, group.id) == kNoSlot) return false;
  return true;
}

SlotId KvCache::Impl::TakeSlot(Group& group) {
  const std::optional<SlotId> slot = TryTakeSlot(group);
  CHECK(slot.has_value());  // admission reserved it
  return *slot;
}

std::optional<SlotId> KvCache::Impl::TryTakeSlot(Group& group) {
  std::optional<SlotId> slot = group.pool.TryReserve();
  while (!slot && EvictOne(group)) slot = group.pool.TryReserve();
  return slot;
}

bool KvCache::Impl::EvictOne(Group& group) {
  const std::optional<SlotId> oldest = group.reusable.Oldest();
  if (!oldest) return false;
  const NodeId node = group.owner[oldest->value()];
  if (group.window == 0 || tree.IsTail(node)) {
    DropNode(node, /*evicted=*/true);
  } else {  // the block stays: it may be resumed from further on, once the window is past it
    FreeNodeSlot(group, node);
    ++totals.evicted_blocks;
    Reap(node);
  }
  return true;
}

void KvCache::Impl::PinSlot(Group& group, SlotId slot) {
  if (group.pool.pins(slot) == 0) group.reusable.Remove(slot);
  group.pool.Pin(slot);
}

void KvCache::Impl::UnpinSlot(Group& group, SlotId slot) {
  const bool sealed = group.pool.state(slot) == SlotState::kSealed;
  group.pool.Unpin(slot);
  if (sealed && group.pool.pins(slot) == 0) group.reusable.Add(slot);
}

void KvCache::Impl::PinBlock(uint32_t index, Group& group, uint32_t block, SlotId slot) {
  Claim& claimed = claim(index, group.id);
  CHECK_LT(claimed.pinned, claimed.need);
  ++claimed.pinned;
  if (group.window == 0) --group.reserved;
  SlotId& entry = table(index, group.id)[block];
  CHECK_EQ(entry, kNoSlot);
  entry = slot;
}

void KvCache::Impl::UnpinBlock(uint32_t index, Group& group, uint32_t block) {
  SlotId& entry = table(index, group.id)[block];
  UnpinSlot(group, entry);
  entry = kNoSlot;
  --claim(index, group.id).pinned;
  if (group.window == 0) ++group.reserved;
}

void KvCache::Impl::GiveNodeSlot(Group& group, NodeId node, SlotId slot) {
  group.pool.Seal(slot);
  group.owner[slot.value()] = node;
  node_slot(node, group.id) = slot;
}

void KvCache::Impl::FreeNodeSlot(Group& group, NodeId node) {
  SlotId& slot = node_slot(node, group.id);
  if (slot == kNoSlot) return;
  group.reusable.Remove(slot);
  group.reusable.Forget(slot);
  group.pool.Free(slot);
  group.owner[slot.value()] = kNoNode;
  slot = kNoSlot;
}

void KvCache::Impl::DropNode(NodeId node, bool evicted) {
  if (evicted) {
    ++totals.evicted_blocks;
    RememberEvicted(node);
  }
  for (Group& group : groups) FreeNodeSlot(group, node);
  const NodeId parent = tree.parent(node);
  RemoveNode(node);
  Reap(parent);
}

void KvCache::Impl::RemoveNode(NodeId node) {
  if (tree.IsRoot(node)) ForgetNamespace(tree.root_index(node));
  tree.Remove(node);
}

// Removes nodes from this one up that hold nothing and lead nowhere: empty roots, and blocks of models that
// have window groups only.
void KvCache::Impl::Reap(NodeId node) {
  while (node != kNoNode && tree.IsFreeLeaf(node) && HasNoSlots(node)) {
    const NodeId parent = tree.parent(node);
    if (parent != kNoNode) RememberEvicted(node);
    RemoveNode(node);
    node = parent;
  }
}

void KvCache::Impl::Clear() {
  for (Group& group : groups)
    while (EvictOne(group)) {
    }
}

// Of a prefix and the token after it. 64 bits are enough: it only words a miss.
uint64_t KvCache::Impl::Fingerprint(const Digest& parent, TokenId first) const {
  return (TableHash(parent) + static_cast<uint32_t>(first.value())) * 0x9E3779B97F4A7C15u | 1;
}

void KvCache::Impl::RememberEvicted(NodeId node) {
  const auto put = [this](uint64_t fingerprint) {
    memory.evicted[(fingerprint >> 20) & (memory.evicted.size() - 1)] = fingerprint;
  };
  put(Fingerprint(tree.digest(tree.parent(node)), tree.tokens(node)[0]));
  if (!tree.IsTail(node)) put(TableHash(tree.digest(node)));
}

bool KvCache::Impl::WasEvicted(uint64_t fingerprint) const {
  return memory.evicted[(fingerprint >> 20) & (memory.evicted.size() - 1)] == fingerprint;
}

}  // namespace reprise
