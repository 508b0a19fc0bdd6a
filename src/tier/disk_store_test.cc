#include "tier/disk_store.h"

#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <thread>

#include "env/faulty_file_system.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tier/disk_store_testing.h"
#include "tier/segment.h"

namespace reprise {
namespace {

using disk_testing::DirectoryBytes;
using disk_testing::kDirectory;
using disk_testing::Namespace;
using disk_testing::OpenedStore;
using disk_testing::OpenStore;
using disk_testing::PathOf;
using disk_testing::Prompt;
using disk_testing::Readable;
using disk_testing::ReadPiece;
using disk_testing::SmallOptions;
using disk_testing::TenantDigest;
using disk_testing::WritePrompt;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const GroupId kFull(0), kWindow(1);

std::vector<int> Ids(int first, int count) {
  std::vector<int> ids;
  for (int i = 0; i < count; ++i) ids.push_back(first + i);
  return ids;
}

class DiskStoreTest : public ::testing::Test {
 protected:
  OpenedStore Open() {
    absl::StatusOr<OpenedStore> opened = OpenStore(options_);
    CHECK(opened.ok());
    return *std::move(opened);
  }
  void UseRealFiles() {
    options_.files = nullptr;
    options_.directory = ::testing::TempDir() + "disk_store_test_" + std::to_string(getpid());
    std::filesystem::remove_all(options_.directory);
  }
  MemoryFileSystem files_;
  DiskStoreOptions options_ = SmallOptions(files_);
};

TEST_F(DiskStoreTest, WhatIsWrittenIsReadBackAndNothingElse) {
  OpenedStore store = Open();
  const Prompt prompt(Namespace(1), Ids(100, 10)), other(Namespace(2), Ids(100, 10));
  ASSERT_TRUE(WritePrompt(*store, prompt).ok());
  EXPECT_EQ(Readable(*store, prompt), 6u);
  EXPECT_EQ(Readable(*store, other), 0u);
  Prompt changed = prompt;
  changed.tokens[1] = TokenId(7);  // the key of the right one, other tokens
  EXPECT_EQ(ReadPiece(*store, changed, 0, kFull), TierOutcome::kMissing);
  std::vector<uint32_t> groups(2);
  store->Contains(prompt.name_space.id, prompt.keys, groups);
  EXPECT_THAT(groups, ElementsAre(3, 3));
  store->Contains(other.name_space.id, prompt.keys, groups);
  EXPECT_THAT(groups, ElementsAre(0, 0));
  const TierUsage usage = store->usage();
  EXPECT_EQ(usage.blocks, 6u);
  EXPECT_EQ(usage.tails, 2u);
  EXPECT_EQ(usage.records, 4u);
  EXPECT_EQ(usage.bytes, DirectoryBytes(files_));
}

TEST_F(DiskStoreTest, EverythingIsFoundAgainWhetherItWasClosedOrKilled) {
  const Prompt prompt(Namespace(1), Ids(100, 11));
  std::unique_ptr<MemoryFileSystem> killed;
  {
    OpenedStore store = Open();
    ASSERT_TRUE(WritePrompt(*store, prompt).ok());
    killed = files_.AfterKill();
  }
  EXPECT_EQ(Readable(*Open(), prompt), 6u);
  options_.files = killed.get();
  {
    OpenedStore store = Open();
    EXPECT_EQ(store.opened.cut_bytes, 0u);
    EXPECT_EQ(Readable(*store, prompt), 6u);
  }
  EXPECT_EQ(Readable(*Open(), prompt), 6u);
}

TEST_F(DiskStoreTest, PiecesThatAreThereAreNotWrittenTwice) {
  OpenedStore store = Open();
  const Prompt prompt(Namespace(1), Ids(100, 16));
  ASSERT_TRUE(WritePrompt(*store, prompt, kFull, 1, 2).ok());
  const uint64_t before = store->usage().bytes_live;
  ASSERT_TRUE(WritePrompt(*store, prompt, kFull, 0, 4).ok());
  EXPECT_EQ(store->usage().bytes_live, before + 3 * 64);
  EXPECT_EQ(store->usage().records, 3u);  // before and after the one that was there
  ASSERT_TRUE(WritePrompt(*store, prompt, kFull, 0, 4).ok());
  EXPECT_EQ(store->usage().records, 3u);
  EXPECT_EQ(ReadPiece(*store, prompt, 3, kFull), TierOutcome::kOk);
}

TEST_F(DiskStoreTest, FindsTheLongestRunOfBlocksAndTails) {
  OpenedStore store = Open();
  const NamespaceDigests ns = Namespace(1);
  ASSERT_TRUE(WritePrompt(*store, Prompt(ns, {1, 2, 3, 4})).ok());
  ASSERT_TRUE(WritePrompt(*store, Prompt(ns, {1, 2, 9})).ok());
  ASSERT_TRUE(WritePrompt(*store, Prompt(ns, {1, 2})).ok());
  const auto find = [&](std::vector<int> ids, bool whole) {
    const Prompt wanted(ns, ids);
    return store->FindRun(ns.id, ns.id.digest, wanted.tokens, 3, whole);
  };
  EXPECT_EQ(find({1, 2, 3, 7}, false)->run, 3u);
  EXPECT_TRUE(find({1, 2, 3, 7}, false)->key.has_value());
  EXPECT_EQ(find({1, 2, 9, 7}, false)->run, 3u);
  EXPECT_FALSE(find({1, 2, 9, 7}, false)->key.has_value());
  EXPECT_EQ(find({1, 2, 3, 7}, true)->run, 2u);
  EXPECT_EQ(find({1, 2, 9, 7}, true)->tokens.size(), 3u);
  EXPECT_FALSE(find({2, 2, 9, 7}, false).has_value());
  EXPECT_FALSE(find({1, 7}, true).has_value());
  EXPECT_THAT(store->NamespacesWith(Prompt(ns, {1, 2, 9}).tokens), ElementsAre(ns));
  EXPECT_THAT(store->NamespacesWith(Prompt(ns, {1, 3}).tokens), ElementsAre());
}

TEST_F(DiskStoreTest, TheCapIsNeverPassedAndWhatIsUsedStays) {
  options_.bytes_max = 512 << 10;
  options_.segment_bytes = 32 << 10;
  OpenedStore store = Open();
  const Prompt hot(Namespace(1), Ids(5000, 16));
  ASSERT_TRUE(WritePrompt(*store, hot).ok());
  size_t cold_left = 0;
  for (int i = 0; i < 2000; ++i) {
    ASSERT_TRUE(WritePrompt(*store, Prompt(Namespace(1), Ids(10000 + i * 8, 8))).ok()) << i;
    ASSERT_LE(DirectoryBytes(files_), options_.bytes_max) << i;
    ASSERT_EQ(store->usage().bytes, DirectoryBytes(files_));
    if (i % 10 == 0) {
      EXPECT_EQ(Readable(*store, hot), 8u) << i;
    }
  }
  store->CheckIntegrity();
  EXPECT_GT(store->usage().evicted_blocks, 1000u);
  for (int i = 0; i < 2000; ++i) cold_left += Readable(*store, Prompt(Namespace(1), Ids(10000 + i * 8, 8))) > 0;
  EXPECT_GT(cold_left, 20u);
  EXPECT_LT(cold_left, 1000u);
}

TEST_F(DiskStoreTest, ErasedStaysErasedAndOthersStay) {
  const Prompt mine(Namespace(1), Ids(100, 10)), salted(Namespace(1, 7), Ids(300, 10)),
      theirs(Namespace(2), Ids(100, 10));
  {
    OpenedStore store = Open();
    for (const Prompt* prompt : {&mine, &salted, &theirs}) ASSERT_TRUE(WritePrompt(*store, *prompt).ok());
    const absl::StatusOr<TierErased> erased = store->Erase(TenantDigest(1));
    ASSERT_TRUE(erased.ok());
    EXPECT_EQ(erased->blocks, 12u);
    EXPECT_EQ(Readable(*store, mine) + Readable(*store, salted), 0u);
    EXPECT_EQ(Readable(*store, theirs), 6u);
    // Before the bytes are given back.
    options_.files = nullptr;
    const std::unique_ptr<MemoryFileSystem> killed = files_.AfterKill();
    options_.files = killed.get();
    OpenedStore after = Open();
    EXPECT_EQ(Readable(*after, mine) + Readable(*after, salted), 0u);
    EXPECT_EQ(Readable(*after, theirs), 6u);
    after.Close();
    options_.files = &files_;
    // What is stored afterwards counts.
    ASSERT_TRUE(WritePrompt(*store, mine).ok());
    EXPECT_EQ(Readable(*store, mine), 6u);
    while (store->Maintain()) {
    }
    EXPECT_EQ(Readable(*store, mine), 6u);
    EXPECT_EQ(Readable(*store, theirs), 6u);
    store->CheckIntegrity();
  }
  OpenedStore store = Open();
  EXPECT_EQ(Readable(*store, mine), 6u);
  EXPECT_EQ(Readable(*store, salted), 0u);
  EXPECT_EQ(Readable(*store, theirs), 6u);
}

TEST_F(DiskStoreTest, ErasedBytesLeaveTheDiskAndTheListOfPurgesEmpties) {
  OpenedStore store = Open();
  const Prompt mine(Namespace(1), Ids(100, 10)), theirs(Namespace(2), Ids(100, 10));
  ASSERT_TRUE(WritePrompt(*store, mine).ok());
  ASSERT_TRUE(WritePrompt(*store, theirs).ok());
  ASSERT_TRUE(store->Erase(TenantDigest(1)).ok());
  while (store->Maintain()) {
  }
  ASSERT_TRUE(store->Flush().ok());
  const Digest tenant = TenantDigest(1);
  const auto digest = std::as_bytes(std::span(tenant.bytes));
  for (const std::string& name : disk_testing::Names(files_)) {
    const std::vector<std::byte> bytes = disk_testing::FileBytes(files_, PathOf(name));
    EXPECT_EQ(std::search(bytes.begin(), bytes.end(), digest.begin(), digest.end()), bytes.end()) << name;
  }
  EXPECT_EQ(files_.Open(PathOf("erased"), FileSystem::Mode::kRead).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Readable(*store, theirs), 6u);
}

TEST_F(DiskStoreTest, ASecondProcessReadsWhatTheFirstWroteAndChangesNothing) {
  OpenedStore first = Open();
  const Prompt prompt(Namespace(1), Ids(100, 10));
  ASSERT_TRUE(WritePrompt(*first, prompt).ok());
  const uint64_t changes = files_.changes();
  OpenedStore second = Open();
  EXPECT_TRUE(second.opened.read_only);
  EXPECT_FALSE(second->writable());
  EXPECT_EQ(Readable(*second, prompt), 6u);
  EXPECT_FALSE(WritePrompt(*second, prompt).ok());
  EXPECT_FALSE(second->Erase(TenantDigest(1)).ok());
  EXPECT_FALSE(second->Maintain());
  second.Close();
  EXPECT_EQ(files_.changes(), changes);
  // Control: when the first one is gone the next one writes.
  first.Close();
  OpenedStore third = Open();
  EXPECT_FALSE(third.opened.read_only);
  EXPECT_TRUE(WritePrompt(*third, Prompt(Namespace(1), Ids(500, 10))).ok());
}

TEST_F(DiskStoreTest, SegmentsThatVanishAreMissesForTheSecondProcess) {
  OpenedStore first = Open();
  const Prompt prompt(Namespace(1), Ids(100, 10));
  ASSERT_TRUE(WritePrompt(*first, prompt).ok());
  OpenedStore second = Open();
  ASSERT_TRUE(first->Erase(TenantDigest(1)).ok());
  EXPECT_EQ(Readable(*second, prompt), 0u);
  EXPECT_EQ(second->usage().damaged, 0u);
}

TEST_F(DiskStoreTest, ALaterVersionOfTheDirectoryIsRefusedAndLeftAlone) {
  Open();
  const std::string text = "reprise disk tier, version 2\n";
  disk_testing::PutFile(files_, PathOf("version"), std::as_bytes(std::span(text)));
  const absl::Status status = OpenStore(options_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("later version"));
}

TEST_F(DiskStoreTest, ALaterVersionOfASegmentIsLeftAlone) {
  const Prompt prompt(Namespace(1), Ids(100, 10));
  ASSERT_TRUE(WritePrompt(*Open(), prompt).ok());
  const std::string path = PathOf(SegmentName(1));
  std::vector<std::byte> bytes = disk_testing::FileBytes(files_, path);
  bytes[12] = std::byte{2};
  disk_testing::PutFile(files_, path, bytes);
  options_.bytes_max = 64 << 10;
  options_.segment_bytes = 4 << 10;
  OpenedStore store = Open();
  EXPECT_EQ(store.opened.foreign_records, 1u);
  EXPECT_EQ(Readable(*store, prompt), 0u);
  for (int i = 0; i < 300; ++i) ASSERT_TRUE(WritePrompt(*store, Prompt(Namespace(1), Ids(1000 + i * 8, 8))).ok());
  ASSERT_TRUE(store->Erase(TenantDigest(1)).ok());
  while (store->Maintain()) {
  }
  EXPECT_EQ(disk_testing::FileBytes(files_, path), bytes);
}

TEST_F(DiskStoreTest, AFullDiskLowersTheCapAndWritingGoesOn) {
  FaultyFileSystem faulty(files_);
  options_.files = &faulty;
  options_.segment_bytes = 8 << 10;
  OpenedStore store = Open();
  files_.SetCapacity(200 << 10);
  int last_ok = 0;
  for (int i = 0; i < 1000; ++i) {
    const Prompt prompt(Namespace(1), Ids(1000 + i * 8, 8));
    if (WritePrompt(*store, prompt).ok()) {
      last_ok = i;
      ASSERT_EQ(Readable(*store, prompt), 4u) << i;
    }
  }
  EXPECT_GT(last_ok, 990);
  EXPECT_LT(store->usage().bytes_max, 256u << 10);
  store->CheckIntegrity();
  EXPECT_EQ(store->usage().bytes, DirectoryBytes(files_));
}

TEST_F(DiskStoreTest, ADirectoryThatIsDeletedIsAMissAndIsMadeAgain) {
  OpenedStore store = Open();
  const Prompt prompt(Namespace(1), Ids(100, 10)), later(Namespace(1), Ids(200, 10));
  ASSERT_TRUE(WritePrompt(*store, prompt).ok());
  for (const std::string& name : disk_testing::Names(files_)) {
    ASSERT_TRUE(files_.Remove(PathOf(name)).ok());
  }
  EXPECT_EQ(ReadPiece(*store, prompt, 0, kFull), TierOutcome::kMissing);
  ASSERT_TRUE(WritePrompt(*store, later).ok());
  EXPECT_EQ(Readable(*store, later), 6u);
  EXPECT_EQ(Readable(*store, prompt), 0u);
  store->CheckIntegrity();
}

// On the real file system, whose locks go with their files.
TEST_F(DiskStoreTest, ADirectoryThatIsAnotherProcessesByNowIsLeftToIt) {
  UseRealFiles();
  OpenedStore store = Open();
  const Prompt prompt(Namespace(1), Ids(100, 10)), theirs(Namespace(2), Ids(100, 10));
  ASSERT_TRUE(WritePrompt(*store, prompt).ok());
  std::filesystem::remove_all(options_.directory);
  OpenedStore other = Open();
  ASSERT_TRUE(other->writable());
  ASSERT_TRUE(WritePrompt(*other, theirs).ok());
  ASSERT_TRUE(other->Flush().ok());
  EXPECT_EQ(Readable(*store, prompt), 0u);
  while (store->Maintain()) {
  }
  (void)WritePrompt(*store, prompt);
  EXPECT_EQ(Readable(*other, theirs), 6u);
  EXPECT_FALSE(WritePrompt(*store, prompt).ok());
  other.Close();
  EXPECT_EQ(Readable(*Open(), theirs), 6u);
  // When the other one is gone, it is ours again, with what is in it.
  EXPECT_TRUE(WritePrompt(*store, prompt).ok());
  EXPECT_EQ(Readable(*store, prompt), 6u);
  EXPECT_EQ(Readable(*store, theirs), 6u);
  store.Close();
  std::filesystem::remove_all(options_.directory);
}

// The real file system: what is in memory elsewhere.
TEST_F(DiskStoreTest, OnTheRealFileSystem) {
  UseRealFiles();
  options_.bytes_max = 256 << 10;
  options_.segment_bytes = 16 << 10;
  const Prompt prompt(Namespace(1), Ids(100, 10));
  {
    OpenedStore store = Open();
    for (int i = 0; i < 300; ++i) ASSERT_TRUE(WritePrompt(*store, Prompt(Namespace(1), Ids(1000 + i * 8, 8))).ok());
    ASSERT_TRUE(WritePrompt(*store, prompt).ok());
    ASSERT_TRUE(store->Flush().ok());
    OpenedStore second = Open();
    EXPECT_TRUE(second.opened.read_only);
    EXPECT_EQ(Readable(*second, prompt), 6u);
    uint64_t bytes = 0;
    for (const auto& entry : std::filesystem::directory_iterator(options_.directory)) {
      bytes += entry.file_size();
      EXPECT_EQ(entry.status().permissions() & std::filesystem::perms(077), std::filesystem::perms::none);
    }
    EXPECT_LE(bytes, options_.bytes_max);
    EXPECT_EQ(bytes, store->usage().bytes);
  }
  EXPECT_EQ(Readable(*Open(), prompt), 6u);
  const absl::StatusOr<DiskReport> report = VerifyDisk(RealFileSystem(), options_.directory, nullptr);
  ASSERT_TRUE(report.ok());
  EXPECT_TRUE(report->problems.empty());
  std::filesystem::remove_all(options_.directory);
  EXPECT_EQ(Readable(*Open(), prompt), 0u);  // and it can be made anew
  std::filesystem::remove_all(options_.directory);
}

TEST_F(DiskStoreTest, AReadOnlyFileSystemFailsTypedAndIsOpenedForReading) {
  FaultyFileSystem faulty(files_);
  options_.files = &faulty;
  const Prompt prompt(Namespace(1), Ids(100, 10)), later(Namespace(1), Ids(200, 10));
  {
    OpenedStore store = Open();
    ASSERT_TRUE(WritePrompt(*store, prompt).ok());
    faulty.Set({.read_only = true});
    EXPECT_EQ(WritePrompt(*store, later).code(), absl::StatusCode::kPermissionDenied);
    EXPECT_EQ(Readable(*store, prompt), 6u);
    EXPECT_EQ(Readable(*store, later), 0u);
    // A purge fails, and is kept all the same while the process lives.
    EXPECT_EQ(store->Erase(TenantDigest(1)).status().code(), absl::StatusCode::kPermissionDenied);
    EXPECT_EQ(Readable(*store, prompt), 0u);
  }
  OpenedStore store = Open();
  EXPECT_TRUE(store.opened.read_only);
  EXPECT_EQ(Readable(*store, prompt), 6u);
}

TEST_F(DiskStoreTest, NothingDependsOnTheClock) {
  const Prompt prompt(Namespace(1), Ids(100, 10));
  uint64_t now = 2'000'000'000;
  options_.now_s = [&] { return now += 1'000'000'007; };
  ASSERT_TRUE(WritePrompt(*Open(), prompt).ok());
  options_.now_s = [] { return uint64_t{5}; };
  const Prompt later(Namespace(1), Ids(300, 10));
  ASSERT_TRUE(WritePrompt(*Open(), later).ok());
  OpenedStore store = Open();
  EXPECT_EQ(Readable(*store, prompt), 6u);
  EXPECT_EQ(Readable(*store, later), 6u);
}

TEST_F(DiskStoreTest, AFullIndexGivesUpTheLeastUsed) {
  options_.blocks_max = 8;
  OpenedStore store = Open();
  const Prompt used(Namespace(1), Ids(100, 8));
  ASSERT_TRUE(WritePrompt(*store, used).ok());
  for (int i = 0; i < 20; ++i) {
    ASSERT_TRUE(WritePrompt(*store, Prompt(Namespace(1), Ids(1000 + i * 8, 8))).ok());
    EXPECT_EQ(Readable(*store, used), 4u);
  }
  EXPECT_EQ(store->usage().blocks, 16u);
  store->CheckIntegrity();
}

TEST_F(DiskStoreTest, ReadersBesideTheWriterSeeRightBytesOrMisses) {
  options_.bytes_max = 128 << 10;
  options_.segment_bytes = 8 << 10;
  OpenedStore store = Open();
  std::vector<Prompt> prompts;
  for (int i = 0; i < 64; ++i) prompts.emplace_back(Namespace(i % 3), Ids(100 * i, 8 + i % 4));
  std::atomic<bool> stop = false;
  std::atomic<size_t> hits = 0;
  std::vector<std::thread> readers;
  for (int t = 0; t < 3; ++t) {
    readers.emplace_back([&, t] {
      std::mt19937 random(t);
      while (!stop) hits += Readable(*store, prompts[random() % prompts.size()]);
    });
  }
  std::mt19937 random(7);
  for (int i = 0; i < 3000; ++i) {
    ASSERT_TRUE(WritePrompt(*store, prompts[random() % prompts.size()]).ok());
    if (i % 200 == 0) {
      ASSERT_TRUE(store->Erase(TenantDigest(random() % 3)).ok());
    }
    if (i % 10 == 0) store->Maintain();
  }
  stop = true;
  for (std::thread& reader : readers) reader.join();
  store->CheckIntegrity();
  EXPECT_GT(hits, 100u);
  EXPECT_EQ(store->usage().damaged, 0u);
}

TEST_F(DiskStoreTest, ListSaysWhoHasHowMuch) {
  OpenedStore store = Open();
  ASSERT_TRUE(WritePrompt(*store, Prompt(Namespace(1), Ids(100, 10))).ok());
  ASSERT_TRUE(WritePrompt(*store, Prompt(Namespace(2), Ids(100, 8))).ok());
  ASSERT_TRUE(WritePrompt(*store, Prompt(Namespace(3), Ids(100, 8))).ok());
  ASSERT_TRUE(store->Erase(TenantDigest(3)).ok());
  const absl::StatusOr<std::vector<DiskListing>> listings = ListDisk(files_, kDirectory);
  ASSERT_TRUE(listings.ok());
  ASSERT_EQ(listings->size(), 2u);
  for (const DiskListing& listing : *listings) {
    const bool first = listing.name_space == Namespace(1);
    EXPECT_EQ(listing.blocks, 4u);
    EXPECT_EQ(listing.tails, first ? 2u : 0u);
    EXPECT_EQ(listing.tokens, first ? 10u : 8u);
    EXPECT_EQ(listing.newest_s, 1700000000u);
  }
}

TEST_F(DiskStoreTest, PurgingAndCollectingWithoutAServer) {
  const Prompt mine(Namespace(1), Ids(100, 10)), theirs(Namespace(2), Ids(100, 10));
  OpenedStore store = Open();
  ASSERT_TRUE(WritePrompt(*store, mine).ok());
  ASSERT_TRUE(WritePrompt(*store, theirs).ok());
  EXPECT_EQ(EraseDisk(files_, kDirectory, TenantDigest(1)).status().code(), absl::StatusCode::kFailedPrecondition);
  store.Close();
  const absl::StatusOr<TierErased> erased = EraseDisk(files_, kDirectory, TenantDigest(1));
  ASSERT_TRUE(erased.ok());
  EXPECT_EQ(erased->blocks, 6u);
  EXPECT_GT(erased->bytes, 6u * 64);
  const absl::StatusOr<DiskReport> report = VerifyDisk(files_, kDirectory, nullptr);
  ASSERT_TRUE(report.ok());
  EXPECT_TRUE(report->problems.empty());
  EXPECT_EQ(report->blocks, 4u);
  EXPECT_EQ(report->tails, 2u);
  store = Open();
  EXPECT_EQ(Readable(*store, mine), 0u);
  EXPECT_EQ(Readable(*store, theirs), 6u);
  store.Close();
  const absl::StatusOr<TierErased> collected = CollectDisk(files_, kDirectory, 1 << 10);
  ASSERT_TRUE(collected.ok());
  EXPECT_EQ(collected->blocks, 6u);
  EXPECT_LE(DirectoryBytes(files_), 1u << 10);
  EXPECT_EQ(Readable(*Open(), theirs), 0u);
  EXPECT_EQ(CollectDisk(files_, "/nowhere", 1).status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace reprise
