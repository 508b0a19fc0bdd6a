// VerifyDisk and ListDisk: what lies in a directory, read without a lock and without changing anything.
#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tier/disk_store.h"
#include "tier/disk_store_erased.h"
#include "tier/disk_store_files.h"
#include "tier/record.h"
#include "tier/segment.h"

namespace reprise {
namespace {

class Verifier {
 public:
  Verifier(FileSystem& files, const std::string& directory, const std::function<void(double)>& progress)
      : files_(files), directory_(directory), progress_(progress) {}

  absl::StatusOr<DiskReport> Run() {
    if (absl::Status version = CheckDirectoryVersion(files_, directory_); absl::IsDataLoss(version)) {
      AddProblem(kVersionName, 0, version.message());
    } else if (!version.ok() && !absl::IsNotFound(version)) {
      return version;
    }
    const absl::StatusOr<std::vector<std::string>> names = files_.ListFiles(directory_);
    if (!names.ok()) return names.status();
    for (const std::string& name : *names) {
      if (const std::optional<uint32_t> number = SegmentNumber(name)) newest_ = std::max(newest_, *number);
      total_bytes_ += FileSize(files_, directory_ + "/" + name);
    }
    for (const std::string& name : *names) {
      const uint64_t bytes = FileSize(files_, directory_ + "/" + name);
      const uint64_t before = report_.bytes;
      if (const std::optional<uint32_t> number = SegmentNumber(name)) CheckSegment(name, *number);
      report_.bytes = before + bytes;
      Progress(0);
    }
    if (const absl::Status erased = ReadErased(files_, directory_).status(); !erased.ok()) {
      AddProblem(kErasedName, 0, erased.message());
    }
    return std::move(report_);
  }

 private:
  void AddProblem(std::string_view file, uint64_t offset, absl::string_view what) {
    report_.problems.push_back({.file = std::string(file), .offset = offset, .what = std::string(what)});
  }

  void CheckSegment(const std::string& name, uint32_t number) {
    const absl::StatusOr<std::unique_ptr<File>> file = files_.Open(directory_ + "/" + name, FileSystem::Mode::kRead);
    if (absl::IsNotFound(file.status())) return;  // removed meanwhile
    ++report_.segments;
    if (!file.ok()) return AddProblem(name, 0, file.status().message());
    uint64_t first_sequence = 0;
    const absl::StatusOr<SegmentContents> contents =
        ReadSegment(**file, number, /*trust_footer=*/true,
                    [&](const SegmentRecord& record) { CheckRecord(name, **file, record, first_sequence); });
    if (!contents.ok()) {
      const uint64_t bytes = FileSize(files_, directory_ + "/" + name);
      if (number == newest_ && bytes <= kSegmentHeaderBytes && absl::IsDataLoss(contents.status())) {
        report_.torn_bytes += bytes;  // as it was made
      } else {
        AddProblem(name, 0, contents.status().message());
      }
      return;
    }
    if (first_sequence != 0 && first_sequence < contents->header.first_sequence) {
      AddProblem(name, 0, "holds a record with a lower sequence number than it says");
    }
    CheckEnd(name, number, *contents);
  }

  void CheckEnd(const std::string& name, uint32_t number, const SegmentContents& contents) {
    if (contents.damaged_records + contents.foreign_records > 0 && contents.end == SegmentEnd::kFooter) {
      AddProblem(name, contents.records_end, "its footer names what cannot be a record");
    }
    const uint64_t rest = contents.file_bytes - contents.records_end;
    switch (contents.end) {
      case SegmentEnd::kFooter:
        return;
      case SegmentEnd::kBadFooter:
        return AddProblem(name, contents.records_end, "its footer, or a record before it, is damaged");
      case SegmentEnd::kForeign:
        return AddProblem(name, contents.records_end, "a record of another version or byte order");
      case SegmentEnd::kOpen:
      case SegmentEnd::kTorn:
        // The newest one is being written, or was when a process died.
        if (number == newest_) {
          report_.torn_bytes += rest;
          return;
        }
        return AddProblem(name, contents.records_end,
                          rest > 0 ? "what follows is not a record" : "it ends without a footer");
    }
  }

