// K and V in the engine's own memory: the cache takes none for them, and asks for the right rows.
#include "cache/cache_testing.h"

namespace reprise {
namespace {

using Running = TestCache::Running;

TestCache::Options Own(std::vector<uint32_t> slots, bool own_memory = true) {
  TestCache::Options options;
  options.slots = std::move(slots);
  options.own_memory = own_memory;
  return options;
}
uint64_t Total(const std::vector<Footprint>& lines) {
  uint64_t bytes = 0;
  for (const Footprint& line : lines) bytes += line.bytes;
  return bytes;
}

TEST(KvCacheMemory, OwnMemoryCostsTheLedgerNothing) {
  const TestCache own(Own({64})), ours(Own({64}, /*own_memory=*/false));
  const uint64_t slots = 64 * SlotBytes(ours.options().geometry, GroupId(0));
  EXPECT_EQ(own.ledger().taken_bytes(), Total(KvCache::Footprints(own.options())));
  EXPECT_EQ(own.ledger().taken_bytes() + slots, ours.ledger().taken_bytes());
  EXPECT_EQ(own.ledger().taken_by_component().at("kv pool 0 full"), 0u);
}

TEST(KvCacheMemory, OwnMemoryHasNoViewsOfOurs) {
  TestCache own(Own({64})), ours(Own({64}, /*own_memory=*/false));
  EXPECT_TRUE(own->group_views().empty());
  EXPECT_EQ(ours->group_views().size(), 1u);  // control
}

TEST(KvCacheMemory, ABudgetCountsSlotsWhereverTheyAre) {
  const TestCache own(Own({64})), ours(Own({64}, /*own_memory=*/false));
  const absl::StatusOr<std::vector<uint32_t>> theirs = KvCache::PlanSlots(own.options(), 1 << 20);
  ASSERT_TRUE(theirs.ok());
  EXPECT_EQ(*theirs, *KvCache::PlanSlots(ours.options(), 1 << 20));
}

// Blocks of 4: whole blocks are shared in place, the rows of a block that matches in part are copied. That what the
// next query sees is right is checked at each step (CheckRows).
TEST(KvCacheMemory, OnlyPartsOfBlocksAreCopied) {
  TestCache cache(Own({64}));
  EXPECT_EQ(cache.Run(Count(12)).tokens, 0u);
  EXPECT_EQ(cache.Run(Count(8) + Tokens({90})).tokens, 8u);
  EXPECT_EQ(cache.memory()->copies, 0u);
  EXPECT_EQ(cache.Run(Count(10) + Tokens({91})).tokens, 10u);
  EXPECT_EQ(cache.memory()->copies, 1u);
  EXPECT_EQ(cache.Run(Count(10) + Tokens({91, 92})).tokens, 11u);  // a tail
  EXPECT_EQ(cache.memory()->copies, 2u);
}

TEST(KvCacheMemory, EveryGroupOfAPartlyMatchingBlockIsCopied) {
  TestCache::Options options = Own({64, 64, 64});
  options.geometry = SmallGeometry({FullGroup({0}), WindowGroup({1}, 5), FullGroup({2})});
  TestCache cache(options);
  cache.Run(Count(10));
  EXPECT_EQ(cache.Run(Count(10) + Tokens({90})).tokens, 10u);
  EXPECT_EQ(cache.memory()->copies, 3u);
}

TEST(KvCacheMemory, OnlyRowsThatWereNeverCommittedAreCleared) {
  TestCache cache(Own({8}));
  cache.Run(Count(10));
  EXPECT_EQ(cache.memory()->clears, 0u);  // control: it committed what it prepared
  {
    Running failed = cache.Admit(Count(10) + Count(10, 50));
    cache.StepTo(failed, 12);
    failed.sequence.Prepare(6);  // the blocks of 12..15 and of 16..19
  }
  EXPECT_EQ(cache.memory()->clears, 2u);
  cache->CheckIntegrity();
}

TEST(KvCacheMemory, TheLastSlotIsTakenOverWithoutACopy) {
  TestCache cache(Own({3}));
  cache.Run(Count(12));
  EXPECT_EQ(cache.Run(Count(10) + Tokens({90})).tokens, 10u);
  EXPECT_EQ(cache.memory()->copies, 0u);
}

}  // namespace
}  // namespace reprise
