// One suite over every file system: what a tier relies on.
#include "env/file_system.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <random>

#include "env/faulty_file_system.h"
#include "env/memory_file_system.h"

namespace reprise {
namespace {

using ::testing::ElementsAre;
using Mode = FileSystem::Mode;

std::span<const std::byte> Bytes(std::string_view text) { return std::as_bytes(std::span(text.data(), text.size())); }

absl::Status Write(File& file, uint64_t offset, std::string_view text) {
  const std::span<const std::byte> pieces[] = {Bytes(text)};
  return file.WriteAt(offset, pieces);
}

std::string Read(const File& file, uint64_t offset, size_t size) {
  std::string out(size, '?');
  const auto got = file.ReadAt(offset, std::as_writable_bytes(std::span(out.data(), out.size())));
  return got.ok() ? out.substr(0, *got) : std::string(got.status().message());
}

// A directory of the machine, gone with the test.
class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    std::string name = (std::filesystem::temp_directory_path() / "reprise-files-XXXXXX").string();
    path_ = mkdtemp(name.data());
  }
  ~TemporaryDirectory() { std::filesystem::remove_all(path_); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

class FileSystemTest : public testing::TestWithParam<const char*> {
 protected:
  FileSystemTest() {
    const std::string_view kind = GetParam();
    if (kind == "real") {
      files_ = &RealFileSystem();
      root_ = temporary_.path();
    } else {
      files_ = kind == "memory" ? static_cast<FileSystem*>(&memory_) : &faulty_;
      root_ = "tier";
    }
    EXPECT_TRUE(files_->MakeDirectories(root_).ok());
  }
  std::string Path(std::string_view name) const { return root_ + "/" + std::string(name); }
  std::unique_ptr<File> Create(std::string_view name) {
    auto file = files_->Open(Path(name), Mode::kCreate);
    EXPECT_TRUE(file.ok()) << file.status();
    return *std::move(file);
  }

  TemporaryDirectory temporary_;
  MemoryFileSystem memory_;
  FaultyFileSystem faulty_{memory_};
  FileSystem* files_ = nullptr;
  std::string root_;
};
INSTANTIATE_TEST_SUITE_P(All, FileSystemTest, testing::Values("real", "memory", "faulty"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(FileSystemTest, ReadsWhatWasWritten) {
  auto file = Create("a");
  const std::string_view three[] = {"one", "", "two"};
  std::vector<std::span<const std::byte>> pieces;
  for (std::string_view piece : three) pieces.push_back(Bytes(piece));
  ASSERT_TRUE(file->WriteAt(2, pieces).ok());
  ASSERT_TRUE(file->Sync().ok());
  EXPECT_EQ(*file->Size(), 8u);
  EXPECT_EQ(Read(*file, 0, 100), std::string("\0\0onetwo", 8));  // never written: zeros
  EXPECT_EQ(Read(*file, 4, 3), "etw");
  EXPECT_EQ(Read(*file, 8, 3), "");
  EXPECT_EQ(Read(*file, 1000, 3), "");
  file->DropPageCache(0, 8);
  EXPECT_EQ(Read(*file, 2, 3), "one");
}

TEST_P(FileSystemTest, WritesMorePiecesThanOneCallTakes) {
  auto file = Create("a");
  std::vector<std::string> texts;
  std::string all;
  for (int i = 0; i < 3000; ++i) {
    texts.push_back(std::to_string(i));
    all += texts.back();
  }
  std::vector<std::span<const std::byte>> pieces;
  for (const std::string& text : texts) pieces.push_back(Bytes(text));
  ASSERT_TRUE(file->WriteAt(0, pieces).ok());
  EXPECT_EQ(Read(*file, 0, all.size() + 1), all);
}

TEST_P(FileSystemTest, AgreesWithAStringUnderRandomChanges) {
  auto file = Create("a");
  std::string model;
  std::mt19937 random(7);
  for (int step = 0; step < 400; ++step) {
    const size_t offset = random() % 30'000, size = random() % 9'000;
    switch (random() % 4) {
      case 0:
      case 1: {
        const std::string text(size, static_cast<char>('a' + random() % 26));
        ASSERT_TRUE(Write(*file, offset, text).ok());
        if (size > 0) {
          if (model.size() < offset + size) model.resize(offset + size);
          model.replace(offset, size, text);
        }
        break;
      }
      case 2:
        ASSERT_TRUE(file->Truncate(offset).ok());
        model.resize(offset);
        break;
      case 3: {
        const absl::Status punched = file->PunchHole(offset, size);
        if (absl::IsUnimplemented(punched)) break;
        ASSERT_TRUE(punched.ok()) << punched;
        for (size_t at = offset; at < std::min(model.size(), offset + size); ++at) model[at] = 0;
        break;
      }
    }
    if (step % 5 == 0) {
      ASSERT_TRUE(file->Sync().ok());
    }
    ASSERT_EQ(*file->Size(), model.size()) << step;
    ASSERT_TRUE(Read(*file, 0, model.size() + 10) == model) << step;
  }
}

TEST_P(FileSystemTest, NamesAreMadeOnceListedRenamedAndRemoved) {
  ASSERT_TRUE(Write(*Create("b"), 0, "bee").ok());
  ASSERT_TRUE(Write(*Create("a"), 0, "ay").ok());
  ASSERT_TRUE(files_->MakeDirectories(Path("sub/below")).ok());
  ASSERT_TRUE(files_->MakeDirectories(Path("sub/below")).ok());
  EXPECT_THAT(*files_->ListFiles(root_), ElementsAre("a", "b"));
  EXPECT_THAT(*files_->ListDirectories(root_), ElementsAre("sub"));
  EXPECT_TRUE(absl::IsAlreadyExists(files_->Open(Path("a"), Mode::kCreate).status()));
  ASSERT_TRUE(files_->Rename(Path("b"), Path("a")).ok());  // replaces
  ASSERT_TRUE(files_->Rename(Path("a"), Path("sub/c")).ok());
  EXPECT_THAT(*files_->ListFiles(root_), ElementsAre());
  EXPECT_EQ(Read(**files_->Open(Path("sub/c"), Mode::kRead), 0, 9), "bee");
  ASSERT_TRUE(files_->SyncDirectory(root_).ok());
  ASSERT_TRUE(files_->Remove(Path("sub/c")).ok());
  EXPECT_THAT(*files_->ListFiles(Path("sub")), ElementsAre());
}

TEST_P(FileSystemTest, WhatIsNotThereIsNotFound) {
  for (Mode mode : {Mode::kRead, Mode::kReadWrite})
    EXPECT_TRUE(absl::IsNotFound(files_->Open(Path("none"), mode).status()));
  EXPECT_TRUE(absl::IsNotFound(files_->Open(Path("none/file"), Mode::kCreate).status()));
  EXPECT_TRUE(absl::IsNotFound(files_->Remove(Path("none"))));
  EXPECT_TRUE(absl::IsNotFound(files_->Rename(Path("none"), Path("other"))));
  EXPECT_TRUE(absl::IsNotFound(files_->ListFiles(Path("none")).status()));
  EXPECT_TRUE(absl::IsNotFound(files_->ListDirectories(Path("none")).status()));
  EXPECT_TRUE(absl::IsNotFound(files_->SyncDirectory(Path("none"))));
  EXPECT_TRUE(absl::IsNotFound(files_->Lock(Path("none/lock")).status()));
}

TEST_P(FileSystemTest, RemovedFilesGoOnForThoseWhoHaveThem) {
  auto file = Create("a");
  ASSERT_TRUE(Write(*file, 0, "still here").ok());
  ASSERT_TRUE(files_->Remove(Path("a")).ok());
  EXPECT_EQ(Read(*file, 6, 4), "here");
  EXPECT_TRUE(Write(*file, 10, "!").ok());
  EXPECT_TRUE(file->Sync().ok());
  EXPECT_EQ(*file->Size(), 11u);
}

TEST_P(FileSystemTest, FilesOpenedForReadingAreNotWritten) {
  ASSERT_TRUE(Write(*Create("a"), 0, "text").ok());
  auto file = *files_->Open(Path("a"), Mode::kRead);
  EXPECT_FALSE(Write(*file, 0, "TEXT").ok());
  EXPECT_FALSE(file->Truncate(0).ok());
  EXPECT_EQ(Read(*file, 0, 9), "text");
}

TEST_P(FileSystemTest, ALockHasOneOwner) {
  auto lock = files_->Lock(Path("lock"));
  ASSERT_TRUE(lock.ok()) << lock.status();
  EXPECT_TRUE(absl::IsAlreadyExists(files_->Lock(Path("lock")).status()));
  EXPECT_TRUE(files_->Lock(Path("another")).ok());
  lock->reset();
  EXPECT_TRUE(files_->Lock(Path("lock")).ok());
  EXPECT_TRUE(files_->Open(Path("lock"), Mode::kRead).ok());
}

TEST_P(FileSystemTest, SaysHowMuchIsFreeEvenBeforeTheDirectoryIsThere) {
  EXPECT_GT(*files_->FreeBytes(root_), 0u);
  EXPECT_GT(*files_->FreeBytes(Path("not/yet")), 0u);
}

TEST(RealFileSystemTest, OnlyTheOwnerMayReadAndWrite) {
  TemporaryDirectory temporary;
  const std::string directory = temporary.path() + "/x/y", path = directory + "/f";
  ASSERT_TRUE(RealFileSystem().MakeDirectories(directory).ok());
  ASSERT_TRUE(RealFileSystem().Open(path, Mode::kCreate).ok());
  auto lock = RealFileSystem().Lock(directory + "/lock");
  struct stat status;
  for (const std::string& name : {path, directory + "/lock"}) {
    ASSERT_EQ(stat(name.c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 0777, 0600u) << name;
  }
  ASSERT_EQ(stat(directory.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0700u);
}

TEST(RealFileSystemTest, PipesAndLinksAreNotFiles) {
  TemporaryDirectory temporary;
  ASSERT_EQ(mkfifo((temporary.path() + "/pipe").c_str(), 0600), 0);
  std::filesystem::create_symlink("pipe", temporary.path() + "/link");
  EXPECT_THAT(*RealFileSystem().ListFiles(temporary.path()), ElementsAre());
}

TEST(RealFileSystemTest, ADeletedDirectoryIsNotFound) {
  TemporaryDirectory temporary;
  const std::string directory = temporary.path() + "/tier";
  ASSERT_TRUE(RealFileSystem().MakeDirectories(directory).ok());
  auto file = *RealFileSystem().Open(directory + "/a", Mode::kCreate);
  std::filesystem::remove_all(directory);
  EXPECT_TRUE(absl::IsNotFound(RealFileSystem().Open(directory + "/b", Mode::kCreate).status()));
  EXPECT_TRUE(absl::IsNotFound(RealFileSystem().SyncDirectory(directory)));
  EXPECT_TRUE(Write(*file, 0, "into nowhere").ok());
}

TEST(RealFileSystemTest, MessagesNameThePathAndTheCause) {
  const absl::Status status = RealFileSystem().Open("/proc/version", Mode::kCreate).status();
  EXPECT_TRUE(absl::IsAlreadyExists(status));
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("/proc/version: File exists"));
  const absl::Status directory = RealFileSystem().Open("/proc", Mode::kReadWrite).status();
  EXPECT_TRUE(absl::IsUnavailable(directory)) << directory;
}

TEST(RealFileSystemTest, AFullDeviceIsResourceExhausted) {
  auto full = RealFileSystem().Open("/dev/full", Mode::kReadWrite);
  if (!full.ok()) GTEST_SKIP() << full.status();
  EXPECT_TRUE(absl::IsResourceExhausted(Write(**full, 0, "x")));
}

}  // namespace
}  // namespace reprise
