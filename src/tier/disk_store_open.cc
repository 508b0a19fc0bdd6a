// Opening: the directory's lock and version, what was purged, and the index from what the segments say.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "tier/disk_store_impl.h"

namespace reprise {
namespace {

constexpr uint32_t kDirectoryVersion = 1;
constexpr std::string_view kVersionText = "reprise disk tier, version ";
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
    absl::StatusOr<std::unique_ptr<FileLock>> lock = files_.Lock(Path(kLockName));
    if (lock.ok()) lock_ = *std::move(lock);
    // Another process has it, or nothing can be changed here: what is there can be read all the same.
    if (!lock.ok() && !absl::IsAlreadyExists(lock.status()) && !absl::IsPermissionDenied(lock.status())) {
      made = lock.status();
    }
  }
  if (!made.ok() && !absl::IsPermissionDenied(made)) return Explained(made, options_.directory);
  writable_ = lock_ != nullptr;
  opened.read_only = !writable_;
  if (absl::Status checked = CheckVersion(); !checked.ok()) return Explained(checked, options_.directory);
  if (absl::Status read = OpenErased(opened); !read.ok()) return Explained(read, options_.directory);
  if (absl::Status read = OpenSegments(opened); !read.ok()) return Explained(read, options_.directory);
  if (erased_.all_before == kSequenceMax) {
    erased_.all_before = next_sequence_;
    if (writable()) {
      if (absl::Status written = WriteErased(files_, options_.directory, erased_); !written.ok()) {
        return Explained(written, options_.directory);
      }
    }
  }
  next_sequence_ = std::max(next_sequence_, erased_.sequence_min());
  // Not yet over the cap by its own doing: the cap may be a new one.
  while (writable() && UsedBytes() + ReservedBytes() > cap_bytes_ && ReclaimOne()) {
  }
  damaged_ = opened.damaged_records;
  opened.seconds = std::chrono::duration<double>(Steady::now() - begin).count();
  return absl::OkStatus();
}

// Unknown words in the file are no reason to refuse: each segment says its own version.
absl::Status DiskStoreImpl::CheckVersion() {
  const std::string text = absl::StrCat(std::string(kVersionText), kDirectoryVersion, "\n");
  absl::StatusOr<std::unique_ptr<File>> file = files_.Open(Path(kVersionName), FileSystem::Mode::kRead);
  if (file.ok()) {
    std::string found(64, '\0');
    const absl::StatusOr<size_t> got = (*file)->ReadAt(0, std::as_writable_bytes(std::span(found)));
    if (!got.ok()) return got.status();
    found.resize(*got);
    if (found == text) return absl::OkStatus();
    if (found.substr(0, kVersionText.size()) == kVersionText) {
      const uint64_t version = std::strtoull(found.c_str() + kVersionText.size(), nullptr, 10);
      if (version > kDirectoryVersion) {
        return absl::FailedPreconditionError(absl::StrCat("it was written by a later version (format ", version,
                                                          "; this program knows ", kDirectoryVersion, ")"));
      }
    }
  } else if (!absl::IsNotFound(file.status())) {
    return file.status();
  }
  if (!writable()) return absl::OkStatus();
  file = files_.Open(Path(kVersionName), file.ok() ? FileSystem::Mode::kReadWrite : FileSystem::Mode::kCreate);
  if (!file.ok()) return file.status();
  const std::span<const std::byte> piece = std::as_bytes(std::span(text));
  absl::Status status = (*file)->WriteAt(0, {&piece, 1});
  if (status.ok()) status = (*file)->Truncate(text.size());
  if (status.ok()) status = (*file)->Sync();
  // A full disk is no reason to refuse either: the file is written another time.
  return status.ok() || absl::IsResourceExhausted(status) ? absl::OkStatus() : status;
}

absl::Status DiskStoreImpl::OpenErased(Opened& opened) {
  absl::StatusOr<ErasedTenants> erased = ReadErased(files_, options_.directory);
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
  for (const std::string& name : *names) {
    if (const std::optional<uint32_t> number = SegmentNumber(name)) {
      numbers.push_back(*number);
      continue;
    }
    if (name == kErasedName) continue;
    if (name == kErasedNewName && writable() && files_.Remove(Path(name)).ok()) continue;
    const absl::StatusOr<std::unique_ptr<File>> file = files_.Open(Path(name), FileSystem::Mode::kRead);
    if (!file.ok()) continue;  // gone, or somebody else's
    if (const absl::StatusOr<uint64_t> size = (*file)->Size(); size.ok()) other_bytes_ += *size;
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
  segments_[number] = std::move(segment);
  if (contents && writable() && contents->end != SegmentEnd::kFooter && contents->end != SegmentEnd::kForeign) {
    CloseTorn(number, *contents, opened);
  }
  return absl::OkStatus();
}

// A failure leaves the segment as it is: read record by record again next time.
void DiskStoreImpl::CloseTorn(uint32_t number, const SegmentContents& contents, Opened& opened) {
  DiskSegment& segment = segments_[number];
  if (contents.end == SegmentEnd::kTorn) opened.cut_bytes += contents.file_bytes - contents.records_end;
  if (contents.records == 0) {
    RemoveSegment(number);
    return;
  }
  absl::StatusOr<std::unique_ptr<File>> file = files_.Open(Path(SegmentName(number)), FileSystem::Mode::kReadWrite);
  if (!file.ok()) return;
  absl::StatusOr<std::unique_ptr<SegmentWriter>> writer = SegmentWriter::Resume(*std::move(file), number);
  if (!writer.ok()) return;
  (void)(*writer)->Close();
  segment.bytes = (*writer)->file_bytes();
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