  void CheckRecord(const std::string& name, const File& file, const SegmentRecord& record, uint64_t& first_sequence) {
    const RecordHeader& header = record.header;
    ++report_.records;
    (header.is_tail() ? report_.tails : report_.blocks) += header.payloads.size();
    first_sequence = first_sequence == 0 ? header.sequence : std::min(first_sequence, header.sequence);
    bytes_.resize(header.header_bytes);
    absl::StatusOr<size_t> got = file.ReadAt(record.offset, bytes_);
    if (!got.ok()) return AddProblem(name, record.offset, got.status().message());
    if (*got != bytes_.size() ||
        !std::equal(bytes_.begin(), bytes_.end(), record.header_bytes.begin(), record.header_bytes.end())) {
      AddProblem(name, record.offset, "a record's header that is not what its footer says");
    }
    slot_.resize(header.shape.slot_bytes);
    for (size_t i = 0; i < header.payloads.size(); ++i) {
      const uint64_t offset = record.offset + header.payloads[i].offset;
      bytes_.resize(header.payloads[i].kept_bytes());
      got = file.ReadAt(offset, bytes_);
      if (!got.ok()) {
        AddProblem(name, offset, got.status().message());
        continue;
      }
      const TierOutcome outcome =
          *got == bytes_.size() ? DecodePayload(header, i, bytes_, slot_, scratch_) : TierOutcome::kDamaged;
      if (outcome != TierOutcome::kOk) {
        AddProblem(name, offset, absl::StrCat("payload ", i, " of a record: ", std::string(Name(outcome))));
      }
    }
    Progress(record.offset);
  }

  void Progress(uint64_t within) {
    if (progress_ && total_bytes_ > 0) {
      progress_(std::min(1.0, static_cast<double>(report_.bytes + within) / static_cast<double>(total_bytes_)));
    }
  }

  FileSystem& files_;
  const std::string directory_;
  const std::function<void(double)>& progress_;
  DiskReport report_;
  uint32_t newest_ = 0;
  uint64_t total_bytes_ = 0;
  std::vector<std::byte> bytes_, slot_, scratch_;
};

}  // namespace

absl::StatusOr<DiskReport> VerifyDisk(FileSystem& files, const std::string& directory,
                                      const std::function<void(double)>& progress) {
  return Verifier(files, directory, progress).Run();
}

absl::StatusOr<std::vector<DiskListing>> ListDisk(FileSystem& files, const std::string& directory) {
  const absl::StatusOr<std::vector<std::string>> names = files.ListFiles(directory);
  if (!names.ok()) return names.status();
  if (absl::Status version = CheckDirectoryVersion(files, directory); absl::IsFailedPrecondition(version)) {
    return version;
  }
  const absl::StatusOr<ErasedTenants> erased = ReadErased(files, directory);
  if (!erased.ok()) return erased.status();
  std::map<NamespaceId, DiskListing> listings;
  for (const std::string& name : *names) {
    const std::optional<uint32_t> number = SegmentNumber(name);
    if (!number) continue;
    const absl::StatusOr<std::unique_ptr<File>> file = files.Open(directory + "/" + name, FileSystem::Mode::kRead);
    if (!file.ok()) continue;  // VerifyDisk says why
    std::map<NamespaceId, uint32_t> here;
    const absl::StatusOr<SegmentContents> contents =
        ReadSegment(**file, *number, /*trust_footer=*/true, [&](const SegmentRecord& record) {
          const RecordHeader& header = record.header;
          if (erased->Covers(header.tenant(), header.sequence)) return;
          DiskListing& listing = listings[header.name_space.id];
          listing.name_space = header.name_space;
          ++listing.records;
          (header.is_tail() ? listing.tails : listing.blocks) += header.payloads.size();
          listing.bytes += header.record_bytes;
          if (header.group == GroupId(0)) listing.tokens += header.tokens.size();
          ++here[header.name_space.id];
        });
    if (!contents.ok()) continue;
    for (const auto& [id, records] : here) {
      listings[id].newest_s = std::max(listings[id].newest_s, contents->header.created_s);
    }
  }
  std::vector<DiskListing> out;
  for (auto& [id, listing] : listings) out.push_back(std::move(listing));
  return out;
}

}  // namespace reprise
