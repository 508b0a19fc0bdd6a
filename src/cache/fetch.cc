// Bringing blocks from a tier: what it has beyond the pool, whether that is worth its time, and putting it in place.
//
// A fetch goes: BeginFetch (look around, choose an edge, take slots that admission reserved) -> Poll: pieces arrive in
// any order and are copied into those slots; a block that has all it needs is sealed, in order, as if the sequence had
// computed it -> EndFetch: the sequence takes the longest prefix that is in place now, and lets go of the rest.
#include <algorithm>
#include <cstring>

#include "base/bytes.h"
#include "base/check.h"
#include "cache/kv_cache_impl.h"

namespace reprise {
namespace {

// Pieces of one sequence that the tier is asked for ahead: a few at first, one more with each that comes. A piece's
// deadline is set when it is asked for, by what is in place then: a tier that is as fast as it has to be earns its time
// as it goes, and one that is not costs little.
// What reading takes from others, copies and memory, of its own time; and ties go to computing, which is certain.
constexpr double kInterference = 1.05;
constexpr uint32_t kAskedAtFirst = 4, kAskedAhead = 32;

MissReason ReasonOf(TierOutcome outcome) {
  switch (outcome) {
    case TierOutcome::kOk:
      return MissReason::kNone;
    case TierOutcome::kMissing:
      return MissReason::kEvicted;
    case TierOutcome::kChecksum:
      return MissReason::kChecksumFailed;
    case TierOutcome::kDamaged:
      return MissReason::kRecordDamaged;
    case TierOutcome::kError:
      return MissReason::kTierError;
    case TierOutcome::kTimeout:
      return MissReason::kTierTimeout;
  }
  CHECK(false);
}

double Seconds(Tier::Clock::duration duration) { return std::chrono::duration<double>(duration).count(); }

}  // namespace

KvCache::Impl::TierClock::time_point KvCache::Impl::TierNow() const {
  return options.tier_now ? options.tier_now() : TierClock::now();
}

// Fills the survey_* arrays for the whole blocks of the prompt but its last token: what pool and tier have of each.
KvCache::Impl::Survey KvCache::Impl::LookAround(const Asker& asker, std::span<const TokenId> prompt) const {
  Survey survey{.asker = asker, .prompt = prompt.first(prompt.size() - 1)};  // the last is always computed
  survey.blocks = static_cast<uint32_t>(survey.prompt.size()) / block_tokens();
  survey.keys = memory.survey_keys.first(survey.blocks);
  NodeId node = tree.FindRoot(NamespaceAt(asker, 0)).value_or(kNoNode);
  for (uint32_t block = 0; block < survey.blocks; ++block) {
    const std::span<const TokenId> tokens = prompt.subspan(block * block_tokens(), block_tokens());
    const Digest parent = ParentOf(asker, survey.keys, block);
    const BlockKey key = memory.survey_keys[block] = Key(parent, tokens);
    if (node != kNoNode && Cross(node, block, asker) != tree.digest(node)) node = kNoNode;
    if (node != kNoNode) node = tree.FindBlock(node, key, tokens).value_or(kNoNode);
    if (node != kNoNode && IsExpired(node)) node = kNoNode;
    memory.survey_nodes[block] = node;
    memory.survey_pool[block] = 0;
    if (node == kNoNode) continue;
    for (const Group& group : groups)
      if (node_slot(node, group.id) != kNoSlot) memory.survey_pool[block] |= 1u << group.id.value();
  }
  const uint32_t shared = std::min(asker.shared, survey.blocks);
  const uint32_t own = survey.blocks - shared;
  if (shared > 0)
    options.tier->Contains(NamespaceAt(asker, 0), survey.keys.first(shared), memory.survey_tier.first(shared));
  if (own > 0)
    options.tier->Contains(asker.digests.id, survey.keys.subspan(shared), memory.survey_tier.subspan(shared, own));
  return survey;
}

// Whether every window that a query at `position` sees is there, in its whole blocks.
bool KvCache::Impl::WindowsAreThere(uint32_t position) const {
  for (const Group& group : groups) {
    if (group.window == 0) continue;
    for (uint32_t block = FirstBlock(group, position); block < position / block_tokens(); ++block)
      if (((memory.survey_pool[block] | memory.survey_tier[block]) >> group.id.value() & 1) == 0) return false;
  }
  return true;
}

// What going there takes from the tier, and what it saves a sequence that has `from` tokens.
void KvCache::Impl::Weigh(uint32_t from, FetchEdge& edge) const {
  edge.pieces = edge.bytes = 0;
  const uint32_t position = edge.blocks * block_tokens() + edge.run;
  for (const Group& group : groups) {
    uint64_t pieces = edge.run > 0;
    for (uint32_t block = FirstBlock(group, position); block < edge.blocks; ++block)
      pieces += (memory.survey_pool[block] >> group.id.value() & 1) == 0;
    edge.pieces += pieces;
    edge.bytes += pieces * SlotBytes(options.geometry, group.id);
  }
  edge.saved_s = fetch_model.PrefillSeconds(from, position);
  edge.cost_s = kInterference * fetch_model.ReadSeconds(edge.pieces, edge.bytes);
}

// Of the edges beyond `from` tokens that pool and tier together can give, the one that saves most, or costs least;
// none: there is nothing.
std::optional<KvCache::Impl::FetchEdge> KvCache::Impl::ChooseEdge(uint32_t from, const Survey& survey) const {
  std::optional<FetchEdge> best;
  const auto consider = [&](FetchEdge edge) {
    const uint32_t position = edge.blocks * block_tokens() + edge.run;
    if (position <= from || !WindowsAreThere(position)) return;
    Weigh(from, edge);
    if (!best || edge.saved_s - edge.cost_s > best->saved_s - best->cost_s) best = std::move(edge);
  };
  uint32_t kept = 0;
  for (const Group& group : groups) kept |= group.window == 0 ? 1u << group.id.value() : 0;
  uint32_t reach = 0;
  for (; reach < survey.blocks; ++reach) {
    if (((memory.survey_pool[reach] | memory.survey_tier[reach]) & kept) != kept) break;
    consider({.blocks = reach + 1});
  }
  // Beyond whole blocks: what a block or tail of another prompt shares with this one. Without groups that are kept
  // whole, whole blocks may be anywhere, and what comes after the last of them counts.
  if (kept == 0) reach = best ? best->blocks : 0;
  const std::span<const TokenId> rest = survey.prompt.subspan(
      reach * block_tokens(), std::min<size_t>(block_tokens(), survey.prompt.size() - reach * block_tokens()));
  if (rest.empty()) return best;
  std::optional<TierRun> run = options.tier->FindRun(
      NamespaceAt(survey.asker, reach), ParentOf(survey.asker, survey.keys, reach), rest, AllGroups(), has_recurrent);
  if (run) consider({.blocks = reach, .run = run->run, .source = *std::move(run)});
  return best;
}

bool KvCache::Impl::BeginFetch(uint32_t index) {
  Sequence& mine = sequence(index);
  CHECK(!mine.started);
  if (options.tier == nullptr || !mine.read) return false;
  Fetch& fetch = fetches[index];
  fetch = Fetch{};
  const std::span<const TokenId> prompt = tokens(index).first(mine.prompt);
  const Survey survey = LookAround(AskerOf(index), prompt);
  std::optional<FetchEdge> edge = ChooseEdge(mine.length, survey);
  if (!edge) return false;
  if (edge->pieces == 0) {  // it came to the pool since the match
    Rematch(index);
    return false;
  }
  fetch.report.saved_ms = edge->saved_s * 1e3;
  fetch.report.cost_ms = edge->cost_s * 1e3;
  fetch.probe = edge->saved_s <= edge->cost_s;
  if (fetch.probe && !fetch_model.WantsProbe()) {
    mine.match.reason = MissReason::kTierSlowerThanRecompute;
    return false;
  }
  fetch.active = true;
  fetch.ticket = TierTicket(next_ticket++);
  fetch.from = mine.length;
  fetch.blocks = edge->blocks;
  fetch.run = edge->run;
  fetch.source = std::move(edge->source);
  fetch.begun = TierNow();
  std::copy_n(memory.survey_keys.begin(), survey.blocks, KeysOf(index).begin());
  TakeFetchSlots(index);
  AskForMore(index);
  if (fetch.asked == 0) {  // the tier takes no more
    fetch.failed = MissReason::kTierError;
    EndFetch(index);
  }
  return fetch.active;
}

// The sequence's tables get a slot for every block between its match and the edge that the edge needs: the pool's,
// pinned, or one of its own, which is to be brought. What was copied of a partly matching block goes; so do windows out
// of the edge's reach, whose slots count towards the same worst case.
void KvCache::Impl::TakeFetchSlots(uint32_t index) {
  Sequence& mine = sequence(index);
  Fetch& fetch = fetches[index];
  if (mine.blocks > mine.sealed)
    for (Group& group : groups) UnpinBlock(index, group, mine.sealed);
  mine.length = mine.prepared = mine.dirty = mine.sealed * block_tokens();
  mine.blocks = fetch.blocks + (fetch.run > 0);
  const uint32_t position = fetch.blocks * block_tokens() + fetch.run;
  const std::span<uint32_t> missing = MissingOf(index);
  std::fill(missing.begin(), missing.end(), 0);
  for (Group& group : groups) {
    Claim& claimed = claim(index, group.id);
    const uint32_t first = FirstBlock(group, position);
    for (; claimed.first < first; ++claimed.first)
      if (table(index, group.id)[claimed.first] != kNoSlot) UnpinBlock(index, group, claimed.first);
  }
  const auto for_each_open = [&](auto f) {
    for (Group& group : groups)
      for (uint32_t block = claim(index, group.id).first; block < fetch.blocks; ++block)
        if (table(index, group.id)[block] == kNoSlot) f(group, block);
  };
  // All that the pool has is pinned before anything is evicted for the rest.
  for_each_open([&](Group& group, uint32_t block) {
    if ((memory.survey_pool[block] >> group.id.value() & 1) == 0) return;
    const SlotId slot = node_slot(memory.survey_nodes[block], group.id);
    PinSlot(group, slot);
    PinBlock(index, group, block, slot);
  });
  const std::span<FetchPiece> pieces = PiecesOf(index);
  const auto bring = [&](Group& group, uint32_t block) {
    PinBlock(index, group, block, TakeSlot(group));
    missing[block] |= 1u << group.id.value();
    pieces[fetch.pieces++] = {.block = block, .group = group.id};
  };
  for_each_open(bring);
  if (fetch.run > 0)
    for (Group& group : groups) bring(group, fetch.blocks);
  // In the order of blocks, so that a fetch that is cut short leaves a prefix; windows are of use at the edge only.
  std::stable_sort(pieces.begin(), pieces.begin() + fetch.pieces, [&](const FetchPiece& a, const FetchPiece& b) {
    const bool a_last = groups[a.group.value()].window != 0, b_last = groups[b.group.value()].window != 0;
    return a_last != b_last ? b_last : a.block < b.block;
  });
}

// Keeps kAskedAhead pieces with the tier, for as long as the fetch is worth waiting for.
void KvCache::Impl::AskForMore(uint32_t index) {
  Sequence& mine = sequence(index);
  Fetch& fetch = fetches[index];
  const std::span<const TokenId> prompt = tokens(index).first(mine.prompt);
  const uint32_t end =
      std::min(fetch.pieces, fetch.answered + (fetch_model.knows_reads() && !fetch.probe
                                                   ? kAskedAhead
                                                   : std::min(kAskedAhead, kAskedAtFirst + fetch.answered)));
  if (fetch.asked == end) return;
  const Asker asker = AskerOf(index);
  std::vector<TierRead> reads;
  uint64_t bytes = 0;
  for (uint32_t i = fetch.asked; i < end; ++i) {
    const FetchPiece piece = PiecesOf(index)[i];
    const bool run = piece.block == fetch.blocks;
    const uint32_t first = piece.block * block_tokens();
    TierRead read{.name_space = NamespaceAt(asker, piece.block), .group = piece.group, .first_token = first};
    read.parent = ParentOf(asker, KeysOf(index), piece.block);
    read.key = run ? fetch.source.key : std::optional(KeysOf(index)[piece.block]);
    read.tokens = run ? std::span<const TokenId>(fetch.source.tokens) : prompt.subspan(first, block_tokens());
    reads.push_back(read);
    bytes += SlotBytes(options.geometry, piece.group);
  }
  const TierClock::time_point now = TierNow();
  const uint64_t left = fetch.pieces - fetch.answered;
  const double patience = fetch_model.Patience(
      fetch_model.PrefillSeconds(fetch.from, std::max(fetch.from, mine.length)), fetch.report.saved_ms / 1e3,
      Seconds(now - fetch.begun), fetch_model.ReadSeconds(left, left * bytes / reads.size()), fetch.probe);
  const std::chrono::duration<double> time(std::max(patience, options.tier_patience_ms / 1e3));
  const auto deadline = fetch.begun + std::chrono::duration_cast<TierClock::duration>(time);
  if (options.tier->Fetch(fetch.ticket, fetch.asked, reads, deadline)) fetch.asked = end;
}

void KvCache::Impl::TakeFetched(const TierFetched& fetched) {
  const auto at = std::find_if(fetches.begin(), fetches.end(),
                               [&](const Fetch& fetch) { return fetch.active && fetch.ticket == fetched.ticket; });
  if (at == fetches.end()) return;
  Fetch& fetch = *at;
  const auto index = static_cast<uint32_t>(at - fetches.begin());
  const FetchPiece piece = PiecesOf(index)[fetched.index];
  Group& group = groups[piece.group.value()];
  ++fetch.answered;
  if (fetched.outcome != TierOutcome::kOk) {
    if (fetch.failed == MissReason::kNone || piece.block < fetch.failed_block) {
      fetch.failed = ReasonOf(fetched.outcome);
      fetch.failed_block = piece.block;
    }
    return;
  }
  const std::span<std::byte> bytes = group.pool.bytes(table(index, piece.group)[piece.block]);
  CHECK_EQ(bytes.size(), fetched.payload.size());
  std::memcpy(bytes.data(), fetched.payload.data(), bytes.size());
  MissingOf(index)[piece.block] &= ~(1u << piece.group.value());
  fetch_model.ObserveRead(bytes.size(), fetched.service_ms / 1e3);
}

// Seals what is complete, asks for more, and ends when nothing more can come.
void KvCache::Impl::AdvanceFetch(uint32_t index) {
  Sequence& mine = sequence(index);
  Fetch& fetch = fetches[index];
  // A block before a piece that failed needs nothing but its own.
  while (mine.sealed < fetch.blocks && MissingOf(index)[mine.sealed] == 0 && SealFetched(index)) {
  }
  if (fetch.failed == MissReason::kNone) {
    AskForMore(index);
    if (fetch.asked == fetch.answered && fetch.asked < fetch.pieces) fetch.failed = MissReason::kTierError;
  }
  if (fetch.failed != MissReason::kNone || fetch.answered == fetch.pieces) EndFetch(index);
}

// The block after the sealed ones is in place: publishes it. False: it cannot be.
bool KvCache::Impl::SealFetched(uint32_t index) {
  Sequence& mine = sequence(index);
  const uint32_t block = mine.sealed;
  mine.length = mine.prepared = mine.dirty = (block + 1) * block_tokens();
  for (Group& group : groups) {
    const SlotId slot = table(index, group.id)[block];
    if (slot == kNoSlot || group.pool.state(slot) != SlotState::kReserved) continue;
    group.pool.Fill(slot);
    SetStored(group, slot, true);  // where it comes from
  }
  if (!SealNext(index)) return false;
  for (Group& group : groups) {
    const SlotId slot = node_slot(path(index)[block], group.id);
    if (group.window != 0 && slot != kNoSlot && table(index, group.id)[block] == slot) Keep(group, slot);
  }
  return true;
}

// The longest prefix that is in place becomes the sequence's; what else it held for the fetch goes.
void KvCache::Impl::EndFetch(uint32_t index) {
  Sequence& mine = sequence(index);
  Fetch& fetch = fetches[index];
  options.tier->Cancel(fetch.ticket);
  fetch.active = false;
  const std::span<const TokenId> prompt = tokens(index).first(mine.prompt);
  Match match = Extend(mine.tip, mine.sealed, prompt, AskerOf(index));
  uint32_t run = 0;
  const bool run_in_place = fetch.run > 0 && mine.sealed == fetch.blocks && MissingOf(index)[fetch.blocks] == 0;
  if (run_in_place && match.tokens <= fetch.blocks * block_tokens() + fetch.run) {
    run = fetch.run;
    match = {.tokens = fetch.blocks * block_tokens() + run, .blocks = fetch.blocks, .tip = mine.tip};
    match.reason = match.tokens + 1 == mine.prompt ? MissReason::kLastTokenRule : MissReason::kTokensDiffer;
  }
  if (fetch.failed != MissReason::kNone && match.reason != MissReason::kLastTokenRule) match.reason = fetch.failed;
  Settle(index, match, run);
  fetch.report.tokens = mine.length - std::min(mine.length, fetch.from);
  fetch.report.load_ms = Seconds(TierNow() - fetch.begun) * 1e3;
  totals.tokens_fetched += fetch.report.tokens;
  const double saved_ms = 1e3 * fetch_model.PrefillSeconds(fetch.from, fetch.from + fetch.report.tokens);
  ++totals.fetches;
  totals.fetches_worse += fetch.report.load_ms > saved_ms;
  totals.fetch_expected_ms += fetch.report.cost_ms;
  totals.fetch_took_ms += fetch.report.load_ms;
  totals.fetch_saved_ms += saved_ms;
}

// The sequence's tables become those of the match: pins of what its windows reach, nothing else. `run` rows of the
// block after it are in slots of its own already.
void KvCache::Impl::Settle(uint32_t index, const Match& match, uint32_t run) {
  Sequence& mine = sequence(index);
  const std::span<NodeId> nodes = path(index);
  NodeId node = tree.LastBlock(match.tip);
  for (uint32_t block = match.blocks; block > 0; --block, node = BlockBefore(node)) nodes[block - 1] = node;
  const auto for_each_wanted = [&](auto f) {
    for (Group& group : groups)
      for (uint32_t block = FirstBlock(group, match.tokens); block < match.blocks; ++block)
        if (table(index, group.id)[block] != node_slot(nodes[block], group.id)) f(group, block);
  };
  for (Group& group : groups)
    for (uint32_t block = mine.blocks; block > 0; --block) {
      const bool wanted = block - 1 >= FirstBlock(group, match.tokens) && block - 1 < match.blocks;
      const SlotId slot = table(index, group.id)[block - 1];
      const bool kept = wanted ? slot == node_slot(nodes[block - 1], group.id) : run > 0 && block - 1 == match.blocks;
      if (slot != kNoSlot && !kept) UnpinBlock(index, group, block - 1);
    }
  for_each_wanted([&](Group& group, uint32_t block) {
    const SlotId slot = node_slot(nodes[block], group.id);
    PinSlot(group, slot);
    PinBlock(index, group, block, slot);
  });
  for (Group& group : groups) claim(index, group.id).first = FirstBlock(group, match.tokens);
  const NodeId fetched = mine.tip;
  SetTip(index, match.tip);
  mine.sealed = match.blocks;
  MoveHome(index);
  Reap(fetched);  // it may hold nothing, in models with windows only
  mine.blocks = match.blocks + (run > 0);
  if (match.source != kNoNode) CopySource(index, match);
  totals.tokens_reused += match.tokens - std::min(match.tokens, fetches[index].from);
  mine.length = mine.prepared = mine.dirty = match.tokens;
  mine.match = {.tokens = match.tokens, .reason = match.reason};
  mine.fork_edge = match.fork_edge;
  if (match.reason == MissReason::kTokensDiffer) MarkEdge(index, match.tokens);
}

}  // namespace reprise
