// Records: blocks of KV state as bytes that can be kept anywhere (a segment of the disk tier, a value in Redis) and
// prove for themselves what they are. Byte by byte in docs/format/record.md.
//
//   prefix · header (fixed) · keys · token ids · payload entries (length, checksum, codec) · header checksum · payloads
//
// Everything in a header is checked by DecodeRecordHeader before any of it is used, the keys by computing them again;
// payloads are checked one by one. Header and payloads are multiples of kRecordAlignment; checksums are over the
// padding too, so that no byte of a record is unchecked.
//
// Ownership: values; a RecordHeader owns its keys and tokens.
// Threads:   any.
// Errors:    DataLoss for what cannot be a record of this version; FailedPrecondition for a record of another version,
//            byte order or layout (the message says which). Nothing aborts on any bytes.
// Design:    DESIGN 4, 8
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "base/bytes.h"
#include "base/geometry.h"
#include "base/identity.h"
#include "base/ids.h"
#include "tier/codec.h"
#include "tier/tier_store.h"

namespace reprise {

inline constexpr uint32_t kRecordVersion = 1;
inline constexpr uint32_t kRecordBlocksMax = 64;
// Of any header, keys and tokens and entries included: what a reader has to have room for.
inline constexpr uint32_t kRecordHeaderBytesMax = 64 << 10;
// Enough of a record to know how long its header is. Has a checksum of its own.
inline constexpr uint32_t kRecordPrefixBytes = 64;
// Of the header, of each payload and so of the record. A cache line: payloads are copied, and with O_DIRECT a reader
// has to round outwards anyway (docs/format/record.md).
inline constexpr uint32_t kRecordAlignment = 64;
// Of any group: what a header may claim. Six times a slot of Llama-65B, 16 tokens of 2.5 MiB.
inline constexpr uint64_t kRecordSlotBytesMax = 256 << 20;

// What a group's slots are made of, as a record says it.
struct RecordShape {
  GroupKind kind = GroupKind::kFull;
  ElementType key_type = ElementType::kF16, value_type = ElementType::kF16;
  uint32_t layers = 0, kv_heads = 0, key_dim = 0, value_dim = 0, window = 0, block_tokens = 0;
  uint64_t slot_bytes = 0;
  static RecordShape Of(const Geometry& geometry, GroupId group);
  friend bool operator==(const RecordShape&, const RecordShape&) = default;
};

struct RecordPayload {
  uint64_t offset = 0;  // from the beginning of the record
  uint64_t bytes = 0;   // as kept, without the padding
  uint32_t crc = 0;     // CRC32C of kept_bytes()
  Codec codec = Codec::kRaw;
  uint64_t kept_bytes() const { return RoundUp(bytes, kRecordAlignment); }  // what a reader has to read
};

struct RecordHeader {
  NamespaceDigests name_space;
  GroupId group;
  RecordShape shape;
  Digest parent;
  uint32_t first_token = 0;
  uint64_t sequence = 0;                // of its store: later records have higher numbers
  std::vector<BlockKey> keys;           // [blocks]; empty: a tail
  std::vector<TokenId> tokens;          // of all blocks, or of the tail
  std::vector<RecordPayload> payloads;  // [blocks], or 1
  uint32_t header_bytes = 0;            // where the first payload begins
  uint64_t record_bytes = 0;            // header and payloads, padding included: where the next one begins

  bool is_tail() const { return keys.empty(); }
  Digest tenant() const { return name_space.tag(NamespaceTag::kTenant).value_or(Digest{}); }
  // Of piece `index`: its tokens, and what its prefix was.
  std::span<const TokenId> tokens_of(size_t index) const;
  const Digest& parent_of(size_t index) const { return index == 0 ? parent : keys[index - 1].digest; }
};

// A record ready to be written: `header` first, then each of `payloads`, which are views of the caller's bytes (raw) or
// of `packed`. Kept by the writer and used again, so that in steady state nothing is allocated.
struct EncodedRecord {
  std::vector<std::byte> header;
  std::vector<std::byte> packed;
  std::vector<std::span<const std::byte>> pieces;  // header, payloads and padding in order: for File::WriteAt
  RecordHeader decoded;                            // what a reader will find
};

// `codec` is what is wished; a payload that it does not make smaller is kept raw. REQUIRES: the record is one
// (tier_store.h), at most kRecordBlocksMax blocks, slots of at most kRecordSlotBytesMax.
void EncodeRecord(const TierRecord& record, const RecordShape& shape, uint64_t sequence, Codec codec,
                  EncodedRecord& out);

// The length of the header that begins with these kRecordPrefixBytes, at most kRecordHeaderBytesMax.
absl::StatusOr<uint32_t> RecordHeaderBytes(std::span<const std::byte> prefix);
// `bytes`: the whole header (more is ignored).
absl::StatusOr<RecordHeader> DecodeRecordHeader(std::span<const std::byte> bytes);

// Checks a payload as kept (kept_bytes() of it), and makes a slot's bytes of it. `kept` may begin where `out` does if
// the codec is raw: then nothing is copied. `scratch` grows to what is needed and may be used again. kOk, kChecksum, or
// kDamaged (the checksum is right but the codec cannot make `out` of it, or a size is wrong).
TierOutcome DecodePayload(const RecordHeader& header, size_t index, std::span<const std::byte> kept,
                          std::span<std::byte> out, std::vector<std::byte>& scratch);

}  // namespace reprise
