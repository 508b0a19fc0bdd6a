#include "cache/eviction_order.h"

#include <algorithm>

#include "base/check.h"

namespace reprise {

EvictionOrder::Layout::Layout(const EvictionOptions& options, Carver& carver) {
  states = carver.Array<State>(options.nodes_max);
  lists = carver.Array<List>(uint64_t{options.shares.size()} * kLists);
}

std::vector<Footprint> EvictionOrder::Footprints(const EvictionOptions& options) {
  return {{"eviction order", Measure<Layout>(options)},
          {"eviction learning", HitDensity::FootprintBytes(options.blocks_max)}};
}

EvictionOrder::EvictionOrder(const EvictionOptions& options, Ledger& ledger)
    : policy_(options.policy),
      shares_(options.shares),
      region_(ledger.Take("eviction order", Measure<Layout>(options))),
      blocks_(options.shares.size()),
      density_(options.blocks_max, ledger) {
  CHECK(!shares_.empty() && shares_.size() <= kTenantQuotasMax + 1);
  for (const double share : shares_) quotas_.push_back(static_cast<uint32_t>(share * options.blocks_max));
  const Layout layout = Carve<Layout>(region_, options);
  states_ = layout.states;
  lists_ = layout.lists;
  std::fill(states_.begin(), states_.end(), State{});
  std::fill(lists_.begin(), lists_.end(), List{});
}

void EvictionOrder::Insert(NodeId id, uint32_t tenant, uint64_t key, std::optional<uint8_t> uses_before) {
  State& made = state(id);
  CHECK(!made.exists);
  made = {.last = Now(), .tenant = static_cast<uint8_t>(tenant), .exists = true};
  if (uses_before) made.which.uses = std::min<uint8_t>(BlockClass::kUsesMax, *uses_before + 1);
  ++blocks_[tenant];
  density_.Met(key);
}

void EvictionOrder::Hit(NodeId id, uint64_t key) {
  State& hit = state(id);
  CHECK(hit.exists && !hit.listed);
  density_.Met(key);
  hit.which.uses = std::min<uint8_t>(BlockClass::kUsesMax, hit.which.uses + 1);
  hit.last = Now();
}

void EvictionOrder::Leave(NodeId id, bool ending, uint32_t reply_tokens) {
  State& left = state(id);
  CHECK(left.exists && !left.listed);
  left.which.ending = ending;
  left.which.reply = BlockClass::ReplyClass(reply_tokens);
}

void EvictionOrder::LetGo(NodeId id) {
  if (policy_ == EvictionPolicy::kLruWithTenantQuota) state(id).last = Now();
}

void EvictionOrder::SetEvictable(NodeId id, bool evictable) {
  State& each = state(id);
  if (each.listed == evictable) return;
  List& list = ListOf(each);
  if (evictable) {
    CHECK(each.exists);
    order().Insert(list.top, id, [&](NodeId other) { return IsBefore(other, id); });
    if (list.oldest == kNoNode || IsBefore(id, list.oldest)) list.oldest = id;
    if (list.newest == kNoNode || IsBefore(list.newest, id)) list.newest = id;
  } else {
    if (list.oldest == id) list.oldest = order().Next(id);
    if (list.newest == id) list.newest = order().Previous(id);
    order().Remove(list.top, id);
  }
  each.listed = evictable;
}

void EvictionOrder::SetSoftPinned(NodeId id, bool pinned) {
  State& each = state(id);
  CHECK(each.exists);
  const bool listed = each.listed;
  SetEvictable(id, false);
  each.soft_pinned = pinned;
  SetEvictable(id, listed);
}

void EvictionOrder::Erase(NodeId id) {
  SetEvictable(id, false);
  State& gone = state(id);
  if (gone.exists) --blocks_[gone.tenant];
  gone = State{};
}

float EvictionOrder::Value(NodeId id) const {
  return density_.Value(state(id).which, static_cast<uint32_t>(state(id).last));
}

bool EvictionOrder::IsWorthLess(NodeId a, NodeId b) const {
  if (state(a).soft_pinned != state(b).soft_pinned) return state(b).soft_pinned;
  if (policy_ == EvictionPolicy::kValuePerByte && Value(a) != Value(b)) return Value(a) < Value(b);
  return IsBefore(a, b);
}

// The value of a class falls with age, or rises where its blocks come back after a while, so the least is at one of
// its ends, about: both are looked at.
std::optional<NodeId> EvictionOrder::Least(uint32_t tenant) const {
  NodeId least = kNoNode;
  const auto consider = [&](NodeId id) {
    if (least == kNoNode || IsWorthLess(id, least)) least = id;
  };
  for (const List& list : lists_.subspan(tenant * kLists, kLists)) {
    if (list.top == kNoNode) continue;
    consider(list.oldest);
    if (policy_ == EvictionPolicy::kValuePerByte) consider(list.newest);
  }
  return least == kNoNode ? std::nullopt : std::optional(least);
}

std::optional<NodeId> EvictionOrder::Victim() const {
  return ChooseVictim<NodeId>(
      static_cast<uint32_t>(blocks_.size()),
      [&](uint32_t tenant) { return blocks_[tenant] - std::min(blocks_[tenant], quotas_[tenant]); },
      [&](uint32_t tenant) { return Least(tenant); }, [&](NodeId a, NodeId b) { return IsWorthLess(a, b); });
}

void EvictionOrder::CheckIntegrity() const {
  std::vector<uint32_t> blocks(blocks_.size());
  uint64_t listed = 0, linked = 0;
  for (const State& each : states_) {
    blocks[each.tenant] += each.exists;
    listed += each.listed;
    CHECK(each.exists || !each.listed);
  }
  CHECK(blocks == blocks_);
  for (uint32_t i = 0; i < lists_.size(); ++i) {
    const List& list = lists_[i];
    NodeId last = kNoNode;
    for (NodeId id = order().First(list.top); id != kNoNode; id = order().Next(id)) {
      CHECK(state(id).listed);
      CHECK_EQ(ListIndex(state(id)), i);
      CHECK(order().IsLinked(list.top, id));
      CHECK(last == kNoNode || IsBefore(last, id));
      last = id;
      ++linked;
    }
    CHECK_EQ(list.oldest, order().First(list.top));
    CHECK_EQ(list.newest, last);
  }
  CHECK_EQ(linked, listed);
}

}  // namespace reprise
