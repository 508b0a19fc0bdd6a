// CollectDisk and EraseDisk: what a server does to its directory, done when none has it. Records are copied as they
// are, whatever model they are of.
#include <algorithm>
#include <limits>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tier/disk_store.h"
#include "tier/disk_store_erased.h"
#include "tier/disk_store_files.h"
#include "tier/record.h"
#include "tier/segment.h"

namespace reprise {
namespace {

struct KeptRecord {
  uint64_t offset = 0, bytes = 0, sequence = 0;
  Digest tenant;
  uint32_t pieces = 0;
  std::vector<Digest> names;  // of its pieces
  bool alive = true;
};

struct KeptSegment {
  uint32_t number = 0;
  SegmentHeader header;
  SegmentEnd end = SegmentEnd::kFooter;
  uint64_t file_bytes = 0, records_end = 0;
  bool clear = true;  // all of it was understood
  std::vector<KeptRecord> records;

  uint64_t AliveBytes() const {
    uint64_t bytes = 0;
    for (const KeptRecord& record : records) bytes += record.alive ? record.bytes : 0;
    return bytes;
  }
  uint64_t DeadBytes() const {
    uint64_t bytes = 0;
    for (const KeptRecord& record : records) bytes += record.alive ? 0 : record.bytes;
    return bytes;
  }
};

Digest NameOf(const RecordHeader& header, size_t i) {
  Sha256 hash;
  const uint32_t group = header.group.value();
  hash.Update(std::as_bytes(std::span(header.name_space.id.digest.bytes)));
  hash.Update(std::as_bytes(std::span(&group, 1)));
  hash.Update(std::as_bytes(std::span(header.parent_of(i).bytes)));
  hash.Update(std::as_bytes(header.tokens_of(i)));
  return hash.Finish();
}

// Worth copying the rest of a segment for.
constexpr uint64_t kDeadShare = 8;

class Collector {
 public:
  Collector(FileSystem& files, std::string directory, uint64_t bytes_max)
      : files_(files), directory_(std::move(directory)), bytes_max_(bytes_max) {}

  absl::StatusOr<TierErased> Run(const Digest* tenant) {
    if (absl::Status locked = Lock(); !locked.ok()) return locked;
    if (absl::Status read = ReadAll(); !read.ok()) return read;
    const uint64_t before = TotalBytes();
    if (tenant != nullptr) {
      erased_.Add(*tenant, std::max(next_sequence_, SequenceBefore(next_number_)));
      if (absl::Status written = WriteErased(files_, directory_, erased_); !written.ok()) return written;
    }
    MarkDead();
    for (KeptSegment& segment : segments_) {
      if (absl::Status done = Settle(segment); !done.ok()) return done;
    }
    for (KeptSegment& segment : segments_) {
      if (TotalBytes() <= bytes_max_) break;
      for (const KeptRecord& record : segment.records) gone_.blocks += record.alive ? record.pieces : 0;
      if (absl::Status removed = Remove(segment); !removed.ok()) return removed;
    }
    if (absl::Status dropped = DropErased(); !dropped.ok()) return dropped;
    gone_.bytes = before - std::min(before, TotalBytes());
    return gone_;
  }

 private:
  std::string Path(std::string_view name) const { return directory_ + "/" + std::string(name); }

  absl::Status Lock() {
    // Not made by looking for it.
    if (absl::Status there = files_.ListFiles(directory_).status(); !there.ok()) return there;
    absl::StatusOr<std::unique_ptr<FileLock>> lock = files_.Lock(Path(kLockName));
    if (absl::IsAlreadyExists(lock.status())) {
      return absl::FailedPreconditionError(
          absl::StrCat("a server is using ", directory_, ": stop it first, or ask it over HTTP"));
    }
    if (!lock.ok()) return lock.status();
    lock_ = *std::move(lock);
    absl::Status version = CheckDirectoryVersion(files_, directory_);
    return absl::IsFailedPrecondition(version) ? version : absl::OkStatus();
  }

