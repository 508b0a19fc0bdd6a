#include "tier/record.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/crc32c.h"
#include "prefix/block_key.h"

namespace reprise {
namespace {

constexpr std::string_view kMagic = "rprecord";
constexpr uint32_t kByteOrder = 0x01020304;
constexpr uint32_t kFixedBytes = 488;  // the prefix included; keys follow
constexpr uint32_t kPayloadEntryBytes = 16;

// The first bytes of every record, in this form in all versions.
struct Prefix {
  char magic[8];
  uint32_t byte_order;
  uint32_t version;
  uint32_t header_bytes;
  uint32_t blocks;
  uint64_t record_bytes;
  uint64_t sequence;
  uint32_t tokens;
  uint32_t first_token;
  uint32_t group;
  uint32_t block_tokens;
  uint32_t zero;
  uint32_t crc;  // of the bytes before it
};
static_assert(sizeof(Prefix) == kRecordPrefixBytes);

struct Fixed {
  Prefix prefix;
  uint64_t slot_bytes;
  uint8_t kind, key_type, value_type, zero_1;
  uint32_t layers, kv_heads, key_dim, value_dim, window;
  uint32_t tags_present;  // bit tag - 1
  uint32_t zero_2;
  Digest name_space;
  Digest tags[kNamespaceTags];
  Digest parent;
};
static_assert(sizeof(Fixed) == kFixedBytes);

struct PayloadEntry {
  uint64_t bytes;
  uint32_t crc;
  uint8_t codec, zero[3];
};
static_assert(sizeof(PayloadEntry) == kPayloadEntryBytes);

template <class T>
std::span<const std::byte> BytesOf(const T& value) {
  return std::as_bytes(std::span(&value, 1));
}

template <class T>
T ReadAt(std::span<const std::byte> bytes, size_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof(value));
  return value;
}

uint64_t HeaderBytes(uint64_t blocks, uint64_t tokens, uint64_t payloads) {
  const uint64_t bytes =
      kFixedBytes + blocks * sizeof(Digest) + tokens * sizeof(TokenId) + payloads * kPayloadEntryBytes;
  return RoundUp(bytes + sizeof(uint32_t), kRecordAlignment);  // the checksum is at the end
}

absl::Status Damaged(std::string_view what) {
  return absl::DataLossError(absl::StrCat("not a record: ", std::string(what)));
}

absl::StatusOr<Prefix> DecodePrefix(std::span<const std::byte> bytes) {
  if (bytes.size() < kRecordPrefixBytes) return Damaged("shorter than a header's beginning");
  const Prefix prefix = ReadAt<Prefix>(bytes, 0);
  if (std::string_view(prefix.magic, sizeof(prefix.magic)) != kMagic) return Damaged("it does not begin as one");
  const uint32_t crc = Crc32c(bytes.first(offsetof(Prefix, crc)));
  if (prefix.byte_order == __builtin_bswap32(kByteOrder) && prefix.crc == __builtin_bswap32(crc))
    return absl::FailedPreconditionError("a record in the other byte order");
  if (prefix.crc != crc) return Damaged("the checksum of its beginning is wrong");
  if (prefix.byte_order != kByteOrder) return Damaged("its byte order is none");
  if (prefix.version != kRecordVersion)
    return absl::FailedPreconditionError(
        absl::StrCat("a record of version ", prefix.version, ", this program reads version ", kRecordVersion));
  return prefix;
}

// Of a tail or of blocks, with sizes that a record can have; what the lengths say follows from them.
absl::Status CheckPrefix(const Prefix& prefix) {
  const bool tail = prefix.blocks == 0;
  if (prefix.zero != 0) return Damaged("a byte that has to be 0 is not");
  if (prefix.blocks > kRecordBlocksMax) return Damaged(absl::StrCat(prefix.blocks, " blocks").c_str());
  if (prefix.block_tokens == 0 || prefix.block_tokens > kBlockTokensMax)
    return Damaged(absl::StrCat("blocks of ", prefix.block_tokens, " tokens").c_str());
  if (tail ? prefix.tokens == 0 || prefix.tokens >= prefix.block_tokens
           : prefix.tokens != prefix.blocks * prefix.block_tokens)
    return Damaged(absl::StrCat(prefix.tokens, " tokens in ", prefix.blocks, " blocks").c_str());
  if (prefix.first_token % prefix.block_tokens != 0 ||
      prefix.first_token > uint32_t{std::numeric_limits<int32_t>::max()} - prefix.tokens)
    return Damaged("its first token is not where a block begins");
  if (prefix.group >= kTierGroupsMax) return Damaged("there are not so many groups");
  const uint64_t header_bytes = HeaderBytes(prefix.blocks, prefix.tokens, tail ? 1 : prefix.blocks);
  static_assert(kFixedBytes + kRecordBlocksMax * (32 + kPayloadEntryBytes + kBlockTokensMax * 4) + kRecordAlignment <=
                kRecordHeaderBytesMax);
  if (prefix.header_bytes != header_bytes) return Damaged("its header has another length than what is in it");
  return absl::OkStatus();
}

absl::Status CheckShape(const RecordShape& shape) {
  if (shape.kind > GroupKind::kRecurrent) return Damaged("no such kind of group");
  if (shape.key_type > ElementType::kBf16 || shape.value_type > ElementType::kBf16)
    return Damaged("no such element type");
  if ((shape.window != 0) != (shape.kind == GroupKind::kWindow)) return Damaged("a window where none is, or none");
  // In 128 bits nothing overflows.
  using Wide = unsigned __int128;
  Wide bytes =
      Wide{shape.key_dim} * ElementBytes(shape.key_type) + Wide{shape.value_dim} * ElementBytes(shape.value_type);
  if (shape.kind != GroupKind::kRecurrent) bytes *= shape.block_tokens;
  if (bytes > kRecordSlotBytesMax || shape.slot_bytes > kRecordSlotBytesMax || shape.slot_bytes == 0 ||
      bytes * shape.kv_heads * shape.layers != shape.slot_bytes)
    return Damaged("a slot of this shape has another size");
  return absl::OkStatus();
}

RecordShape ShapeOf(const Fixed& fixed) {
  return {.kind = static_cast<GroupKind>(fixed.kind),
          .key_type = static_cast<ElementType>(fixed.key_type),
          .value_type = static_cast<ElementType>(fixed.value_type),
          .layers = fixed.layers,
          .kv_heads = fixed.kv_heads,
          .key_dim = fixed.key_dim,
          .value_dim = fixed.value_dim,
          .window = fixed.window,
          .block_tokens = fixed.prefix.block_tokens,
          .slot_bytes = fixed.slot_bytes};
}

absl::Status ReadNamespace(const Fixed& fixed, NamespaceDigests& out) {
  if (fixed.tags_present >> kNamespaceTags != 0) return Damaged("fields of a namespace that are none");
  out.id = NamespaceId{fixed.name_space};
  for (size_t i = 0; i < kNamespaceTags; ++i) {
    if (fixed.tags_present >> i & 1)
      out.tags[i] = fixed.tags[i];
    else if (fixed.tags[i] != Digest{})
      return Damaged("the digest of an absent field");
  }
  return absl::OkStatus();
}

// Entries follow each other, so only their lengths are kept.
absl::Status ReadPayloads(std::span<const std::byte> entries, RecordHeader& header) {
  uint64_t offset = header.header_bytes;
  for (; !entries.empty(); entries = entries.subspan(kPayloadEntryBytes)) {
    const PayloadEntry entry = ReadAt<PayloadEntry>(entries, 0);
    if ((entry.zero[0] | entry.zero[1] | entry.zero[2]) != 0) return Damaged("a byte that has to be 0 is not");
    const bool raw = entry.codec == static_cast<uint8_t>(Codec::kRaw);
    if (!raw && entry.codec != static_cast<uint8_t>(Codec::kPlanes)) return Damaged("no such codec");
    if (raw ? entry.bytes != header.shape.slot_bytes : entry.bytes == 0 || entry.bytes >= header.shape.slot_bytes)
      return Damaged("a payload that is longer or shorter than one of its codec is");
    header.payloads.push_back({offset, entry.bytes, entry.crc, static_cast<Codec>(entry.codec)});
    offset += header.payloads.back().kept_bytes();
  }
  if (offset != header.record_bytes) return Damaged("it has another length than its payloads");
  return absl::OkStatus();
}

// docs/format/identity.md, "Block keys". A chain begins with the namespace; one that begins later, in a block that is
// not the first, goes on from another digest, which cannot be computed from what is in the record.
absl::Status CheckKeys(const RecordHeader& header) {
  const bool first = header.first_token == 0;
  if (first != (header.parent == header.name_space.id.digest))
    return Damaged("its first block does not follow its namespace");
  BlockHasher hasher;
  for (size_t i = 0; i < header.keys.size(); ++i)
    if (hasher.Next(header.parent_of(i), header.tokens_of(i)) != header.keys[i])
      return Damaged("a key is not that of its tokens");
  return absl::OkStatus();
}

uint32_t PlaneBytes(const RecordShape& shape) {
  return std::min(ElementBytes(shape.key_type), ElementBytes(shape.value_type));
}

constexpr std::array<std::byte, kRecordAlignment> kZeros{};

std::span<const std::byte> PaddingOf(uint64_t bytes) {
  return std::span(kZeros).first(RoundUp(bytes, kRecordAlignment) - bytes);
}

}  // namespace

