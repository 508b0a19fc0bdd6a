// Which prefix is there, and taking it.
#include <algorithm>

#include "base/bytes.h"
#include "base/check.h"
#include "cache/kv_cache_impl.h"

namespace reprise {

BlockKey KvCache::Impl::Key(const Digest& previous, std::span<const TokenId> tokens) const {
  return options.block_key != nullptr ? options.block_key(previous, tokens) : hasher.Next(previous, tokens);
}

KvCache::Impl::Match KvCache::Impl::Find(const Asker& asker, std::span<const TokenId> prompt) const {
  CHECK(!prompt.empty());
  const NamespaceId& name_space = NamespaceAt(asker, 0);
  if (const std::optional<NodeId> root = tree.FindRoot(name_space)) return Extend(*root, 0, prompt, asker);
  Match match;
  const bool evicted = prompt.size() > block_tokens()
                           ? WasEvicted(TableHash(Key(name_space.digest, prompt.first(block_tokens())).digest))
                           : WasEvicted(Fingerprint(name_space.digest, prompt[0]));
  match.reason = prompt.size() == 1 ? MissReason::kLastTokenRule
                 : evicted          ? MissReason::kEvicted
                                    : MissReason::kNeverSeen;
  return match;
}

// A tail whose state is that of a prefix of `wanted`: states cannot be cut.
bool KvCache::Impl::IsStateFor(NodeId node, std::span<const TokenId> wanted) const {
  const std::span<const TokenId> have = tree.tokens(node);
  return tree.IsTail(node) && have.size() <= wanted.size() && std::equal(have.begin(), have.end(), wanted.begin());
}

// The longest usable prefix of `prompt` that goes on from the first `blocks` blocks, whose last is `tip`.
KvCache::Impl::Match KvCache::Impl::Extend(NodeId tip, uint32_t blocks, std::span<const TokenId> prompt,
                                           const Asker& asker) const {
  const uint32_t limit = static_cast<uint32_t>(prompt.size()) - 1;  // the last token is always computed
  std::optional<uint64_t> missing_key;
  bool expired = false, expired_run = false;
  Digest from = Cross(tip, blocks, asker);
  const auto is_there = [&] { return from == tree.digest(tip); };  // what goes on from the shared prefix, if it is next
  while ((blocks + 1) * block_tokens() <= limit) {
    const std::span<const TokenId> tokens = prompt.subspan(blocks * block_tokens(), block_tokens());
    const BlockKey key = Key(from, tokens);
    const std::optional<NodeId> child = is_there() ? tree.FindBlock(tip, key, tokens) : std::nullopt;
    if (!child) {
      missing_key = TableHash(key.digest);
      break;
    }
    if (IsExpired(*child)) {
      expired = true;
      break;
    }
    tip = *child;
    from = Cross(tip, ++blocks, asker);
  }
  const uint32_t whole = blocks * block_tokens();
  const std::span<const TokenId> wanted = prompt.subspan(whole, limit - whole);
  PrefixTree::Run run;
  if (is_there())
    run = tree.LongestRun(tip, wanted, [&](NodeId node) {
      const bool old = IsExpired(node);
      expired_run |= old;
      return !old && HasAllSlots(node) && (!has_recurrent || IsStateFor(node, wanted));
    });

  Match match{.tokens = whole + run.tokens, .blocks = blocks, .tip = tip, .source = run.node};
  if (match.tokens == limit) {
    match.reason = MissReason::kLastTokenRule;
  } else if (expired || (expired_run && run.tokens_any > run.tokens)) {
    match.reason = MissReason::kExpired;
  } else if (run.tokens_any > run.tokens) {
    match.reason = has_recurrent ? MissReason::kSnapshotMissing : MissReason::kWindowNotResident;
    match.fork_edge = whole + run.tokens_any;
  } else if (missing_key ? WasEvicted(*missing_key) : run.tokens == 0 && WasEvicted(Fingerprint(from, wanted[0]))) {
    match.reason = MissReason::kEvicted;
  } else if (run.differs && match.tokens > 0) {
    match.reason = MissReason::kTokensDiffer;
  } else {
    match.reason = MissReason::kNeverSeen;
  }
  ShrinkToWindows(match);
  return match;
}

// The largest P up to match.tokens for which every window group holds [P - window + 1, P). A missing block
// leaves what ends before it: P falls, by group in turn, until nothing is missing.
void KvCache::Impl::ShrinkToWindows(Match& match) const {
  const auto shrink = [&](const Group& group) {
    NodeId node = tree.LastBlock(match.tip);
    for (uint32_t block = match.blocks; block > FirstBlock(group, match.tokens); --block, node = BlockBefore(node)) {
      if (node_slot(node, group.id) != kNoSlot) continue;
      match.fork_edge = std::max(match.fork_edge, match.tokens);
      match.reason = group.recurrent ? MissReason::kSnapshotMissing : MissReason::kWindowNotResident;
      match.blocks = block - 1;
      match.tokens = match.blocks * block_tokens();
      match.tip = tree.parent(node);
      match.source = kNoNode;
      return true;
    }
    return false;
  };
  for (bool changed = true; changed;) {
    changed = false;
    for (const Group& group : groups)
      if (group.window != 0) changed |= shrink(group);
  }
}

bool KvCache::Impl::Fits(const Match& match, uint64_t tokens_max) const {
  for (const Group& group : groups) {
    const uint64_t need = ResidentBlocks(options.geometry, group.id, tokens_max, options.in_flight_max);
    if (group.window != 0) {
      if (group.reserved + need > group.pool.size()) return false;
      continue;
    }
    uint64_t available = group.pool.free() + group.pool.reusable();
    NodeId node = match.blocks == 0 ? kNoNode : tree.LastBlock(match.tip);
    for (uint32_t block = match.blocks; block > 0; --block, node = BlockBefore(node))
      available -= group.pool.pins(node_slot(node, group.id)) == 0;  // reusable until it is pinned now
    if (available < group.reserved + need - match.blocks) return false;
  }
  return true;
}

KvCache::Outcome KvCache::Impl::Admit(const AdmitRequest& request, uint32_t& index) {
  CHECK_GE(request.tokens_max, request.prompt.size());
  CHECK_LE(request.tokens_max, options.context_max);
  for (const Group& group : groups) {
    const uint64_t need = ResidentBlocks(options.geometry, group.id, request.tokens_max, options.in_flight_max);
    if (need > group.pool.size()) return Outcome::kNever;
  }
  if (free_sequences == 0) return Outcome::kWait;
  const Asker asker = AskerOf(request.name_space, request.prompt);
  Match match{.reason = MissReason::kReadDisabled};
  if (request.read) match = Find(asker, request.prompt);
  if (!Fits(match, request.tokens_max)) return Outcome::kWait;

  const NodeId root = UseNamespace(FirstDigests(asker));
  if (match.tip == kNoNode) match.tip = root;
  eviction.Request();
  index = memory.free[--free_sequences];
  Sequence& made = sequence(index) = Sequence{.tip = match.tip,
                                              .prompt = static_cast<uint32_t>(request.prompt.size()),
                                              .tokens_max = request.tokens_max,
                                              .root = tree.root_index(root),
                                              .shared = asker.shared,
                                              .admitted = true,
                                              .read = request.read,
                                              .write = request.write};
  if (!fetches.empty()) fetches[index] = Fetch{};
  memory.askers[index] = request.name_space;
  tree.Ref(made.tip);
  std::copy(request.prompt.begin(), request.prompt.end(), tokens(index).begin());
  for (Group& group : groups) {
    Claim& mine = claim(index, group.id) = Claim{};
    mine.need =
        static_cast<uint32_t>(ResidentBlocks(options.geometry, group.id, request.tokens_max, options.in_flight_max));
    group.reserved += mine.need;
  }
  Attach(index, match);
  return Outcome::kAdmitted;
}

uint32_t KvCache::Impl::Rematch(uint32_t index) {
  Sequence& mine = sequence(index);
  CHECK(!mine.started);
  if (!mine.read) return 0;
  const Match match = Extend(mine.tip, mine.sealed, tokens(index).first(mine.prompt), AskerOf(index));
  mine.match.reason = match.reason;
  if (match.tokens <= mine.length) return 0;
  const uint32_t gained = match.tokens - mine.length;
  if (mine.blocks > mine.sealed)  // rows copied before: the new match has them too, and more
    for (Group& group : groups) UnpinBlock(index, group, mine.sealed);
  Attach(index, match);
  return gained;
}

// Pins what the match found beyond what the sequence has, and lets go of what falls out of a window.
void KvCache::Impl::Attach(uint32_t index, const Match& match) {
  Sequence& mine = sequence(index);
  totals.tokens_reused += match.tokens - mine.length;
  const std::span<NodeId> nodes = path(index);
  NodeId node = tree.LastBlock(match.tip);
  for (uint32_t block = match.blocks; block > mine.sealed; --block, node = BlockBefore(node)) nodes[block - 1] = node;
  for (Group& group : groups) {
    const uint32_t first = FirstBlock(group, match.tokens);
    Claim& claimed = claim(index, group.id);
    for (; claimed.first < std::min(first, mine.sealed); ++claimed.first) UnpinBlock(index, group, claimed.first);
    claimed.first = first;
    for (uint32_t block = std::max(first, mine.sealed); block < match.blocks; ++block) {
      const SlotId slot = node_slot(nodes[block], group.id);
      PinSlot(group, slot);
      PinBlock(index, group, block, slot);
      if (group.window != 0 && KeepLevel(group, slot) > 0) Keep(group, slot, 2);  // resumed from
    }
  }
  if (has_full)
    for (uint32_t block = mine.sealed; block < match.blocks; ++block)
      eviction.Hit(nodes[block], Fingerprint(nodes[block]));
  mine.matched = match.blocks;
  SetTip(index, match.tip);
  mine.sealed = match.blocks;
  mine.blocks = match.blocks;
  MoveHome(index);
  if (match.source != kNoNode) CopySource(index, match);
  mine.length = mine.prepared = mine.dirty = match.tokens;
  mine.match = {.tokens = match.tokens, .reason = match.reason};
  mine.fork_edge = match.fork_edge;
  // Where two prompts part, a third one may part too: an observed fork is a checkpoint edge.
  if (match.reason == MissReason::kTokensDiffer) MarkEdge(index, match.tokens);
}

// The sequence gets slots of its own with the rows that the source shares with its prompt.
void KvCache::Impl::CopySource(uint32_t index, const Match& match) {
  const NodeId source = match.source;
  const uint32_t rows = match.tokens - match.blocks * block_tokens();
  for (Group& group : groups) PinSlot(group, node_slot(source, group.id));  // nothing evicts it meanwhile
  if (has_full) eviction.Hit(source, Fingerprint(source));
  bool taken_over = false;
  for (Group& group : groups) {
    SlotId& from = node_slot(source, group.id);
    std::optional<SlotId> own = TryTakeSlot(group);
    if (own) {
      CopySlotRows(group, from, *own, rows);
      UnpinSlot(group, from);
    } else {
      // Admission counted the source itself as the one slot left: its rows stay where they are.
      own = from;
      Withdraw(group, *own);
      group.pool.Unseal(*own);
      if (group.window != 0) --group.held[TenantOf(source)];
      group.owner[own->value()] = kNoNode;
      from = kNoSlot;
      taken_over = true;
    }
    PinBlock(index, group, match.blocks, *own);
  }
  sequence(index).blocks = match.blocks + 1;
  if (!taken_over) return;
  if (IsWhole(source))
    LetGo(source);  // the slot that kept it was the one taken
  else
    DropNode(source, /*evicted=*/true);
}

}  // namespace reprise
