#include "env/memory_file_system.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <thread>

#include "env/faulty_file_system.h"

namespace reprise {
namespace {

using ::testing::ElementsAre;
using Mode = FileSystem::Mode;

absl::Status Write(File& file, uint64_t offset, std::string_view text) {
  const std::span<const std::byte> pieces[] = {std::as_bytes(std::span(text.data(), text.size()))};
  return file.WriteAt(offset, pieces);
}

std::string Contents(FileSystem& files, const std::string& path) {
  auto file = files.Open(path, Mode::kRead);
  if (!file.ok()) return "-";
  std::string out(*(*file)->Size(), '?');
  auto got = (*file)->ReadAt(0, std::as_writable_bytes(std::span(out.data(), out.size())));
  return got.ok() ? out.substr(0, *got) : "error";
}

// Of 200 power cuts: how often the file held what.
std::map<std::string, int> Cuts(const MemoryFileSystem& files, const std::string& path) {
  std::map<std::string, int> out;
  for (uint64_t seed = 0; seed < 200; ++seed) ++out[Contents(*files.AfterPowerCut(seed), path)];
  return out;
}

TEST(PowerCut, KeepsWhatWasSyncedAndOnlyThat) {
  MemoryFileSystem files;
  auto file = *files.Open("a", Mode::kCreate);
  ASSERT_TRUE(Write(*file, 0, "old").ok());
  ASSERT_TRUE(file->Sync().ok());
  EXPECT_EQ(Cuts(files, "a").size(), 2u);  // its name was not: there or not
  ASSERT_TRUE(files.SyncDirectory(".").ok());
  EXPECT_THAT(Cuts(files, "a"), ElementsAre(std::pair("old", 200)));
  ASSERT_TRUE(Write(*file, 0, "new").ok());
  const auto either = Cuts(files, "a");
  EXPECT_EQ(either.size(), 2u);
  EXPECT_GT(either.at("old"), 40);
  EXPECT_GT(either.at("new"), 40);
  EXPECT_EQ(Contents(files, "a"), "new");  // the cut was somewhere else
}

TEST(PowerCut, TearsAWriteAtSectors) {
  MemoryFileSystem files;
  auto file = *files.Open("a", Mode::kCreate);
  constexpr size_t kSectors = 40;
  ASSERT_TRUE(Write(*file, 0, std::string(kSectors * 512, 'o')).ok());
  ASSERT_TRUE(file->Sync().ok());
  ASSERT_TRUE(files.SyncDirectory(".").ok());
  ASSERT_TRUE(Write(*file, 0, std::string(kSectors * 512, 'n')).ok());
  int torn = 0, none = 0, all = 0;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const std::string contents = Contents(*files.AfterPowerCut(seed), "a");
    ASSERT_EQ(contents.size(), kSectors * 512);
    size_t kept = 0;
    for (size_t at = 0; at < contents.size(); at += 512) {
      ASSERT_EQ(contents.substr(at, 512), std::string(512, contents[at]));
      kept += contents[at] == 'n';
    }
    ++(kept == 0 ? none : kept == kSectors ? all : torn);
  }
  EXPECT_GT(torn, 60);
  EXPECT_GT(none, 10);
  EXPECT_GT(all, 10);
}

TEST(PowerCut, AnAppendedEndIsAnyLengthAndZerosWhereNothingArrived) {
  MemoryFileSystem files;
  auto file = *files.Open("a", Mode::kCreate);
  ASSERT_TRUE(Write(*file, 0, std::string(700, 's')).ok());
  ASSERT_TRUE(file->Sync().ok());
  ASSERT_TRUE(files.SyncDirectory(".").ok());
  ASSERT_TRUE(Write(*file, 700, std::string(9000, 'u')).ok());
  std::set<size_t> sizes;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const std::string contents = Contents(*files.AfterPowerCut(seed), "a");
    sizes.insert(contents.size());
    ASSERT_GE(contents.size(), 700u);
    ASSERT_LE(contents.size(), 9700u);
    ASSERT_EQ(contents.substr(0, 700), std::string(700, 's')) << seed;
    for (char c : contents.substr(700)) ASSERT_TRUE(c == 'u' || c == 0);
  }
  EXPECT_GT(sizes.size(), 10u);
}