RecordShape RecordShape::Of(const Geometry& geometry, GroupId id) {
  const LayerGroup& group = geometry.group(id);
  return {.kind = group.kind,
          .key_type = geometry.key_type,
          .value_type = geometry.value_type,
          .layers = static_cast<uint32_t>(group.layers.size()),
          .kv_heads = group.kv_heads,
          .key_dim = group.key_dim,
          .value_dim = group.value_dim,
          .window = group.window,
          .block_tokens = geometry.block_tokens,
          .slot_bytes = SlotBytes(geometry, id)};
}

std::span<const TokenId> RecordHeader::tokens_of(size_t index) const {
  if (is_tail()) return tokens;
  return std::span(tokens).subspan(index * shape.block_tokens, shape.block_tokens);
}

absl::StatusOr<uint32_t> RecordHeaderBytes(std::span<const std::byte> bytes) {
  const absl::StatusOr<Prefix> prefix = DecodePrefix(bytes);
  if (!prefix.ok()) return prefix.status();
  if (absl::Status status = CheckPrefix(*prefix); !status.ok()) return status;
  return prefix->header_bytes;
}

absl::StatusOr<RecordHeader> DecodeRecordHeader(std::span<const std::byte> bytes) {
  const absl::StatusOr<uint32_t> header_bytes = RecordHeaderBytes(bytes);
  if (!header_bytes.ok()) return header_bytes.status();
  if (bytes.size() < *header_bytes) return Damaged("it ends within its header");
  bytes = bytes.first(*header_bytes);
  const size_t crc_at = bytes.size() - sizeof(uint32_t);
  if (ReadAt<uint32_t>(bytes, crc_at) != Crc32c(bytes.first(crc_at)))
    return Damaged("the checksum of its header is wrong");

  const Fixed fixed = ReadAt<Fixed>(bytes, 0);
  const Prefix& prefix = fixed.prefix;
  if (fixed.zero_1 != 0 || fixed.zero_2 != 0) return Damaged("a byte that has to be 0 is not");
  RecordHeader out;
  out.group = GroupId(prefix.group);
  out.shape = ShapeOf(fixed);
  out.parent = fixed.parent;
  out.first_token = prefix.first_token;
  out.sequence = prefix.sequence;
  out.header_bytes = prefix.header_bytes;
  out.record_bytes = prefix.record_bytes;
  if (absl::Status status = CheckShape(out.shape); !status.ok()) return status;
  if (absl::Status status = ReadNamespace(fixed, out.name_space); !status.ok()) return status;

  // The counts were checked with the prefix: all of this lies before the checksum.
  std::span<const std::byte> rest = bytes.first(crc_at).subspan(kFixedBytes);
  const auto take = [&rest](size_t count) {
    const std::span<const std::byte> taken = rest.first(count);
    rest = rest.subspan(count);
    return taken;
  };
  out.keys.resize(prefix.blocks);
  if (!out.keys.empty())
    std::memcpy(out.keys.data(), take(prefix.blocks * sizeof(BlockKey)).data(), prefix.blocks * sizeof(BlockKey));
  out.tokens.resize(prefix.tokens);
  std::memcpy(out.tokens.data(), take(prefix.tokens * sizeof(TokenId)).data(), prefix.tokens * sizeof(TokenId));
  const size_t payloads = std::max<size_t>(prefix.blocks, 1);
  out.payloads.reserve(payloads);
  if (absl::Status status = ReadPayloads(take(payloads * kPayloadEntryBytes), out); !status.ok()) return status;
  for (std::byte byte : rest)
    if (byte != std::byte{0}) return Damaged("a byte that has to be 0 is not");
  if (absl::Status status = CheckKeys(out); !status.ok()) return status;
  return out;
}

