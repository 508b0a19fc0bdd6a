// The KV cache: which prefix of a prompt is already computed, where its blocks are, and the memory for
// the rest. It joins *who* a block is (prefix) with *where* it is (block); nothing else knows both.
//
// A sequence goes: Admit (longest prefix pinned, worst case reserved) -> Rematch, just before its first
// slice -> for each step Prepare(rows), the forward pass writes K and V, Commit(tokens) -> Finish.
// Dropping a CacheSequence at any point gives back its pins; blocks sealed before stay reusable.
//
// Exact:     a match is exact to the token: whole blocks are shared in place; rows of a partly
//            matching block are copied into a slot of the sequence's own (DESIGN 6).
// Safe:      lookups see sealed blocks of the same namespace whose tokens compare equal, nothing else.
// Planned:   admission reserves the worst case of every group: Prepare cannot fail and a pinned block
//            is never evicted.
//
// Ownership: the cache owns all slots and must outlive its sequences; their bytes too, unless the options name a
//            SlotMemory.
// Threads:   one thread, the engine's.
// Errors:    a full cache is an outcome (kWait, kNever); misuse aborts.
// Design:    DESIGN 4-7, docs/format/block.md, docs/format/identity.md
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "base/geometry.h"
#include "base/hash.h"
#include "base/identity.h"
#include "base/ids.h"
#include "base/kv_view.h"
#include "base/ledger.h"
#include "block/slot_memory.h"
#include "cache/eviction_policy.h"
#include "cache/prefix_report.h"
#include "prefix/block_key.h"
#include "prefix/namespace.h"

namespace reprise {

class Tier;

struct KvCacheOptions {
  Geometry geometry;
  ComputationIdentity identity;
  std::vector<uint32_t> slots;  // [groups]: slots of each group's pool
  uint32_t sequences_max = 0;   // admitted at once
  uint32_t context_max = 0;     // tokens of one sequence
  uint32_t in_flight_max = 0;   // rows that one Prepare may ask for
  EvictionPolicy eviction = EvictionPolicy::kValuePerByte;
  uint32_t reusable_ttl_s = 0;      // blocks unused for longer are expired, and go first; 0: never
  uint32_t soft_pin_blocks = 0;     // that SoftPin may protect at once; each has a slot in every group
  std::vector<TenantQuota> quotas;  // at most kTenantQuotasMax; what they leave is everyone else's together
  // Beginnings of prompts that are everyone's, at most kSharedPrefixesMax, cut to whole blocks: a prompt that has all
  // of one shares it with other tenants, and nothing else (docs/format/identity.md).
  std::vector<std::vector<TokenId>> shared_prefixes;
  // A place farther away (tier.h): what is sealed is stored there behind, and brought back when that is faster than
  // computing it again. Must outlive the cache. Not with a SlotMemory. `tiered` counts the memory for it, in a plan
  // that has no tier yet.
  Tier* tier = nullptr;
  bool tiered = false;
  uint32_t tier_patience_ms =
      5;                      // that a fetch may take, whatever it saves: less is noise, and no tier would be found out
  uint32_t tier_readers = 2;  // reads that it does at once
  std::function<std::chrono::steady_clock::time_point()>
      tier_now;                          // the clock that fetches are timed by; null: the system's
  SlotMemory* memory = nullptr;          // not null: K and V lie there, and the cache takes no memory for them
  uint64_t shuffle_seed = 0;             // not 0: hand out slots in a shuffled order (tests)
  BlockKeyFunction block_key = nullptr;  // not null: in place of the SHA-256 chain (tests force collisions)
};

inline constexpr uint32_t kSharedPrefixesMax = 64;

class KvCache;

// One admitted sequence. Move-only; the destructor gives back pins and reservations.
class CacheSequence {
 public:
  CacheSequence() = default;
  CacheSequence(CacheSequence&&) noexcept;
  CacheSequence& operator=(CacheSequence&&) noexcept;
  ~CacheSequence();

  explicit operator bool() const { return cache_ != nullptr; }

