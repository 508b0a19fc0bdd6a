#include "cli/disk_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "env/memory_file_system.h"
#include "tests/tiny_model.h"
#include "tier/disk_store_testing.h"

namespace reprise {
namespace {

using ::testing::HasSubstr;

// Restores an environment variable.
class Environment {
 public:
  Environment(const char* name, const char* value) : name_(name) {
    if (const char* old = std::getenv(name)) old_ = old;
    value == nullptr ? unsetenv(name) : setenv(name, value, 1);
  }
  ~Environment() { old_ ? setenv(name_, old_->c_str(), 1) : unsetenv(name_); }

 private:
  const char* const name_;
  std::optional<std::string> old_;
};

class DiskCacheTest : public ::testing::Test {
 protected:
  absl::StatusOr<DiskChoice> Choose(const DiskFlags& flags, uint64_t capacity = 40'000'000'000) {
    files_.SetCapacity(capacity);
    return ChooseDisk(flags, geometry_, files_, place_);
  }

  MemoryFileSystem files_;
  const Geometry geometry_ = disk_testing::SmallGeometry();  // 64 blocks: 64 * 2 slots of 64 bytes
  const std::string place_ = ::testing::TempDir() + "disk_cache_test/kv";
};

TEST_F(DiskCacheTest, TheDefaultIsAQuarterOfTheRoom) {
  const auto choice = Choose({});
  ASSERT_TRUE(choice.ok()) << choice.status();
  EXPECT_EQ(choice->options.directory, place_);
  EXPECT_EQ(choice->options.bytes_max, 10'000'000'000);
  EXPECT_EQ(choice->options.codec, Codec::kRaw);
  EXPECT_THAT(choice->from, HasSubstr("default, a quarter"));
  EXPECT_EQ(choice->off, "");
  EXPECT_EQ(Choose({}, 4'000'000'000'000)->options.bytes_max, 100'000'000'000) << "and at most 100 GB";
}

TEST_F(DiskCacheTest, WhatIsHeldAlreadyCountsAsRoom) {
  for (const char* model : {"a", "b"}) {
    const std::string directory = place_ + "/" + model;
    ASSERT_TRUE(files_.MakeDirectories(directory).ok());
    disk_testing::PutFile(files_, directory + "/segment-0000000000000001", std::vector<std::byte>(1 << 20));
  }
  const auto choice = Choose({});
  ASSERT_TRUE(choice.ok());
  EXPECT_EQ(choice->held_bytes, 2u << 20);
  EXPECT_EQ(choice->options.bytes_max, 10'000'000'000) << "the cap does not shrink as it fills";
}

TEST_F(DiskCacheTest, WithoutRoomThereIsNoneAndTheReasonIsTold) {
  const auto choice = Choose({}, 900'000'000);
  ASSERT_TRUE(choice.ok());
  EXPECT_EQ(choice->options.directory, "");
  EXPECT_THAT(choice->off, HasSubstr("are free in"));
  EXPECT_FALSE(choice->as_asked);
  EXPECT_EQ(Choose({.size = "100MiB"}, 900'000'000)->options.bytes_max, 100u << 20) << "control: asked for";
}

TEST_F(DiskCacheTest, OffIsOff) {
  const auto off = Choose({.directory = place_, .size = "off"});
  EXPECT_EQ(off->options.directory, "");
  EXPECT_TRUE(off->as_asked);
  DiskFlags bench{.on_by_default = false};
  EXPECT_EQ(Choose(bench)->options.directory, "");
  bench.directory = place_ + "2";
  EXPECT_EQ(Choose(bench)->options.directory, place_ + "2") << "control: asked for";
  EXPECT_EQ(Choose({.size = "auto", .on_by_default = false})->options.directory, place_);
}

TEST_F(DiskCacheTest, ASizeThatHoldsNoPromptIsRefusedWithTheLimit) {
  for (const char* size : {"8191", "1KiB"}) {
    const auto refused = Choose({.size = size});
    EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(refused.status().message()), HasSubstr("8 KiB"));
  }
  EXPECT_EQ(Choose({.size = "8KiB"})->options.bytes_max, 8u << 10) << "control";
  EXPECT_EQ(Choose({.size = "8KiB"})->from, "--cache-disk");
  EXPECT_THAT(std::string(Choose({.size = "much"}).status().message()), HasSubstr("or auto, or off"));
  EXPECT_THAT(std::string(Choose({.format = "zip"}).status().message()), HasSubstr("neither raw nor compressed"));
  EXPECT_EQ(Choose({.format = "compressed"})->options.codec, Codec::kPlanes);
}

TEST_F(DiskCacheTest, APlaceThatCannotBeHadIsNoError) {
  const auto nowhere = ChooseDisk({}, geometry_, files_, "");
  ASSERT_TRUE(nowhere.ok());
  EXPECT_THAT(nowhere->off, HasSubstr("--cache-dir"));
  const std::string file = TestPath("disk_cache_test_file");
  disk_testing::PutFile(RealFileSystem(), file, {});
  const auto choice = Choose({.directory = file + "/kv"});
  ASSERT_TRUE(choice.ok());
  EXPECT_THAT(choice->off, HasSubstr("is not a directory"));
  EXPECT_FALSE(choice->as_asked);
}

TEST_F(DiskCacheTest, TheDirectoryIsTheUsersCache) {
  const Environment home("HOME", "/users/someone");
  const Environment xdg("XDG_CACHE_HOME", "/var/cache/someone");
  EXPECT_EQ(CacheDirectory(), "/var/cache/someone/reprise/kv");
  const Environment relative("XDG_CACHE_HOME", "cache");
  EXPECT_EQ(CacheDirectory(), "/users/someone/.cache/reprise/kv") << "a relative one does not count";
  const Environment none("XDG_CACHE_HOME", nullptr), homeless("HOME", nullptr);
  EXPECT_EQ(CacheDirectory(), "");
}

class DiskPlanTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string path = TestPath("disk_plan.gguf");
    WriteFile(path, TinyModel({}).Bytes());
    auto model = ModelDescription::Read(path, {});
    ASSERT_TRUE(model.ok()) << model.status();
    model_ = *std::move(model);
    options_.model_path = path;
    options_.sequences_max = 2;
    choice_.options = {.directory = "/kv", .bytes_max = 100'000'000'000};
    choice_.from = "default";
  }
  absl::StatusOr<MemoryPlan> Plan(uint64_t memory) {
    options_.memory_bytes = memory;
    return PlanStartWithDisk(
        *model_, options_, [](const StartSettings&, uint32_t) { return uint64_t{1} << 20; },
        {.memory_total_bytes = uint64_t{8} << 30, .memory_available_bytes = uint64_t{8} << 30, .cores = 2}, choice_);
  }
  // The least memory with which it starts at all, to the MiB.
  uint64_t LeastMemory() {
    LocalEngineOptions options = options_;
    options.other_bytes = 1 << 20;
    do {
      options.memory_bytes += 1 << 20;
    } while (!LocalEngine::Plan(*model_, options).ok());
    return options.memory_bytes;
  }

  std::unique_ptr<ModelDescription> model_;
  LocalEngineOptions options_;
  DiskChoice choice_;
};

TEST_F(DiskPlanTest, AnAutomaticCapGivesWayToTheMemory) {
  const uint64_t least = LeastMemory();
  const auto none = Plan(least);
  ASSERT_TRUE(none.ok()) << none.status();
  EXPECT_EQ(options_.disk.directory, "");
  EXPECT_EQ(none->disk_bytes, 0u);
  EXPECT_THAT(choice_.off, HasSubstr("the memory does not hold its index"));
  EXPECT_EQ(options_.other_bytes, 1u << 20) << "what the caller takes is still in it";

  SetUp();
  const auto whole = Plan(least + (uint64_t{2} << 30));
  ASSERT_TRUE(whole.ok());
  EXPECT_EQ(whole->disk_bytes, 100'000'000'000);
  EXPECT_EQ(choice_.from, "default");
}

TEST_F(DiskPlanTest, ACapThatWasAskedForDoesNot) {
  const uint64_t least = LeastMemory();
  choice_.automatic = false;
  const auto refused = Plan(least);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("disk index"));
}

}  // namespace
}  // namespace reprise
