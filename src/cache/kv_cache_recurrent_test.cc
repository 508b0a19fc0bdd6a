// Recurrent groups: state that can be resumed only where a step left it.
#include "cache/cache_testing.h"

namespace reprise {
namespace {

using Running = TestCache::Running;

TestCache::Options Recurrent(uint32_t full_slots = 64, uint32_t states = 32) {
  TestCache::Options options;
  options.geometry = SmallGeometry({FullGroup({0, 2}), RecurrentGroup({1, 3})});
  options.slots = {full_slots, states};
  return options;
}

TEST(KvCacheRecurrent, AConversationResumesAtTheExactEndOfItsLastTurn) {
  TestCache cache(Recurrent());
  std::vector<TokenId> conversation = Count(18);
  for (int turn = 0; turn < 5; ++turn) {
    const std::vector<TokenId> reply = Count(7, 1000 * (turn + 1));
    const PrefixMatch match = cache.Run(conversation, reply);
    EXPECT_EQ(match.tokens, turn == 0 ? 0 : conversation.size() - 5) << "all but the new tokens, turn " << turn;
    conversation = conversation + reply + Count(5, 500 + 10 * turn);
  }
}

TEST(KvCacheRecurrent, TheSamePromptResumesAtTheLastBlockBeforeItsEnd) {
  TestCache cache(Recurrent());
  cache.Run(Count(18), Count(9, 100));
  EXPECT_EQ(cache.Lookup(Count(18)).tokens, 16u);
  EXPECT_EQ(cache.Lookup(Count(18)).reason, MissReason::kSnapshotMissing);
  EXPECT_EQ(cache.Lookup(Count(17)).tokens, 16u);
  EXPECT_EQ(cache.Lookup(Count(17)).reason, MissReason::kLastTokenRule);
  EXPECT_EQ(cache.Lookup(Count(16)).tokens, 0u) << "no step ended at 12: nothing between";
}

// A first request cannot know where the second will part; the second computes to there and leaves a state for a third.
TEST(KvCacheRecurrent, AForkLeavesAStateForTheNextOne) {
  TestCache cache(Recurrent());
  cache.Run(Count(30));
  const std::vector<TokenId> head = Count(14);
  EXPECT_EQ(cache.Run(head + Count(10, 700)).tokens, 0u);
  EXPECT_EQ(cache.Run(head + Count(10, 800)).tokens, 12u) << "at the last end of a block before the fork";
  EXPECT_EQ(cache.Run(Count(30)).tokens, 28u) << "the control: the first one's own state is still there";
}

TEST(KvCacheRecurrent, ATailsStateIsNotThatOfAPrefixOfIt) {
  TestCache cache(Recurrent());
  cache.Run(Count(7));  // a tail of three tokens, whose state is after the last
  EXPECT_EQ(cache.Lookup(Count(8)).tokens, 7u) << "the control";
  EXPECT_EQ(cache.Lookup(Count(6) + Count(3, 50)).tokens, 4u) << "the end of the prompt's last block, not position 6";
  EXPECT_EQ(cache.Lookup(Count(6) + Count(3, 50)).reason, MissReason::kSnapshotMissing);
}

TEST(KvCacheRecurrent, OneEndIsKeptOnce) {
  TestCache cache(Recurrent());
  cache.Run(Count(9));  // a block, and a tail of one
  for (int i = 0; i < 5; ++i) cache.Run(Count(7));
  EXPECT_EQ(cache->stats().tails, 2u);
}

TEST(KvCacheRecurrent, AnEvictedStateIsAMissThatSaysSo) {
  TestCache cache(Recurrent(64, 3));
  cache.Run(Count(18));
  EXPECT_EQ(cache.Lookup(Count(18)).tokens, 16u) << "the control";
  for (int other = 1; other < 4; ++other) cache.Run(Count(10, 1000 * other));
  const PrefixMatch match = cache.Lookup(Count(18));
  EXPECT_EQ(match.tokens, 0u);
  EXPECT_EQ(match.reason, MissReason::kSnapshotMissing);
}

TEST(KvCacheRecurrent, StepsEndWhereWorkMayBeTakenUpAgain) {
  TestCache cache(Recurrent());
  Running running = cache.Admit(Count(18), {.output = 20});
  EXPECT_EQ(running.sequence.rows_to_edge(), 16u);
  cache.StepTo(running, 16);
  EXPECT_EQ(running.sequence.rows_to_edge(), UINT32_MAX);
  TestCache full;
  EXPECT_EQ(full.Admit(Count(18)).sequence.rows_to_edge(), UINT32_MAX) << "without states it does not matter";
}

}  // namespace
}  // namespace reprise