  absl::Status ReadAll() {
    absl::StatusOr<ErasedTenants> erased = ReadErased(files_, directory_);
    if (erased.ok()) {
      erased_ = *std::move(erased);
    } else if (absl::IsDataLoss(erased.status())) {
      erased_.all_before = std::numeric_limits<uint64_t>::max();  // nothing that is here counts
    } else {
      return erased.status();
    }
    const absl::StatusOr<std::vector<std::string>> names = files_.ListFiles(directory_);
    if (!names.ok()) return names.status();
    for (const std::string& name : *names) {
      const std::optional<uint32_t> number = SegmentNumber(name);
      if (!number) {
        if (name != kErasedName) other_bytes_ += FileSize(files_, Path(name));
        continue;
      }
      next_number_ = std::max<uint64_t>(next_number_, uint64_t{*number} + 1);
      ReadOne(name, *number);
    }
    std::sort(segments_.begin(), segments_.end(),
              [](const KeptSegment& a, const KeptSegment& b) { return a.number < b.number; });
    return absl::OkStatus();
  }

  void ReadOne(const std::string& name, uint32_t number) {
    KeptSegment segment{.number = number, .file_bytes = FileSize(files_, Path(name))};
    const absl::StatusOr<std::unique_ptr<File>> file = files_.Open(Path(name), FileSystem::Mode::kRead);
    absl::StatusOr<SegmentContents> contents = absl::UnavailableError("");
    if (file.ok()) {
      contents = ReadSegment(**file, number, /*trust_footer=*/true, [&](const SegmentRecord& record) {
        KeptRecord kept{.offset = record.offset,
                        .bytes = record.header.record_bytes,
                        .sequence = record.header.sequence,
                        .tenant = record.header.tenant(),
                        .pieces = static_cast<uint32_t>(record.header.payloads.size())};
        for (size_t i = 0; i < kept.pieces; ++i) kept.names.push_back(NameOf(record.header, i));
        next_sequence_ = std::max(next_sequence_, kept.sequence + 1);
        segment.records.push_back(std::move(kept));
      });
    }
    if (contents.ok()) {
      segment.header = contents->header;
      segment.end = contents->end;
      segment.records_end = contents->records_end;
      segment.clear =
          contents->end != SegmentEnd::kForeign && contents->damaged_records + contents->foreign_records == 0;
    } else {
      segment.clear = false;
    }
    segments_.push_back(std::move(segment));
  }

  // The newest record of a piece is the one that counts.
  void MarkDead() {
    std::set<Digest> seen;
    for (auto segment = segments_.rbegin(); segment != segments_.rend(); ++segment) {
      for (auto record = segment->records.rbegin(); record != segment->records.rend(); ++record) {
        bool news = false;
        record->alive = !erased_.Covers(record->tenant, record->sequence);
        if (!record->alive) {
          gone_.blocks += record->pieces;
          continue;
        }
        for (const Digest& name : record->names) news |= seen.insert(name).second;
        record->alive = news;
      }
    }
  }

  // Rid of what is dead in it, and closed. What was not understood is left alone.
  absl::Status Settle(KeptSegment& segment) {
    if (!segment.clear) return absl::OkStatus();
    const uint64_t alive = segment.AliveBytes(), dead = segment.DeadBytes();
    if (alive == 0) return Remove(segment);
    const bool must = std::any_of(segment.records.begin(), segment.records.end(), [&](const KeptRecord& record) {
      return erased_.Covers(record.tenant, record.sequence);
    });
    if (must || dead > segment.file_bytes / kDeadShare) return Copy(segment);
    if (segment.end == SegmentEnd::kFooter) return absl::OkStatus();
    absl::StatusOr<std::unique_ptr<File>> file =
        files_.Open(Path(SegmentName(segment.number)), FileSystem::Mode::kReadWrite);
    if (!file.ok()) return file.status();
    absl::StatusOr<std::unique_ptr<SegmentWriter>> writer =
        SegmentWriter::Resume(*std::move(file), segment.number, segment.records_end);
    if (!writer.ok()) return writer.status();
    absl::Status closed = (*writer)->Close();
    segment.file_bytes = (*writer)->file_bytes();
    return closed;
  }

