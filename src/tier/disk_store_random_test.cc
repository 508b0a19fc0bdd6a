// Random programs over a disk store, beside a model of what was written and purged. Whatever happens, a store gives
// right bytes or a miss (disk_testing::ReadPiece aborts on anything else), never what was purged, and never passes its
// cap.
#include <algorithm>
#include <random>
#include <set>

#include "env/faulty_file_system.h"
#include "gtest/gtest.h"
#include "tier/disk_store_testing.h"
#include "tier/segment.h"

namespace reprise {
namespace {

using disk_testing::DirectoryBytes;
using disk_testing::kBlockTokens;
using disk_testing::kDirectory;
using disk_testing::Namespace;
using disk_testing::OpenedStore;
using disk_testing::OpenStore;
using disk_testing::PieceId;
using disk_testing::Prompt;
using disk_testing::ReadPiece;
using disk_testing::SmallOptions;
using disk_testing::TenantDigest;
using disk_testing::WritePrompt;

constexpr uint32_t kTenants = 3;

// Prompts that share prefixes, in two namespaces of each tenant.
std::vector<Prompt> MakePrompts(std::mt19937& random, size_t count) {
  std::vector<Prompt> prompts;
  for (size_t i = 0; i < count; ++i) {
    std::vector<int> ids(1 + random() % 26);
    for (int& id : ids) id = static_cast<int>(random() % 4 == 0 ? random() % 3 : 0);
    prompts.emplace_back(Namespace(random() % kTenants, random() % 2), ids);
  }
  return prompts;
}

uint32_t TenantOf(const Prompt& prompt) {
  for (uint32_t t = 0; t < kTenants; ++t) {
    if (prompt.name_space.tag(NamespaceTag::kTenant) == TenantDigest(t)) return t;
  }
  return kTenants;
}

// What may be there: written, and not purged since.
struct Model {
  std::array<std::set<PieceId>, kTenants> pieces;
  bool Has(const Prompt& prompt, size_t i, GroupId group) const {
    return pieces[TenantOf(prompt)].contains(prompt.Id(i, group));
  }
};

struct Shape {
  uint32_t seed = 0;
  uint64_t bytes_max = 64 << 20;
  bool faults = false;
  bool compressed = false;
};

class Program {
 public:
  explicit Program(const Shape& shape) : shape_(shape), random_(shape.seed) {
    options_ = SmallOptions(*faulty_);
    options_.bytes_max = shape.bytes_max;
    options_.segment_bytes = 6 << 10;
    options_.geometry = disk_testing::SmallGeometry(shape.compressed ? 16 : 1);
    if (shape.compressed) options_.codec = Codec::kPlanes;
    prompts_ = MakePrompts(random_, 60);
    Reopen();
  }

  void Run(int steps) {
    for (int i = 0; i < steps; ++i) Step();
    faulty_->Set({});
    store_->CheckIntegrity();
    // Control, also after faults.
    ASSERT_TRUE(WritePrompt(*store_, prompts_[0], GroupId(0), 0, 1).ok());
    model_.pieces[TenantOf(prompts_[0])].insert(prompts_[0].Id(0, GroupId(0)));
    EXPECT_EQ(ReadPiece(*store_, prompts_[0], 0, GroupId(0)), TierOutcome::kOk);
    const size_t hits = CheckAll();
    store_.Close();
    Reopen();
    const size_t after = CheckAll();
    if (shape_.faults) return;
    EXPECT_EQ(after, hits);
    const absl::StatusOr<DiskReport> report = VerifyDisk(*faulty_, kDirectory, nullptr);
    ASSERT_TRUE(report.ok());
    EXPECT_TRUE(report->problems.empty()) << report->problems[0].what;
  }

 private:
  void Reopen() {
    absl::StatusOr<OpenedStore> opened = OpenStore(options_);
    if (!opened.ok()) {  // only by a fault
      ASSERT_TRUE(shape_.faults) << opened.status();
      faulty_->Set({});
      opened = OpenStore(options_);
    }
    ASSERT_TRUE(opened.ok()) << opened.status();
    store_ = *std::move(opened);
    ASSERT_FALSE(store_.opened.read_only);
    CheckCap();
  }

  void CheckCap() {
    if (shape_.faults) return;  // looking would meet them as well; the figures are compared at the end
    const uint64_t bytes = DirectoryBytes(*files_);
    ASSERT_LE(bytes, options_.bytes_max);
    ASSERT_EQ(bytes, store_->usage().bytes);
  }

  void Step() {
    const Prompt& prompt = prompts_[random_() % prompts_.size()];
    const GroupId group(random_() % 2);
    switch (random_() % 32) {
      case 0:
        return Kill();
      case 1:
        if (random_() % 3 == 0) Erase();
        return;
      case 2:
        (void)store_->Maintain();
        return;
      case 3: {
        const absl::Status flushed = store_->Flush();
        EXPECT_TRUE(flushed.ok() || shape_.faults) << flushed;
        return;
      }
      case 4:
        store_.Close();
        Reopen();
        return;
      case 5:
        if (shape_.faults) {
          const double share = random_() % 2 == 0 ? 0 : 0.02;
          faulty_->Set({.fail_share = share, .flip_share = share, .short_share = share, .seed = random_()});
        }
        return;
      default:
        break;
    }
    const size_t first = random_() % prompt.pieces();
    if (random_() % 2 == 0) {
      Write(prompt, group, first);
    } else {
      Read(prompt, group, first);
    }
  }

