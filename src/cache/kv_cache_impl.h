// Inside of KvCache: the state of sequences, groups and nodes, and the steps on them. Read in the order
// of a sequence's life: match.cc (find and admit), fill.cc (prepare, commit, seal, finish), evict.cc.
//
// Invariants between calls (CheckIntegrity recomputes them):
//   - full groups: free + reusable slots >= what admitted sequences may still reserve. A shared block is
//     one slot and, for each of its sequences, one block that it need not reserve any more.
//   - window groups: the worst cases of the admitted sequences together fit the pool. Sharing is not
//     credited: a sequence that slides away from a shared slot frees nothing while its mate stays.
//   - a block of the tree has a slot in every full group, hence its ancestors do; a window slot may be
//     missing. A tail has a slot in every group. A pinned block's ancestors are pinned in full groups.
//   - a slot is written only by a sequence that has its one pin, before it is sealed.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/carver.h"
#include "block/block_tables.h"
#include "block/slot_pool.h"
#include "cache/age_list.h"
#include "cache/eviction_order.h"
#include "cache/fetch_model.h"
#include "cache/kv_cache.h"
#include "cache/reuse_list.h"
#include "prefix/block_key.h"
#include "prefix/namespace.h"
#include "prefix/prefix_tree.h"
#include "tier/tier.h"

