// Memory: what is planned is what is taken, a budget is used up, and nothing is allocated once it runs.
#include "base/bytes.h"
#include "cache/cache_testing.h"
#include "tests/allocation_counter.h"

namespace reprise {
namespace {

using Running = TestCache::Running;

uint64_t Total(const std::vector<Footprint>& lines) {
  uint64_t bytes = 0;
  for (const Footprint& line : lines) bytes += line.bytes;
  return bytes;
}

// Gemma-3-270M: 3 full layers of 18, windows of 512 (cases/capacity 18).
KvCacheOptions Gemma(uint32_t context_max) {
  const auto group = [](GroupKind kind, uint32_t layers, uint32_t window) {
    return LayerGroup{.kind = kind,
                      .layers = std::vector<uint32_t>(layers),
                      .kv_heads = 1,
                      .key_dim = 256,
                      .value_dim = 256,
                      .window = window};
  };
  KvCacheOptions options;
  options.geometry = {.groups = {group(GroupKind::kFull, 3, 0), group(GroupKind::kWindow, 15, 512)},
                      .block_tokens = 64};
  options.sequences_max = 8;
  options.context_max = context_max;
  options.in_flight_max = 512;
  return options;
}
// SmolLM2-135M (cases/capacity 19).
KvCacheOptions Smol(uint32_t context_max) {
  KvCacheOptions options;
  options.geometry = {.groups = {{.kind = GroupKind::kFull,
                                  .layers = std::vector<uint32_t>(30),
                                  .kv_heads = 3,
                                  .key_dim = 64,
                                  .value_dim = 64}},
                      .block_tokens = 64};
  options.sequences_max = 8;
  options.context_max = context_max;
  options.in_flight_max = 512;
  return options;
}

TEST(KvCachePlan, TakesExactlyItsFootprintAndGivesItBack) {
  TestCache::Options options;
  options.geometry = SmallGeometry({WindowGroup({0}, 5), FullGroup({1})});
  options.slots = {40, 60};
  KvCacheOptions full;
  {
    TestCache cache(options);
    full = cache.options();
    EXPECT_EQ(cache.ledger().taken_bytes(), Total(KvCache::Footprints(full)));
    for (const Footprint& line : KvCache::Footprints(full))
      EXPECT_EQ(cache.ledger().taken_by_component().at(line.component), line.bytes) << line.component;
    cache.Run(Count(100));
    EXPECT_EQ(cache.ledger().taken_bytes(), Total(KvCache::Footprints(full)));
  }
  Ledger ledger(Total(KvCache::Footprints(full)));  // the sum is enough
  { KvCache cache(full, ledger); }
  EXPECT_EQ(ledger.taken_bytes(), 0u);
}

TEST(KvCachePlan, UsesTheBudgetAndNotMore) {
  for (KvCacheOptions options : {Gemma(8192), Smol(8192)}) {
    for (uint64_t budget : {uint64_t{200} << 20, uint64_t{400} << 20, uint64_t{1} << 30, uint64_t{5} << 30}) {
      const absl::StatusOr<std::vector<uint32_t>> slots = KvCache::PlanSlots(options, budget);
      ASSERT_TRUE(slots.ok()) << slots.status();
      options.slots = *slots;
      EXPECT_LE(Total(KvCache::Footprints(options)), budget);
      // One block more in full groups, and in window groups what it may bring, one checkpoint edge, would not fit.
      for (uint32_t g = 0; g < options.slots.size(); ++g)
        options.slots[g] += options.geometry.groups[g].window > 0 ? 9 : 1;
      EXPECT_GT(Total(KvCache::Footprints(options)), budget);
    }
  }
}

TEST(KvCachePlan, WindowsGetWhatTheyCanUseAndNoMore) {
  KvCacheOptions options = Gemma(8192);
  options.slots = *KvCache::PlanSlots(options, uint64_t{1} << 30);
  const uint64_t resident = ResidentBlocks(options.geometry, GroupId(1), 8192, 512);
  EXPECT_EQ(resident, 17u);
  EXPECT_GE(options.slots[1], 8 * resident + 2 * 8 * 9);  // running windows and their two edges of nine blocks
  EXPECT_GE(options.slots[0] * 64, 100000u);              // tokens; windows sized like full groups give 58,000
  const uint64_t all_alike = (uint64_t{1} << 30) / (64 * 18 * 1024);
  EXPECT_GT(options.slots[0], 3 * all_alike / 2);
}

TEST(KvCachePlan, ABudgetForLessThanOneContextIsRefusedWithBothNumbers) {
  const absl::StatusOr<std::vector<uint32_t>> slots = KvCache::PlanSlots(Smol(32768), uint64_t{512} << 20);
  ASSERT_FALSE(slots.ok());
  EXPECT_THAT(std::string(slots.status().message()), testing::HasSubstr("32768 tokens needs 7"));
  EXPECT_THAT(std::string(slots.status().message()), testing::HasSubstr("512 MiB"));
  EXPECT_TRUE(KvCache::PlanSlots(Smol(16384), uint64_t{512} << 20).ok());  // control
}

TEST(KvCachePlan, ASequenceOfTheWholeContextIsAdmitted) {
  KvCacheOptions options = Gemma(4096);
  for (uint64_t mib : {24, 32, 64, 200}) {
    const absl::StatusOr<std::vector<uint32_t>> slots = KvCache::PlanSlots(options, mib << 20);
    if (mib == 24) {
      EXPECT_FALSE(slots.ok());
      continue;
    }
    ASSERT_TRUE(slots.ok()) << slots.status();
    options.slots = *slots;
    Ledger ledger(mib << 20);
    KvCache cache(options, ledger);
    CacheSequence sequence;
    const std::vector<TokenId> prompt = Count(3000);
    EXPECT_EQ(cache.Admit({.name_space = cache.Namespace({}), .prompt = prompt, .tokens_max = 4096}, sequence),
              KvCache::Outcome::kAdmitted);
  }
}

TEST(KvCachePlan, WindowOnlyModelsGetAllOfIt) {
  KvCacheOptions options = Gemma(8192);
  options.geometry.groups.erase(options.geometry.groups.begin());
  options.slots = *KvCache::PlanSlots(options, uint64_t{1} << 30);
  EXPECT_GT(options.slots[0] * SlotBytes(options.geometry, GroupId(0)), uint64_t{1000} << 20);
}

TEST(KvCachePlan, NothingIsAllocatedOnceItRuns) {
  TestCache::Options options;
  options.geometry = SmallGeometry({WindowGroup({0}, 6), FullGroup({1})});
  options.slots = {30, 40};
  TestCache cache(options);
  const std::vector<TokenId> tokens = Count(100) + Count(100, 3000);
  const NamespaceDigests name_space = cache.name_space();
  uint64_t evicted = 0, reused = 0;
  const uint64_t before = AllocationCount();
  for (uint32_t round = 0; round < 50; ++round) {
    const std::span<const TokenId> prompt = std::span(tokens).subspan(round % 2, 40 + round % 5);
    CacheSequence sequence;
    ASSERT_EQ(cache->Admit({.name_space = name_space, .prompt = prompt, .tokens_max = 100}, sequence),
              KvCache::Outcome::kAdmitted);
    sequence.Rematch();
    reused += sequence.length();
    while (sequence.length() < 90) {
      const uint32_t start = sequence.length();
      const uint32_t rows = start < prompt.size() ? std::min<uint32_t>(16, prompt.size() - start) : 1;
      sequence.Prepare(rows);
      ASSERT_EQ(sequence.tables().size(), 2u);
      sequence.Commit(start < prompt.size() ? prompt.subspan(start, rows)
                                            : std::span(tokens).subspan(start + round, rows));
      if (sequence.length() == prompt.size()) sequence.MarkCheckpoint();
    }
    if (round % 3 != 0) sequence.Finish();
    cache->Lookup(name_space, prompt);
  }
  EXPECT_EQ(AllocationCount(), before);
  evicted = cache->stats().evicted_blocks;
  EXPECT_GT(AllocationCount(), before);  // control: stats() allocates, and is counted
  EXPECT_GT(evicted, 100u);
  EXPECT_GT(reused, 1000u);
}

}  // namespace
}  // namespace reprise
