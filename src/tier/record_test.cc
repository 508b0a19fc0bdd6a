#include "tier/record.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <string>

#include "base/crc32c.h"

namespace reprise {
namespace {

constexpr uint32_t kHeaderCrcFromEnd = 4;

BlockKey KeyOf(const Digest& parent, std::span<const TokenId> tokens) {
  const uint32_t count = static_cast<uint32_t>(tokens.size());
  Sha256 hash;
  hash.Update("reprise/block/1");
  hash.Update(std::as_bytes(std::span(parent.bytes)));
  hash.Update(std::as_bytes(std::span(&count, 1)));
  hash.Update(std::as_bytes(tokens));
  return BlockKey{hash.Finish()};
}

// A geometry, blocks under it and what a record of them needs.
struct Source {
  Geometry geometry;
  NamespaceDigests name_space;
  GroupId group;
  Digest parent;
  uint32_t first_token = 0;
  std::vector<TokenId> tokens;
  std::vector<BlockKey> keys;
  std::vector<std::vector<std::byte>> bytes;
  std::vector<std::span<const std::byte>> payloads;

  explicit Source(uint32_t blocks, uint32_t tail_tokens = 0) {
    LayerGroup layer{.kind = GroupKind::kFull, .layers = {0}, .kv_heads = 1, .key_dim = 4, .value_dim = 4};
    geometry = {.groups = {layer, layer}, .block_tokens = 4};
    geometry.groups[1].kind = GroupKind::kWindow;
    geometry.groups[1].window = 100;
    name_space.id = NamespaceId{Sha256::Of("namespace")};
    for (size_t tag = 1; tag < kNamespaceTags; ++tag)  // no salt
      name_space.tags[tag - 1] = Sha256::Of("tag " + std::to_string(tag));
    parent = name_space.id.digest;
    for (uint32_t i = 0; i < blocks * geometry.block_tokens + tail_tokens; ++i)
      tokens.push_back(TokenId(static_cast<int32_t>(i + 1)));
    Fill(blocks > 0 ? blocks : 1);
    if (blocks > 0) Chain();
  }

