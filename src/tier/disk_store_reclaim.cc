// Reclaiming whole segments, and housekeeping.
//
// A piece counts as recent if it was asked for since the store last wrote between a quarter and a half of its cap (an
// epoch is a quarter), and so does all of a segment that was written since then. The segment of which the
// smallest share is recent goes, in steps of an eighth; of equal ones the oldest. Of its pieces those that were asked
// for are written again, the most recently used first, at most half of the segment: so each reclaim gives back at least
// half a segment, whatever the load.
#include <algorithm>
#include <unordered_map>
#include <utility>

#include "base/check.h"
#include "tier/disk_store_impl.h"

namespace reprise {
namespace {

constexpr uint32_t kEntriesAtOnce = 4096;
constexpr uint64_t kShares = 8;
constexpr std::chrono::milliseconds kMaintainFor{10};
constexpr std::chrono::seconds kSyncEvery{3};
constexpr std::chrono::seconds kRaiseEvery{30};
// Left to others when the disk had been full.
constexpr uint64_t kFreeMargin = 64ull << 20;

}  // namespace

// nullopt: nothing can be given up.
std::optional<uint32_t> DiskStoreImpl::PickVictim() {
  const uint32_t active = active_ != nullptr ? active_->number() : 0;
  std::unordered_map<uint32_t, uint64_t> recent;
  for (uint32_t from = 0; from < index_.ids_end(); from += kEntriesAtOnce) {
    const std::lock_guard lock(mutex_);
    for (uint32_t i = from; i < std::min(from + kEntriesAtOnce, index_.ids_end()); ++i) {
      const EntryId id(i);
      if (!index_.Exists(id) || index_.used(id) + 1 < epoch_) continue;
      for (uint32_t g = 0; g < shapes_.size(); ++g) {
        const DiskLocation& place = index_.location(id, GroupId(g));
        if (place.segment != 0) recent[place.segment] += place.bytes;
      }
    }
  }
  const std::lock_guard lock(mutex_);
  std::optional<uint32_t> victim;
  uint64_t least = 0;
  for (const auto& [number, segment] : segments_) {
    if (number == active || segment.later || stuck_.contains(number)) continue;
    const bool young = segment.epoch + 1 >= epoch_;
    const uint64_t bytes = young ? index_.live(number).bytes : recent[number];
    const uint64_t share = bytes * kShares / std::max<uint64_t>(segment.bytes, 1);
    if (victim && share >= least) continue;
    victim = number;
    least = share;
  }
  return victim;
}

// What is written again of the segment: all that is in it, or what is hot.
void DiskStoreImpl::CollectPieces(bool all) {
  uint64_t segment_bytes = 0;
  for (uint32_t from = 0; from < index_.ids_end(); from += kEntriesAtOnce) {
    const std::lock_guard lock(mutex_);
    segment_bytes = segments_[reclaim_.segment].bytes;
    for (uint32_t i = from; i < std::min(from + kEntriesAtOnce, index_.ids_end()); ++i) {
      const EntryId id(i);
      if (!index_.Exists(id) || (!all && index_.used(id) + 1 < epoch_)) continue;
      for (uint32_t g = 0; g < shapes_.size(); ++g) {
        const DiskLocation& place = index_.location(id, GroupId(g));
        if (place.segment != reclaim_.segment) continue;
        reclaim_.pieces.push_back({.entry = id, .group = GroupId(g), .used = index_.used(id), .location = place});
      }
    }
  }
  if (!all) {
    std::stable_sort(reclaim_.pieces.begin(), reclaim_.pieces.end(),
                     [](const Candidate& a, const Candidate& b) { return a.used > b.used; });
    uint64_t bytes = 0;
    size_t keep = 0;
    for (; keep < reclaim_.pieces.size(); ++keep) {
      const DiskLocation& place = reclaim_.pieces[keep].location;
      bytes += place.bytes + 2 * uint64_t{place.header_bytes};
      if (bytes > segment_bytes / 2) break;
    }
    reclaim_.pieces.resize(keep);
  }
  std::sort(reclaim_.pieces.begin(), reclaim_.pieces.end(), [](const Candidate& a, const Candidate& b) {
    return std::pair(a.location.offset, a.location.piece) < std::pair(b.location.offset, b.location.piece);
  });
}

// False: there is nothing to reclaim. `dirty`: this one, and nothing in it is given up if it can be helped.
bool DiskStoreImpl::BeginReclaim(std::optional<uint32_t> dirty) {
  CHECK_EQ(reclaim_.segment, 0u);
  std::optional<uint32_t> victim = dirty ? dirty : PickVictim();
  if (!victim && active_ != nullptr && active_->records() > 0) {
    CloseActive();
    victim = PickVictim();
  }
  if (!victim) return false;
  reclaim_.segment = *victim;
  CollectPieces(dirty.has_value());
  return true;
}

// Moves one piece, or removes the segment. False: nothing is being reclaimed any more.
bool DiskStoreImpl::StepReclaim() {
  if (reclaim_.segment == 0) return false;
  if (reclaim_.next < reclaim_.pieces.size() && MovePiece(reclaim_.pieces[reclaim_.next++])) return true;
  FinishReclaim();
  return false;
}

// False: the file cannot be removed.
bool DiskStoreImpl::FinishReclaim() {
  const uint32_t segment = std::exchange(reclaim_, {}).segment;
  // What was moved must not be lost with the place where it was. If the disk says no, it may be: a miss.
  (void)Flush();
  return RemoveSegment(segment);
}

// False: there is no room for any more.
bool DiskStoreImpl::MovePiece(const Candidate& piece) {
  NamespaceDigests digests;
  Digest parent;
  BlockKey key;
  bool tail = false;
  std::vector<TokenId> tokens;
  {
    const std::lock_guard lock(mutex_);
    if (!index_.Exists(piece.entry) || index_.location(piece.entry, piece.group) != piece.location) return true;
    digests = index_.name_space(piece.entry);
    parent = index_.parent(piece.entry);
    tail = index_.IsTail(piece.entry);
    if (!tail) key = index_.key(piece.entry);
    tokens.assign(index_.tokens(piece.entry).begin(), index_.tokens(piece.entry).end());
  }
  moving_.resize(slot_bytes(piece.group));
  const PieceName name{.name_space = digests.id, .parent = parent, .key = tail ? nullptr : &key, .tokens = tokens};
  std::unique_ptr<Scratch> scratch = TakeScratch();
  RecordHeader header;
  bool forget = false;
  const TierOutcome outcome =
      ReadPiece(piece.location, name, piece.group, std::nullopt, moving_, *scratch, header, forget);
  GiveScratch(std::move(scratch));
  if (outcome != TierOutcome::kOk) {
    const std::lock_guard lock(mutex_);
    damaged_ += outcome == TierOutcome::kChecksum || outcome == TierOutcome::kDamaged;
    return true;  // goes with its segment
  }
  const std::span<const std::byte> payload(moving_);
  const TierRecord record{.name_space = header.name_space,
                          .group = piece.group,
                          .parent = parent,
                          .first_token = header.first_token + piece.location.piece * options_.geometry.block_tokens,
                          .keys = tail ? std::span<const BlockKey>() : std::span<const BlockKey>(&key, 1),
                          .tokens = tokens,
                          .payloads = {&payload, 1}};
  return WriteRun(record, /*make_room=*/false).ok();
}

bool DiskStoreImpl::ReclaimOne() {
  if (reclaim_.segment == 0 && !BeginReclaim(std::nullopt)) return false;
  while (reclaim_.next < reclaim_.pieces.size() && MovePiece(reclaim_.pieces[reclaim_.next++])) {
  }
  return FinishReclaim();
}

void DiskStoreImpl::ForgetSegment(uint32_t number) {
  for (uint32_t from = 0; from < index_.ids_end(); from += kEntriesAtOnce) {
    const std::lock_guard lock(mutex_);
    if (index_.live(number).pieces == 0) return;
    for (uint32_t i = from; i < std::min(from + kEntriesAtOnce, index_.ids_end()); ++i) {
      for (uint32_t g = 0; g < shapes_.size() && index_.Exists(EntryId(i)); ++g) {
        if (index_.location(EntryId(i), GroupId(g)).segment != number) continue;
        ++evicted_;
        index_.Forget(EntryId(i), GroupId(g));
      }
    }
  }
}

// The file first: as long as it cannot be removed, what is in it can be read.
bool DiskStoreImpl::RemoveSegment(uint32_t number) {
  const absl::Status removed = files_.Remove(Path(SegmentName(number)));
  if (!removed.ok() && !absl::IsNotFound(removed)) {
    stuck_.insert(number);
    return false;
  }
  ForgetSegment(number);
  directory_synced_ = false;
  const std::lock_guard lock(mutex_);
  segments_.erase(number);
  return true;
}

// Of what readers did not find any more, nothing is left to remove.
void DiskStoreImpl::DropLost() {
  std::set<uint32_t> lost;
  {
    const std::lock_guard lock(mutex_);
    lost.swap(lost_);
  }
  for (uint32_t number : lost) {
    if (active_ != nullptr && active_->number() == number) {
      active_.reset();
      lock_.reset();  // perhaps its file went with the segment's: NewSegment looks after it
    }
    if (reclaim_.segment == number) reclaim_ = {};
    ForgetSegment(number);
    const std::lock_guard lock(mutex_);
    segments_.erase(number);
  }
}

// The disk is fuller than was thought: the cap is what we have on it.
void DiskStoreImpl::LowerCap() {
  const uint64_t used = UsedBytes() + ReservedBytes();
  const std::lock_guard lock(mutex_);
  cap_bytes_ = std::min(cap_bytes_, used);
  epoch_ += 2;  // epochs were measured by the old cap: from here on age alone counts, until there are new ones
}

void DiskStoreImpl::RaiseCap() {
  if (Steady::now() - raised_at_ < kRaiseEvery) return;
  raised_at_ = Steady::now();
  stuck_.clear();
  if (cap_bytes_ >= options_.bytes_max) return;
  const absl::StatusOr<uint64_t> free = files_.FreeBytes(options_.directory);
  if (!free.ok() || *free <= kFreeMargin) return;
  const uint64_t used = UsedBytes();
  const std::lock_guard lock(mutex_);
  cap_bytes_ = std::max(cap_bytes_, std::min(options_.bytes_max, used + *free - kFreeMargin));
}

// Files that were deleted can be written all the same, and a lock on one keeps nobody out: so the words in the lock's
// file are looked at, and the active segment's name.
void DiskStoreImpl::LookAfterActive() {
  if (active_ == nullptr) return;
  const std::string name = SegmentName(active_->number());
  if (HasOurWords() && !absl::IsNotFound(files_.Open(Path(name), FileSystem::Mode::kRead).status())) return;
  {
    const std::lock_guard lock(mutex_);
    lost_.insert(active_->number());
  }
  DropLost();
}

void DiskStoreImpl::SyncIfDue() {
  if (active_ == nullptr || (active_->synced() && directory_synced_)) return;
  if (Steady::now() - synced_at_ < kSyncEvery) return;
  synced_at_ = Steady::now();
  LookAfterActive();
  if (active_ == nullptr) return;
  (void)Flush();  // what fails here is tried again, and a record that is lost is a miss
}

// Of tenants of whom nothing is left, the purge need not be remembered.
void DiskStoreImpl::DropErased() {
  ErasedTenants kept = erased_;
  for (const auto& [number, segment] : segments_) {
    if (segment.unclear && segment.first_sequence < kept.sequence_min()) return;
    if (segment.first_sequence < kept.all_before && segment.dirty) return;
  }
  kept.all_before = 0;
  std::erase_if(kept.tenants, [&](const auto& purge) {
    return std::none_of(segments_.begin(), segments_.end(), [&](const auto& each) {
      return each.second.first_sequence < purge.second && each.second.tenants.contains(purge.first);
    });
  });
  if (kept.tenants.size() == erased_.tenants.size() && kept.all_before == erased_.all_before) return;
  // The removed segments must not come back without it.
  if (!files_.SyncDirectory(options_.directory).ok()) return;
  if (!WriteErased(files_, options_.directory, kept).ok()) return;
  const std::lock_guard lock(mutex_);
  erased_ = std::move(kept);
}

void DiskStoreImpl::LookAfterFiles() {
  DropLost();
  uint64_t damaged = 0;
  {
    const std::lock_guard lock(mutex_);
    damaged = damaged_;
  }
  if (std::exchange(damaged_seen_, damaged) != damaged) LookAfterActive();
}

bool DiskStoreImpl::Maintain() {
  if (!writable()) return false;
  LookAfterFiles();
  SyncIfDue();
  if (lock_ == nullptr) return false;  // until something is written
  RaiseCap();
  if (reclaim_.segment == 0) {
    std::optional<uint32_t> dirty;
    for (const auto& [number, segment] : segments_) {
      if (segment.dirty && !segment.later && !stuck_.contains(number)) dirty = number;
    }
    if (dirty) {
      BeginReclaim(dirty);
    } else {
      if (!erased_.empty()) DropErased();
      // Ahead of the writes, which would have to wait for it otherwise.
      if (Fits(0, 0, SlackBytes() + segment_bytes_ / 2) || !BeginReclaim(std::nullopt)) return false;
    }
  }
  const Steady::time_point until = Steady::now() + kMaintainFor;
  while (StepReclaim()) {
    if (Steady::now() >= until) return true;
  }
  return true;
}

}  // namespace reprise
