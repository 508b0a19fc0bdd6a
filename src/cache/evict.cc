// Slots and nodes: taking, pinning, letting go, evicting.
#include <algorithm>

#include "base/check.h"
#include "cache/kv_cache_impl.h"

namespace reprise {
namespace {

// The last of a prompt and its reply, where the next request is likely to part from them.
constexpr uint32_t kEndingTokens = 512;
// A watched block stands for the others of its request, in units of so many tokens.
constexpr float kWatchedTokens = 512;
// In a remembered fingerprint: how often the block had been used again.
constexpr uint64_t kEvictedUses = BlockClass::kUsesMax;

}  // namespace

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
  if (group.window == 0) {
    std::optional<NodeId> victim = ExpiredBlock();
    if (!victim) victim = eviction.Victim();
    if (victim) DropNode(*victim, /*evicted=*/true);
    return victim.has_value();
  }
  std::optional<SlotId> oldest = ExpiredSlot(group);
  if (!oldest) oldest = WindowVictim(group);
  if (!oldest) return false;
  const NodeId node = group.owner[oldest->value()];
  if (tree.IsTail(node)) {
    DropNode(node, /*evicted=*/true);
  } else {  // the block stays: it may be resumed from further on, once the window is past it
    FreeNodeSlot(group, node);
    ++totals.evicted_blocks;
    Reap(node);
  }
  return true;
}

void KvCache::Impl::Keep(Group& group, SlotId slot, uint32_t level) {
  const uint32_t list = group.reusable.list(slot);
  if (list % kKeepLevels < level) group.reusable.Move(slot, list - list % kKeepLevels + level);
  Offer(group, slot);
}

// What no edge needs goes first, the oldest before the others; then what is worth least; what is soft pinned last.
bool KvCache::Impl::IsWorthLess(const Group& group, SlotId a, SlotId b) const {
  const bool is_pinned = KeepLevel(group, a) == kSoftPinnedLevel;
  if (is_pinned != (KeepLevel(group, b) == kSoftPinnedLevel)) return !is_pinned;
  if ((KeepLevel(group, a) == 0) != (KeepLevel(group, b) == 0)) return KeepLevel(group, a) == 0;
  if (!has_full) return KeepLevel(group, a) < KeepLevel(group, b);
  return eviction.IsWorthLess(group.owner[a.value()], group.owner[b.value()]);
}

std::optional<SlotId> KvCache::Impl::WindowVictim(const Group& group, uint32_t tenant) const {
  std::optional<SlotId> victim;
  for (uint32_t level = 0; level < kKeepLevels; ++level) {
    const std::optional<SlotId> oldest = group.reusable.Oldest(tenant * kKeepLevels + level);
    if (oldest && (!victim || IsWorthLess(group, *oldest, *victim))) victim = oldest;
  }
  return victim;
}

std::optional<SlotId> KvCache::Impl::WindowVictim(const Group& group) const {
  return ChooseVictim<SlotId>(
      Tenants(),
      [&](uint32_t tenant) {
        const auto quota = static_cast<uint32_t>(eviction.share(tenant) * group.pool.size());
        return group.held[tenant] - std::min(group.held[tenant], quota);
      },
      [&](uint32_t tenant) { return WindowVictim(group, tenant); },
      [&](SlotId a, SlotId b) { return IsWorthLess(group, a, b); });
}

void KvCache::Impl::PinSlot(Group& group, SlotId slot) {
  const bool first = group.pool.pins(slot) == 0;
  if (first && group.window != 0) group.reusable.Remove(slot);
  group.pool.Pin(slot);
  if (first) ages.Remove(group.owner[slot.value()]);
  if (first && has_full) eviction.SetEvictable(group.owner[slot.value()], false);
}

void KvCache::Impl::UnpinSlot(Group& group, SlotId slot) {
  const bool sealed = group.pool.state(slot) == SlotState::kSealed;
  group.pool.Unpin(slot);
  if (!sealed || group.pool.pins(slot) > 0) return;
  if (group.window != 0) group.reusable.Add(slot);
  LetGo(group.owner[slot.value()]);
}

// The node is unpinned in one group; if that was the last, its age begins and it may be evicted.
void KvCache::Impl::LetGo(NodeId node) {
  if (IsPinned(node)) return;
  ages.LetGo(node, now_ms);
  if (!has_full) return;
  eviction.LetGo(node);
  eviction.SetEvictable(node, tree.IsFreeLeaf(node));
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
  if (group.window == 0) return Offer(group, slot);
  group.reusable.Move(slot, TenantOf(node) * kKeepLevels);
  ++group.held[TenantOf(node)];
}

void KvCache::Impl::FreeNodeSlot(Group& group, NodeId node) {
  SlotId& slot = node_slot(node, group.id);
  if (slot == kNoSlot) return;
  if (group.window != 0) {
    group.reusable.Remove(slot);
    --group.held[TenantOf(node)];
  }
  Withdraw(group, slot);
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
  ages.Remove(node);
  ShortenSoftPins(node);
  if (tree.IsRoot(node))
    ForgetNamespace(tree.root_index(node));
  else if (has_full)
    eviction.Erase(node);
  const NodeId above = tree.above(node);
  tree.Remove(node);
  if (above != kNoNode) Refresh(above);
}