namespace {

void CheckRecord(const TierRecord& record, const RecordShape& shape) {
  const size_t blocks = record.keys.size();
  CHECK_LE(blocks, kRecordBlocksMax);
  CHECK_EQ(record.payloads.size(), blocks > 0 ? blocks : 1);
  if (blocks > 0)
    CHECK_EQ(record.tokens.size(), blocks * shape.block_tokens);
  else
    CHECK(!record.tokens.empty() && record.tokens.size() < shape.block_tokens);
  CHECK_EQ(record.first_token % shape.block_tokens, 0u);
  CHECK_LE(shape.slot_bytes, kRecordSlotBytesMax);
  for (std::span<const std::byte> payload : record.payloads) CHECK_EQ(payload.size(), shape.slot_bytes);
}

// What a reader will find, but for the payloads.
void Describe(const TierRecord& record, const RecordShape& shape, uint64_t sequence, RecordHeader& out) {
  out.name_space = record.name_space;
  out.group = record.group;
  out.shape = shape;
  out.parent = record.parent;
  out.first_token = record.first_token;
  out.sequence = sequence;
  out.keys.assign(record.keys.begin(), record.keys.end());
  out.tokens.assign(record.tokens.begin(), record.tokens.end());
  out.header_bytes = static_cast<uint32_t>(HeaderBytes(out.keys.size(), out.tokens.size(), record.payloads.size()));
  out.record_bytes = out.header_bytes;
  out.payloads.clear();
}

void WriteHeader(const RecordHeader& header, std::vector<std::byte>& out) {
  Fixed fixed{};
  Prefix& prefix = fixed.prefix;
  kMagic.copy(prefix.magic, sizeof(prefix.magic));
  prefix.byte_order = kByteOrder;
  prefix.version = kRecordVersion;
  prefix.header_bytes = header.header_bytes;
  prefix.blocks = static_cast<uint32_t>(header.keys.size());
  prefix.record_bytes = header.record_bytes;
  prefix.sequence = header.sequence;
  prefix.tokens = static_cast<uint32_t>(header.tokens.size());
  prefix.first_token = header.first_token;
  prefix.group = header.group.value();
  prefix.block_tokens = header.shape.block_tokens;
  prefix.crc = Crc32c(BytesOf(prefix).first(offsetof(Prefix, crc)));
  fixed.slot_bytes = header.shape.slot_bytes;
  fixed.kind = static_cast<uint8_t>(header.shape.kind);
  fixed.key_type = static_cast<uint8_t>(header.shape.key_type);
  fixed.value_type = static_cast<uint8_t>(header.shape.value_type);
  fixed.layers = header.shape.layers;
  fixed.kv_heads = header.shape.kv_heads;
  fixed.key_dim = header.shape.key_dim;
  fixed.value_dim = header.shape.value_dim;
  fixed.window = header.shape.window;
  fixed.name_space = header.name_space.id.digest;
  for (size_t i = 0; i < kNamespaceTags; ++i)
    if (header.name_space.tags[i].has_value()) {
      fixed.tags_present |= 1u << i;
      fixed.tags[i] = *header.name_space.tags[i];
    }
  fixed.parent = header.parent;

  out.assign(header.header_bytes, std::byte{0});
  std::byte* at = out.data();
  const auto put = [&at](std::span<const std::byte> bytes) { at = std::copy(bytes.begin(), bytes.end(), at); };
  put(BytesOf(fixed));
  put(std::as_bytes(std::span(header.keys)));
  put(std::as_bytes(std::span(header.tokens)));
  for (const RecordPayload& payload : header.payloads) {
    const PayloadEntry entry{payload.bytes, payload.crc, static_cast<uint8_t>(payload.codec), {}};
    put(BytesOf(entry));
  }
  const size_t crc_at = out.size() - sizeof(uint32_t);
  const uint32_t crc = Crc32c(std::span(out).first(crc_at));
  std::memcpy(out.data() + crc_at, &crc, sizeof(crc));
}

}  // namespace