  // Tokens whose K and V are in place: the next one to compute. After Admit: the match.
  uint32_t length() const;
  // What Admit or the last Rematch found.
  PrefixMatch match() const;

  // Looks again for a longer prefix of the prompt, others may have sealed more. REQUIRES: nothing was
  // prepared yet. Returns the tokens gained. Never loses what is pinned. Without a gain: one hash and a
  // look at the children of the last block found.
  uint32_t Rematch();

  // Begins to bring what the tier has beyond the match, if that is worth it. True: fetching() until KvCache::Poll has
  // seen the end of it; meanwhile the sequence may only be dropped. REQUIRES: nothing was prepared yet; once per
  // sequence.
  bool BeginFetch();
  bool fetching() const;
  // What BeginFetch decided and what came of it.
  TierReport tier() const;

  // What the reply to this prompt is known to have, where it is not committed here (replays of a trace).
  void SetReplyTokens(uint32_t tokens);

  // Slots for positions [length(), length() + rows). Cannot fail: admission reserved them. Window slots
  // that no coming query reaches are unpinned. REQUIRES: rows <= in_flight_max, within tokens_max.
  void Prepare(uint32_t rows);

  // With recurrent groups: how many rows from length() on the next Prepare may have, so that the step ends where work
  // may be taken up again (end of prompt, observed forks). Without: no limit. At least 1.
  uint32_t rows_to_edge() const;

  // [groups]: block tables, entry i = slot of block i, kNoSlot where out of a window's reach. Covers
  // what was prepared. Valid until the next call of a method.
  // Of a recurrent group, entry i is the state after the last of its tokens that was computed: a step that begins at
  // position p reads the state of token p - 1 (none at 0: the initial one) and writes that of its last token, to an
  // entry that is another one unless both tokens are of one block. Blocks between them have no state.
  std::span<const std::span<const SlotId>> tables() const;

  // K and V of the next tokens.size() positions have been written: appends them and seals every block
  // they complete (unless the sequence was admitted without `write`).
  // REQUIRES: tokens.size() <= what was prepared; equal, with recurrent groups.
  void Commit(std::span<const TokenId> tokens);

  // Work will be taken up again at length(): the end of a prompt or of a turn. What every group needs to
  // resume there is kept longest (DESIGN 7.2).
  void MarkCheckpoint();

  // The sequence ends well: its partial last block is kept as a tail and the handle becomes empty.
  void Finish();

 private:
  friend class KvCache;
  CacheSequence(KvCache* cache, uint32_t index) : cache_(cache), index_(index) {}
  KvCache* cache_ = nullptr;
  uint32_t index_ = 0;
};

class KvCache {
 public:
  // One line per component: pools by group, tree, block tables. The slots' bytes are 0 with a SlotMemory.
  static std::vector<Footprint> Footprints(const KvCacheOptions& options);
  // Slots of each group for a byte budget: shares the bytes so that as many tokens as possible fit,
  // window groups no more than they can use. The slots' bytes count, those in a SlotMemory too. Error: the
  // budget holds not even one sequence of context_max tokens; the message gives both numbers.
  static absl::StatusOr<std::vector<uint32_t>> PlanSlots(const KvCacheOptions& options, uint64_t budget_bytes);

  KvCache(const KvCacheOptions& options, Ledger& ledger);
  ~KvCache();

  // The time, for reusable_ttl_s and soft pins: of any clock that does not go back.
  void SetTime(uint64_t ms);

  enum class Outcome : uint8_t {
    kAdmitted,
    kWait,   // does not fit now, or sequences_max are admitted; will when others have ended
    kNever,  // would not fit an empty cache
  };
  struct AdmitRequest {
    const NamespaceDigests& name_space;
    std::span<const TokenId> prompt;  // copied
    uint32_t tokens_max = 0;          // prompt + output, the worst case; >= prompt.size()
    bool read = true;                 // use what is cached
    bool write = true;                // seal what is computed
  };
  // Finds and pins the longest usable prefix (at most prompt.size() - 1 tokens) and reserves the worst
  // case. On kAdmitted `sequence` is set.
  Outcome Admit(const AdmitRequest& request, CacheSequence& sequence);