namespace reprise {

// Tails beside the blocks under one parent. A tail holds a whole slot for less than a block of tokens, so
// conversations that part within one block may hold 16 slots, and the oldest gives way.
inline constexpr uint32_t kTailsPerParentMax = 16;

// Namespaces that have blocks and no running sequence: of more, the one used least of late gives way with all its
// blocks.
inline constexpr uint32_t kIdleNamespacesMax = 1 << 16;

// A recurrent group is a window group that sees the token before a query: the slot of that token's block holds the
// state after it. States are resumed from where they were left only: at the end of a block, or of a tail.
inline constexpr uint32_t kRecurrentWindow = 2;

// How much of everything a cache of these options has, for plan and constructor alike.
PrefixTreeOptions TreeOptions(const KvCacheOptions& options);
BlockTablesOptions TableOptions(const KvCacheOptions& options);
EvictionOptions OrderOptions(const KvCacheOptions& options);
uint32_t ReuseSlots(const KvCacheOptions& options, uint32_t group);  // of its ReuseLists
uint32_t StoreSlots(const KvCacheOptions& options, uint32_t group);  // of its list of what is to be stored
bool HasFullGroup(const Geometry& geometry);
std::optional<Footprint> SharedPrefixFootprint(const KvCacheOptions& options);  // none without any
SlotPoolOptions PoolOptions(const KvCacheOptions& options, uint32_t group);

// Of a slot in a window group: of no use to resume at a checkpoint edge; needed for that; and resumed from before; and
// needed to resume at the end of a soft pin.
inline constexpr uint32_t kKeepLevels = 4;
inline constexpr uint32_t kSoftPinnedLevel = 3;

struct KvCache::Impl {
  using TierClock = Tier::Clock;
  static constexpr uint32_t kNoNamespace = UINT32_MAX;
  struct Sequence {
    NodeId tip;             // last sealed block of the path, or the root
    uint32_t sealed = 0;    // blocks of the path in the tree, all before the first own one
    uint32_t length = 0;    // tokens whose K and V are final
    uint32_t prepared = 0;  // tokens whose slots are there
    uint32_t dirty = 0;     // rows [length, dirty) may have been written and never committed
    uint32_t blocks = 0;    // length of the block tables
    uint32_t prompt = 0;    // tokens
    uint32_t tokens_max = 0;
    uint32_t pending_edge = 0;  // a checkpoint edge in the block that is not sealed yet; 0: none
    uint32_t fork_edge = 0;     // matched up to here but for a window: mark it when it is computed again; 0: none
    uint32_t root = 0;          // index of the namespace that its tip is in
    uint32_t shared = 0;        // blocks of its prompt in the shared scope
    uint32_t matched = 0;       // blocks of the path that were there before it
    uint32_t reply = 0;         // tokens beyond the prompt that are not committed here
    PrefixMatch match;
    bool admitted = false;
    bool read = false;
    bool write = false;
    bool started = false;  // something was prepared
  };
  // Who asks for a prompt, and how many of its blocks are in the shared scope.
  struct Asker {
    const NamespaceDigests& digests;
    uint32_t shared = 0;
  };
  // What the survey_* arrays are about.
  struct Survey {
    Asker asker;
    std::span<const TokenId> prompt;  // but for its last token
    uint32_t blocks = 0;              // whole ones
    std::span<const BlockKey> keys;   // [blocks]
  };
  // An edge that pool and tier can give: whole blocks, and `run` rows of the next one, which are those of `source`.
  struct FetchEdge {
    uint32_t blocks = 0;
    uint32_t run = 0;
    TierRun source;
    uint64_t pieces = 0, bytes = 0;  // to be brought
    double saved_s = 0, cost_s = 0;
  };
  struct FetchPiece {
    uint32_t block;
    GroupId group;
  };
  // Of a sequence that waits for a tier: blocks [sealed, blocks) are being brought, and `run` rows of the one after
  // them.
  struct Fetch {
    bool active = false;
    bool probe = false;  // begun although computing is expected to be faster
    TierTicket ticket;
    uint32_t from = 0;  // tokens that the pool had
    uint32_t blocks = 0;
    uint32_t run = 0;
    TierRun source;
    uint32_t pieces = 0, asked = 0, answered = 0;  // all of them; with the tier; and back from it
    MissReason failed = MissReason::kNone;         // why it goes no further than failed_block
    uint32_t failed_block = 0;
    TierClock::time_point begun;
    TierReport report;
  };
  struct Claim {        // of one sequence in one group
    uint32_t need = 0;  // most slots it ever pins at once
    uint32_t pinned = 0;
    uint32_t first = 0;  // blocks before this one are out of the window's reach
  };
  struct Group {
    GroupId id;
    uint32_t window = 0;  // 0: full or latent; a block may have no slot in the others
    bool recurrent = false;
    SlotPool pool;
    ReuseLists
        reusable;  // of window groups, [tenants][kKeepLevels]; blocks of the others go in the order of `eviction`
    ReuseLists to_store;         // sealed slots that the tier is to have, the oldest first
    std::vector<uint32_t> held;  // [tenants]: slots of their nodes, in window groups
    std::span<NodeId> owner;     // [slots] of a sealed slot
    uint64_t first_slot = 0;     // of it in arrays over the slots of all groups
    uint64_t reserved = 0;       // full: slots that sequences may still reserve; window: sum of their worst cases
  };
  struct Namespace {
    NamespaceDigests digests;  // where the root goes on from a shared prefix: the tenant's
    NodeId root;
    uint32_t users;         // sequences whose tip is in it, and roots that go on from its blocks
    uint32_t older, newer;  // in the order of their last use
    uint32_t tenant;        // of the quotas; the last is everyone else
    bool purged;
  };
  struct SoftPin {  // of all blocks up to this one
    NodeId tip;
    uint64_t until_ms;
  };
  struct Layout {
    std::span<Namespace> namespaces;     // [roots_max], by index of their root
    std::span<Sequence> sequences;       // [sequences_max]
    std::span<NamespaceDigests> askers;  // [sequences_max]
    std::span<uint32_t> free;            // [sequences_max] stack of unused ones
    std::span<Claim> claims;             // [sequences_max][groups]
    std::span<TokenId> tokens;           // [sequences_max][context_max]
    std::span<NodeId> paths;             // [sequences_max][blocks_max]
    std::span<SlotId> node_slots;        // [nodes_max][groups]
    std::span<NodeId> owners;            // slots of all groups
    std::span<uint64_t> evicted;         // fingerprints of prefixes that were evicted, and their uses; a power of two
    std::span<AgeList::Age> ages;        // [nodes_max], with reusable_ttl_s
    std::span<SoftPin> soft_pins;        // [soft_pin_blocks], the first of them in the order of their age
    std::span<uint32_t> soft_pins_of;    // [nodes_max], with soft_pin_blocks: that a block is in
    // With a tier:
    std::span<bool> stored;           // [slots of all groups] it has this one, or was asked to
    std::span<FetchPiece> pieces;     // [sequences_max][blocks_max + 1][groups]
    std::span<uint32_t> missing;      // [sequences_max][blocks_max + 1] groups that a block still waits for
    std::span<BlockKey> fetch_keys;   // [sequences_max][blocks_max]
    std::span<BlockKey> survey_keys;  // [blocks_max], of the prompt that was looked at last:
    std::span<NodeId> survey_nodes;   // [blocks_max] of the tree, or kNoNode
    std::span<uint32_t> survey_pool;  // [blocks_max] groups that the pool has
    std::span<uint32_t> survey_tier;  // [blocks_max] groups that the tier has
    Layout(const KvCacheOptions& options, Carver& carver);
  };
  struct Match {
    uint32_t tokens = 0;
    uint32_t blocks = 0;      // whole ones among them
    NodeId tip = kNoNode;     // node of the last whole block, or the root
    NodeId source = kNoNode;  // its first tokens - blocks * block_tokens rows are the rest
    uint32_t fork_edge = 0;   // what it would have been but for a window; 0: same
    MissReason reason = MissReason::kNone;
  };