void EncodeRecord(const TierRecord& record, const RecordShape& shape, uint64_t sequence, Codec codec,
                  EncodedRecord& out) {
  CheckRecord(record, shape);
  RecordHeader& header = out.decoded;
  Describe(record, shape, sequence, header);

  // All of them before the first view is taken: `packed` moves while it grows.
  out.packed.clear();
  const uint32_t plane_bytes = PlaneBytes(shape);
  for (std::span<const std::byte> payload : record.payloads) {
    const size_t before = out.packed.size();
    const bool packed = codec == Codec::kPlanes && EncodePlanes(payload, plane_bytes, out.packed);
    header.payloads.push_back({header.record_bytes, packed ? out.packed.size() - before : payload.size(), 0,
                               packed ? Codec::kPlanes : Codec::kRaw});
    header.record_bytes += header.payloads.back().kept_bytes();
  }

  out.pieces.assign(1, {});  // the header, which is not there yet
  std::span<const std::byte> packed = out.packed;
  for (size_t i = 0; i < header.payloads.size(); ++i) {
    RecordPayload& payload = header.payloads[i];
    std::span<const std::byte> bytes = record.payloads[i];
    if (payload.codec == Codec::kPlanes) {
      bytes = packed.first(payload.bytes);
      packed = packed.subspan(payload.bytes);
    }
    const std::span<const std::byte> padding = PaddingOf(payload.bytes);
    payload.crc = Crc32c(padding, Crc32c(bytes));
    out.pieces.push_back(bytes);
    if (!padding.empty()) out.pieces.push_back(padding);
  }
  WriteHeader(header, out.header);
  out.pieces[0] = out.header;
}

TierOutcome DecodePayload(const RecordHeader& header, size_t index, std::span<const std::byte> kept,
                          std::span<std::byte> out, std::vector<std::byte>& scratch) {
  CHECK_LT(index, header.payloads.size());
  const RecordPayload& payload = header.payloads[index];
  if (kept.size() != payload.kept_bytes() || out.size() != header.shape.slot_bytes) return TierOutcome::kDamaged;
  if (Crc32c(kept) != payload.crc) return TierOutcome::kChecksum;
  for (std::byte byte : kept.subspan(payload.bytes))
    if (byte != std::byte{0}) return TierOutcome::kDamaged;
  kept = kept.first(payload.bytes);
  if (payload.codec == Codec::kPlanes)
    return DecodePlanes(kept, PlaneBytes(header.shape), out, scratch) ? TierOutcome::kOk : TierOutcome::kDamaged;
  if (kept.data() != out.data()) std::memcpy(out.data(), kept.data(), out.size());
  return TierOutcome::kOk;
}

}  // namespace reprise
