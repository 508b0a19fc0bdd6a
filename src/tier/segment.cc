#include "tier/segment.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/check.h"
#include "base/crc32c.h"

namespace reprise {
namespace {

constexpr char kSegmentMagic[] = "RPRSEGMT";
constexpr char kFooterMagic[] = "RPRSFOOT";
constexpr char kTrailerMagic[] = "RPRSFEND";
constexpr size_t kMagicBytes = 8;
constexpr uint32_t kByteOrderMark = 0x01020304;
constexpr uint32_t kByteOrderMarkSwapped = 0x04030201;
constexpr std::string_view kNamePrefix = "segment-";
constexpr size_t kNameDigits = 16;

template <class T>
T Get(std::span<const std::byte> bytes, size_t at) {
  T out;
  std::memcpy(&out, bytes.data() + at, sizeof(T));
  return out;
}
template <class T>
void Put(std::span<std::byte> bytes, size_t at, T value) {
  std::memcpy(bytes.data() + at, &value, sizeof(T));
}
bool HasMagic(std::span<const std::byte> bytes, size_t at, const char* magic) {
  return bytes.size() >= at + kMagicBytes && std::memcmp(bytes.data() + at, magic, kMagicBytes) == 0;
}
void PutMagic(std::span<std::byte> bytes, size_t at, const char* magic) {
  std::memcpy(bytes.data() + at, magic, kMagicBytes);
}

absl::StatusOr<std::vector<std::byte>> ReadAll(const File& file, uint64_t offset, uint64_t bytes) {
  std::vector<std::byte> out(bytes);
  const absl::StatusOr<size_t> got = file.ReadAt(offset, out);
  if (!got.ok()) return got.status();
  out.resize(*got);
  return out;
}

std::array<std::byte, kFooterHeadBytes> EncodeFooterHead(uint64_t footer_bytes, uint32_t records) {
  std::array<std::byte, kFooterHeadBytes> head{};
  PutMagic(head, 0, kFooterMagic);
  Put<uint64_t>(head, 8, footer_bytes);
  Put<uint32_t>(head, 16, records);
  Put<uint32_t>(head, 20, Crc32c(std::span(head).first(20)));
  return head;
}

// Whether a whole footer follows from `offset` on, by what its first bytes say.
bool LooksLikeFooter(std::span<const std::byte> head, uint64_t rest) {
  return head.size() >= kFooterHeadBytes && HasMagic(head, 0, kFooterMagic) &&
         Crc32c(head.first(20)) == Get<uint32_t>(head, 20) && Get<uint64_t>(head, 8) <= rest;
}

// The records of a file one by one, until one is not whole.
absl::Status ScanRecords(const File& file, SegmentContents& contents,
                         absl::FunctionRef<void(const SegmentRecord&)> visit) {
  uint64_t at = kSegmentHeaderBytes;
  contents.end = SegmentEnd::kOpen;
  while (at < contents.file_bytes) {
    contents.end = SegmentEnd::kTorn;
    const uint64_t rest = contents.file_bytes - at;
    absl::StatusOr<std::vector<std::byte>> bytes = ReadAll(file, at, std::min<uint64_t>(rest, kRecordPrefixBytes));
    if (!bytes.ok()) return bytes.status();
    if (LooksLikeFooter(*bytes, rest)) contents.end = SegmentEnd::kBadFooter;
    if (bytes->size() < kRecordPrefixBytes) break;
    const absl::StatusOr<uint32_t> header_bytes = RecordHeaderBytes(*bytes);
    if (absl::IsFailedPrecondition(header_bytes.status())) contents.end = SegmentEnd::kForeign;
    if (!header_bytes.ok() || *header_bytes > rest) break;
    bytes = ReadAll(file, at, *header_bytes);
    if (!bytes.ok()) return bytes.status();
    const absl::StatusOr<RecordHeader> header = DecodeRecordHeader(*bytes);
    if (absl::IsFailedPrecondition(header.status())) contents.end = SegmentEnd::kForeign;
    if (!header.ok() || header->record_bytes > rest || header->header_bytes > bytes->size()) break;
    visit({.offset = at, .header_bytes = std::span(*bytes).first(header->header_bytes), .header = *header});
    ++contents.records;
    at += header->record_bytes;
    contents.end = SegmentEnd::kOpen;
  }
  contents.records_end = at;
  if (contents.end == SegmentEnd::kForeign) ++contents.foreign_records;
  return absl::OkStatus();
}

}  // namespace

std::array<std::byte, kSegmentHeaderBytes> EncodeSegmentHeader(const SegmentHeader& header) {
  std::array<std::byte, kSegmentHeaderBytes> out{};
  PutMagic(out, 0, kSegmentMagic);
  Put<uint32_t>(out, 8, kByteOrderMark);
  Put<uint32_t>(out, 12, kSegmentVersion);
  Put<uint64_t>(out, 16, header.number);
  Put<uint64_t>(out, 24, header.created_s);
  Put<uint64_t>(out, 32, header.first_sequence);
  Put<uint32_t>(out, 60, Crc32c(std::span(out).first(60)));
  return out;
}

absl::StatusOr<SegmentHeader> DecodeSegmentHeader(std::span<const std::byte> bytes) {
  if (!HasMagic(bytes, 0, kSegmentMagic) || bytes.size() < 16) return absl::DataLossError("not a segment");
  const auto mark = Get<uint32_t>(bytes, 8);
  if (mark == kByteOrderMarkSwapped) {
    return absl::FailedPreconditionError("a segment written on a machine with another byte order");
  }
  if (mark != kByteOrderMark) return absl::DataLossError("a segment with a damaged byte order mark");
  const auto version = Get<uint32_t>(bytes, 12);
  if (version > kSegmentVersion) {
    return absl::FailedPreconditionError(
        absl::StrCat("a segment of version ", version, "; this program knows versions up to ", kSegmentVersion));
  }
  if (bytes.size() < kSegmentHeaderBytes) return absl::DataLossError("a segment's header that is cut off");
  if (Crc32c(bytes.first(60)) != Get<uint32_t>(bytes, 60)) {
    return absl::DataLossError("a segment's header with a wrong checksum");
  }
  const auto number = Get<uint64_t>(bytes, 16);
  if (version != kSegmentVersion || number == 0 || number > UINT32_MAX) {
    return absl::DataLossError("a segment's header that says nothing");
  }
  return SegmentHeader{.number = static_cast<uint32_t>(number),
                       .created_s = Get<uint64_t>(bytes, 24),
                       .first_sequence = Get<uint64_t>(bytes, 32)};
}

std::string SegmentName(uint32_t number) {
  const std::string digits = std::to_string(number);
  return std::string(kNamePrefix) + std::string(kNameDigits - digits.size(), '0') + digits;
}

std::optional<uint32_t> SegmentNumber(std::string_view name) {
  if (name.size() != kNamePrefix.size() + kNameDigits || name.substr(0, kNamePrefix.size()) != kNamePrefix) {
    return std::nullopt;
  }
  uint64_t number = 0;
  for (char c : name.substr(kNamePrefix.size())) {
    if (c < '0' || c > '9') return std::nullopt;
    number = number * 10 + static_cast<uint64_t>(c - '0');
  }
  if (number == 0 || number > UINT32_MAX) return std::nullopt;
  return static_cast<uint32_t>(number);
}

absl::Status ReadFooter(std::span<const std::byte> footer, uint64_t records_end, SegmentContents& contents,
                        absl::FunctionRef<void(const SegmentRecord&)> visit) {
  const absl::Status bad = absl::DataLossError("a footer that is not one");
  if (footer.size() < kFooterHeadBytes + kFooterTrailerBytes) return bad;
  const std::span<const std::byte> trailer = footer.last(kFooterTrailerBytes);
  std::span<const std::byte> checked = footer.first(footer.size() - kFooterTrailerBytes);
  const auto records = Get<uint32_t>(footer, 16);
  const std::array<std::byte, kFooterHeadBytes> head = EncodeFooterHead(footer.size(), records);
  if (std::memcmp(head.data(), footer.data(), head.size()) != 0) return bad;
  if (!HasMagic(trailer, 24, kTrailerMagic) || Get<uint64_t>(trailer, 0) != footer.size() ||
      Get<uint64_t>(trailer, 8) != records_end || Get<uint32_t>(trailer, 16) != records ||
      Get<uint32_t>(trailer, 20) != Crc32c(checked)) {
    return bad;
  }
  // Twice: the entries as a whole first, so that nothing is shown of a footer that does not hold together.
  for (const bool show : {false, true}) {
    std::span<const std::byte> rest = checked.subspan(kFooterHeadBytes);
    uint64_t offset = kSegmentHeaderBytes;
    for (uint32_t i = 0; i < records; ++i) {
      if (rest.size() < kFooterEntryBytes) return bad;
      const auto record_bytes = Get<uint64_t>(rest, 0);
      const auto header_bytes = Get<uint32_t>(rest, 8);
      rest = rest.subspan(kFooterEntryBytes);
      if (header_bytes > rest.size() || header_bytes > record_bytes || offset > records_end ||
          record_bytes > records_end - offset || record_bytes == 0) {
        return bad;
      }
      if (show) {
        const std::span<const std::byte> bytes = rest.first(header_bytes);
        const absl::StatusOr<RecordHeader> header = DecodeRecordHeader(bytes);
        if (header.ok() && header->record_bytes == record_bytes && header->header_bytes == header_bytes) {
          ++contents.records;
          visit({.offset = offset, .header_bytes = bytes, .header = *header});
        } else {
          ++(absl::IsFailedPrecondition(header.status()) ? contents.foreign_records : contents.damaged_records);
        }
      }
      rest = rest.subspan(header_bytes);
      offset += record_bytes;
    }
    if (!rest.empty() || offset != records_end) return bad;
  }
  contents.end = SegmentEnd::kFooter;
  contents.records_end = records_end;
  return absl::OkStatus();
}

absl::StatusOr<SegmentContents> ReadSegment(const File& file, uint32_t number, bool trust_footer,
                                            absl::FunctionRef<void(const SegmentRecord&)> visit) {
  SegmentContents contents;
  const absl::StatusOr<uint64_t> size = file.Size();
  if (!size.ok()) return size.status();
  contents.file_bytes = *size;
  absl::StatusOr<std::vector<std::byte>> bytes = ReadAll(file, 0, kSegmentHeaderBytes);
  if (!bytes.ok()) return bytes.status();
  const absl::StatusOr<SegmentHeader> header = DecodeSegmentHeader(*bytes);
  if (!header.ok()) return header.status();
  if (header->number != number) {
    return absl::DataLossError(absl::StrCat("segment ", header->number, " under the name of another one"));
  }
  contents.header = *header;
  bool footer_said = false;
  const uint64_t least = kSegmentHeaderBytes + kFooterHeadBytes + kFooterTrailerBytes;
  if (trust_footer && *size >= least) {
    bytes = ReadAll(file, *size - kFooterTrailerBytes, kFooterTrailerBytes);
    if (!bytes.ok()) return bytes.status();
    footer_said = bytes->size() == kFooterTrailerBytes && HasMagic(*bytes, 24, kTrailerMagic);
    const uint64_t footer_bytes = footer_said ? Get<uint64_t>(*bytes, 0) : 0;
    if (footer_said && footer_bytes <= std::min(*size - kSegmentHeaderBytes, kFooterBytesMax)) {
      bytes = ReadAll(file, *size - footer_bytes, footer_bytes);
      if (!bytes.ok()) return bytes.status();
      if (ReadFooter(*bytes, *size - footer_bytes, contents, visit).ok()) return contents;
    }
  }
  if (absl::Status scanned = ScanRecords(file, contents, visit); !scanned.ok()) return scanned;
  if (footer_said && contents.end != SegmentEnd::kForeign) contents.end = SegmentEnd::kBadFooter;
  return contents;
}

absl::StatusOr<std::unique_ptr<SegmentWriter>> SegmentWriter::Create(FileSystem& files, const std::string& directory,
                                                                     const SegmentHeader& header) {
  const std::string path = directory + "/" + SegmentName(header.number);
  absl::StatusOr<std::unique_ptr<File>> file = files.Open(path, FileSystem::Mode::kCreate);
  if (!file.ok()) return file.status();
  std::unique_ptr<SegmentWriter> writer(new SegmentWriter(*std::move(file), header.number));
  const std::array<std::byte, kSegmentHeaderBytes> bytes = EncodeSegmentHeader(header);
  const std::span<const std::byte> piece(bytes);
  absl::Status status = writer->WriteOrCut({&piece, 1}, bytes.size());
  if (status.ok()) status = writer->Sync();  // so that no power cut leaves records behind a header that is none
  if (!status.ok()) {
    (void)files.Remove(path);  // what is left if that fails too is found and cut when the directory is opened again
    return status;
  }
  return writer;
}

absl::StatusOr<std::unique_ptr<SegmentWriter>> SegmentWriter::Resume(std::unique_ptr<File> file, uint32_t number,
                                                                     uint64_t records_end) {
  std::unique_ptr<SegmentWriter> writer(new SegmentWriter(std::move(file), number));
  const absl::StatusOr<SegmentContents> contents =
      ReadSegment(*writer->file_, number, /*trust_footer=*/false, [&](const SegmentRecord& record) {
        writer->AddToFooter(record.header_bytes, record.header.record_bytes);
        ++writer->records_;
      });
  if (!contents.ok()) return contents.status();
  if (contents->records_end != records_end || contents->end == SegmentEnd::kForeign) {
    return absl::DataLossError("a segment that is not what it was a moment ago");
  }
  writer->file_bytes_ = contents->records_end;
  writer->synced_ = false;
  if (contents->records_end < contents->file_bytes) {
    if (absl::Status cut = writer->file_->Truncate(contents->records_end); !cut.ok()) return cut;
  }
  return writer;
}

void SegmentWriter::AddToFooter(std::span<const std::byte> header_bytes, uint64_t record_bytes) {
  std::array<std::byte, kFooterEntryBytes> entry{};
  Put<uint64_t>(entry, 0, record_bytes);
  Put<uint32_t>(entry, 8, static_cast<uint32_t>(header_bytes.size()));
  footer_.insert(footer_.end(), entry.begin(), entry.end());
  footer_.insert(footer_.end(), header_bytes.begin(), header_bytes.end());
}

absl::Status SegmentWriter::WriteOrCut(std::span<const std::span<const std::byte>> pieces, uint64_t bytes) {
  if (broken_) return absl::UnavailableError("a segment that could not be written before");
  synced_ = false;
  absl::Status written = file_->WriteAt(file_bytes_, pieces);
  if (written.ok()) {
    file_bytes_ += bytes;
  } else if (!file_->Truncate(file_bytes_).ok()) {
    broken_ = true;
    const absl::StatusOr<uint64_t> size = file_->Size();
    file_bytes_ = size.ok() ? *size : file_bytes_ + bytes;
  }
  return written;
}

absl::StatusOr<uint64_t> SegmentWriter::Append(std::span<const std::byte> header_bytes, uint64_t record_bytes,
                                               std::span<const std::span<const std::byte>> pieces) {
  const uint64_t offset = file_bytes_;
  if (absl::Status written = WriteOrCut(pieces, record_bytes); !written.ok()) return written;
  AddToFooter(header_bytes, record_bytes);
  ++records_;
  return offset;
}

absl::Status SegmentWriter::Sync() {
  if (synced_) return absl::OkStatus();
  absl::Status synced = file_->Sync();
  synced_ = synced.ok();
  return synced;
}

absl::Status SegmentWriter::Close() {
  const uint64_t bytes = footer_bytes();
  const std::array<std::byte, kFooterHeadBytes> head = EncodeFooterHead(bytes, records_);
  std::array<std::byte, kFooterTrailerBytes> trailer{};
  Put<uint64_t>(trailer, 0, bytes);
  Put<uint64_t>(trailer, 8, file_bytes_);
  Put<uint32_t>(trailer, 16, records_);
  Put<uint32_t>(trailer, 20, Crc32c(footer_, Crc32c(head)));
  PutMagic(trailer, 24, kTrailerMagic);
  const std::array<std::span<const std::byte>, 3> pieces = {head, footer_, trailer};
  absl::Status written = WriteOrCut(pieces, bytes);
  footer_.clear();
  return written.ok() ? Sync() : written;
}

}  // namespace reprise