  Impl(const KvCacheOptions& options, Ledger& ledger);

  // match.cc
  Outcome Admit(const AdmitRequest& request, uint32_t& index);
  uint32_t Rematch(uint32_t index);
  Match Find(const Asker& asker, std::span<const TokenId> prompt) const;
  Match Extend(NodeId tip, uint32_t blocks, std::span<const TokenId> prompt, const Asker& asker) const;
  bool IsStateFor(NodeId node, std::span<const TokenId> wanted) const;
  void ShrinkToWindows(Match& match) const;
  bool Fits(const Match& match, uint64_t tokens_max) const;
  void Attach(uint32_t index, const Match& match);
  void CopySource(uint32_t index, const Match& match);

  // shared_prefixes.cc
  Asker AskerOf(const NamespaceDigests& digests, std::span<const TokenId> prompt) const;
  Asker AskerOf(uint32_t index) const { return {memory.askers[index], memory.sequences[index].shared}; }
  static const NamespaceId& NamespaceAt(const Asker& asker, uint32_t block) {
    return block < asker.shared ? *asker.digests.shared : asker.digests.id;
  }
  Digest ParentOf(const Asker& asker, std::span<const BlockKey> keys, uint32_t block) const;
  static NamespaceDigests FirstDigests(const Asker& asker);
  Digest Cross(NodeId& tip, uint32_t blocks, const Asker& asker) const;
  void MoveHome(uint32_t index);
  void CheckShared() const;

  // namespaces.cc
  // One user more; makes the root, that of their rest where it goes on from a block.
  NodeId UseNamespace(const NamespaceDigests& digests, NodeId goes_on_from = kNoNode);
  void LeaveNamespace(const Sequence& sequence);  // one less, which let go of all it had
  uint32_t TenantOf(const NamespaceDigests& digests) const;
  std::optional<Digest> TenantDigest(std::string_view tenant) const;
  void ForgetNamespace(uint32_t root);  // its root is going
  void Link(uint32_t root);
  void Unlink(uint32_t root);
  Purged Purge(std::string_view tenant);
  uint64_t DropUnpinned(NodeId root);

  // explain.cc
  PrefixReport Explain(const NamespaceDigests& digests, std::span<const TokenId> prompt, ReportView view) const;
  void AskTier(const Asker& asker, std::span<const TokenId> prompt, PrefixReport& report) const;
  PrefixTree::Run Follow(NodeId& tip, uint32_t& at, std::span<const TokenId> prompt) const;
  void DescribeFork(const Asker& asker, std::span<const TokenId> prompt, PrefixReport& report) const;
  MissReason OtherNamespace(const NamespaceDigests& digests, std::span<const TokenId> prompt, ReportView view,
                            uint32_t reach) const;