  void Write(const Prompt& prompt, GroupId group, size_t first) {
    const size_t last = first + 1 + random_() % (prompt.pieces() - first);
    const absl::Status written = WritePrompt(*store_, prompt, group, first, last);
    EXPECT_TRUE(written.ok() || shape_.faults) << written;
    // Some of it may be there even if not all is.
    for (size_t i = first; i < last; ++i) model_.pieces[TenantOf(prompt)].insert(prompt.Id(i, group));
    CheckCap();
    if (!shape_.faults) {
      EXPECT_EQ(ReadPiece(*store_, prompt, last - 1, group), TierOutcome::kOk);
    }
  }

  TierOutcome Read(const Prompt& prompt, GroupId group, size_t i) {
    uint32_t groups = 0;
    if (i < prompt.blocks()) store_->Contains(prompt.name_space.id, {&prompt.keys[i], 1}, {&groups, 1});
    const bool said = (groups >> group.value() & 1u) != 0;
    const TierOutcome outcome = ReadPiece(*store_, prompt, i, group);
    const bool expected = model_.Has(prompt, i, group);
    EXPECT_TRUE(outcome != TierOutcome::kOk || expected);
    if (!shape_.faults) {
      EXPECT_TRUE(outcome == TierOutcome::kOk || outcome == TierOutcome::kMissing) << Name(outcome);
      if (i < prompt.blocks()) {
        EXPECT_EQ(outcome == TierOutcome::kOk, said);
      }
      // Control: with room for everything, everything that was written is found.
      if (shape_.bytes_max > 32 << 20) {
        EXPECT_EQ(outcome == TierOutcome::kOk, expected);
      }
    }
    return outcome;
  }

  size_t CheckAll() {
    size_t hits = 0;
    for (const Prompt& prompt : prompts_) {
      for (size_t i = 0; i < prompt.pieces(); ++i) {
        for (uint32_t g = 0; g < 2; ++g) hits += Read(prompt, GroupId(g), i) == TierOutcome::kOk;
      }
    }
    return hits;
  }

  void Erase() {
    const uint32_t tenant = random_() % kTenants;
    const absl::StatusOr<TierErased> erased = store_->Erase(TenantDigest(tenant));
    EXPECT_TRUE(erased.ok() || shape_.faults) << erased.status();
    if (erased.ok()) model_.pieces[tenant].clear();
    CheckCap();
  }

  // The process dies; sometimes in the middle of writing something.
  void Kill() {
    std::unique_ptr<MemoryFileSystem> left = files_->AfterKill();
    store_.Close();  // writes where nobody looks
    files_ = std::move(left);
    if (random_() % 2 == 0) Tear();
    faulty_ = std::make_unique<FaultyFileSystem>(*files_);
    options_.files = faulty_.get();
    Reopen();
  }

  void Tear() {
    std::string newest;
    for (const std::string& name : disk_testing::Names(*files_)) {
      if (SegmentNumber(name)) newest = name;
    }
    if (newest.empty()) return;
    const std::vector<std::byte> torn(random_() % 900, std::byte(random_() % 2));
    const auto file = files_->Open(disk_testing::PathOf(newest), FileSystem::Mode::kReadWrite);
    ASSERT_TRUE(file.ok());
    // Not after a footer: nothing is written there.
    std::vector<std::byte> end(8);
    const uint64_t size = disk_testing::SizeOf(*files_, disk_testing::PathOf(newest));
    ASSERT_TRUE((*file)->ReadAt(size - 8, end).ok());
    if (std::memcmp(end.data(), "RPRSFEND", 8) == 0) return;
    if (size + torn.size() > options_.bytes_max / 2) return;
    const std::span<const std::byte> piece(torn);
    ASSERT_TRUE((*file)->WriteAt(size, {&piece, 1}).ok());
  }

  const Shape shape_;
  std::mt19937 random_;
  std::unique_ptr<MemoryFileSystem> files_ = std::make_unique<MemoryFileSystem>();
  std::unique_ptr<FaultyFileSystem> faulty_ = std::make_unique<FaultyFileSystem>(*files_);
  DiskStoreOptions options_;
  std::vector<Prompt> prompts_;
  Model model_;
  OpenedStore store_;
};

TEST(DiskStoreRandomTest, WithRoomForEverythingAllIsFoundAgain) {
  for (uint32_t seed = 0; seed < 6; ++seed) {
    SCOPED_TRACE(seed);
    Program({.seed = seed}).Run(3000);
  }
}

TEST(DiskStoreRandomTest, WithinASmallCapOnlyRightBytesAreGiven) {
  for (uint32_t seed = 100; seed < 106; ++seed) {
    SCOPED_TRACE(seed);
    Program({.seed = seed, .bytes_max = 96 << 10}).Run(3000);
  }
}

TEST(DiskStoreRandomTest, Compressed) {
  for (uint32_t seed = 200; seed < 204; ++seed) {
    SCOPED_TRACE(seed);
    Program({.seed = seed, .bytes_max = 160 << 10, .compressed = true}).Run(2000);
  }
}

TEST(DiskStoreRandomTest, WithFaultsOnlyRightBytesAreGiven) {
  for (uint32_t seed = 300; seed < 312; ++seed) {
    SCOPED_TRACE(seed);
    Program({.seed = seed, .bytes_max = 96 << 10, .faults = true}).Run(3000);
  }
}

}  // namespace
}  // namespace reprise
