#include "tier/disk_store.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "tier/disk_store_impl.h"

namespace reprise {
namespace {

DiskIndexOptions IndexOptions(const DiskStoreOptions& options) {
  return {.block_tokens = options.geometry.block_tokens,
          .groups = static_cast<uint32_t>(options.geometry.groups.size()),
          .entries_max = options.blocks_max};
}

// Of a segment, so that reclaiming one gives up a small part of what is kept.
uint64_t SegmentBytes(const DiskStoreOptions& options) {
  return std::min(options.segment_bytes, options.bytes_max / 8);
}

constexpr std::chrono::seconds kReadErasedEvery{1};

}  // namespace

Footprint DiskStore::FootprintOf(const DiskStoreOptions& options) {
  return {.component = "disk index", .bytes = DiskIndex::FootprintBytes(IndexOptions(options))};
}

absl::StatusOr<DiskStore::Opened> DiskStore::Open(const DiskStoreOptions& options, Ledger& ledger) {
  CHECK(!options.directory.empty());
  CHECK_LE(options.geometry.groups.size(), kTierGroupsMax);
  auto store = std::make_unique<DiskStoreImpl>(options, ledger);
  Opened opened;
  if (absl::Status status = store->OpenDirectory(opened); !status.ok()) return status;
  opened.store = std::move(store);
  return opened;
}

DiskStoreImpl::DiskStoreImpl(const DiskStoreOptions& options, Ledger& ledger)
    : options_(options),
      files_(options.files == nullptr ? RealFileSystem() : *options.files),
      segment_bytes_(SegmentBytes(options)),
      cap_bytes_(options.bytes_max),
      synced_at_(Steady::now()),
      raised_at_(Steady::now()),
      index_(IndexOptions(options), ledger),
      erased_read_at_(Steady::now()) {
  for (uint32_t g = 0; g < options.geometry.groups.size(); ++g) {
    shapes_.push_back(RecordShape::Of(options.geometry, GroupId(g)));
    slot_bytes_max_ = std::max(slot_bytes_max_, shapes_.back().slot_bytes);
  }
}

// Closed with a footer, so that the next start is fast.
DiskStoreImpl::~DiskStoreImpl() {
  if (active_ != nullptr) CloseActive();
}

std::string DiskStoreImpl::Path(std::string_view name) const { return options_.directory + "/" + std::string(name); }

uint64_t DiskStoreImpl::now_s() const {
  if (options_.now_s) return options_.now_s();
  return static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count());
}

void DiskStoreImpl::Contains(const NamespaceId& name_space, std::span<const BlockKey> keys,
                             std::span<uint32_t> groups) {
  CHECK_EQ(keys.size(), groups.size());
  const std::lock_guard lock(mutex_);
  for (size_t i = 0; i < keys.size(); ++i) {
    const EntryId id = index_.FindKey(name_space, keys[i]);
    groups[i] = id == kNoEntry ? 0 : index_.groups(id);
    if (id != kNoEntry) index_.Touch(id, epoch_);
  }
}

std::optional<TierRun> DiskStoreImpl::FindRun(const NamespaceId& name_space, const Digest& parent,
                                              std::span<const TokenId> wanted, uint32_t groups, bool whole) {
  const std::lock_guard lock(mutex_);
  const EntryId id = index_.FindRun(name_space, parent, wanted, groups, whole);
  if (id == kNoEntry) return std::nullopt;
  index_.Touch(id, epoch_);
  const std::span<const TokenId> have = index_.tokens(id);
  const size_t most = std::min(have.size(), wanted.size());
  const auto run = std::mismatch(have.begin(), have.begin() + most, wanted.begin()).first - have.begin();
  TierRun found{.run = static_cast<uint32_t>(run), .tokens = {have.begin(), have.end()}, .key = std::nullopt};
  if (!index_.IsTail(id)) found.key = index_.key(id);
  return found;
}

std::vector<NamespaceDigests> DiskStoreImpl::NamespacesWith(std::span<const TokenId> tokens) const {
  const std::lock_guard lock(mutex_);
  return index_.NamespacesWith(tokens);
}

std::unique_ptr<DiskStoreImpl::Scratch> DiskStoreImpl::TakeScratch() {
  const std::lock_guard lock(mutex_);
  if (scratch_.empty()) return std::make_unique<Scratch>();
  std::unique_ptr<Scratch> taken = std::move(scratch_.back());
  scratch_.pop_back();
  return taken;
}

void DiskStoreImpl::GiveScratch(std::unique_ptr<Scratch> scratch) {
  const std::lock_guard lock(mutex_);
  scratch_.push_back(std::move(scratch));
}

TierOutcome DiskStoreImpl::Read(const TierRead& read, std::span<std::byte> out) {
  CHECK_LT(read.group.value(), shapes_.size());
  CHECK_EQ(out.size(), slot_bytes(read.group));
  if (!writable()) RefreshErased();
  const PieceName name{.name_space = read.name_space,
                       .parent = read.parent,
                       .key = read.key ? &*read.key : nullptr,
                       .tokens = read.tokens};
  std::unique_ptr<Scratch> scratch = TakeScratch();
  TierOutcome outcome = TierOutcome::kMissing;
  // Twice: the piece may be moved to another segment while it is read.
  for (int attempt = 0; attempt < 2; ++attempt) {
    DiskLocation location;
    {
      const std::lock_guard lock(mutex_);
      const EntryId id = index_.Find(name);
      if (id != kNoEntry) location = index_.location(id, read.group);
      if (location.segment != 0) index_.Touch(id, epoch_);
    }
    if (location.segment == 0) break;
    RecordHeader header;
    bool forget = false;
    outcome = ReadPiece(location, name, read.group, read.first_token, out, *scratch, header, forget);
    if (outcome == TierOutcome::kOk) break;
    const std::lock_guard lock(mutex_);
    const EntryId id = index_.Find(name);
    if (id != kNoEntry && index_.location(id, read.group) != location) continue;
    if (id != kNoEntry && forget) index_.Forget(id, read.group);
    damaged_ += outcome == TierOutcome::kChecksum || outcome == TierOutcome::kDamaged;
    break;
  }
  GiveScratch(std::move(scratch));
  return outcome;
}