  // fill.cc
  uint32_t RowsToEdge(uint32_t index) const;
  bool HasStateAt(const Group& group, uint32_t index, uint32_t block) const;
  void Prepare(uint32_t index, uint32_t rows);
  void Commit(uint32_t index, std::span<const TokenId> tokens);
  void MarkEdge(uint32_t index, uint32_t edge);
  void Finish(uint32_t index);
  void Release(uint32_t index);  // everything it holds, and the sequence itself
  bool SealNext(uint32_t index);
  void PublishBlock(uint32_t index, NodeId node);
  void MergeBlock(uint32_t index, NodeId node);
  bool CoveredByOthers(uint32_t index, std::span<const TokenId> rest);
  void PublishTail(uint32_t index);
  void ClearDirty(uint32_t index);
  void SetTip(uint32_t index, NodeId tip);

  // fetch.cc
  Survey LookAround(const Asker& asker, std::span<const TokenId> prompt) const;
  bool WindowsAreThere(uint32_t position) const;
  void Weigh(uint32_t from, FetchEdge& edge) const;
  std::optional<FetchEdge> ChooseEdge(uint32_t from, const Survey& survey) const;
  bool BeginFetch(uint32_t index);
  void TakeFetchSlots(uint32_t index);
  void AskForMore(uint32_t index);
  void TakeFetched(const TierFetched& fetched);
  void AdvanceFetch(uint32_t index);
  bool SealFetched(uint32_t index);
  void EndFetch(uint32_t index);
  void Settle(uint32_t index, const Match& match, uint32_t run);
  TierClock::time_point TierNow() const;

  // store.cc
  bool Poll(uint64_t store_bytes);
  void Offer(Group& group, SlotId slot);
  void Withdraw(Group& group, SlotId slot);
  uint64_t StoreNext(Group& group);
  bool IsStored(const Group& group, SlotId slot) const;
  void SetStored(const Group& group, SlotId slot, bool stored);

  // evict.cc
  uint32_t Tenants() const { return static_cast<uint32_t>(options.quotas.size()) + 1; }
  uint32_t TenantOf(NodeId node) const { return memory.namespaces[tree.root_index(node)].tenant; }
  uint32_t KeepLevel(const Group& group, SlotId slot) const { return group.reusable.list(slot) % kKeepLevels; }
  void Keep(Group& group, SlotId slot, uint32_t level = 1);  // at least
  std::optional<SlotId> WindowVictim(const Group& group) const;
  std::optional<SlotId> WindowVictim(const Group& group, uint32_t tenant) const;
  bool IsWorthLess(const Group& group, SlotId a, SlotId b) const;
  bool IsPinned(NodeId node) const;
  void LetGo(NodeId node);
  void Refresh(NodeId node);       // whether it may be evicted
  void AddToOrder(NodeId node);    // it is new
  void LeavePath(uint32_t index);  // what it knows of its blocks, before it lets go of them
  bool IsExpired(NodeId node) const;
  std::optional<NodeId> ExpiredBlock() const;
  std::optional<SlotId> ExpiredSlot(const Group& group) const;
  SlotId TakeSlot(Group& group);  // REQUIRES: reserved by admission
  std::optional<SlotId> TryTakeSlot(Group& group);
  bool EvictOne(Group& group);
  void PinSlot(Group& group, SlotId slot);
  void UnpinSlot(Group& group, SlotId slot);
  void PinBlock(uint32_t index, Group& group, uint32_t block, SlotId slot);  // `slot` has the pin already
  void UnpinBlock(uint32_t index, Group& group, uint32_t block);
  void FreeNodeSlot(Group& group, NodeId node);               // no-op without one
  void GiveNodeSlot(Group& group, NodeId node, SlotId slot);  // seals it
  void DropNode(NodeId node, bool evicted);
  void RemoveNode(NodeId node);  // from the tree, and its namespace with a root
  void Reap(NodeId node);
  void Clear();
  uint64_t Fingerprint(const Digest& parent, TokenId first) const;
  void RememberEvicted(NodeId node);
  uint64_t Fingerprint(NodeId node) const;                     // of a block's whole prefix, or of a tail
  std::optional<uint8_t> Evicted(uint64_t fingerprint) const;  // how often it had been used again
  bool WasEvicted(uint64_t fingerprint) const { return Evicted(fingerprint).has_value(); }

