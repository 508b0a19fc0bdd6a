// Which block goes next, of those in full and latent groups that nobody uses and nothing follows: a block's
// children go before it, whatever they are worth.
//
//   value_per_byte          the one with the least expected hits per request kept (HitDensity); all blocks of a cache
//                           have the same bytes. A block that was never used again is on probation: a scan of such
//                           blocks evicts itself, not what is in use.
//   lru_with_tenant_quota   the one let go of longest ago.
//
// Under both, what is soft pinned goes after all others of its tenant; tenants with more than their quota give first,
// the one furthest above it before the others.
//
// Ownership: all memory from the ledger, in the constructor.
// Threads:   one thread. Nothing allocates after construction. O(log blocks), and O(classes x tenants) for Victim.
// Errors:    misuse aborts.
// Design:    DESIGN 6, docs/decisions/0010-eviction.md
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/ledger.h"
#include "base/treap.h"
#include "cache/eviction_policy.h"
#include "cache/hit_density.h"
#include "prefix/prefix_tree.h"

namespace reprise {

struct EvictionOptions {
  EvictionPolicy policy = EvictionPolicy::kValuePerByte;
  uint32_t nodes_max = 0;      // ids are below this
  uint32_t blocks_max = 0;     // that exist at once
  std::vector<double> shares;  // [tenants], not empty: of the blocks, that each may keep
};

// What goes next: of tenants above their quota, the one furthest above it gives first; where none is, or has anything
// to give, what is worth least of all. excess(tenant): how far above, or 0. least(tenant): what it would give.
template <class Id, class Excess, class Least, class IsWorthLess>
std::optional<Id> ChooseVictim(uint32_t tenants, Excess excess, Least least, IsWorthLess is_worth_less) {
  std::optional<Id> victim;
  uint32_t most = 0;
  for (uint32_t tenant = 0; tenant < tenants; ++tenant) {
    const uint32_t mine = excess(tenant);
    if (mine <= most) continue;
    if (const std::optional<Id> theirs = least(tenant)) {
      victim = theirs;
      most = mine;
    }
  }
  for (uint32_t tenant = 0; tenant < tenants && most == 0; ++tenant) {
    const std::optional<Id> theirs = least(tenant);
    if (theirs && (!victim || is_worth_less(*theirs, *victim))) victim = theirs;
  }
  return victim;
}

class EvictionOrder {
 public:
  static std::vector<Footprint> Footprints(const EvictionOptions& options);
  EvictionOrder(const EvictionOptions& options, Ledger& ledger);

  // One more request.
  void Request() { density_.Request(); }

  // A new block of a tenant, in use. `uses_before`: uses() of a block under this key that was evicted, if known.
  // `key` is any hash of its whole prefix.
  void Insert(NodeId id, uint32_t tenant, uint64_t key, std::optional<uint8_t> uses_before);
  // The block, in use now, was found by a request.
  void Hit(NodeId id, uint64_t key);
  // The block, in use now, is young again.
  void Touch(NodeId id) { state(id).last = Now(); }
  // A request that used the block ends. REQUIRES: it is still in use.
  void Leave(NodeId id, bool ending, uint32_t reply_tokens);
  // Learns from this block, which stands for `weight` others of its request.
  void Watch(NodeId id, uint64_t key, float weight) { density_.Watch(key, state(id).which, weight); }
  // Its last user let go of it.
  void LetGo(NodeId id);
  // Whether it may be evicted: nobody uses it and nothing follows.
  void SetEvictable(NodeId id, bool evictable);
  bool evictable(NodeId id) const { return state(id).listed; }
  void SetSoftPinned(NodeId id, bool pinned);
  bool soft_pinned(NodeId id) const { return state(id).soft_pinned; }
  // It is gone.
  void Erase(NodeId id);

  std::optional<NodeId> Victim() const;
  // Which of two goes first, evictable or not: the one of less value, or that was let go of before.
  bool IsWorthLess(NodeId a, NodeId b) const;
  // Of the pool, that a tenant may keep.
  double share(uint32_t tenant) const { return shares_[tenant]; }
  uint8_t uses(NodeId id) const { return state(id).which.uses; }

  // Aborts unless lists and counts agree. O(nodes).
  void CheckIntegrity() const;

 private:
  struct State {
    uint64_t last;  // request of its last use; kLruWithTenantQuota: when it was let go of
    TreapLinks<NodeId> links;
    BlockClass which;
    uint8_t tenant;
    bool exists, listed, soft_pinned;
  };
  struct List {  // of one tenant and class, in the order of `last`
    NodeId top = kNoNode, oldest = kNoNode, newest = kNoNode;
  };
  struct LinksOf {
    std::span<State> states;
    TreapLinks<NodeId>& operator()(NodeId id) const { return states[id.value()].links; }
  };
  struct Layout {
    std::span<State> states;
    std::span<List> lists;  // [tenants][kLists]
    Layout(const EvictionOptions& options, Carver& carver);
  };

  State& state(NodeId id) { return states_[id.value()]; }
  const State& state(NodeId id) const { return states_[id.value()]; }
  uint64_t Now() { return policy_ == EvictionPolicy::kLruWithTenantQuota ? ++clock_ : density_.now(); }
  // Of a tenant: by class, and of what is soft pinned.
  static constexpr uint32_t kLists = BlockClass::kCount + 1;
  static uint32_t ListIndex(const State& each) {
    return each.tenant * kLists + (each.soft_pinned ? BlockClass::kCount : each.which.index());
  }
  List& ListOf(const State& each) { return lists_[ListIndex(each)]; }
  Treap<NodeId, LinksOf> order() const { return Treap<NodeId, LinksOf>(LinksOf{states_}); }
  bool IsBefore(NodeId a, NodeId b) const {
    return state(a).last != state(b).last ? state(a).last < state(b).last : a < b;
  }
  std::optional<NodeId> Least(uint32_t tenant) const;
  float Value(NodeId id) const;

  const EvictionPolicy policy_;
  const std::vector<double> shares_;
  std::vector<uint32_t> quotas_;  // [tenants], in blocks
  Region region_;
  std::span<State> states_;
  std::span<List> lists_;
  std::vector<uint32_t> blocks_;  // [tenants]
  HitDensity density_;
  uint64_t clock_ = 0;
};

}  // namespace reprise