  absl::Status Copy(KeptSegment& segment) {
    if (next_number_ > UINT32_MAX) return absl::ResourceExhaustedError("no numbers left for segments");
    const absl::StatusOr<std::unique_ptr<File>> from =
        files_.Open(Path(SegmentName(segment.number)), FileSystem::Mode::kRead);
    if (!from.ok()) return from.status();
    SegmentHeader header{.number = static_cast<uint32_t>(next_number_++),
                         .created_s = segment.header.created_s,
                         .first_sequence = std::numeric_limits<uint64_t>::max()};
    for (const KeptRecord& record : segment.records) {
      if (record.alive) header.first_sequence = std::min(header.first_sequence, record.sequence);
    }
    absl::StatusOr<std::unique_ptr<SegmentWriter>> to = SegmentWriter::Create(files_, directory_, header);
    if (!to.ok()) return to.status();
    absl::Status status;
    for (const KeptRecord& record : segment.records) {
      if (record.alive && status.ok()) status = CopyRecord(**from, record, **to);
    }
    if (status.ok()) status = (*to)->Close();
    if (status.ok()) status = files_.SyncDirectory(directory_);
    if (!status.ok()) {
      (void)files_.Remove(Path(SegmentName(header.number)));
      return status;
    }
    if (absl::Status removed = Remove(segment); !removed.ok()) return removed;
    segment.number = header.number;  // in the place of the old one: as old as that was
    segment.file_bytes = (*to)->file_bytes();
    return absl::OkStatus();
  }

  // One whose payloads are damaged is left behind.
  absl::Status CopyRecord(const File& from, const KeptRecord& record, SegmentWriter& to) {
    bytes_.resize(record.bytes);
    const absl::StatusOr<size_t> got = from.ReadAt(record.offset, bytes_);
    if (!got.ok()) return got.status();
    const absl::StatusOr<RecordHeader> header = DecodeRecordHeader(std::span(bytes_).first(*got));
    bool whole = header.ok() && *got == bytes_.size() && header->record_bytes == bytes_.size();
    for (size_t i = 0; whole && i < header->payloads.size(); ++i) {
      slot_.resize(header->shape.slot_bytes);
      const std::span<const std::byte> kept =
          std::span(bytes_).subspan(header->payloads[i].offset, header->payloads[i].kept_bytes());
      whole = DecodePayload(*header, i, kept, slot_, scratch_) == TierOutcome::kOk;
    }
    if (!whole) {
      gone_.blocks += record.pieces;
      return absl::OkStatus();
    }
    const std::span<const std::byte> piece(bytes_);
    return to.Append(piece.first(header->header_bytes), bytes_.size(), {&piece, 1}).status();
  }

  absl::Status Remove(KeptSegment& segment) {
    if (segment.file_bytes == 0) return absl::OkStatus();
    const absl::StatusOr<std::unique_ptr<File>> file =
        files_.Open(Path(SegmentName(segment.number)), FileSystem::Mode::kRead);
    // Of a later version: not ours to remove.
    if (file.ok() &&
        absl::IsFailedPrecondition(
            ReadSegment(**file, segment.number, /*trust_footer=*/true, [](const SegmentRecord&) {}).status())) {
      return absl::OkStatus();
    }
    absl::Status removed = files_.Remove(Path(SegmentName(segment.number)));
    if (removed.ok()) segment.file_bytes = 0;
    return absl::IsNotFound(removed) ? absl::OkStatus() : removed;
  }

  // What was purged need not be remembered when all that is left was understood.
  absl::Status DropErased() {
    if (erased_.empty()) return absl::OkStatus();
    for (const KeptSegment& segment : segments_) {
      if (segment.file_bytes > 0 && !segment.clear) return absl::OkStatus();
    }
    if (absl::Status synced = files_.SyncDirectory(directory_); !synced.ok()) return synced;
    erased_ = {};
    return WriteErased(files_, directory_, erased_);
  }

  uint64_t TotalBytes() const {
    uint64_t bytes = other_bytes_ + erased_.file_bytes();
    for (const KeptSegment& segment : segments_) bytes += segment.file_bytes;
    return bytes;
  }

  FileSystem& files_;
  const std::string directory_;
  const uint64_t bytes_max_;
  std::unique_ptr<FileLock> lock_;
  ErasedTenants erased_;
  std::vector<KeptSegment> segments_;
  uint64_t other_bytes_ = 0;  // of all else
  uint64_t next_sequence_ = 1, next_number_ = 1;
  TierErased gone_;
  std::vector<std::byte> bytes_, slot_, scratch_;
};

}  // namespace

absl::StatusOr<TierErased> CollectDisk(FileSystem& files, const std::string& directory, uint64_t bytes_max) {
  return Collector(files, directory, bytes_max).Run(nullptr);
}

absl::StatusOr<TierErased> EraseDisk(FileSystem& files, const std::string& directory, const Digest& tenant) {
  return Collector(files, directory, std::numeric_limits<uint64_t>::max()).Run(&tenant);
}

}  // namespace reprise