  // Bytes 0, 1, 2, ... over all payloads.
  void Fill(uint32_t count) {
    bytes.assign(count, std::vector<std::byte>(SlotBytes(geometry, group)));
    uint32_t next = 0;
    for (auto& payload : bytes)
      for (std::byte& byte : payload) byte = static_cast<std::byte>(next++);
    payloads.assign(bytes.begin(), bytes.end());
  }
  void Chain() {
    keys.clear();
    for (size_t at = 0; at < tokens.size(); at += geometry.block_tokens)
      keys.push_back(
          KeyOf(keys.empty() ? parent : keys.back().digest, std::span(tokens).subspan(at, geometry.block_tokens)));
  }
  TierRecord record() const { return {name_space, group, parent, first_token, keys, tokens, payloads}; }
  RecordShape shape() const { return RecordShape::Of(geometry, group); }
};

std::vector<std::byte> Joined(const EncodedRecord& record) {
  std::vector<std::byte> out;
  for (std::span<const std::byte> piece : record.pieces) out.insert(out.end(), piece.begin(), piece.end());
  return out;
}

std::vector<std::byte> Encoded(const Source& source, uint64_t sequence = 7, Codec codec = Codec::kRaw) {
  EncodedRecord out;
  EncodeRecord(source.record(), source.shape(), sequence, codec, out);
  return Joined(out);
}

// What a reader does with a record, all of it.
absl::Status ReadAll(std::span<const std::byte> bytes) {
  const absl::StatusOr<RecordHeader> header = DecodeRecordHeader(bytes);
  if (!header.ok()) return header.status();
  std::vector<std::byte> slot(header->shape.slot_bytes), scratch;
  for (size_t i = 0; i < header->payloads.size(); ++i) {
    const RecordPayload& payload = header->payloads[i];
    if (payload.offset + payload.kept_bytes() > bytes.size()) return absl::DataLossError("cut");
    const TierOutcome outcome =
        DecodePayload(*header, i, bytes.subspan(payload.offset, payload.kept_bytes()), slot, scratch);
    if (outcome != TierOutcome::kOk) return absl::DataLossError(std::string(Name(outcome)));
  }
  return absl::OkStatus();
}

// After a change on purpose: a header whose checksums are right.
void Reseal(std::vector<std::byte>& bytes) {
  const uint32_t prefix_crc = Crc32c(std::span(bytes).first(60));
  std::memcpy(bytes.data() + 60, &prefix_crc, 4);
  uint32_t header_bytes;
  std::memcpy(&header_bytes, bytes.data() + 16, 4);
  if (header_bytes < 64 || header_bytes > bytes.size()) return;
  const uint32_t crc = Crc32c(std::span(bytes).first(header_bytes - kHeaderCrcFromEnd));
  std::memcpy(bytes.data() + header_bytes - kHeaderCrcFromEnd, &crc, 4);
}

template <class T>
void Put(std::vector<std::byte>& bytes, size_t offset, T value) {
  std::memcpy(bytes.data() + offset, &value, sizeof(value));
}

TEST(Record, IsWhatTheDocumentSays) {  // docs/format/record.md, "Example"
  EXPECT_EQ(Sha256::Of(Encoded(Source(2))).Hex(), "3a492a8391d0f6eb4bc7d0cb88aaff60511873e6e578d44c48d48e484e0febba");
  EXPECT_EQ(Encoded(Source(2)).size(), 768u);
}

TEST(Record, SaysWhatWasPutIn) {
  for (uint32_t blocks : {0u, 1u, 2u, kRecordBlocksMax}) {
    Source source(blocks, blocks == 0 ? 3 : 0);
    source.name_space.tags[9] = Sha256::Of("salt");
    EncodedRecord encoded;
    EncodeRecord(source.record(), source.shape(), 99, Codec::kRaw, encoded);
    const std::vector<std::byte> bytes = Joined(encoded);
    ASSERT_EQ(*RecordHeaderBytes(std::span(bytes).first(kRecordPrefixBytes)), encoded.decoded.header_bytes);
    const auto header = DecodeRecordHeader(bytes);
    ASSERT_TRUE(header.ok()) << header.status();
    EXPECT_EQ(header->is_tail(), blocks == 0);
    EXPECT_EQ(header->name_space, source.name_space);
    EXPECT_EQ(header->tenant(), Sha256::Of("tag 8"));
    EXPECT_EQ(header->group, source.group);
    EXPECT_EQ(header->shape, source.shape());
    EXPECT_EQ(header->parent, source.parent);
    EXPECT_EQ(header->sequence, 99u);
    EXPECT_EQ(header->keys, source.keys);
    EXPECT_EQ(header->tokens, source.tokens);
    EXPECT_EQ(header->record_bytes, bytes.size());
    EXPECT_EQ(bytes.size() % kRecordAlignment, 0u);
    EXPECT_EQ(encoded.decoded.payloads.back().offset, header->payloads.back().offset);
    EXPECT_EQ(encoded.decoded.payloads.back().crc, header->payloads.back().crc);
    EXPECT_TRUE(ReadAll(bytes).ok());
  }
}

TEST(Record, AnyBlockOfItCanBeReadAlone) {
  Source source(3);
  source.geometry.groups[0].kv_heads = 3;  // slots of 192 bytes, then of 96: with padding
  for (uint32_t key_dim : {4u, 0u}) {
    source.geometry.groups[0].key_dim = key_dim;
    source.Fill(3);
    const std::vector<std::byte> bytes = Encoded(source);
    const auto header = *DecodeRecordHeader(bytes);
    std::vector<std::byte> slot(header.shape.slot_bytes), scratch;
    for (size_t i : {size_t{2}, size_t{0}, size_t{1}}) {
      const auto kept = std::span(bytes).subspan(header.payloads[i].offset, header.payloads[i].kept_bytes());
      ASSERT_EQ(DecodePayload(header, i, kept, slot, scratch), TierOutcome::kOk);
      EXPECT_EQ(slot, source.bytes[i]);
      EXPECT_EQ(header.tokens_of(i)[0], TokenId(static_cast<int32_t>(4 * i + 1)));
      EXPECT_EQ(header.parent_of(i), i == 0 ? source.parent : source.keys[i - 1].digest);
    }
  }
}

TEST(Record, PayloadsThatShrinkAreKeptSmallAndTheOthersRaw) {
  Source source(3);
  source.geometry.groups[0].kv_heads = 256;
  source.Fill(3);
  std::mt19937 random(5);
  for (std::byte& byte : source.bytes[1]) byte = static_cast<std::byte>(random());
  const std::vector<std::byte> bytes = Encoded(source, 1, Codec::kPlanes);
  const auto header = DecodeRecordHeader(bytes);
  ASSERT_TRUE(header.ok()) << header.status();
  EXPECT_EQ(header->payloads[0].codec, Codec::kPlanes);
  EXPECT_EQ(header->payloads[1].codec, Codec::kRaw);
  EXPECT_EQ(header->payloads[2].codec, Codec::kPlanes);
  EXPECT_LT(header->payloads[0].bytes, header->shape.slot_bytes / 2);
  std::vector<std::byte> slot(header->shape.slot_bytes), scratch;
  for (size_t i = 0; i < 3; ++i) {
    const auto kept = std::span(bytes).subspan(header->payloads[i].offset, header->payloads[i].kept_bytes());
    ASSERT_EQ(DecodePayload(*header, i, kept, slot, scratch), TierOutcome::kOk);
    EXPECT_EQ(slot, source.bytes[i]);
  }
}

TEST(Record, RawPayloadsAreCheckedInPlace) {
  Source source(1);
  std::vector<std::byte> bytes = Encoded(source);
  const auto header = *DecodeRecordHeader(bytes);
  std::vector<std::byte> slot(bytes.begin() + header.payloads[0].offset, bytes.end()), scratch;
  EXPECT_EQ(DecodePayload(header, 0, slot, slot, scratch), TierOutcome::kOk);
  EXPECT_EQ(slot, source.bytes[0]);
  slot[5] ^= std::byte{1};
  EXPECT_EQ(DecodePayload(header, 0, slot, slot, scratch), TierOutcome::kChecksum);
}

TEST(Record, BuffersAreUsedAgain) {
  EncodedRecord out;
  for (uint32_t blocks : {3u, 1u, 2u}) {
    const Source source(blocks);
    EncodeRecord(source.record(), source.shape(), 7, Codec::kRaw, out);
    EXPECT_EQ(Joined(out), Encoded(source));
  }
}

TEST(Record, EveryFlippedBitIsFound) {
  Source source(2);
  source.geometry.groups[0].kv_heads = 3;
  source.geometry.groups[0].key_dim = 0;  // slots of 96 bytes: 32 bytes of padding after each
  source.Fill(2);
  for (const std::vector<std::byte>& original :
       {Encoded(source), Encoded(Source(0, 2)), Encoded(Source(1), 1, Codec::kPlanes)}) {
    ASSERT_TRUE(ReadAll(original).ok());
    std::vector<std::byte> bytes = original;
    for (size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
      bytes[bit / 8] ^= std::byte{1} << bit % 8;
      ASSERT_TRUE(absl::IsDataLoss(ReadAll(bytes))) << "byte " << bit / 8 << ": " << ReadAll(bytes);
      bytes[bit / 8] ^= std::byte{1} << bit % 8;
    }
    for (size_t length = 0; length < bytes.size(); ++length)
      ASSERT_TRUE(absl::IsDataLoss(ReadAll(std::span(bytes).first(length)))) << length;
  }
}

// With checksums that are right: what only a check of the content can find.
TEST(Record, EveryFlippedBitOfAHeaderIsFoundByItsContentToo) {
  const std::vector<std::byte> original = Encoded(Source(2));
  const RecordHeader good = *DecodeRecordHeader(original);
  std::vector<size_t> unnoticed;
  for (size_t byte = 0; byte < good.header_bytes - kHeaderCrcFromEnd; ++byte)
    for (int bit = 0; bit < 8; ++bit) {
      std::vector<std::byte> bytes = original;
      bytes[byte] ^= std::byte{1} << bit;
      Reseal(bytes);
      if (ReadAll(bytes).ok() && (unnoticed.empty() || unnoticed.back() != byte)) unnoticed.push_back(byte);
    }
  // The sequence number, the group, full or latent, f16 or bf16 (they are of one size) and the digests of fields can be
  // any; a store compares all of them but the first with what it asks for. 60 to 63 are what Reseal writes.
  for (size_t byte : unnoticed)
    EXPECT_TRUE((byte >= 32 && byte < 40) || byte == 48 || (byte >= 60 && byte < 64) || (byte >= 72 && byte < 75) ||
                byte == 96 || byte == 97 || (byte >= 136 && byte < 456))
        << byte;
  EXPECT_FALSE(unnoticed.empty());
}

TEST(Record, OtherVersionsAndByteOrdersAreToldFromDamage) {
  std::vector<std::byte> bytes = Encoded(Source(1));
  Put<uint32_t>(bytes, 12, kRecordVersion + 1);
  EXPECT_TRUE(absl::IsDataLoss(DecodeRecordHeader(bytes).status()));  // the checksum says that it is damage
  Reseal(bytes);
  const absl::Status version = DecodeRecordHeader(bytes).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(version)) << version;
  EXPECT_THAT(std::string(version.message()), testing::HasSubstr("version 2"));

