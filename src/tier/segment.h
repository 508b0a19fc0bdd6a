// Segments: files of records, one after the other, that only ever grow at their end. A segment that is full is closed
// with a footer: copies of its records' headers under one checksum, so that opening a store reads footers alone. A
// segment without one is read record by record up to a torn end. Byte by byte in docs/format/segment.md.
//
//   header · record · record · ... · footer
//
// Ownership: values; a SegmentWriter owns its file.
// Threads:   one at a time per object.
// Errors:    DataLoss for what cannot be a segment; FailedPrecondition for one of a later version or another byte
// order;
//            else of the file system. Nothing aborts on any bytes.
// Design:    DESIGN 8
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "env/file_system.h"
#include "tier/record.h"

namespace reprise {

inline constexpr uint32_t kSegmentVersion = 1;
inline constexpr uint32_t kSegmentHeaderBytes = 64;
inline constexpr uint32_t kFooterHeadBytes = 32;
inline constexpr uint32_t kFooterEntryBytes = 16;  // before each copy of a header
inline constexpr uint32_t kFooterTrailerBytes = 32;
// A larger one is not read; a segment is closed before its footer would be.
inline constexpr uint64_t kFooterBytesMax = 64ull << 20;

// Sequence numbers of records in segment n are below SequenceBefore(n + 1): what is in a segment that cannot be read is
// older than what comes after it all the same.
constexpr uint64_t SequenceBefore(uint64_t number) { return number << 24; }

struct SegmentHeader {
  uint32_t number = 0;          // > 0; also in the file's name
  uint64_t created_s = 0;       // Unix time; for people
  uint64_t first_sequence = 0;  // no record in it has a lower sequence number
};

std::array<std::byte, kSegmentHeaderBytes> EncodeSegmentHeader(const SegmentHeader& header);
// `bytes`: at least kSegmentHeaderBytes, or what there is of it.
absl::StatusOr<SegmentHeader> DecodeSegmentHeader(std::span<const std::byte> bytes);

std::string SegmentName(uint32_t number);                      // "segment-0000000000000001"
std::optional<uint32_t> SegmentNumber(std::string_view name);  // of exactly such a name

// A record where it lies.
struct SegmentRecord {
  uint64_t offset = 0;
  std::span<const std::byte> header_bytes;
  const RecordHeader& header;
};

enum class SegmentEnd : uint8_t {
  kFooter,     // closed, all is well
  kOpen,       // no footer; the file ends with a record
  kTorn,       // no footer; after the last record follows what is not all of one
  kBadFooter,  // there is a footer, not a right one; the records were read one by one
  kForeign,    // no footer; then a record of another version or byte order, and whatever comes after it
};

struct SegmentContents {
  SegmentHeader header;
  SegmentEnd end = SegmentEnd::kOpen;
  uint64_t file_bytes = 0;
  uint64_t records_end = 0;      // where the footer begins, or the torn end
  uint64_t records = 0;          // shown to `visit`
  uint64_t foreign_records = 0;  // of another version or byte order
  uint64_t damaged_records = 0;  // named by a good footer, but their headers say nothing
};

// Shows the records in the order of their offsets: from the footer if there is a good one and `trust_footer`, else from
// the records themselves. Payloads are not looked at. `number`: by the file's name. Error: the header (see above), or
// the file cannot be read.
absl::StatusOr<SegmentContents> ReadSegment(const File& file, uint32_t number, bool trust_footer,
                                            absl::FunctionRef<void(const SegmentRecord&)> visit);
// The same of a footer's bytes, without a file. DataLoss: not a footer of a file in which it begins at `records_end`.
absl::Status ReadFooter(std::span<const std::byte> footer, uint64_t records_end, SegmentContents& contents,
                        absl::FunctionRef<void(const SegmentRecord&)> visit);

// Writes one segment. What fails leaves the file as it was before, or else makes the writer broken(): it takes nothing
// more, and what is in the file can still be read.
class SegmentWriter {
 public:
  // The file is made, and its header is on the disk, when this returns; its name may not be.
  static absl::StatusOr<std::unique_ptr<SegmentWriter>> Create(FileSystem& files, const std::string& directory,
                                                               const SegmentHeader& header);
  // To close a segment that has no good footer: reads its records and cuts what is after them. DataLoss, and nothing is
  // changed: they do not end at `records_end`, as they did when they were read before.
  // REQUIRES: `file` is open for writing; not of SegmentEnd::kFooter or kForeign.
  static absl::StatusOr<std::unique_ptr<SegmentWriter>> Resume(std::unique_ptr<File> file, uint32_t number,
                                                               uint64_t records_end);

  // `pieces`: all bytes of the record, its header first. Returns its offset.
  absl::StatusOr<uint64_t> Append(std::span<const std::byte> header_bytes, uint64_t record_bytes,
                                  std::span<const std::span<const std::byte>> pieces);
  absl::Status Sync();
  // Writes the footer and syncs. Ok or not: the segment takes nothing more.
  absl::Status Close();

  uint32_t number() const { return number_; }
  uint32_t records() const { return records_; }
  bool broken() const { return broken_; }
  bool synced() const { return synced_; }
  // Of the file as it is, and as Close will leave it.
  uint64_t file_bytes() const { return file_bytes_; }
  uint64_t closed_bytes() const { return file_bytes_ + footer_bytes(); }
  uint64_t footer_bytes() const { return kFooterHeadBytes + footer_.size() + kFooterTrailerBytes; }
  File& file() { return *file_; }

 private:
  SegmentWriter(std::unique_ptr<File> file, uint32_t number) : file_(std::move(file)), number_(number) {}
  void AddToFooter(std::span<const std::byte> header_bytes, uint64_t record_bytes);
  absl::Status WriteOrCut(std::span<const std::span<const std::byte>> pieces, uint64_t bytes);

  const std::unique_ptr<File> file_;
  const uint32_t number_;
  uint64_t file_bytes_ = 0;
  uint32_t records_ = 0;
  bool synced_ = true;
  bool broken_ = false;
  std::vector<std::byte> footer_;  // its entries
};

}  // namespace reprise
