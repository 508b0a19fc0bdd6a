#include "cache/kv_cache.h"

#include <algorithm>
#include <utility>

#include "base/bytes.h"
#include "base/check.h"
#include "block/slot_rows.h"
#include "cache/kv_cache_impl.h"
#include "prefix/namespace.h"

namespace reprise {
namespace {

Region SharedPrefixRegion(const KvCacheOptions& options, Ledger& ledger) {
  const std::optional<Footprint> line = SharedPrefixFootprint(options);
  return line ? ledger.Account(line->component, line->bytes) : Region();
}

}  // namespace

KvCache::Impl::Impl(const KvCacheOptions& given, Ledger& ledger)
    : options(given),
      blocks_max(TableOptions(given).blocks_max),
      has_full(HasFullGroup(given.geometry)),
      has_recurrent(std::any_of(given.geometry.groups.begin(), given.geometry.groups.end(),
                                [](const LayerGroup& group) { return group.kind == GroupKind::kRecurrent; })),
      declared(SharedPrefixRegion(given, ledger)),
      region(ledger.Take("kv sequences", Measure<Layout>(given))),
      memory(Carve<Layout>(region, given)),
      ages(memory.ages),
      tree(TreeOptions(given), ledger),
      tables(TableOptions(given), ledger),
      eviction(OrderOptions(given), ledger),
      fetches(given.tiered ? given.sequences_max : 0),
      fetch_model(given.tier_readers) {
  CHECK_LE(options.shared_prefixes.size(), kSharedPrefixesMax);
  CHECK(options.tier == nullptr || (options.tiered && options.memory == nullptr));
  CHECK_LE(options.geometry.groups.size(), kTierGroupsMax);
  CHECK(options.sequences_max > 0 && options.context_max > 0 && options.in_flight_max > 0);
  const uint32_t count = static_cast<uint32_t>(options.geometry.groups.size());
  groups.reserve(count);
  std::span<NodeId> owners = memory.owners;
  uint64_t first_slot = 0;
  for (uint32_t g = 0; g < count; ++g) {
    const LayerGroup& shape = options.geometry.groups[g];
    CHECK_EQ(shape.kind == GroupKind::kWindow, shape.window > 0);
    const SlotPoolOptions pool = PoolOptions(options, g);
    groups.push_back(
        {.id = GroupId(g),
         .window = shape.kind == GroupKind::kRecurrent ? kRecurrentWindow : shape.window,
         .recurrent = shape.kind == GroupKind::kRecurrent,
         .pool = SlotPool(pool, ledger),
         .reusable = ReuseLists(pool.name + " order", ReuseSlots(options, g), Tenants() * kKeepLevels, ledger),
         .to_store = ReuseLists(pool.name + " to store", StoreSlots(options, g), 1, ledger),
         .held = std::vector<uint32_t>(Tenants()),
         .owner = owners.first(pool.slots),
         .first_slot = first_slot});
    first_slot += pool.slots;
    owners = owners.subspan(pool.slots);
    if (options.memory == nullptr) views.push_back(groups.back().pool.view());
  }
  std::fill(memory.owners.begin(), memory.owners.end(), kNoNode);
  std::fill(memory.node_slots.begin(), memory.node_slots.end(), kNoSlot);
  for (uint32_t i = options.sequences_max; i > 0; --i) {
    memory.sequences[i - 1] = Sequence{};
    memory.free[free_sequences++] = i - 1;
  }
}

void KvCache::Impl::CopySlotRows(const Group& group, SlotId from, SlotId to, uint32_t rows) const {
  if (options.memory != nullptr) return options.memory->CopyRows(group.id, from, to, rows);
  CopyRows(options.geometry, group.id, group.pool.bytes(from), group.pool.bytes(to), rows);
}

void KvCache::Impl::ClearSlotRows(const Group& group, SlotId slot, uint32_t first_row) const {
  if (options.memory != nullptr) return options.memory->ClearRows(group.id, slot, first_row);
  ClearRows(options.geometry, group.id, group.pool.bytes(slot), first_row);
}

CacheSequence::CacheSequence(CacheSequence&& other) noexcept
    : cache_(std::exchange(other.cache_, nullptr)), index_(other.index_) {}

CacheSequence& CacheSequence::operator=(CacheSequence&& other) noexcept {
  if (this == &other) return *this;
  if (cache_ != nullptr) cache_->impl_->Release(index_);
  cache_ = std::exchange(other.cache_, nullptr);
  index_ = other.index_;
  return *this;
}

CacheSequence::~CacheSequence() {
  if (cache_ != nullptr) cache_->impl_->Release(index_);
}

uint32_t CacheSequence::length() const { return cache_->impl_->sequence(index_).length; }
PrefixMatch CacheSequence::match() const { return cache_->impl_->sequence(index_).match; }
uint32_t CacheSequence::Rematch() { return cache_->impl_->Rematch(index_); }
bool CacheSequence::BeginFetch() { return cache_->impl_->BeginFetch(index_); }
bool CacheSequence::fetching() const {
  return !cache_->impl_->fetches.empty() && cache_->impl_->fetches[index_].active;
}
TierReport CacheSequence::tier() const {
  return cache_->impl_->fetches.empty() ? TierReport{} : cache_->impl_->fetches[index_].report;
}
void CacheSequence::SetReplyTokens(uint32_t tokens) { cache_->impl_->sequence(index_).reply = tokens; }
void CacheSequence::Prepare(uint32_t rows) { cache_->impl_->Prepare(index_, rows); }
uint32_t CacheSequence::rows_to_edge() const { return cache_->impl_->RowsToEdge(index_); }
void CacheSequence::Commit(std::span<const TokenId> tokens) { cache_->impl_->Commit(index_, tokens); }
void CacheSequence::MarkCheckpoint() { cache_->impl_->MarkEdge(index_, length()); }

std::span<const std::span<const SlotId>> CacheSequence::tables() const {
  return cache_->impl_->tables.Heads(index_, cache_->impl_->sequence(index_).blocks);
}

void CacheSequence::Finish() {
  CHECK(cache_ != nullptr);
  std::exchange(cache_, nullptr)->impl_->Finish(index_);
}

KvCache::KvCache(const KvCacheOptions& options, Ledger& ledger) : impl_(std::make_unique<Impl>(options, ledger)) {}

KvCache::~KvCache() { CHECK_EQ(impl_->free_sequences, impl_->options.sequences_max); }

void KvCache::SetTime(uint64_t ms) {
  impl_->now_ms = std::max(impl_->now_ms, ms);
  impl_->EndSoftPins();
}

KvCache::Outcome KvCache::Admit(const AdmitRequest& request, CacheSequence& sequence) {
  CHECK(!sequence);
  uint32_t index = 0;
  const Outcome outcome = impl_->Admit(request, index);
  if (outcome == Outcome::kAdmitted) sequence = CacheSequence(this, index);
  return outcome;
}

bool KvCache::Poll(uint64_t store_bytes) { return impl_->Poll(store_bytes); }
void KvCache::ObservePrefill(uint64_t rows, double positions, double seconds) {
  impl_->fetch_model.ObservePrefill(rows, positions, seconds);
}

PrefixMatch KvCache::Lookup(const NamespaceDigests& name_space, std::span<const TokenId> prompt) const {
  const Impl::Match match = impl_->Find(impl_->AskerOf(name_space, prompt), prompt);
  return {.tokens = match.tokens, .reason = match.reason};
}

uint32_t KvCache::SharedTokens(const NamespaceDigests& name_space, std::span<const TokenId> prompt) const {
  return impl_->AskerOf(name_space, prompt).shared * impl_->block_tokens();
}

PrefixReport KvCache::Explain(const NamespaceDigests& name_space, std::span<const TokenId> prompt,
                              ReportView view) const {
  return impl_->Explain(name_space, prompt, view);
}

NamespaceDigests KvCache::Namespace(const Scope& scope, std::optional<std::string_view> adapters) const {
  const KvCacheOptions& options = impl_->options;
  ComputationIdentity identity = options.identity;
  if (adapters) identity.adapters = *adapters;
  NamespaceDigests digests = DeriveNamespace(identity, options.geometry, scope);
  if (!options.shared_prefixes.empty() && !scope.salt)  // a salt narrows: nothing is shared under one
    digests.shared = DeriveSharedNamespace(identity, options.geometry).id;
  return digests;
}

uint32_t KvCache::SoftPin(const NamespaceDigests& name_space, std::span<const TokenId> prefix, uint32_t ttl_ms) {
  return impl_->SoftPinPrefix(name_space, prefix, ttl_ms);
}

KvCache::Purged KvCache::Purge(std::string_view tenant) { return impl_->Purge(tenant); }

std::span<const KvGroupView> KvCache::group_views() const { return impl_->views; }
const ComputationIdentity& KvCache::identity() const { return impl_->options.identity; }
Tier* KvCache::tier() const { return impl_->options.tier; }
const Geometry& KvCache::geometry() const { return impl_->options.geometry; }

KvCache::Stats KvCache::stats() const {
  Stats out = impl_->totals;
  for (const Impl::Group& group : impl_->groups)
    out.groups.push_back({.kind = geometry().group(group.id).kind,
                          .window = group.recurrent ? 0 : group.window,
                          .slot_bytes = SlotBytes(geometry(), group.id),
                          .slots_total = group.pool.size(),
                          .slots_free = group.pool.free(),
                          .slots_active = group.pool.pinned(),
                          .slots_reusable = group.pool.reusable()});
  out.sequences = impl_->options.sequences_max - impl_->free_sequences;
  out.nodes = impl_->tree.blocks();
  out.tails = impl_->tree.tails();
  out.namespaces = impl_->tree.roots();
  out.key_collisions = impl_->tree.key_collisions();
  return out;
}

void KvCache::Clear() { impl_->Clear(); }
void KvCache::CheckIntegrity() const { impl_->CheckIntegrity(); }

}  // namespace reprise