  bytes = Encoded(Source(1));
  for (size_t at = 8; at < 60; at += 4) std::reverse(bytes.begin() + at, bytes.begin() + at + 4);
  Put<uint32_t>(bytes, 60, __builtin_bswap32(Crc32c(std::span(bytes).first(60))));
  const absl::Status order = DecodeRecordHeader(bytes).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(order)) << order;
  EXPECT_THAT(std::string(order.message()), testing::HasSubstr("byte order"));
}

TEST(Record, AbsurdSizesAreRefusedBeforeAnythingIsMade) {
  struct Case {
    size_t offset;
    uint32_t value;
  };
  const std::vector<std::byte> original = Encoded(Source(2));
  const Case cases[] = {{16, 0},
                        {16, 64},
                        {16, 0xffffffc0},
                        {20, 0xffffffff},
                        {20, 0x80000002},
                        {20, 65},
                        {24, 0},
                        {28, 1},
                        {40, 0xffffffff},
                        {40, 0},
                        {44, 1},
                        {44, 0xfffffffc},
                        {48, kTierGroupsMax},
                        {52, 0},
                        {52, 0xffffffff},
                        {64, 0},
                        {64, 128},
                        {76, 0xffffffff},
                        {80, 0xffffffff},
                        {84, 0xffffffff},
                        {88, 0x80000004},
                        {88, 0}};
  for (const Case& c : cases) {
    std::vector<std::byte> bytes = original;
    Put(bytes, c.offset, c.value);
    Reseal(bytes);
    EXPECT_TRUE(absl::IsDataLoss(ReadAll(bytes))) << c.offset << " " << c.value;
  }
}

