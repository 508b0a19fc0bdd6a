#include "tier/disk_index.h"

#include <algorithm>
#include <bit>
#include <compare>

#include "base/check.h"

namespace reprise {
namespace {

// Namespaces come from clients (salts): so many of the least used entries are given up for a new one, no more.
constexpr uint32_t kEvictionsForNamespace = 1024;

std::strong_ordering Compare(std::span<const TokenId> a, std::span<const TokenId> b) {
  return std::lexicographical_compare_three_way(a.begin(), a.end(), b.begin(), b.end());
}

uint32_t CommonRun(std::span<const TokenId> a, std::span<const TokenId> b) {
  const size_t most = std::min(a.size(), b.size());
  return static_cast<uint32_t>(std::mismatch(a.begin(), a.begin() + most, b.begin()).first - a.begin());
}

uint64_t TableSize(uint64_t values) { return std::bit_ceil(std::max<uint64_t>(2 * values, 2)); }

}  // namespace

template <class Is>
uint32_t* DiskIndex::Table::Find(size_t hash, Is is) const {
  const size_t mask = slots.size() - 1;
  for (size_t at = hash & mask; slots[at] != 0; at = (at + 1) & mask) {
    if (is(slots[at] - 1)) return &slots[at];
  }
  return nullptr;
}

void DiskIndex::Table::Add(size_t hash, uint32_t value) const {
  const size_t mask = slots.size() - 1;
  size_t at = hash & mask;
  while (slots[at] != 0) at = (at + 1) & mask;
  slots[at] = value + 1;
}

template <class Hasher>
void DiskIndex::Table::Remove(uint32_t* slot, Hasher hash_of) const {
  const size_t mask = slots.size() - 1;
  size_t hole = static_cast<size_t>(slot - slots.data());
  // Close the hole with what a probe starting before it would otherwise not find.
  for (size_t at = (hole + 1) & mask; slots[at] != 0; at = (at + 1) & mask) {
    const size_t home = hash_of(slots[at] - 1) & mask;
    if (((at - home) & mask) < ((at - hole) & mask)) continue;
    slots[hole] = slots[at];
    hole = at;
  }
  slots[hole] = 0;
}

DiskIndex::Layout::Layout(const DiskIndexOptions& options, Carver& carver) {
  entries = carver.Array<Entry>(options.entries_max);
  tokens = carver.Array<TokenId>(uint64_t{options.entries_max} * options.block_tokens);
  locations = carver.Array<DiskLocation>(uint64_t{options.entries_max} * options.groups);
  keys = carver.Array<uint32_t>(TableSize(options.entries_max));
  tops = carver.Array<uint32_t>(TableSize(options.entries_max));
  namespaces = carver.Array<Namespace>(options.namespaces_max);
  names = carver.Array<uint32_t>(TableSize(options.namespaces_max));
}

uint64_t DiskIndex::FootprintBytes(const DiskIndexOptions& options) { return Measure<Layout>(options); }

DiskIndex::DiskIndex(const DiskIndexOptions& options, Ledger& ledger)
    : options_(options), region_(ledger.Take("disk index", FootprintBytes(options))) {
  CHECK(options.entries_max > 0 && options.entries_max < UINT32_MAX && options.namespaces_max > 0);
  const Layout layout = Carve<Layout>(region_, options);
  entries_ = layout.entries;
  tokens_ = layout.tokens;
  locations_ = layout.locations;
  keys_ = {layout.keys};
  tops_ = {layout.tops};
  names_ = {layout.names};
  namespaces_ = layout.namespaces;
}

size_t DiskIndex::HashOf(uint32_t name_space, const Digest& digest) {
  return TableHash(digest) ^ (size_t{name_space} * 0x9e3779b97f4a7c15ull);
}

std::optional<uint32_t> DiskIndex::FindNamespace(const NamespaceId& id) const {
  const uint32_t* slot = names_.Find(TableHash(id.digest), [&](uint32_t i) { return namespaces_[i].digests.id == id; });
  if (slot == nullptr) return std::nullopt;
  return *slot - 1;
}

std::optional<uint32_t> DiskIndex::AddNamespace(const NamespaceDigests& digests) {
  for (uint32_t i = 0; i < kEvictionsForNamespace && namespace_count_ == options_.namespaces_max; ++i) Evict(oldest_);
  if (namespace_count_ == options_.namespaces_max) return std::nullopt;
  const uint32_t index = free_namespace_ != UINT32_MAX ? free_namespace_ : fresh_namespaces_++;
  if (index == free_namespace_) free_namespace_ = namespaces_[index].next_free;
  namespaces_[index] = {.digests = digests, .entries = 0, .next_free = UINT32_MAX};
  names_.Add(TableHash(digests.id.digest), index);
  ++namespace_count_;
  return index;
}

void DiskIndex::DropNamespace(uint32_t index) {
  uint32_t* slot = names_.Find(TableHash(namespaces_[index].digests.id.digest), [&](uint32_t i) { return i == index; });
  names_.Remove(slot, [&](uint32_t i) { return TableHash(namespaces_[i].digests.id.digest); });
  namespaces_[index].next_free = free_namespace_;
  free_namespace_ = index;
  --namespace_count_;
}

std::span<const TokenId> DiskIndex::tokens(EntryId id) const {
  return tokens_.subspan(size_t{id.value()} * options_.block_tokens, entry(id).count);
}

PieceName DiskIndex::name(EntryId id) const {
  return {.name_space = name_space(id).id,
          .parent = entry(id).parent,
          .key = IsTail(id) ? nullptr : &entry(id).key,
          .tokens = tokens(id)};
}

uint32_t* DiskIndex::TopSlot(uint32_t name_space, const Digest& parent) const {
  return tops_.Find(HashOf(name_space, parent), [&](uint32_t id) {
    return entries_[id].name_space == name_space && entries_[id].parent == parent;
  });
}

EntryId DiskIndex::Top(uint32_t name_space, const Digest& parent) const {
  const uint32_t* slot = TopSlot(name_space, parent);
  return slot == nullptr ? kNoEntry : EntryId(*slot - 1);
}

// A block and a tail never have equal tokens; blocks with equal ones (other extras) are in any order.
EntryId DiskIndex::LowerBound(EntryId top, std::span<const TokenId> wanted) const {
  return siblings().LowerBound(top, [&](EntryId id) { return Compare(tokens(id), wanted) < 0; });
}

EntryId DiskIndex::FindKey(const NamespaceId& name_space, const BlockKey& key) const {
  const std::optional<uint32_t> index = FindNamespace(name_space);
  if (!index) return kNoEntry;
  const uint32_t* slot = keys_.Find(HashOf(*index, key.digest), [&](uint32_t id) {
    return entries_[id].name_space == *index && entries_[id].key == key;
  });
  return slot == nullptr ? kNoEntry : EntryId(*slot - 1);
}

EntryId DiskIndex::Find(const PieceName& name) const {
  EntryId id = kNoEntry;
  if (name.key != nullptr) {
    id = FindKey(name.name_space, *name.key);
  } else if (const std::optional<uint32_t> index = FindNamespace(name.name_space)) {
    id = LowerBound(Top(*index, name.parent), name.tokens);
    if (id != kNoEntry && !IsTail(id)) return kNoEntry;
  }
  if (id == kNoEntry || entry(id).parent != name.parent || Compare(tokens(id), name.tokens) != 0) return kNoEntry;
  return id;
}

EntryId DiskIndex::FindRun(const NamespaceId& name_space, const Digest& parent, std::span<const TokenId> wanted,
                           uint32_t groups, bool whole) const {
  const std::optional<uint32_t> index = FindNamespace(name_space);
  const EntryId top = index ? Top(*index, parent) : kNoEntry;
  if (top == kNoEntry) return kNoEntry;
  if (whole) return FindWhole(top, wanted, groups);
  EntryId best = kNoEntry;
  uint32_t best_run = 0;
  // False: nothing beyond this one has a longer run than the best.
  const auto consider = [&](EntryId id) {
    const uint32_t run = CommonRun(tokens(id), wanted);
    if (run <= best_run) return false;
    if ((entry(id).groups & groups) != groups) return true;
    best = id;
    best_run = run;
    return false;
  };
  const EntryId above = LowerBound(top, wanted);
  EntryId id = above;
  for (uint32_t i = 0; i < kUnusableMax && id != kNoEntry && consider(id); ++i) id = siblings().Next(id);
  id = above == kNoEntry ? siblings().Last(top) : siblings().Previous(above);
  for (uint32_t i = 0; i < kUnusableMax && id != kNoEntry && consider(id); ++i) id = siblings().Previous(id);
  return best;
}

// The prefixes of `wanted` come before it, and what lies between one of them and `wanted` begins with it: so each step
// back to the last entry that is not after a prefix leaves only shorter ones.
EntryId DiskIndex::FindWhole(EntryId top, std::span<const TokenId> wanted, uint32_t groups) const {
  while (!wanted.empty()) {
    EntryId id = LowerBound(top, wanted);
    if (id == kNoEntry || Compare(tokens(id), wanted) != 0) {
      id = id == kNoEntry ? siblings().Last(top) : siblings().Previous(id);
      if (id == kNoEntry) return kNoEntry;
    }
    const uint32_t run = CommonRun(tokens(id), wanted);
    const bool is_prefix = run == tokens(id).size();
    if (is_prefix && IsTail(id) && (entry(id).groups & groups) == groups) return id;
    if (run == 0) return kNoEntry;
    wanted = wanted.first(is_prefix ? run - 1 : run);
  }
  return kNoEntry;
}

std::vector<NamespaceDigests> DiskIndex::NamespacesWith(std::span<const TokenId> tokens) const {
  std::vector<NamespaceDigests> found;
  const std::span<const TokenId> wanted = tokens.first(std::min<size_t>(tokens.size(), options_.block_tokens));
  for (uint32_t i = 0; i < fresh_namespaces_ && found.size() < namespace_count_; ++i) {
    if (namespaces_[i].entries == 0) continue;
    const EntryId id = LowerBound(Top(i, namespaces_[i].digests.id.digest), wanted);
    if (id != kNoEntry && CommonRun(this->tokens(id), wanted) == wanted.size()) found.push_back(namespaces_[i].digests);
  }
  return found;
}

bool DiskIndex::Put(const NamespaceDigests& name_space, const PieceName& name, GroupId group,
                    const DiskLocation& location, uint32_t epoch) {
  CHECK_LT(group.value(), options_.groups);
  CHECK_NE(location.segment, 0u);
  CHECK(!name.tokens.empty() && name.tokens.size() <= options_.block_tokens);
  CHECK_EQ(name.key == nullptr, name.tokens.size() < options_.block_tokens);
  EntryId id = Find(name);
  if (id == kNoEntry) {
    if (name.key != nullptr) {
      if (const EntryId other = FindKey(name.name_space, *name.key); other != kNoEntry) Remove(other);
    }
    if (free_ == kNoEntry && fresh_entries_ == options_.entries_max) Evict(oldest_);
    std::optional<uint32_t> index = FindNamespace(name.name_space);
    if (!index) index = AddNamespace(name_space);
    if (!index) return false;
    id = AddEntry(*index, name);
  }
  DiskLocation& place = locations_[At(id, group)];
  if (place.segment != 0) Account(entry(id), place, -1);
  place = location;
  Account(entry(id), place, +1);
  entry(id).groups |= 1u << group.value();
  entry(id).used = std::max(entry(id).used, epoch);
  return true;
}

EntryId DiskIndex::AddEntry(uint32_t name_space, const PieceName& name) {
  const EntryId id = free_ != kNoEntry ? free_ : EntryId(fresh_entries_++);
  if (id == free_) free_ = entry(id).older;
  entry(id) = {.parent = name.parent,
               .key = name.key == nullptr ? BlockKey{} : *name.key,
               .links = {},
               .newer = kNoEntry,
               .older = kNoEntry,
               .name_space = name_space,
               .used = 0,
               .groups = 0,
               .count = static_cast<uint16_t>(name.tokens.size()),
               .kind = name.key == nullptr ? Kind::kTail : Kind::kBlock};
  std::copy(name.tokens.begin(), name.tokens.end(), tokens_.begin() + size_t{id.value()} * options_.block_tokens);
  for (uint32_t g = 0; g < options_.groups; ++g) locations_[At(id, GroupId(g))] = {};
  uint32_t* slot = TopSlot(name_space, name.parent);
  EntryId top = slot == nullptr ? kNoEntry : EntryId(*slot - 1);
  siblings().Insert(top, id, [&](EntryId other) { return Compare(tokens(other), name.tokens) < 0; });
  if (slot == nullptr) {
    tops_.Add(ParentHash(id.value()), id.value());
  } else {
    *slot = top.value() + 1;  // the same hash: all under one parent
  }
  if (name.key != nullptr) keys_.Add(KeyHash(id.value()), id.value());
  ++namespaces_[name_space].entries;
  Link(id);
  return id;
}

void DiskIndex::Forget(EntryId id, GroupId group) {
  DiskLocation& place = locations_[At(id, group)];
  if (place.segment == 0) return;
  Account(entry(id), place, -1);
  place = {};
  entry(id).groups &= ~(1u << group.value());
  if (entry(id).groups == 0) Remove(id);
}

void DiskIndex::Remove(EntryId id) {
  Entry& gone = entry(id);
  CHECK(gone.kind != Kind::kFree);
  for (uint32_t g = 0; g < options_.groups; ++g) {
    DiskLocation& place = locations_[At(id, GroupId(g))];
    if (place.segment != 0) Account(gone, place, -1);
    place = {};
  }
  uint32_t* slot = TopSlot(gone.name_space, gone.parent);
  EntryId top(*slot - 1);
  siblings().Remove(top, id);
  if (top == kNoEntry) {
    tops_.Remove(slot, [&](uint32_t other) { return ParentHash(other); });
  } else {
    *slot = top.value() + 1;
  }
  if (gone.kind == Kind::kBlock) {
    uint32_t* key_slot = keys_.Find(KeyHash(id.value()), [&](uint32_t other) { return other == id.value(); });
    keys_.Remove(key_slot, [&](uint32_t other) { return KeyHash(other); });
  }
  Unlink(id);
  if (--namespaces_[gone.name_space].entries == 0) DropNamespace(gone.name_space);
  gone.kind = Kind::kFree;
  gone.older = free_;
  free_ = id;
}

void DiskIndex::Evict(EntryId id) {
  CHECK(id != kNoEntry);
  evicted_pieces_ += static_cast<uint64_t>(std::popcount(entry(id).groups));
  Remove(id);
}

void DiskIndex::Account(const Entry& owner, const DiskLocation& location, int sign) {
  const auto it = live_.try_emplace(location.segment).first;
  const auto bytes = static_cast<uint64_t>(int64_t{location.bytes} * sign);
  it->second.bytes += bytes;
  it->second.pieces += static_cast<uint32_t>(sign);
  live_bytes_ += bytes;
  pieces_ += static_cast<uint64_t>(int64_t{sign});
  if (owner.kind == Kind::kTail) tail_pieces_ += static_cast<uint64_t>(int64_t{sign});
  if (it->second.pieces == 0) live_.erase(it);
}

DiskIndex::Live DiskIndex::live(uint32_t segment) const {
  const auto it = live_.find(segment);
  return it == live_.end() ? Live{} : it->second;
}

void DiskIndex::Touch(EntryId id, uint32_t epoch) {
  entry(id).used = std::max(entry(id).used, epoch);
  if (id == newest_) return;
  Unlink(id);
  Link(id);
}

void DiskIndex::Link(EntryId id) {
  entry(id).newer = kNoEntry;
  entry(id).older = newest_;
  (newest_ == kNoEntry ? oldest_ : entry(newest_).newer) = id;
  newest_ = id;
}

void DiskIndex::Unlink(EntryId id) {
  const Entry& gone = entry(id);
  (gone.newer == kNoEntry ? newest_ : entry(gone.newer).older) = gone.older;
  (gone.older == kNoEntry ? oldest_ : entry(gone.older).newer) = gone.newer;
}

void DiskIndex::CheckIntegrity() const {
  uint32_t used = 0, blocks = 0, free = 0, listed = 0, under_parents = 0, in_keys = 0;
  std::vector<uint32_t> per_namespace(namespaces_.size());
  std::unordered_map<uint32_t, Live> live;
  uint64_t bytes = 0, pieces = 0, tail_pieces = 0;
  for (uint32_t i = 0; i < fresh_entries_; ++i) {
    const EntryId id(i);
    if (!Exists(id)) continue;
    const Entry& each = entry(id);
    ++used;
    ++per_namespace[each.name_space];
    CHECK_NE(each.groups, 0u);
    CHECK_EQ(each.kind == Kind::kTail, each.count < options_.block_tokens);
    CHECK(Find(name(id)) != kNoEntry);
    if (each.kind == Kind::kBlock) {
      ++blocks;
      CHECK(FindKey(name_space(id).id, each.key) == id);
    }
    CHECK(siblings().IsLinked(Top(each.name_space, each.parent), id));
    if (const EntryId next = siblings().Next(id); next != kNoEntry) {
      CHECK(Compare(tokens(id), tokens(next)) <= 0);
      CHECK(siblings().Previous(next) == id);
      CHECK(entry(next).parent == each.parent && entry(next).name_space == each.name_space);
    }
    for (uint32_t g = 0; g < options_.groups; ++g) {
      const DiskLocation& place = location(id, GroupId(g));
      CHECK_EQ(place.segment != 0, (each.groups >> g & 1u) != 0);
      if (place.segment == 0) continue;
      live[place.segment].bytes += place.bytes;
      ++live[place.segment].pieces;
      bytes += place.bytes;
      ++pieces;
      tail_pieces += each.kind == Kind::kTail;
    }
  }
  for (uint32_t slot : tops_.slots) {
    if (slot == 0) continue;
    EntryId id = siblings().First(EntryId(slot - 1));
    for (; id != kNoEntry; id = siblings().Next(id)) ++under_parents;
  }
  for (uint32_t slot : keys_.slots) in_keys += slot != 0;
  for (EntryId id = newest_; id != kNoEntry; id = entry(id).older) ++listed;
  for (EntryId id = free_; id != kNoEntry; id = entry(id).older) ++free;
  CHECK_EQ(under_parents, used);
  CHECK_EQ(listed, used);
  CHECK_EQ(in_keys, blocks);
  CHECK_EQ(free + used, fresh_entries_);
  CHECK_LE(fresh_entries_, options_.entries_max);
  uint32_t namespaces = 0;
  for (uint32_t i = 0; i < fresh_namespaces_; ++i) {
    CHECK_EQ(per_namespace[i], namespaces_[i].entries);
    if (namespaces_[i].entries == 0) continue;
    ++namespaces;
    CHECK(FindNamespace(namespaces_[i].digests.id) == i);
  }
  CHECK_EQ(namespaces, namespace_count_);
  CHECK_EQ(live.size(), live_.size());
  for (const auto& [segment, sum] : live) {
    CHECK(this->live(segment).bytes == sum.bytes && this->live(segment).pieces == sum.pieces);
  }
  CHECK(bytes == live_bytes_ && pieces == pieces_ && tail_pieces == tail_pieces_);
}

}  // namespace reprise