  // To be called between steps: takes what the tier has read, gives it what is to be stored (at most `store_bytes` of
  // it, all that there is room for with UINT64_MAX). Nothing without a tier. Never waits. Returns whether there is more
  // to store.
  bool Poll(uint64_t store_bytes);
  // A step computed so many tokens of prompts, whose positions add up to `positions`: what fetching is weighed against.
  void ObservePrefill(uint64_t rows, double positions, double seconds);

  // The usable prefix now, without pinning or touching anything.
  PrefixMatch Lookup(const NamespaceDigests& name_space, std::span<const TokenId> prompt) const;

  // How much of the prompt lies in the shared scope: the longest declared prefix that is whole in it, or 0.
  uint32_t SharedTokens(const NamespaceDigests& name_space, std::span<const TokenId> prompt) const;

  // The same, with what an asker may know of why it goes no further. O(namespaces) more than Lookup.
  PrefixReport Explain(const NamespaceDigests& name_space, std::span<const TokenId> prompt,
                       ReportView view = ReportView::kOwner) const;

  // The namespace of this cache's computation for a scope, with the identity's adapters or, if given, these
  // (docs/format/identity.md). Without a salt it takes part in the shared prefixes. Hashes; keep the result.
  NamespaceDigests Namespace(const Scope& scope, std::optional<std::string_view> adapters = std::nullopt) const;

  // The blocks that are there of this prefix, from its first token on, go after all others of their tenant for so
  // long, and after all others where no tenant is above its quota. It orders evictions and nothing else: no admission
  // waits for it, running sequences take its slots before they go without, and reusable_ttl_s ends it. The oldest soft
  // pins give way to what is beyond the budget; the same prefix again is renewed. Returns the tokens, in whole blocks.
  // O(blocks of the prefix, and of those that give way).
  uint32_t SoftPin(const NamespaceDigests& name_space, std::span<const TokenId> prefix, uint32_t ttl_ms);

  // Forgets everything of the scope's tenant, whatever its epoch, salt or adapters; not what is everyone's. What
  // running sequences use cannot be found any more and goes with the last of them.
  struct Purged {
    uint64_t blocks = 0;  // gone now, tails included
    uint64_t pinned = 0;  // go with the sequences that use them
  };
  Purged Purge(std::string_view tenant);

  // [groups], for the executor. Empty with a SlotMemory.
  std::span<const KvGroupView> group_views() const;
  const Geometry& geometry() const;
  const ComputationIdentity& identity() const;
  Tier* tier() const;  // of the options

  struct GroupStats {
    GroupKind kind = GroupKind::kFull;
    uint32_t window = 0;  // tokens; 0 for other kinds
    uint64_t slot_bytes = 0;
    uint32_t slots_total = 0;
    uint32_t slots_free = 0;
    uint32_t slots_active = 0;    // pinned
    uint32_t slots_reusable = 0;  // sealed or tail, unpinned
  };
  struct Stats {
    std::vector<GroupStats> groups;
    uint32_t sequences = 0;
    uint64_t nodes = 0;
    uint64_t tails = 0;
    uint64_t tokens_reused = 0;   // fetched ones too
    uint64_t tokens_fetched = 0;  // from the tier
    uint64_t tokens_computed = 0;
    // Of fetches that have ended: what they were expected to take and took, and what computing instead was expected to
    // take, of what they brought. `fetches_worse` took longer than that.
    uint64_t fetches = 0, fetches_worse = 0;
    double fetch_expected_ms = 0, fetch_took_ms = 0, fetch_saved_ms = 0;
    uint64_t evicted_blocks = 0;
    uint64_t namespaces = 0;
    uint64_t duplicate_seals = 0;
    uint64_t key_collisions = 0;  // a key that led to other tokens: told apart, and a miss
  };
  Stats stats() const;

  // Evicts everything that is not pinned.
  void Clear();

  // Aborts unless every slot is free, reserved, pinned or reusable exactly once, pins match the
  // sequences, parents hold their children and reservations can be met. O(everything); for tests.
  void CheckIntegrity() const;

 private:
  friend class CacheSequence;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace reprise