TEST(Record, AKeyIsThatOfItsTokensAndItsPrefix) {
  Source source(2);
  source.keys[1] = KeyOf(source.parent, std::span(source.tokens).subspan(4));  // of another place
  EXPECT_TRUE(absl::IsDataLoss(DecodeRecordHeader(Encoded(source)).status()));
  source.Chain();
  EXPECT_TRUE(DecodeRecordHeader(Encoded(source)).ok());
}

TEST(Record, AChainBeginsWithItsNamespaceUnlessItBeginsLater) {
  Source source(1);
  source.parent = Sha256::Of("of another tenant");
  source.Chain();
  EXPECT_TRUE(absl::IsDataLoss(DecodeRecordHeader(Encoded(source)).status()));
  source.first_token = 8;
  EXPECT_TRUE(DecodeRecordHeader(Encoded(source)).ok());
  source.parent = source.name_space.id.digest;
  source.Chain();
  EXPECT_TRUE(absl::IsDataLoss(DecodeRecordHeader(Encoded(source)).status()));
}

TEST(Record, SurvivesAnyBytes) {
  std::mt19937 random(11);
  const std::vector<std::byte> original = Encoded(Source(3));
  for (int round = 0; round < 20'000; ++round) {
    std::vector<std::byte> bytes = original;
    for (uint32_t change = random() % 4; change < 4; ++change)
      bytes[random() % (round % 2 ? bytes.size() : 128)] = static_cast<std::byte>(random());
    if (round % 3) Reseal(bytes);
    ReadAll(bytes).IgnoreError();
  }
}

}  // namespace
}  // namespace reprise