TierOutcome DiskStoreImpl::ReadPiece(const DiskLocation& location, const PieceName& name, GroupId group,
                                     std::optional<uint32_t> first_token, std::span<std::byte> out, Scratch& scratch,
                                     RecordHeader& header, bool& forget) {
  const absl::StatusOr<std::unique_ptr<File>> file =
      files_.Open(Path(SegmentName(location.segment)), FileSystem::Mode::kRead);
  if (absl::IsNotFound(file.status())) {
    const std::lock_guard lock(mutex_);
    lost_.insert(location.segment);
    forget = true;
    return TierOutcome::kMissing;
  }
  if (!file.ok()) return TierOutcome::kError;
  forget = true;
  scratch.header.resize(location.header_bytes);
  absl::StatusOr<size_t> got = (*file)->ReadAt(location.offset, scratch.header);
  if (!got.ok()) return TierOutcome::kError;
  absl::StatusOr<RecordHeader> decoded = DecodeRecordHeader(std::span(scratch.header).first(*got));
  if (!decoded.ok()) return TierOutcome::kDamaged;
  header = *std::move(decoded);
  const uint32_t i = location.piece;
  const std::span<const TokenId> tokens = i < header.payloads.size() ? header.tokens_of(i) : std::span<const TokenId>();
  const uint64_t position = uint64_t{header.first_token} + uint64_t{i} * options_.geometry.block_tokens;
  if (tokens.empty() || header.name_space.id != name.name_space || header.group != group ||
      header.shape != shapes_[group.value()] || header.is_tail() != (name.key == nullptr) ||
      (name.key != nullptr && header.keys[i] != *name.key) || header.parent_of(i) != name.parent ||
      !std::equal(tokens.begin(), tokens.end(), name.tokens.begin(), name.tokens.end()) ||
      position != first_token.value_or(position) || header.header_bytes != location.header_bytes) {
    return TierOutcome::kDamaged;
  }
  {
    const std::lock_guard lock(mutex_);
    if (erased_.Covers(header.tenant(), header.sequence)) return TierOutcome::kMissing;
  }
  const RecordPayload& payload = header.payloads[i];
  // A raw slot is read to where it belongs.
  const bool in_place = payload.codec == Codec::kRaw && payload.kept_bytes() == out.size();
  if (!in_place) scratch.kept.resize(payload.kept_bytes());
  const std::span<std::byte> kept = in_place ? out : std::span(scratch.kept);
  got = (*file)->ReadAt(location.offset + payload.offset, kept);
  if (!got.ok()) return TierOutcome::kError;
  if (*got != kept.size()) return TierOutcome::kDamaged;
  return DecodePayload(header, i, kept, out, scratch.codec);
}

// Beside a process that writes: what was purged there must not be served here.
void DiskStoreImpl::RefreshErased() {
  {
    const std::lock_guard lock(mutex_);
    if (Steady::now() - erased_read_at_ < kReadErasedEvery) return;
    erased_read_at_ = Steady::now();
  }
  const absl::StatusOr<ErasedTenants> erased = ReadErased(files_, options_.directory);
  const std::lock_guard lock(mutex_);
  if (!erased.ok()) {
    if (absl::IsDataLoss(erased.status())) erased_.all_before = UINT64_MAX;
    return;
  }
  // The writer drops what nothing older is left of; this one may still have it in its index.
  for (const auto& [tenant, before] : erased->tenants) erased_.Add(tenant, before);
  erased_.all_before = std::max(erased_.all_before, erased->all_before);
}

TierUsage DiskStoreImpl::usage() const {
  const std::lock_guard lock(mutex_);
  TierUsage usage{.bytes = erased_.file_bytes() + other_bytes_,
                  .bytes_max = cap_bytes_,
                  .bytes_live = index_.live_bytes(),
                  .blocks = index_.pieces(),
                  .tails = index_.tails(),
                  .segments = segments_.size(),
                  .namespaces = index_.namespaces(),
                  .evicted_blocks = evicted_ + index_.evicted_pieces(),
                  .damaged = damaged_};
  for (const auto& [number, segment] : segments_) {
    usage.bytes += segment.bytes;
    usage.records += segment.records;
  }
  return usage;
}

void DiskStoreImpl::CheckIntegrity() const {
  const std::lock_guard lock(mutex_);
  index_.CheckIntegrity();
  for (uint32_t i = 0; i < index_.ids_end(); ++i) {
    if (!index_.Exists(EntryId(i))) continue;
    for (uint32_t g = 0; g < shapes_.size(); ++g) {
      const DiskLocation& place = index_.location(EntryId(i), GroupId(g));
      if (place.segment == 0) continue;
      const auto it = segments_.find(place.segment);
      CHECK(it != segments_.end());
      CHECK_LE(place.offset + place.header_bytes + place.bytes, it->second.bytes);
    }
  }
}

}  // namespace reprise