  // soft_pins.cc
  uint32_t SoftPinPrefix(const NamespaceDigests& digests, std::span<const TokenId> prefix, uint32_t ttl_ms);
  void EndSoftPins();  // whose time is up
  void EndSoftPin(uint32_t index);
  void ShortenSoftPins(NodeId node);
  void Protect(NodeId node, bool soft_pin);
  bool IsSoftPinned(NodeId node) const { return !memory.soft_pins_of.empty() && memory.soft_pins_of[node.value()] > 0; }
  void CheckSoftPins() const;

  void CheckIntegrity() const;
  void CheckAges() const;
  void CheckGroup(const Group& group) const;
  void CheckNodes() const;
  void CheckSequences() const;
  void CheckNamespaces() const;

  // What is ever done to bytes of slots, here or in the engine's own memory.
  void CopySlotRows(const Group& group, SlotId from, SlotId to, uint32_t rows) const;
  void ClearSlotRows(const Group& group, SlotId slot, uint32_t first_row) const;

  uint32_t block_tokens() const { return options.geometry.block_tokens; }
  BlockKey Key(const Digest& previous, std::span<const TokenId> tokens) const;
  Sequence& sequence(uint32_t index) { return memory.sequences[index]; }
  Claim& claim(uint32_t index, GroupId group) { return memory.claims[size_t{index} * groups.size() + group.value()]; }
  std::span<TokenId> tokens(uint32_t index) const {
    return memory.tokens.subspan(size_t{index} * options.context_max, options.context_max);
  }
  std::span<NodeId> path(uint32_t index) const { return memory.paths.subspan(size_t{index} * blocks_max, blocks_max); }
  std::span<FetchPiece> PiecesOf(uint32_t index) const {
    const size_t most = (size_t{blocks_max} + 1) * groups.size();
    return memory.pieces.subspan(index * most, most);
  }
  std::span<uint32_t> MissingOf(uint32_t index) const {
    return memory.missing.subspan(index * (size_t{blocks_max} + 1), size_t{blocks_max} + 1);
  }
  std::span<BlockKey> KeysOf(uint32_t index) const {
    return memory.fetch_keys.subspan(size_t{index} * blocks_max, blocks_max);
  }
  uint32_t AllGroups() const { return static_cast<uint32_t>((uint64_t{1} << groups.size()) - 1); }
  std::span<SlotId> table(uint32_t index, GroupId group) const { return tables.table(index, group.value()); }
  SlotId& node_slot(NodeId node, GroupId group) const {
    return memory.node_slots[size_t{node.value()} * groups.size() + group.value()];
  }
  bool HasAllSlots(NodeId node) const;
  // The block before this one, in whichever scope; a root if there is none.
  NodeId BlockBefore(NodeId block) const { return tree.LastBlock(tree.parent(block)); }
  // Has what the tree requires of it: a block every full slot, a tail every slot.
  bool IsWhole(NodeId node) const;
  bool HasNoSlots(NodeId node) const;
  // First block that a query at `position` sees in the group.
  uint32_t FirstBlock(const Group& group, uint32_t position) const {
    return group.window == 0 || position < group.window ? 0 : (position - group.window + 1) / block_tokens();
  }

  const KvCacheOptions options;
  const uint32_t blocks_max;  // of one sequence
  const bool has_full;        // a full or latent group
  const bool has_recurrent;
  Region declared;  // the tokens of the shared prefixes
  Region region;
  Layout memory;
  AgeList ages;  // of blocks that nobody uses, with reusable_ttl_s
  PrefixTree tree;
  BlockTables tables;
  std::vector<Group> groups;
  std::vector<KvGroupView> views;  // empty with a SlotMemory
  mutable BlockHasher hasher;
  EvictionOrder eviction;      // of blocks in full groups, if there are any
  std::vector<Fetch> fetches;  // [sequences_max], with a tier
  FetchModel fetch_model;
  uint64_t next_ticket = 1;
  uint64_t random = 0x9E3779B97F4A7C15u;  // of what is watched
  uint64_t now_ms = 0;
  uint32_t soft_pins = 0;    // there are
  uint32_t soft_pinned = 0;  // blocks in them
  uint32_t free_sequences = 0;
  uint32_t oldest_namespace = kNoNamespace, newest_namespace = kNoNamespace;
  Stats totals;  // the counters; the rest is computed when asked for
};

}  // namespace reprise
