// The power goes at every change that a recorded run makes to its files: what opens afterwards gives right bytes or
// misses, what was purged stays purged, and what was flushed is there.
#include <algorithm>
#include <random>
#include <set>

#include "gtest/gtest.h"
#include "tier/disk_store_testing.h"

namespace reprise {
namespace {

using disk_testing::Namespace;
using disk_testing::OpenedStore;
using disk_testing::OpenStore;
using disk_testing::Prompt;
using disk_testing::Readable;
using disk_testing::SmallOptions;
using disk_testing::TenantDigest;
using disk_testing::WritePrompt;

std::vector<int> Ids(int first, int count) {
  std::vector<int> ids;
  for (int i = 0; i < count; ++i) ids.push_back(first + i);
  return ids;
}

// What a run had been told when the power went.
struct Told {
  std::set<size_t> flushed;   // prompts that must be there
  std::set<uint32_t> purged;  // tenants of whom nothing may be there
};

struct Outage {
  std::unique_ptr<MemoryFileSystem> files;
  Told told;
  std::string where;
};

class PowerRun {
 public:
  PowerRun(uint32_t seed, uint64_t bytes_max) : random_(seed), options_(SmallOptions(files_)) {
    options_.bytes_max = bytes_max;
    options_.segment_bytes = 4 << 10;
    for (int i = 0; i < 24; ++i) prompts_.emplace_back(Namespace(i % 3), Ids(100 * i, 5 + i % 6));
    files_.SetHook([this](const MemoryFileSystem::Change& change) {
      // What is not a write is what others are ordered by: more of the ways in which it can be lost.
      for (int i = 0; i < (change.kind == "write" ? 1 : 6); ++i) {
        outages_.push_back({.files = files_.AfterPowerCut(random_()),
                            .told = told_,
                            .where = std::string(change.kind) + " " + std::string(change.path) + " #" +
                                     std::to_string(change.number)});
      }
    });
  }

  // Everything fits: what was flushed has to be found, reclaimed or not.
  bool roomy() const { return options_.bytes_max > 1 << 20; }

  void Run() {
    for (int round = 0; round < 2; ++round) {
      absl::StatusOr<OpenedStore> opened = OpenStore(options_);
      ASSERT_TRUE(opened.ok()) << opened.status();
      OpenedStore store = *std::move(opened);
      for (size_t i = 0; i < prompts_.size(); ++i) Step(store, round, i);
    }
    files_.SetHook(nullptr);
  }

  void Check() {
    size_t hits = 0, misses = 0;
    for (Outage& outage : outages_) {
      SCOPED_TRACE(outage.where);
      options_.files = outage.files.get();
      absl::StatusOr<OpenedStore> opened = OpenStore(options_);
      ASSERT_TRUE(opened.ok()) << opened.status();
      CheckWhatIsThere(*opened, outage.told, hits, misses);
      // And it goes on from there.
      const Prompt later(Namespace(7), Ids(9000, 9));
      ASSERT_TRUE(WritePrompt(**opened, later).ok());
      while ((*opened)->Maintain()) {
      }
      EXPECT_EQ(Readable(**opened, later), 6u);
      opened->opened.store->CheckIntegrity();
      opened->Close();
      opened = OpenStore(options_);
      ASSERT_TRUE(opened.ok());
      EXPECT_EQ(Readable(**opened, later), 6u);
      size_t ignored = 0;
      CheckWhatIsThere(*opened, outage.told, ignored, ignored);
    }
    // Control: outages lose something, and not everything.
    EXPECT_GT(hits, outages_.size());
    EXPECT_GT(misses, outages_.size());
    EXPECT_GT(outages_.size(), 300u);
  }

 private:
  void Step(OpenedStore& store, int round, size_t i) {
    const uint32_t tenant = i % 3;
    if (round == 1 && i % 8 == 3) {
      // From its beginning on nothing may be promised of them; from its end on they are gone.
      for (size_t j = 0; j < prompts_.size(); ++j) {
        if (j % 3 == tenant) told_.flushed.erase(j);
      }
      ASSERT_TRUE(store->Erase(TenantDigest(tenant)).ok());
      told_.purged.insert(tenant);
      written_.clear();
      // Until the bytes are gone and the purge is forgotten, or with that to come.
      while (i % 16 == 3 && store->Maintain()) {
      }
    }
    if (round == 0 || i % 2 == 0) {
      told_.purged.erase(tenant);
      ASSERT_TRUE(WritePrompt(*store, prompts_[i]).ok());
      written_.insert(i);
    }
    if (i % 5 == 4) {
      ASSERT_TRUE(store->Flush().ok());
      if (roomy()) told_.flushed.insert(written_.begin(), written_.end());
    }
    if (i % 4 == 0) store->Maintain();
  }

  void CheckWhatIsThere(OpenedStore& store, const Told& told, size_t& hits, size_t& misses) {
    for (size_t i = 0; i < prompts_.size(); ++i) {
      const size_t all = prompts_[i].pieces() * 2;
      const size_t found = Readable(*store, prompts_[i]);
      hits += found;
      misses += all - found;
      if (told.purged.contains(i % 3)) {
        EXPECT_EQ(found, 0u) << i;
      } else if (told.flushed.contains(i)) {
        EXPECT_EQ(found, all) << i;
      }
    }
  }

  std::mt19937 random_;
  MemoryFileSystem files_;
  DiskStoreOptions options_;
  std::vector<Prompt> prompts_;
  std::set<size_t> written_;
  Told told_;
  std::vector<Outage> outages_;
};

TEST(DiskStorePowerTest, AtEveryChangeWithRoomForEverything) {
  PowerRun run(1, 64 << 20);
  run.Run();
  run.Check();
}

TEST(DiskStorePowerTest, AtEveryChangeWhileSegmentsAreReclaimed) {
  PowerRun run(2, 48 << 10);
  run.Run();
  run.Check();
}

}  // namespace
}  // namespace reprise
