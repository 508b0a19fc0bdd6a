// Writing records, within the cap; and purging.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "tier/disk_store_impl.h"

namespace reprise {
namespace {

// Entries looked at with the mutex held once: some 100 us.
constexpr uint32_t kEntriesAtOnce = 4096;
// Names of segments that are tried when somebody else has made the next one.
constexpr int kNumbersTried = 16;
// For `erased` with one more tenant, twice: the old one lies beside the new one for a moment.
constexpr uint64_t kErasedReserve = 4096;

}  // namespace

uint64_t DiskStoreImpl::UsedBytes() const {
  const std::lock_guard lock(mutex_);
  uint64_t bytes = other_bytes_ + erased_.file_bytes();
  for (const auto& [number, segment] : segments_) bytes += segment.bytes;
  return bytes;
}

uint64_t DiskStoreImpl::ReservedBytes() const {
  const uint64_t erased = 2 * erased_.file_bytes() + std::min(kErasedReserve, options_.bytes_max / 16);
  return erased + (active_ != nullptr ? active_->footer_bytes() : 0);
}

bool DiskStoreImpl::Fits(uint64_t record_bytes, uint64_t header_bytes, uint64_t slack) const {
  const uint64_t framing = kFooterEntryBytes + kSegmentHeaderBytes + kFooterHeadBytes + kFooterTrailerBytes;
  return UsedBytes() + ReservedBytes() + record_bytes + header_bytes + framing + slack <= cap_bytes_;
}

absl::StatusOr<uint64_t> DiskStoreImpl::Write(const TierRecord& record) {
  CHECK_LT(record.group.value(), shapes_.size());
  const uint32_t block_tokens = options_.geometry.block_tokens;
  const bool tail = record.keys.empty();
  CHECK_EQ(record.payloads.size(), tail ? 1 : record.keys.size());
  if (!writable()) return absl::FailedPreconditionError("the disk tier is open for reading only");
  LookAfterFiles();
  const auto name = [&](size_t i) {
    return PieceName{.name_space = record.name_space.id,
                     .parent = i == 0 ? record.parent : record.keys[i - 1].digest,
                     .key = tail ? nullptr : &record.keys[i],
                     .tokens = tail ? record.tokens : record.tokens.subspan(i * block_tokens, block_tokens)};
  };
  const auto is_there = [&](size_t i) {
    const EntryId id = index_.Find(name(i));
    return id != kNoEntry && (index_.groups(id) >> record.group.value() & 1u) != 0;
  };
  uint64_t written = 0;
  for (size_t at = 0; at < record.payloads.size();) {
    size_t end = at;
    {
      const std::lock_guard lock(mutex_);
      while (at < record.payloads.size() && is_there(at)) ++at;
      end = at;
      while (end < record.payloads.size() && end - at < kRecordBlocksMax && !is_there(end)) ++end;
    }
    if (end == at) break;
    const TierRecord run{
        .name_space = record.name_space,
        .group = record.group,
        .parent = name(at).parent,
        .first_token = record.first_token + static_cast<uint32_t>(at) * block_tokens,
        .keys = tail ? record.keys : record.keys.subspan(at, end - at),
        .tokens = tail ? record.tokens : record.tokens.subspan(at * block_tokens, (end - at) * block_tokens),
        .payloads = record.payloads.subspan(at, end - at)};
    if (absl::Status status = WriteRun(run, /*make_room=*/true); !status.ok()) return status;
    written += end - at;
    at = end;
  }
  return written;
}

// `make_room`: else the record has to fit into what is kept free for moving records.
absl::Status DiskStoreImpl::WriteRun(const TierRecord& record, bool make_room) {
  // Making room moves records: they have a buffer of their own.
  EncodedRecord& encoded = make_room ? encoded_ : encoded_moving_;
  const RecordShape& shape = shapes_[record.group.value()];
  EncodeRecord(record, shape, next_sequence_, options_.codec, encoded);
  const uint64_t record_bytes = encoded.decoded.record_bytes;
  const uint64_t header_bytes = encoded.decoded.header_bytes;
  absl::Status status;
  for (int attempt = 0; attempt < 3; ++attempt) {
    if (make_room) {
      if (absl::Status room = MakeRoom(record_bytes, header_bytes); !room.ok()) return room;
    } else if (!Fits(record_bytes, header_bytes, 0)) {
      return absl::ResourceExhaustedError("no room to move a record");
    }
    status = EnsureSegment(record_bytes, header_bytes);
    if (status.ok()) {
      // What was moved, the attempt before, or the new segment has another number.
      if (encoded.decoded.sequence != next_sequence_) {
        EncodeRecord(record, shape, next_sequence_, options_.codec, encoded);
      }
      TakeSequence(encoded.decoded.tenant());
      const absl::StatusOr<uint64_t> offset = active_->Append(encoded.header, record_bytes, encoded.pieces);
      NoteActive();
      if (offset.ok()) return Publish(encoded.decoded, *offset);
      status = offset.status();
      if (active_->broken()) CloseActive();
    }
    if (!absl::IsResourceExhausted(status) || !make_room || !DiskIsFull()) break;
    LowerCap();  // the disk is full: give up what we have for it
  }
  return status;
}

// Or is it that the process has too many files open? Then no other one can be opened either.
bool DiskStoreImpl::DiskIsFull() const {
  return !absl::IsResourceExhausted(files_.Open(Path(kLockName), FileSystem::Mode::kRead).status());
}

absl::Status DiskStoreImpl::MakeRoom(uint64_t record_bytes, uint64_t header_bytes) {
  while (!Fits(record_bytes, header_bytes, SlackBytes())) {
    if (record_bytes + header_bytes + SlackBytes() > cap_bytes_ || !ReclaimOne()) {
      return absl::ResourceExhaustedError(absl::StrCat("no room for ", record_bytes, " bytes: the disk tier's cap is ",
                                                       cap_bytes_, " bytes, ", UsedBytes(), " are used"));
    }
  }
  return absl::OkStatus();
}

absl::Status DiskStoreImpl::EnsureSegment(uint64_t record_bytes, uint64_t header_bytes) {
  if (active_ != nullptr && active_->records() > 0 &&
      (active_->closed_bytes() + record_bytes + header_bytes + kFooterEntryBytes > segment_bytes_ ||
       active_->footer_bytes() + header_bytes + kFooterEntryBytes > kFooterBytesMax)) {
    CloseActive();
  } else if (active_ != nullptr && next_sequence_ >= SequenceBefore(next_number_)) {
    CloseActive();
  }
  return active_ != nullptr ? absl::OkStatus() : NewSegment();
}

absl::Status DiskStoreImpl::NewSegment() {
  absl::Status status;
  if (lock_ == nullptr || !HasOurWords()) {
    if (absl::Status there = Reestablish(); !there.ok()) return there;
  }
  bool again = true;
  for (int i = 0; i < kNumbersTried; ++i) {
    if (next_number_ > UINT32_MAX) return absl::ResourceExhaustedError("no numbers left for segments");
    const SegmentHeader header{
        .number = static_cast<uint32_t>(next_number_), .created_s = now_s(), .first_sequence = next_sequence_};
    absl::StatusOr<std::unique_ptr<SegmentWriter>> made = SegmentWriter::Create(files_, options_.directory, header);
    if (made.ok()) {
      active_ = *std::move(made);
      ++next_number_;
      directory_synced_ = false;
      const std::lock_guard lock(mutex_);
      segments_[header.number] = {
          .bytes = active_->file_bytes(), .first_sequence = header.first_sequence, .epoch = epoch_};
      return absl::OkStatus();
    }
    status = made.status();
    if (absl::IsAlreadyExists(status)) {
      ++next_number_;
    } else if (absl::IsNotFound(status) && again) {
      again = false;
      if (absl::Status there = Reestablish(); !there.ok()) return there;
    } else {
      return status;
    }
  }
  return status;
}

// The directory was deleted, or may have been: makes it and its lock anew, and looks at what is there now.
absl::Status DiskStoreImpl::Reestablish() {
  if (absl::Status made = files_.MakeDirectories(options_.directory); !made.ok()) return made;
  // The one on the file that was deleted keeps nobody out; another process may have come first.
  if (absl::Status locked = TakeLock(); !locked.ok()) return locked;
  reclaim_ = {};
  stuck_.clear();
  {
    const std::lock_guard guard(mutex_);
    for (const auto& [number, segment] : segments_) lost_.insert(number);
  }
  DropLost();
  ErasedTenants purged = erased_;
  Opened opened;
  const absl::Status status = OpenContents(opened);
  if (!status.ok()) lock_.reset();  // not all of what is there is known: to be tried again before anything else
  for (const auto& [tenant, before] : erased_.tenants) purged.Add(tenant, before);
  purged.all_before = std::max(purged.all_before, erased_.all_before);
  const std::lock_guard guard(mutex_);
  damaged_ += opened.damaged_records;
  erased_ = std::move(purged);
  return status;
}

// Whether it gets its footer or not, what is in it can be read.
void DiskStoreImpl::CloseActive() {
  if (active_->records() == 0) {
    RemoveSegment(std::exchange(active_, nullptr)->number());
    return;
  }
  (void)active_->Close();
  NoteActive();
  active_.reset();
}

void DiskStoreImpl::NoteActive() {
  const std::lock_guard lock(mutex_);
  const auto it = segments_.find(active_->number());
  if (it != segments_.end()) it->second.bytes = active_->file_bytes();
}

// Before a record is written, and whatever comes of it: one that was said not to be written may be found all the same
// when the directory is opened again, and a purge has to cover it.
void DiskStoreImpl::TakeSequence(const Digest& tenant) {
  ++next_sequence_;
  const std::lock_guard lock(mutex_);
  segments_[active_->number()].tenants.insert(tenant);
}

absl::Status DiskStoreImpl::Publish(const RecordHeader& header, uint64_t offset) {
  const std::lock_guard lock(mutex_);
  DiskSegment& segment = segments_[active_->number()];
  ++segment.records;
  segment.epoch = epoch_;
  written_in_epoch_ += header.record_bytes;
  if (written_in_epoch_ > cap_bytes_ / 4) {
    ++epoch_;
    written_in_epoch_ = 0;
  }
  for (uint32_t i = 0; i < header.payloads.size(); ++i) {
    const PieceName name{.name_space = header.name_space.id,
                         .parent = header.parent_of(i),
                         .key = header.is_tail() ? nullptr : &header.keys[i],
                         .tokens = header.tokens_of(i)};
    const DiskLocation location{.offset = offset,
                                .segment = active_->number(),
                                .bytes = static_cast<uint32_t>(header.payloads[i].bytes),
                                .header_bytes = header.header_bytes,
                                .piece = i};
    if (!index_.Put(header.name_space, name, header.group, location, /*epoch=*/0)) {
      return absl::ResourceExhaustedError("the disk tier's table of namespaces is full");
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<TierErased> DiskStoreImpl::Erase(const Digest& tenant) {
  if (!writable()) return absl::FailedPreconditionError("the disk tier is open for reading only");
  // What comes after is in a segment of its own, which need not go.
  if (active_ != nullptr) CloseActive();
  next_sequence_ = std::max(next_sequence_, SequenceBefore(next_number_));
  ErasedTenants erased = erased_;
  erased.Add(tenant, next_sequence_);
  const bool everybody = erased.all_before > erased_.all_before;
  std::vector<uint32_t> emptied;
  TierErased gone;
  {
    const std::lock_guard lock(mutex_);
    erased_ = std::move(erased);
    for (auto& [number, segment] : segments_) {
      if (everybody || segment.tenants.contains(tenant)) segment.dirty = true;
    }
  }
  for (uint32_t from = 0; from < index_.ids_end(); from += kEntriesAtOnce) {
    const std::lock_guard lock(mutex_);
    for (uint32_t i = from; i < std::min(from + kEntriesAtOnce, index_.ids_end()); ++i) {
      const EntryId id(i);
      if (!index_.Exists(id)) continue;
      if (!everybody && index_.name_space(id).tag(NamespaceTag::kTenant).value_or(Digest{}) != tenant) continue;
      const uint32_t groups = index_.groups(id);
      for (uint32_t g = 0; g < shapes_.size(); ++g) {
        if ((groups >> g & 1u) == 0) continue;
        ++gone.blocks;
        gone.bytes += index_.location(id, GroupId(g)).bytes;
        index_.Forget(id, GroupId(g));
      }
    }
  }
  // Forgotten here whether the disk takes it or not; a purge that fails is one that a restart does not know of.
  if (absl::Status written = PersistErased(); !written.ok()) return written;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [number, segment] : segments_) {
      if (segment.dirty && !segment.later && index_.live(number).pieces == 0) emptied.push_back(number);
    }
  }
  for (uint32_t number : emptied) RemoveSegment(number);
  return gone;
}

absl::Status DiskStoreImpl::PersistErased() {
  absl::Status written;
  for (int attempt = 0; attempt < 3; ++attempt) {
    if (lock_ == nullptr) {
      if (absl::Status there = Reestablish(); !there.ok()) return there;
    }
    written = WriteErased(files_, options_.directory, erased_);
    if (absl::IsNotFound(written)) {
      lock_.reset();  // the directory is gone
    } else if (!absl::IsResourceExhausted(written) || !ReclaimOne()) {
      break;
    }
  }
  return written;
}

absl::Status DiskStoreImpl::Flush() {
  if (!writable()) return absl::OkStatus();
  if (active_ != nullptr) {
    if (absl::Status synced = active_->Sync(); !synced.ok()) return synced;
  }
  if (!directory_synced_) {
    if (absl::Status synced = files_.SyncDirectory(options_.directory); !synced.ok()) return synced;
    directory_synced_ = true;
  }
  synced_at_ = Steady::now();
  return absl::OkStatus();
}

}  // namespace reprise
