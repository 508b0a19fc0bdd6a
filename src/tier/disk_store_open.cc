// Opening: the directory's lock and version, what was purged, and the index from what the segments say.
#include <algorithm>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "tier/disk_store_impl.h"

namespace reprise {
namespace {

// Beyond this a sequence number cannot be one that was counted up to.
constexpr uint64_t kSequenceMax = uint64_t{1} << 62;

absl::Status Explained(const absl::Status& status, const std::string& directory) {
  return absl::Status(status.code(),
                      absl::StrCat("the disk tier's directory ", directory, " cannot be used: ", status.message(),
                                   "; choose another one with --cache-dir, or none "
                                   "with --cache-disk off"));
}

}  // namespace

absl::Status DiskStoreImpl::OpenDirectory(Opened& opened) {
  const Steady::time_point begin = Steady::now();
  absl::Status made = files_.MakeDirectories(options_.directory);
  if (made.ok()) {
    const absl::Status locked = TakeLock();
    // Another process has it, or nothing can be changed here: what is there can be read all the same.
    if (!absl::IsAlreadyExists(locked) && !absl::IsPermissionDenied(locked)) made = locked;
  }
  if (!made.ok() && !absl::IsPermissionDenied(made)) return Explained(made, options_.directory);
  writable_ = lock_ != nullptr;
  opened.read_only = !writable_;
  if (absl::Status read = OpenContents(opened); !read.ok()) return Explained(read, options_.directory);
  // Not yet over the cap by its own doing: the cap may be a new one.
  while (writable() && UsedBytes() + ReservedBytes() > cap_bytes_ && ReclaimOne()) {
  }
  damaged_ = opened.damaged_records;
  opened.seconds = std::chrono::duration<double>(Steady::now() - begin).count();
  return absl::OkStatus();
}

// The lock, with words of its own in its file: who has another one in its hands than is there can see it.
absl::Status DiskStoreImpl::TakeLock() {
  lock_.reset();
  absl::StatusOr<std::unique_ptr<FileLock>> lock = files_.Lock(Path(kLockName));
  if (!lock.ok()) return lock.status();
  lock_ = *std::move(lock);
  std::random_device random;
  lock_words_ = absl::StrCat(absl::Hex(random(), absl::kZeroPad8), absl::Hex(random(), absl::kZeroPad8), "\n");
  const absl::StatusOr<std::unique_ptr<File>> file = files_.Open(Path(kLockName), FileSystem::Mode::kReadWrite);
  const std::span<const std::byte> piece = std::as_bytes(std::span(lock_words_));
  // A full disk: then nobody looks.
  if (!file.ok() || !(*file)->WriteAt(0, {&piece, 1}).ok()) lock_words_.clear();
  return absl::OkStatus();
}

bool DiskStoreImpl::HasOurWords() const {
  if (lock_words_.empty()) return true;
  const absl::StatusOr<std::unique_ptr<File>> file = files_.Open(Path(kLockName), FileSystem::Mode::kRead);
  if (!file.ok()) return !absl::IsNotFound(file.status());
  std::string words(lock_words_.size(), '\0');
  const absl::StatusOr<size_t> got = (*file)->ReadAt(0, std::as_writable_bytes(std::span(words)));
  return !got.ok() || words == lock_words_;
}

// The directory's version, purges and segments.
absl::Status DiskStoreImpl::OpenContents(Opened& opened) {
  if (absl::Status checked = CheckVersion(); !checked.ok()) return checked;
  if (absl::Status read = OpenErased(opened); !read.ok()) return read;
  if (absl::Status read = OpenSegments(opened); !read.ok()) {
    const std::lock_guard lock(mutex_);
    if (erased_.all_before == kSequenceMax) erased_.all_before = 0;  // not known, and nothing was read
    return read;
  }
  next_sequence_ = std::max(next_sequence_, SequenceBefore(next_number_));
  const bool damaged = erased_.all_before == kSequenceMax;
  if (damaged) {
    const std::lock_guard lock(mutex_);
    erased_.all_before = next_sequence_;
  }
  next_sequence_ = std::max(next_sequence_, erased_.sequence_min());
  return damaged && writable() ? WriteErased(files_, options_.directory, erased_) : absl::OkStatus();
}

absl::Status DiskStoreImpl::CheckVersion() {
  const absl::Status status = CheckDirectoryVersion(files_, options_.directory);
  // Unknown words in the file are no reason to refuse: each segment says its own version.
  if (!status.ok() && !absl::IsNotFound(status) && !absl::IsDataLoss(status)) return status;
  if (status.ok() || !writable()) return absl::OkStatus();
  absl::Status written = WriteDirectoryVersion(files_, options_.directory);
  // Nor is a full disk: it is written another time.
  return absl::IsResourceExhausted(written) ? absl::OkStatus() : written;
}

absl::Status DiskStoreImpl::OpenErased(Opened& opened) {
  absl::StatusOr<ErasedTenants> erased = ReadErased(files_, options_.directory);
  // Much hangs on it: looked at twice.
  if (absl::IsDataLoss(erased.status())) erased = ReadErased(files_, options_.directory);
  const std::lock_guard lock(mutex_);
  if (erased.ok()) {
    erased_ = *std::move(erased);
  } else if (absl::IsDataLoss(erased.status())) {
    erased_.all_before = kSequenceMax;  // whose records were purged is not known any more: nothing counts
    ++opened.damaged_records;
  } else {
    return erased.status();
  }
  return absl::OkStatus();
}

absl::Status DiskStoreImpl::OpenSegments(Opened& opened) {
  const absl::StatusOr<std::vector<std::string>> names = files_.ListFiles(options_.directory);
  if (!names.ok()) return names.status();
  std::vector<uint32_t> numbers;
  uint64_t other_bytes = 0;
  for (const std::string& name : *names) {
    if (const std::optional<uint32_t> number = SegmentNumber(name)) {
      numbers.push_back(*number);
      continue;
    }
    if (name == kErasedName) continue;
    if (name == kErasedNewName && writable() && files_.Remove(Path(name)).ok()) continue;
    other_bytes += FileSize(files_, Path(name));
  }
  {
    const std::lock_guard lock(mutex_);
    other_bytes_ = other_bytes;
  }
  std::sort(numbers.begin(), numbers.end());
  for (uint32_t number : numbers) {
    next_number_ = std::max<uint64_t>(next_number_, uint64_t{number} + 1);
    if (absl::Status read = OpenSegment(number, opened); !read.ok()) return read;
  }
  return absl::OkStatus();
}

absl::Status DiskStoreImpl::OpenSegment(uint32_t number, Opened& opened) {
  DiskSegment segment;
  const std::string path = Path(SegmentName(number));
  absl::StatusOr<std::unique_ptr<File>> file = files_.Open(path, FileSystem::Mode::kRead);
  if (absl::IsNotFound(file.status())) return absl::OkStatus();  // removed meanwhile by the process that writes
  std::optional<SegmentContents> contents;
  if (file.ok()) {
    if (const absl::StatusOr<uint64_t> size = (*file)->Size(); size.ok()) segment.bytes = *size;
    const absl::StatusOr<SegmentContents> read =
        ReadSegment(**file, number, /*trust_footer=*/true,
                    [&](const SegmentRecord& record) { IndexRecord(number, record, segment, opened); });
    if (read.ok()) {
      contents = *read;
      segment.bytes = read->file_bytes;
      segment.first_sequence = read->header.first_sequence;
      next_sequence_ = std::max(next_sequence_, std::min(segment.first_sequence, kSequenceMax));
      segment.unclear = read->end == SegmentEnd::kForeign || read->foreign_records + read->damaged_records > 0;
      opened.foreign_records += read->foreign_records;
      opened.damaged_records += read->damaged_records + (read->end == SegmentEnd::kBadFooter ? 1 : 0);
    } else if (absl::IsFailedPrecondition(read.status())) {
      segment.later = segment.unclear = true;
      ++opened.foreign_records;
    } else if (absl::IsDataLoss(read.status()) && segment.bytes <= kSegmentHeaderBytes) {
      contents =
          SegmentContents{.header = {}, .end = SegmentEnd::kTorn, .file_bytes = segment.bytes};  // as it was made
    } else {
      segment.unclear = true;
      ++opened.damaged_records;
    }
  } else {
    segment.unclear = true;  // no permission, or the disk says no
    ++opened.damaged_records;
  }
  {
    const std::lock_guard lock(mutex_);
    segments_[number] = std::move(segment);
  }
  if (contents && writable() && contents->end != SegmentEnd::kFooter && contents->end != SegmentEnd::kForeign) {
    CloseTorn(number, *contents, opened);
  }
  return absl::OkStatus();
}

// A failure leaves the segment as it is, with records in it, perhaps, that were not seen: read one by one next time.
void DiskStoreImpl::CloseTorn(uint32_t number, const SegmentContents& contents, Opened& opened) {
  if (contents.end == SegmentEnd::kTorn) opened.cut_bytes += contents.file_bytes - contents.records_end;
  {
    const std::lock_guard lock(mutex_);
    segments_[number].unclear = true;
  }
  if (contents.records == 0) {
    RemoveSegment(number);
    return;
  }
  absl::StatusOr<std::unique_ptr<File>> file = files_.Open(Path(SegmentName(number)), FileSystem::Mode::kReadWrite);
  if (!file.ok()) return;
  absl::StatusOr<std::unique_ptr<SegmentWriter>> writer =
      SegmentWriter::Resume(*std::move(file), number, contents.records_end);
  if (!writer.ok()) return;
  const bool closed = (*writer)->Close().ok();
  const std::lock_guard lock(mutex_);
  segments_[number].unclear = !closed;
  segments_[number].bytes = (*writer)->file_bytes();
}

bool DiskStoreImpl::IsOurs(const RecordHeader& header) const {
  return header.group.value() < shapes_.size() && header.shape == shapes_[header.group.value()];
}

void DiskStoreImpl::IndexRecord(uint32_t number, const SegmentRecord& record, DiskSegment& segment, Opened& opened) {
  const RecordHeader& header = record.header;
  if (header.sequence >= kSequenceMax) {
    segment.unclear = true;
    ++opened.damaged_records;
    return;
  }
  next_sequence_ = std::max(next_sequence_, header.sequence + 1);
  ++segment.records;
  segment.tenants.insert(header.tenant());
  if (erased_.Covers(header.tenant(), header.sequence)) {
    segment.dirty = true;
    return;
  }
  if (!IsOurs(header)) {
    ++opened.foreign_records;
    return;
  }
  const std::lock_guard lock(mutex_);
  for (uint32_t i = 0; i < header.payloads.size(); ++i) {
    const PieceName name{.name_space = header.name_space.id,
                         .parent = header.parent_of(i),
                         .key = header.is_tail() ? nullptr : &header.keys[i],
                         .tokens = header.tokens_of(i)};
    index_.Put(header.name_space, name, header.group,
               {.offset = record.offset,
                .segment = number,
                .bytes = static_cast<uint32_t>(header.payloads[i].bytes),
                .header_bytes = header.header_bytes,
                .piece = i},
               /*epoch=*/0);
  }
}

}  // namespace reprise