bool KvCache::Impl::IsPinned(NodeId node) const {
  for (const Group& group : groups) {
    const SlotId slot = node_slot(node, group.id);
    if (slot != kNoSlot && group.pool.pins(slot) > 0) return true;
  }
  return false;
}

void KvCache::Impl::Refresh(NodeId node) {
  if (!has_full || tree.IsRoot(node)) return;
  eviction.SetEvictable(node, tree.IsFreeLeaf(node) && !IsPinned(node));
}

void KvCache::Impl::AddToOrder(NodeId node) {
  if (!has_full) return;
  const uint64_t fingerprint = Fingerprint(node);
  eviction.Insert(node, TenantOf(node), fingerprint, Evicted(fingerprint));
  Refresh(tree.parent(node));
}

// The blocks of the sequence's path: which are its end, how long the reply was; and a few are watched.
void KvCache::Impl::LeavePath(uint32_t index) {
  if (!has_full) return;
  const Sequence& mine = sequence(index);
  const std::span<const NodeId> nodes = path(index).first(mine.sealed);
  const uint32_t reply = std::max(mine.reply, mine.length - std::min(mine.length, mine.prompt));
  const uint32_t ending = kEndingTokens / block_tokens();
  for (uint32_t block = 0; block < nodes.size(); ++block)
    eviction.Leave(nodes[block], block + ending >= nodes.size(), reply);
  const auto watch = [&](std::span<const NodeId> some) {
    if (some.empty()) return;
    random = random * 6364136223846793005u + 1442695040888963407u;
    const NodeId chosen = some[(random >> 33) % some.size()];
    eviction.Watch(chosen, Fingerprint(chosen), static_cast<float>(some.size() * block_tokens()) / kWatchedTokens);
  };
  const size_t matched = std::min<size_t>(mine.matched, nodes.size());
  watch(nodes.first(matched));
  watch(nodes.subspan(matched));
}

bool KvCache::Impl::IsExpired(NodeId node) const {
  return ages.Contains(node) && now_ms - ages.since_ms(node) > uint64_t{1000} * options.reusable_ttl_s;
}

// The one let go of longest ago: what follows a block was let go of before it.
std::optional<NodeId> KvCache::Impl::ExpiredBlock() const {
  const NodeId oldest = ages.oldest();
  if (!has_full || oldest == kNoNode || !IsExpired(oldest) || !eviction.evictable(oldest)) return std::nullopt;
  return oldest;
}

std::optional<SlotId> KvCache::Impl::ExpiredSlot(const Group& group) const {
  if (ages.empty()) return std::nullopt;
  for (uint32_t list = 0; list < Tenants() * kKeepLevels; ++list) {
    const std::optional<SlotId> oldest = group.reusable.Oldest(list);
    if (oldest && IsExpired(group.owner[oldest->value()])) return oldest;
  }
  return std::nullopt;
}

// Removes nodes from this one up that hold nothing and lead nowhere: empty roots, and blocks of models that
// have window groups only.
void KvCache::Impl::Reap(NodeId node) {
  while (node != kNoNode && tree.IsFreeLeaf(node) && HasNoSlots(node)) {
    const NodeId above = tree.above(node);
    if (!tree.IsRoot(node)) RememberEvicted(node);
    RemoveNode(node);
    node = above;
  }
}

void KvCache::Impl::Clear() {
  for (Group& group : groups)
    while (EvictOne(group)) {
    }
}

// Of a prefix and the token after it. 60 bits are enough: they only word a miss and count uses.
uint64_t KvCache::Impl::Fingerprint(const Digest& parent, TokenId first) const {
  return (TableHash(parent) + static_cast<uint32_t>(first.value())) * 0x9E3779B97F4A7C15u | (kEvictedUses + 1);
}

uint64_t KvCache::Impl::Fingerprint(NodeId node) const {
  return tree.IsTail(node) ? Fingerprint(tree.digest(tree.parent(node)), tree.tokens(node)[0])
                           : TableHash(tree.digest(node));
}

void KvCache::Impl::RememberEvicted(NodeId node) {
  const uint64_t uses = has_full && !tree.IsRoot(node) ? eviction.uses(node) : 0;
  const auto put = [&](uint64_t fingerprint) {
    memory.evicted[(fingerprint >> 20) & (memory.evicted.size() - 1)] = (fingerprint & ~kEvictedUses) | uses;
  };
  put(Fingerprint(tree.digest(tree.parent(node)), tree.tokens(node)[0]));
  if (!tree.IsTail(node)) put(Fingerprint(node));
}

std::optional<uint8_t> KvCache::Impl::Evicted(uint64_t fingerprint) const {
  const uint64_t entry = memory.evicted[(fingerprint >> 20) & (memory.evicted.size() - 1)];
  if (entry == 0 || ((entry ^ fingerprint) & ~kEvictedUses) != 0) return std::nullopt;
  return static_cast<uint8_t>(entry & kEvictedUses);
}

}  // namespace reprise
