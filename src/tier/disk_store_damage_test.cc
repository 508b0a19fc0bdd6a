// Damage done to files behind a store's back: always right bytes or a miss, always counted, and VerifyDisk finds it.
#include <algorithm>
#include <random>

#include "base/crc32c.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tier/disk_store_testing.h"
#include "tier/segment.h"

namespace reprise {
namespace {

using disk_testing::FileBytes;
using disk_testing::kDirectory;
using disk_testing::Namespace;
using disk_testing::OpenedStore;
using disk_testing::OpenStore;
using disk_testing::PathOf;
using disk_testing::Prompt;
using disk_testing::PutFile;
using disk_testing::Readable;
using disk_testing::ReadPiece;
using disk_testing::SmallOptions;
using disk_testing::TenantDigest;
using disk_testing::WritePrompt;
using ::testing::HasSubstr;

class DiskStoreDamageTest : public ::testing::Test {
 protected:
  // Two segments, closed: damage is done to the first, so that it cannot be a torn end.
  void SetUp() override {
    for (const Prompt* prompt : {&first_, &second_}) ASSERT_TRUE(WritePrompt(*Open(files_), *prompt).ok());
    path_ = PathOf(SegmentName(1));
    bytes_ = FileBytes(files_, path_);
  }
  OpenedStore Open(MemoryFileSystem& files) {
    absl::StatusOr<OpenedStore> opened = OpenStore(SmallOptions(files));
    CHECK(opened.ok());
    return *std::move(opened);
  }
  size_t Problems(FileSystem& files) {
    const absl::StatusOr<DiskReport> report = VerifyDisk(files, kDirectory, nullptr);
    CHECK(report.ok());
    return report->problems.size();
  }
  // Of the first prompt, read until nothing changes; the second one is always all there.
  struct Seen {
    size_t hits = 0;
    uint64_t counted = 0;
  };
  Seen Look(MemoryFileSystem& files) {
    OpenedStore store = Open(files);
    Seen seen;
    seen.hits = Readable(*store, first_);
    EXPECT_EQ(Readable(*store, first_), seen.hits);  // what was found damaged is forgotten
    EXPECT_EQ(Readable(*store, second_), second_.pieces() * 2);
    seen.counted = store->usage().damaged + store.opened.foreign_records;
    store->CheckIntegrity();
    return seen;
  }
  const Prompt first_{Namespace(1), {1, 2, 3, 4, 5, 6, 7, 8, 9}}, second_{Namespace(1), {11, 12, 13, 14}};
  const size_t all_ = first_.pieces() * 2;
  MemoryFileSystem files_;
  std::string path_;
  std::vector<std::byte> bytes_;
};

TEST_F(DiskStoreDamageTest, WithoutDamageEverythingIsThere) {
  EXPECT_EQ(Problems(files_), 0u);
  const Seen seen = Look(files_);
  EXPECT_EQ(seen.hits, all_);
  EXPECT_EQ(seen.counted, 0u);
}

TEST_F(DiskStoreDamageTest, EveryFlippedByteIsFoundAndCountedAndNeverGiven) {
  size_t lost = 0;
  for (size_t i = 0; i < bytes_.size(); ++i) {
    SCOPED_TRACE(i);
    const std::unique_ptr<MemoryFileSystem> files = files_.AfterKill();
    std::vector<std::byte> changed = bytes_;
    changed[i] ^= std::byte{static_cast<uint8_t>(1u << (i % 8))};
    PutFile(*files, path_, changed);
    EXPECT_GT(Problems(*files), 0u);
    const Seen seen = Look(*files);
    EXPECT_GT(seen.counted, 0u);
    lost += seen.hits < all_;
  }
  // Control: most bytes belong to records, and cost a hit.
  EXPECT_GT(lost, bytes_.size() / 2);
}

TEST_F(DiskStoreDamageTest, EveryTruncationIsFoundAndOnlyWholeRecordsAreGiven) {
  size_t partly = 0;
  for (size_t length = 0; length < bytes_.size(); ++length) {
    SCOPED_TRACE(length);
    const std::unique_ptr<MemoryFileSystem> files = files_.AfterKill();
    PutFile(*files, path_, std::span(bytes_).first(length));
    EXPECT_GT(Problems(*files), 0u);
    const Seen seen = Look(*files);
    partly += seen.hits > 0 && seen.hits < all_;
  }
  EXPECT_GT(partly, 0u);
}

TEST_F(DiskStoreDamageTest, DamageWhileItRunsIsAMissAndForgotten) {
  OpenedStore store = Open(files_);
  std::vector<std::byte> changed = bytes_;
  for (std::byte& byte : changed) byte ^= std::byte{0x40};
  PutFile(files_, path_, changed);
  std::vector<uint32_t> groups(first_.blocks());
  store->Contains(first_.name_space.id, first_.keys, groups);
  EXPECT_EQ(groups[0], 3u);
  EXPECT_EQ(ReadPiece(*store, first_, 0, GroupId(0)), TierOutcome::kDamaged);
  EXPECT_EQ(ReadPiece(*store, first_, 0, GroupId(0)), TierOutcome::kMissing);
  EXPECT_EQ(Readable(*store, first_), 0u);
  EXPECT_EQ(store->usage().damaged, all_);
  store->Contains(first_.name_space.id, first_.keys, groups);
  EXPECT_EQ(groups[0], 0u);
  // Written again it is there again.
  ASSERT_TRUE(WritePrompt(*store, first_).ok());
  EXPECT_EQ(Readable(*store, first_), all_);
}

TEST_F(DiskStoreDamageTest, SwappedAndCopiedSegmentsAreNotRead) {
  {
    const std::unique_ptr<MemoryFileSystem> files = files_.AfterKill();
    PutFile(*files, PathOf(SegmentName(1)), FileBytes(files_, PathOf(SegmentName(2))));
    PutFile(*files, PathOf(SegmentName(2)), bytes_);
    EXPECT_EQ(Problems(*files), 2u);
    OpenedStore store = Open(*files);
    EXPECT_EQ(store.opened.damaged_records, 2u);
    EXPECT_EQ(Readable(*store, first_) + Readable(*store, second_), 0u);
  }
  const std::unique_ptr<MemoryFileSystem> files = files_.AfterKill();
  PutFile(*files, PathOf(SegmentName(3)), bytes_);
  EXPECT_EQ(Problems(*files), 1u);
  EXPECT_EQ(Look(*files).hits, all_);
}

// Swapped while a store has them in its index: the places are right, what is there is another record.
TEST_F(DiskStoreDamageTest, ARecordUnderAnotherOnesPlaceIsNotGiven) {
  MemoryFileSystem files;
  const Prompt mine(Namespace(1), {1, 2, 3, 4}), theirs(Namespace(2), {1, 2, 3, 4});
  ASSERT_TRUE(WritePrompt(*Open(files), theirs).ok());
  const std::vector<std::byte> planted = FileBytes(files, PathOf(SegmentName(1)));
  ASSERT_TRUE(files.Remove(PathOf(SegmentName(1))).ok());
  ASSERT_TRUE(WritePrompt(*Open(files), mine).ok());
  OpenedStore store = Open(files);
  ASSERT_EQ(Readable(*store, mine), 2u);  // control
  PutFile(files, PathOf(SegmentName(1)), planted);
  EXPECT_EQ(ReadPiece(*store, mine, 0, GroupId(0)), TierOutcome::kDamaged);
  EXPECT_EQ(ReadPiece(*store, mine, 0, GroupId(1)), TierOutcome::kDamaged);
  EXPECT_EQ(store->usage().damaged, 2u);
}

// The same parent, key and tokens, and the same place: only one word of the record is another one.
TEST_F(DiskStoreDamageTest, ARecordOfAnotherNamespaceOrShapeUnderTheSameKeyIsNotGiven) {
  for (const bool shape : {false, true}) {
    MemoryFileSystem files;
    const Prompt mine(Namespace(1), {1, 2, 3, 4, 5, 6, 7, 8});
    Prompt theirs = mine;
    DiskStoreOptions options = SmallOptions(files);
    if (shape) {
      options.geometry.groups[0].key_dim = 2;
      options.geometry.groups[0].value_dim = 6;
    } else {
      theirs.name_space = Namespace(2);
    }
    {
      absl::StatusOr<OpenedStore> opened = OpenStore(options);
      ASSERT_TRUE(opened.ok());
      ASSERT_TRUE(WritePrompt(**opened, theirs, GroupId(0), 1, 2).ok());
    }
    const std::vector<std::byte> planted = FileBytes(files, PathOf(SegmentName(1)));
    ASSERT_TRUE(files.Remove(PathOf(SegmentName(1))).ok());
    ASSERT_TRUE(WritePrompt(*Open(files), mine, GroupId(0), 1, 2).ok());
    ASSERT_EQ(planted.size(), FileBytes(files, PathOf(SegmentName(1))).size());
    OpenedStore store = Open(files);
    ASSERT_EQ(ReadPiece(*store, mine, 1, GroupId(0)), TierOutcome::kOk);  // control
    PutFile(files, PathOf(SegmentName(1)), planted);
    std::vector<std::byte> out(64);
    EXPECT_EQ(store->Read(mine.ReadOf(1, GroupId(0)), out), TierOutcome::kDamaged);
    EXPECT_EQ(store->usage().damaged, 1u);
  }
}

TEST_F(DiskStoreDamageTest, RecordsOfAnotherGeometryAreCountedAndNotGiven) {
  DiskStoreOptions options = SmallOptions(files_);
  options.geometry.groups[0].kv_heads = 2;
  {
    absl::StatusOr<OpenedStore> opened = OpenStore(options);
    ASSERT_TRUE(opened.ok());
    EXPECT_EQ(opened->opened.foreign_records, 3u);  // of the first group: two of the first prompt, one of the second
    EXPECT_EQ(ReadPiece(**opened, first_, 0, GroupId(0)), TierOutcome::kMissing);
    EXPECT_EQ(ReadPiece(**opened, first_, 0, GroupId(1)), TierOutcome::kOk);
    EXPECT_EQ((*opened)->usage().bytes_live, 4u * 64);
  }
  EXPECT_EQ(Look(files_).hits, all_);  // control: they were not touched
}

TEST_F(DiskStoreDamageTest, RecordsOfAnotherVersionOrByteOrderEndASegmentAndAreKept) {
  // An open segment whose second record is from another program.
  const size_t second = 64 + DecodeRecordHeader(std::span(bytes_).subspan(64))->record_bytes;
  for (const bool other_order : {false, true}) {
    std::vector<std::byte> changed(bytes_.begin(), bytes_.end() - 1);  // and without its footer
    const std::span<std::byte> record = std::span(changed).subspan(second);
    if (other_order) {
      std::reverse(record.begin() + 8, record.begin() + 12);
    } else {
      record[12] = std::byte{9};
    }
    const uint32_t crc = Crc32c(record.first(60));
    const uint32_t kept = other_order ? __builtin_bswap32(crc) : crc;
    std::memcpy(record.data() + 60, &kept, sizeof(kept));
    const std::unique_ptr<MemoryFileSystem> files = files_.AfterKill();
    PutFile(*files, path_, changed);
    EXPECT_GT(Problems(*files), 0u);
    const Seen seen = Look(*files);
    EXPECT_EQ(seen.hits, 2u);
    EXPECT_EQ(seen.counted, 1u);
    EXPECT_EQ(FileBytes(*files, path_), changed);
  }
}

TEST_F(DiskStoreDamageTest, ADamagedListOfPurgesServesNothingOlder) {
  {
    OpenedStore store = Open(files_);
    ASSERT_TRUE(WritePrompt(*store, Prompt(Namespace(2), {1, 2, 3, 4})).ok());
    ASSERT_TRUE(store->Erase(TenantDigest(2)).ok());
  }
  std::vector<std::byte> erased = FileBytes(files_, PathOf("erased"));
  erased[40] ^= std::byte{1};
  PutFile(files_, PathOf("erased"), erased);
  EXPECT_EQ(Problems(files_), 1u);
  for (int i = 0; i < 2; ++i) {
    OpenedStore store = Open(files_);
    EXPECT_EQ(store.opened.damaged_records, i == 0 ? 1u : 0u);
    EXPECT_EQ(Readable(*store, first_) + Readable(*store, second_), 0u);
  }
  // What is written from then on counts.
  ASSERT_TRUE(WritePrompt(*Open(files_), first_).ok());
  EXPECT_EQ(Readable(*Open(files_), first_), all_);
}

}  // namespace
}  // namespace reprise
