#include "tier/segment.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tier/disk_store_erased.h"
#include "tier/disk_store_testing.h"

namespace reprise {
namespace {

using disk_testing::FileBytes;
using disk_testing::kDirectory;
using disk_testing::Namespace;
using disk_testing::PathOf;
using disk_testing::Prompt;
using disk_testing::PutFile;
using ::testing::ElementsAre;

std::string Hex(std::span<const std::byte> bytes) {
  std::string out;
  for (std::byte byte : bytes) {
    constexpr char kDigits[] = "0123456789abcdef";
    out += kDigits[static_cast<int>(byte) >> 4];
    out += kDigits[static_cast<int>(byte) & 15];
  }
  return out;
}

class SegmentTest : public ::testing::Test {
 protected:
  SegmentTest() { CHECK(files_.MakeDirectories(kDirectory).ok()); }
  std::unique_ptr<SegmentWriter> Create(uint32_t number = 7) {
    auto made =
        SegmentWriter::Create(files_, kDirectory, {.number = number, .created_s = 1700000000, .first_sequence = 40});
    CHECK(made.ok());
    return *std::move(made);
  }
  void Append(SegmentWriter& writer, const Prompt& prompt, uint64_t sequence) {
    const Geometry geometry = disk_testing::SmallGeometry();
    const std::vector<std::byte> bytes = prompt.Expected(0, GroupId(0), 64);
    const std::span<const std::byte> payload(bytes);
    EncodedRecord encoded;
    EncodeRecord({.name_space = prompt.name_space,
                  .group = GroupId(0),
                  .parent = prompt.parent(0),
                  .first_token = 0,
                  .keys = std::span(prompt.keys).first(1),
                  .tokens = prompt.block(0),
                  .payloads = {&payload, 1}},
                 RecordShape::Of(geometry, GroupId(0)), sequence, {}, encoded);
    CHECK(writer.Append(encoded.header, encoded.decoded.record_bytes, encoded.pieces).ok());
  }
  struct Read {
    absl::StatusOr<SegmentContents> contents = absl::UnknownError("");
    std::vector<uint64_t> sequences;
  };
  Read ReadBack(uint32_t number = 7, bool trust_footer = true) {
    Read read;
    auto file = files_.Open(PathOf(SegmentName(number)), FileSystem::Mode::kRead);
    CHECK(file.ok());
    read.contents = ReadSegment(**file, number, trust_footer,
                                [&](const SegmentRecord& record) { read.sequences.push_back(record.header.sequence); });
    return read;
  }
  MemoryFileSystem files_;
  const Prompt a_{Namespace(1), {1, 2, 3, 4}}, b_{Namespace(1), {1, 2, 3, 5}};
};

TEST_F(SegmentTest, TheExampleOfTheDocument) {
  ASSERT_TRUE(Create()->Close().ok());
  EXPECT_EQ(Hex(FileBytes(files_, PathOf("segment-0000000000000007"))),
            "5250525345474d540403020101000000070000000000000000f1536500000000"
            "28000000000000000000000000000000000000000000000000000000b2eb5225"
            "52505253464f4f54400000000000000000000000d4b129b70000000000000000"
            "40000000000000004000000000000000000000005db5602b5250525346454e44");
}

TEST_F(SegmentTest, TheExampleOfPurgedTenants) {
  ErasedTenants erased;
  Digest tenant;
  tenant.bytes.fill(0xab);
  erased.Add(tenant, 41);
  EXPECT_EQ(Hex(EncodeErased(erased)),
            "5250524552415345040302010100000000000000000000000100000000000000"
            "abababababababababababababababababababababababababababababababab"
            "2900000000000000929f643b00000000");
}

TEST_F(SegmentTest, AFooterSaysWhatTheRecordsSay) {
  std::unique_ptr<SegmentWriter> writer = Create();
  Append(*writer, a_, 40);
  Append(*writer, b_, 41);
  Read open = ReadBack();
  EXPECT_EQ(open.contents->end, SegmentEnd::kOpen);
  EXPECT_THAT(open.sequences, ElementsAre(40, 41));
  const uint64_t records_end = writer->file_bytes(), closed = writer->closed_bytes();
  ASSERT_TRUE(writer->Close().ok());
  EXPECT_EQ(writer->file_bytes(), closed);
  Read footer = ReadBack();
  EXPECT_EQ(footer.contents->end, SegmentEnd::kFooter);
  EXPECT_EQ(footer.contents->records_end, records_end);
  EXPECT_EQ(footer.contents->file_bytes, closed);
  EXPECT_EQ(footer.contents->header.first_sequence, 40u);
  EXPECT_THAT(footer.sequences, ElementsAre(40, 41));
  EXPECT_THAT(ReadBack(7, /*trust_footer=*/false).sequences, ElementsAre(40, 41));
}

TEST_F(SegmentTest, TornEndsAreCutAtEveryLengthAndClosed) {
  std::unique_ptr<SegmentWriter> writer = Create();
  Append(*writer, a_, 40);
  const uint64_t first_end = writer->file_bytes();
  Append(*writer, b_, 41);
  const std::vector<std::byte> bytes = FileBytes(files_, PathOf(SegmentName(7)));
  for (size_t length = kSegmentHeaderBytes; length <= bytes.size(); ++length) {
    PutFile(files_, PathOf(SegmentName(7)), std::span(bytes).first(length));
    const bool at_edge = length == kSegmentHeaderBytes || length == first_end || length == bytes.size();
    EXPECT_EQ(ReadBack().contents->end, at_edge ? SegmentEnd::kOpen : SegmentEnd::kTorn) << length;
    auto resumed = SegmentWriter::Resume(*files_.Open(PathOf(SegmentName(7)), FileSystem::Mode::kReadWrite), 7,
                                         length < first_end      ? kSegmentHeaderBytes
                                         : length < bytes.size() ? first_end
                                                                 : bytes.size());
    ASSERT_TRUE(resumed.ok());
    ASSERT_TRUE((*resumed)->Close().ok());
    const Read read = ReadBack();
    EXPECT_EQ(read.contents->end, SegmentEnd::kFooter);
    EXPECT_EQ(read.sequences.size(), length < first_end ? 0 : length < bytes.size() ? 1 : 2);
  }
}

TEST_F(SegmentTest, AFlippedBitOfAFooterIsFoundAndTheRecordsAreReadInstead) {
  std::unique_ptr<SegmentWriter> writer = Create();
  Append(*writer, a_, 40);
  const uint64_t records_end = writer->file_bytes();
  ASSERT_TRUE(writer->Close().ok());
  const std::vector<std::byte> bytes = FileBytes(files_, PathOf(SegmentName(7)));
  for (size_t i = records_end; i < bytes.size(); ++i) {
    std::vector<std::byte> changed = bytes;
    changed[i] ^= std::byte{1};
    PutFile(files_, PathOf(SegmentName(7)), changed);
    const Read read = ReadBack();
    EXPECT_EQ(read.contents->end, SegmentEnd::kBadFooter) << i;
    EXPECT_THAT(read.sequences, ElementsAre(40)) << i;
  }
}

TEST_F(SegmentTest, OnlyUnderItsOwnName) {
  ASSERT_TRUE(Create()->Close().ok());
  PutFile(files_, PathOf(SegmentName(8)), FileBytes(files_, PathOf(SegmentName(7))));
  EXPECT_TRUE(ReadBack(7).contents.ok());
  EXPECT_TRUE(absl::IsDataLoss(ReadBack(8).contents.status()));
}

TEST_F(SegmentTest, LaterVersionsAndOtherByteOrdersAreNamed) {
  ASSERT_TRUE(Create()->Close().ok());
  std::vector<std::byte> bytes = FileBytes(files_, PathOf(SegmentName(7)));
  bytes[12] = std::byte{2};
  PutFile(files_, PathOf(SegmentName(7)), bytes);
  EXPECT_TRUE(absl::IsFailedPrecondition(ReadBack().contents.status()));
  bytes[12] = std::byte{1};
  std::reverse(bytes.begin() + 8, bytes.begin() + 12);
  PutFile(files_, PathOf(SegmentName(7)), bytes);
  EXPECT_TRUE(absl::IsFailedPrecondition(ReadBack().contents.status()));
}

TEST(SegmentNameTest, GoesBothWaysAndNothingElseIsOne) {
  EXPECT_EQ(SegmentName(1), "segment-0000000000000001");
  for (uint32_t number : {1u, 99u, UINT32_MAX}) EXPECT_EQ(SegmentNumber(SegmentName(number)), number);
  for (const char* name :
       {"segment-0000000000000000", "segment-000000000000001", "segment-00000000000000001", "segment-000000000000001x",
        "segment-9999999999999999", "Segment-0000000000000001", "lock"}) {
    EXPECT_FALSE(SegmentNumber(name).has_value()) << name;
  }
}

TEST(ErasedTenantsTest, DamageAndLaterVersionsAreTold) {
  ErasedTenants erased;
  for (uint32_t i = 0; i < 3; ++i) erased.Add(disk_testing::TenantDigest(i), 10 + i);
  const std::vector<std::byte> bytes = EncodeErased(erased);
  ASSERT_TRUE(DecodeErased(bytes).ok());
  EXPECT_EQ(DecodeErased(bytes)->tenants, erased.tenants);
  for (size_t i = 0; i < bytes.size(); ++i) {
    std::vector<std::byte> changed = bytes;
    changed[i] ^= std::byte{0x10};
    EXPECT_FALSE(DecodeErased(changed).ok()) << i;
    EXPECT_FALSE(DecodeErased(std::span(bytes).first(i)).ok()) << i;
  }
}

TEST(ErasedTenantsTest, TooManyTenantsArePurgedWithEverybody) {
  ErasedTenants erased;
  for (uint32_t i = 0; i < kErasedTenantsMax; ++i) erased.Add(disk_testing::TenantDigest(i), 10 + i);
  EXPECT_FALSE(erased.Covers(Digest{}, 5));
  erased.Add(disk_testing::TenantDigest(kErasedTenantsMax), 100'000);
  EXPECT_TRUE(erased.Covers(Digest{}, 99'999));
  EXPECT_FALSE(erased.Covers(Digest{}, 100'000));
  EXPECT_EQ(erased.sequence_min(), 100'000u);
}

}  // namespace
}  // namespace reprise
