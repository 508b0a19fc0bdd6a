// Any bytes as a record: an outcome, and nothing larger than the input says. What is read is written again and is the
// same header; the checksums are mended first, so that the checks behind them are reached.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "base/crc32c.h"
#include "tier/record.h"

namespace reprise {
namespace {

void MendChecksums(std::vector<std::byte>& bytes) {
  if (bytes.size() < kRecordPrefixBytes) return;
  const uint32_t prefix_crc = Crc32c(std::span(bytes).first(60));
  std::memcpy(bytes.data() + 60, &prefix_crc, 4);
  uint32_t header_bytes;
  std::memcpy(&header_bytes, bytes.data() + 16, 4);
  if (header_bytes < kRecordPrefixBytes || header_bytes > bytes.size()) return;
  const uint32_t crc = Crc32c(std::span(bytes).first(header_bytes - 4));
  std::memcpy(bytes.data() + header_bytes - 4, &crc, 4);
}

void ReadPayloads(const RecordHeader& header, std::span<const std::byte> bytes) {
  // A header may claim slots of a GiB: a reader compares the shape with its own first, and so does this one.
  if (header.shape.slot_bytes > 1 << 20) return;
  std::vector<std::byte> slot(header.shape.slot_bytes), scratch;
  for (size_t i = 0; i < header.payloads.size(); ++i) {
    const RecordPayload& payload = header.payloads[i];
    if (payload.offset > bytes.size() || payload.kept_bytes() > bytes.size() - payload.offset) return;
    const auto kept = bytes.subspan(payload.offset, payload.kept_bytes());
    DecodePayload(header, i, kept, slot, scratch);
    RecordHeader other = header;  // as if its checksum were right
    other.payloads[i].crc = Crc32c(kept);
    CHECK(DecodePayload(other, i, kept, slot, scratch) != TierOutcome::kChecksum);
  }
}

void CheckWrittenAgain(const RecordHeader& header, std::span<const std::byte> original) {
  if (header.shape.slot_bytes > 1 << 16) return;
  const std::vector<std::byte> slot(header.shape.slot_bytes);
  const std::vector<std::span<const std::byte>> payloads(header.payloads.size(), slot);
  EncodedRecord out;
  EncodeRecord(
      {header.name_space, header.group, header.parent, header.first_token, header.keys, header.tokens, payloads},
      header.shape, header.sequence, Codec::kRaw, out);
  CHECK_EQ(out.decoded.header_bytes, header.header_bytes);
  const auto again = DecodeRecordHeader(out.header);
  CHECK(again.ok());
  CHECK(again->name_space == header.name_space && again->shape == header.shape && again->keys == header.keys);
  CHECK(again->tokens == header.tokens && again->parent == header.parent && again->group == header.group);
  // All but the record's length, and with it the prefix's checksum, and the payload entries.
  CHECK(std::equal(out.header.begin() + kRecordPrefixBytes, out.header.begin() + 488,
                   original.begin() + kRecordPrefixBytes));
}

}  // namespace
}  // namespace reprise

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace reprise;
  const auto given = std::as_bytes(std::span(data, size));
  std::vector<std::byte> bytes(given.begin(), given.end());
  for (const bool mended : {false, true}) {
    if (mended) MendChecksums(bytes);
    if (const auto length = RecordHeaderBytes(bytes); length.ok()) CHECK_LE(*length, kRecordHeaderBytesMax);
    const auto header = DecodeRecordHeader(bytes);
    if (!header.ok()) {
      CHECK(absl::IsDataLoss(header.status()) || absl::IsFailedPrecondition(header.status()));
      continue;
    }
    CHECK(RecordHeaderBytes(bytes).ok());
    CHECK_LE(header->header_bytes, bytes.size());
    ReadPayloads(*header, bytes);
    CheckWrittenAgain(*header, bytes);
  }
  std::vector<std::byte> out(size / 4 * 4), scratch;
  DecodePlanes(bytes, 2, out, scratch);
  DecodePlanes(bytes, 4, out, scratch);
  return 0;
}