TEST(PowerCut, ARenameIsBeforeOrAfterAndNothingBetween) {
  MemoryFileSystem files;
  for (const char* name : {"a", "b"}) {
    auto file = *files.Open(name, Mode::kCreate);
    ASSERT_TRUE(Write(*file, 0, name).ok());
    ASSERT_TRUE(file->Sync().ok());
  }
  ASSERT_TRUE(files.SyncDirectory(".").ok());
  ASSERT_TRUE(files.Rename("a", "b").ok());
  std::set<std::string> seen;
  for (uint64_t seed = 0; seed < 100; ++seed) {
    auto after = files.AfterPowerCut(seed);
    seen.insert(Contents(*after, "a") + Contents(*after, "b"));
  }
  EXPECT_THAT(seen, ElementsAre("-a", "ab"));
  ASSERT_TRUE(files.SyncDirectory(".").ok());
  EXPECT_THAT(Cuts(files, "a"), ElementsAre(std::pair("-", 200)));
}

TEST(PowerCut, ARemovedFileMayComeBackUntilTheDirectoryIsSynced) {
  MemoryFileSystem files;
  auto file = *files.Open("a", Mode::kCreate);
  ASSERT_TRUE(files.SyncDirectory(".").ok());
  ASSERT_TRUE(files.Remove("a").ok());
  EXPECT_EQ(Cuts(files, "a").size(), 2u);
  ASSERT_TRUE(files.SyncDirectory(".").ok());
  EXPECT_THAT(Cuts(files, "a"), ElementsAre(std::pair("-", 200)));
}

TEST(PowerCut, CanBeTakenBeforeEveryChange) {
  MemoryFileSystem files;
  std::vector<std::string> kinds, held;
  files.SetHook([&](const MemoryFileSystem::Change& change) {
    EXPECT_EQ(change.number, kinds.size());
    kinds.emplace_back(change.kind);
    held.push_back(Contents(*files.AfterPowerCut(change.number), "a"));
  });
  auto file = *files.Open("a", Mode::kCreate);
  ASSERT_TRUE(files.SyncDirectory(".").ok());
  ASSERT_TRUE(Write(*file, 0, "x").ok());
  ASSERT_TRUE(file->Sync().ok());
  ASSERT_TRUE(file->Truncate(0).ok());
  EXPECT_THAT(kinds, ElementsAre("create", "sync_directory", "write", "sync", "truncate"));
  EXPECT_EQ(held[0], "-");
  EXPECT_EQ(held[2], "");
  EXPECT_EQ(held[4], "x");
  EXPECT_EQ(files.changes(), 5u);
}

TEST(Kill, KeepsEverythingThatWasWrittenAndLetsGoOfLocks) {
  MemoryFileSystem files;
  auto lock = *files.Lock("lock");
  auto file = *files.Open("a", Mode::kCreate);
  ASSERT_TRUE(Write(*file, 0, "text").ok());
  auto after = files.AfterKill();
  EXPECT_EQ(Contents(*after, "a"), "text");
  EXPECT_TRUE(after->Lock("lock").ok());
  ASSERT_TRUE(Write(*file, 0, "TEXT").ok());
  EXPECT_EQ(Contents(*after, "a"), "text");
  EXPECT_GT(Cuts(*after, "a").size(), 3u);  // and it is still not synced: no name, another size, zeros, text
}

TEST(Capacity, IsOfPagesThatHoldSomething) {
  MemoryFileSystem files;
  files.SetCapacity(8 * 4096);
  auto a = *files.Open("a", Mode::kCreate), b = *files.Open("b", Mode::kCreate);
  ASSERT_TRUE(Write(*a, 0, std::string(5 * 4096, 'x')).ok());
  EXPECT_EQ(*files.FreeBytes("a"), 3u * 4096);
  EXPECT_TRUE(absl::IsResourceExhausted(Write(*b, 0, std::string(4 * 4096, 'y'))));
  EXPECT_EQ(*b->Size(), 3u * 4096);  // a part was written
  EXPECT_EQ(*files.FreeBytes("a"), 0u);
  ASSERT_TRUE(a->PunchHole(0, 2 * 4096).ok());
  EXPECT_EQ(*files.FreeBytes("a"), 2u * 4096);
  ASSERT_TRUE(files.Remove("b").ok());
  EXPECT_EQ(*files.FreeBytes("a"), 5u * 4096);
  EXPECT_TRUE(Write(*b, 3 * 4096, std::string(4096, 'y')).ok());  // nobody's any more
  EXPECT_EQ(*files.FreeBytes("a"), 5u * 4096);
  ASSERT_TRUE(a->Truncate(0).ok());
  EXPECT_EQ(*files.FreeBytes("a"), 8u * 4096);
}

