// Filling slots: prepare, commit, seal, finish.
#include <algorithm>

#include "base/bytes.h"
#include "base/check.h"
#include "cache/kv_cache_impl.h"

namespace reprise {
namespace {

bool IsPrefix(std::span<const TokenId> shorter, std::span<const TokenId> longer) {
  return shorter.size() <= longer.size() && std::equal(shorter.begin(), shorter.end(), longer.begin());
}

}  // namespace

void KvCache::Impl::Prepare(uint32_t index, uint32_t rows) {
  Sequence& mine = sequence(index);
  CHECK(rows > 0 && rows <= options.in_flight_max);
  CHECK_LE(mine.length + rows, mine.tokens_max);
  mine.started = true;
  const uint32_t end = static_cast<uint32_t>(CeilDiv(mine.length + rows, block_tokens()));
  for (Group& group : groups) {
    Claim& claimed = claim(index, group.id);
    const uint32_t first = FirstBlock(group, mine.length);
    for (; claimed.first < first; ++claimed.first)
      if (table(index, group.id)[claimed.first] != kNoSlot) UnpinBlock(index, group, claimed.first);
    // Of a step's blocks only the last has a state, in a recurrent group.
    const uint32_t from = group.recurrent ? std::max(mine.blocks, end - 1) : mine.blocks;
    for (uint32_t block = from; block < end; ++block) PinBlock(index, group, block, TakeSlot(group));
  }
  mine.blocks = std::max(mine.blocks, end);
  mine.prepared = mine.length + rows;
  mine.dirty = std::max(mine.dirty, mine.prepared);
}

void KvCache::Impl::Commit(uint32_t index, std::span<const TokenId> added) {
  Sequence& mine = sequence(index);
  CHECK_LE(mine.length + added.size(), mine.prepared);
  CHECK(!has_recurrent || mine.length + added.size() == mine.prepared);
  const std::span<TokenId> all = tokens(index);
  const uint32_t before = mine.length;
  for (TokenId token : added) {
    CHECK(mine.length >= mine.prompt || all[mine.length] == token);  // the prompt it was admitted with
    all[mine.length++] = token;
  }
  totals.tokens_computed += added.size();
  for (uint32_t block = before / block_tokens(); block < mine.length / block_tokens(); ++block)
    for (Group& group : groups)
      if (HasStateAt(group, index, block)) group.pool.Fill(table(index, group.id)[block]);
  while (mine.write && mine.sealed < mine.length / block_tokens()) mine.write = SealNext(index);
  if (mine.fork_edge > before && mine.fork_edge <= mine.length) MarkEdge(index, mine.fork_edge);
}

// Whether the slot of this block holds all of it: in a recurrent group, the state of its end and not an earlier one.
bool KvCache::Impl::HasStateAt(const Group& group, uint32_t index, uint32_t block) const {
  if (tables.table(index, group.id.value())[block] == kNoSlot) return false;  // a window that a fetch did not need
  return !group.recurrent || (block + 1) * block_tokens() == memory.sequences[index].length;
}

uint32_t KvCache::Impl::RowsToEdge(uint32_t index) const {
  const Sequence& mine = memory.sequences[index];
  uint32_t rows = UINT32_MAX;
  if (!has_recurrent) return rows;
  // States are kept at ends of blocks: the last ones before the end of the prompt, whose last token is always
  // computed again, and before a fork that was met.
  for (const uint32_t edge : {mine.prompt - 1, mine.fork_edge}) {
    const uint32_t end = edge / block_tokens() * block_tokens();
    if (end > mine.length) rows = std::min(rows, end - mine.length);
  }
  return rows;
}

// Publishes the first block that is not sealed yet. False: it cannot be, and nothing after it.
bool KvCache::Impl::SealNext(uint32_t index) {
  Sequence& mine = sequence(index);
  const std::span<const TokenId> block = tokens(index).subspan(mine.sealed * block_tokens(), block_tokens());
  for (Group& group : groups)  // an earlier state of this block: the sequence has gone on from it
    if (!HasStateAt(group, index, mine.sealed) && table(index, group.id)[mine.sealed] != kNoSlot)
      UnpinBlock(index, group, mine.sealed);
  const BlockKey key = Key(tree.digest(mine.tip), block);
  std::optional<NodeId> node = tree.FindBlock(mine.tip, key, block);
  if (node) {
    MergeBlock(index, *node);
  } else {
    node = tree.AddBlock(mine.tip, key, block);
    if (!node) return false;
    PublishBlock(index, *node);
  }
  if (mine.pending_edge > mine.sealed * block_tokens()) {
    for (Group& group : groups)
      if (group.window != 0 && node_slot(*node, group.id) != kNoSlot) Keep(group, node_slot(*node, group.id));
    mine.pending_edge = 0;
  }
  path(index)[mine.sealed++] = *node;
  SetTip(index, *node);
  MoveHome(index);
  return true;
}

void KvCache::Impl::PublishBlock(uint32_t index, NodeId node) {
  const Sequence& mine = sequence(index);
  for (Group& group : groups)
    if (HasStateAt(group, index, mine.sealed)) GiveNodeSlot(group, node, table(index, group.id)[mine.sealed]);
  AddToOrder(node);
  // A tail has the state of its end, and windows that a block which was brought without them has not.
  if (has_recurrent || !HasAllSlots(node)) return;
  // Tails that it goes on from hold nothing more than it does.
  tree.ForEachTail(mine.tip, [&](NodeId tail) {
    if (!IsPrefix(tree.tokens(tail), tree.tokens(node))) return;
    for (Group& group : groups)
      if (group.window != 0 && KeepLevel(group, node_slot(tail, group.id)) > 0)
        Keep(group, node_slot(node, group.id), KeepLevel(group, node_slot(tail, group.id)));
    DropNode(tail, /*evicted=*/false);
  });
}

// Someone sealed this block before: use theirs and free ours, or give ours where theirs is not resident.
void KvCache::Impl::MergeBlock(uint32_t index, NodeId node) {
  const uint32_t block = sequence(index).sealed;
  ++totals.duplicate_seals;
  for (Group& group : groups) {
    if (!HasStateAt(group, index, block)) continue;
    const SlotId theirs = node_slot(node, group.id);
    if (theirs == kNoSlot) {
      GiveNodeSlot(group, node, table(index, group.id)[block]);
      continue;
    }
    if (theirs == table(index, group.id)[block]) continue;  // pinned by a fetch
    PinSlot(group, theirs);
    UnpinBlock(index, group, block);
    PinBlock(index, group, block, theirs);
  }
  if (has_full) eviction.Touch(node);
}

// What every window group needs to resume at `edge`, or one token before it (the last token of a prompt
// is always computed), is kept longest.
void KvCache::Impl::MarkEdge(uint32_t index, uint32_t edge) {
  Sequence& mine = sequence(index);
  if (edge == 0) return;
  for (Group& group : groups) {
    if (group.window == 0) continue;
    const std::span<const SlotId> slots = table(index, group.id);
    const uint32_t end = std::min(static_cast<uint32_t>(CeilDiv(edge, block_tokens())), mine.sealed);
    for (uint32_t block = FirstBlock(group, edge - 1); block < end; ++block)
      if (slots[block] != kNoSlot) Keep(group, slots[block]);
  }
  if (edge > mine.sealed * block_tokens()) mine.pending_edge = edge;
}

void KvCache::Impl::Finish(uint32_t index) {
  const Sequence& mine = sequence(index);
  ClearDirty(index);
  MarkEdge(index, mine.length);
  if (mine.write && mine.length % block_tokens() != 0) PublishTail(index);
  Release(index);
}

// Keeps the partial last block beside the blocks under the tip.
void KvCache::Impl::PublishTail(uint32_t index) {
  const Sequence& mine = sequence(index);
  CHECK_EQ(mine.sealed, mine.length / block_tokens());
  const uint32_t whole = mine.sealed * block_tokens();
  const std::span<const TokenId> rest = tokens(index).subspan(whole, mine.length - whole);
  if (CoveredByOthers(index, rest)) return;
  NodeId oldest = kNoNode;
  tree.ForEachTail(mine.tip, [&](NodeId tail) {
    if (!has_recurrent && IsPrefix(tree.tokens(tail), rest))
      DropNode(tail, /*evicted=*/false);
    else
      oldest = tail;
  });
  if (tree.tail_count(mine.tip) == kTailsPerParentMax) DropNode(oldest, /*evicted=*/true);
  const std::optional<NodeId> tail = tree.AddTail(mine.tip, rest);
  if (!tail) return;
  for (Group& group : groups) {
    const SlotId slot = table(index, group.id)[mine.sealed];
    group.pool.Fill(slot);
    GiveNodeSlot(group, *tail, slot);
    if (group.window != 0) Keep(group, slot);
  }
  AddToOrder(*tail);
}

// True, and that one is young again, if a block or tail under the tip already holds these rows.
bool KvCache::Impl::CoveredByOthers(uint32_t index, std::span<const TokenId> rest) {
  const PrefixTree::Run run = tree.LongestRun(sequence(index).tip, rest, [&](NodeId node) {
    return HasAllSlots(node) && (!has_recurrent || tree.tokens(node).size() == rest.size());
  });
  if (run.tokens < rest.size()) return false;
  const NodeId covering = run.node;
  for (Group& group : groups) {
    const SlotId slot = node_slot(covering, group.id);
    if (group.window != 0) Keep(group, slot);
    PinSlot(group, slot);
  }
  if (has_full) eviction.Touch(covering);
  for (Group& group : groups) UnpinSlot(group, node_slot(covering, group.id));
  return true;
}

// Rows that were prepared and never committed may hold NaN. They must not reach the next user of the slot,
// for whom they would be the rows behind its own: 0 * NaN is NaN.
void KvCache::Impl::ClearDirty(uint32_t index) {
  Sequence& mine = sequence(index);
  if (mine.dirty <= mine.length) return;
  for (Group& group : groups) {
    const std::span<const SlotId> slots = table(index, group.id);
    for (uint32_t block = mine.length / block_tokens(); block < CeilDiv(mine.dirty, block_tokens()); ++block) {
      const uint32_t start = block * block_tokens();
      if (slots[block] == kNoSlot || group.recurrent) continue;
      ClearSlotRows(group, slots[block], std::max(mine.length, start) - start);
    }
  }
  mine.dirty = mine.length;
}

void KvCache::Impl::Release(uint32_t index) {
  Sequence& mine = sequence(index);
  if (!fetches.empty() && fetches[index].active) {
    options.tier->Cancel(fetches[index].ticket);
    fetches[index].active = false;
  }
  ClearDirty(index);
  LeavePath(index);
  for (uint32_t block = mine.blocks; block > 0; --block)  // children before parents: see ReuseLists, AgeList
    for (Group& group : groups)
      if (table(index, group.id)[block - 1] != kNoSlot) UnpinBlock(index, group, block - 1);
  for (Group& group : groups) {
    const Claim& mine_here = claim(index, group.id);
    CHECK_EQ(mine_here.pinned, 0u);
    group.reserved -= mine_here.need;
  }
  tree.Unref(mine.tip);
  Refresh(mine.tip);
  LeaveNamespace(mine);
  mine = Sequence{};
  memory.free[free_sequences++] = index;
}

void KvCache::Impl::SetTip(uint32_t index, NodeId tip) {
  Sequence& mine = sequence(index);
  if (mine.tip == tip) return;
  tree.Ref(tip);
  tree.Unref(mine.tip);
  Refresh(mine.tip);
  mine.tip = tip;
}

}  // namespace reprise