class FaultsTest : public testing::Test {
 protected:
  MemoryFileSystem memory_;
  FaultyFileSystem files_{memory_};
  std::unique_ptr<File> file_ = *files_.Open("a", Mode::kCreate);
};

TEST_F(FaultsTest, AFullDiskTakesWhatFitsAndIsFullAfterwards) {
  files_.Set({.room_bytes = 10});
  EXPECT_TRUE(Write(*file_, 0, "0123456").ok());
  EXPECT_EQ(*files_.FreeBytes("a"), 3u);
  EXPECT_TRUE(absl::IsResourceExhausted(Write(*file_, 7, "789abc")));
  EXPECT_EQ(Contents(files_, "a"), "0123456789");
  EXPECT_TRUE(absl::IsResourceExhausted(files_.Open("b", Mode::kCreate).status()));
  EXPECT_TRUE(files_.Open("a", Mode::kReadWrite).ok());
  files_.Set({});
  EXPECT_TRUE(Write(*file_, 10, "abc").ok());
}

TEST_F(FaultsTest, TheNthOperationFailsAndTheNextDoesNot) {
  files_.Set({.fail_at = 2});
  EXPECT_TRUE(Write(*file_, 0, "one").ok());
  EXPECT_TRUE(file_->Sync().ok());
  EXPECT_TRUE(absl::IsUnavailable(file_->Sync()));
  EXPECT_TRUE(file_->Sync().ok());
  EXPECT_EQ(files_.injected(), 1u);
}

TEST_F(FaultsTest, FailuresAtRandomComeAsOftenAsAsked) {
  files_.Set({.fail_share = 0.25, .seed = 3});
  int failed = 0;
  for (int i = 0; i < 1000; ++i) failed += !file_->Sync().ok();
  EXPECT_NEAR(failed, 250, 60);
}

TEST_F(FaultsTest, AReadOnlyDiskCanBeRead) {
  ASSERT_TRUE(Write(*file_, 0, "text").ok());
  files_.Set({.read_only = true});
  EXPECT_EQ(Contents(files_, "a"), "text");
  EXPECT_TRUE(absl::IsPermissionDenied(Write(*file_, 0, "x")));
  EXPECT_TRUE(absl::IsPermissionDenied(files_.Remove("a")));
  EXPECT_TRUE(absl::IsPermissionDenied(files_.Open("a", Mode::kReadWrite).status()));
  EXPECT_TRUE(absl::IsPermissionDenied(files_.Lock("lock").status()));
}

TEST_F(FaultsTest, ADeletedDirectoryHasNoNamesButOpenFilesGoOn) {
  files_.Set({.deleted = true});
  EXPECT_TRUE(absl::IsNotFound(files_.ListFiles(".").status()));
  EXPECT_TRUE(absl::IsNotFound(files_.Open("b", Mode::kCreate).status()));
  EXPECT_TRUE(Write(*file_, 0, "x").ok());
}

TEST_F(FaultsTest, BitsFlipOnReadsAndTheFileStaysAsItIs) {
  const std::string text(1000, 'x');
  ASSERT_TRUE(Write(*file_, 0, text).ok());
  files_.Set({.flip_share = 1});
  const std::string read = Contents(files_, "a");
  int bits = 0;
  for (size_t i = 0; i < text.size(); ++i) bits += std::popcount(static_cast<uint8_t>(read[i] ^ text[i]));
  EXPECT_EQ(bits, 1);
  EXPECT_EQ(Contents(memory_, "a"), text);
}

TEST_F(FaultsTest, ShortReadsLookLikeTheEndOfTheFile) {
  ASSERT_TRUE(Write(*file_, 0, std::string(1000, 'x')).ok());
  files_.Set({.short_share = 1});
  EXPECT_LT(Contents(files_, "a").size(), 1000u);
}

TEST_F(FaultsTest, EveryOperationIsSlowAndSwitchingIsSafe) {
  files_.Set({.delay = std::chrono::milliseconds(30)});
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_TRUE(file_->Sync().ok());
  EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(30));
  std::thread switcher([&] {
    for (int i = 0; i < 200; ++i) files_.Set({.fail_share = i % 2 ? 1.0 : 0.0});
    files_.Set({});
  });
  for (int i = 0; i < 200; ++i) file_->Sync().IgnoreError();
  switcher.join();
  EXPECT_TRUE(file_->Sync().ok());
}

}  // namespace
}  // namespace reprise
