// Window groups: what must be resident to resume, and what is kept for it.
#include "cache/cache_testing.h"

namespace reprise {
namespace {

using Running = TestCache::Running;

TestCache::Options Windowed(uint32_t window, uint32_t full_slots, uint32_t window_slots) {
  TestCache::Options options;
  options.geometry = SmallGeometry({FullGroup({0, 2}), WindowGroup({1, 3}, window)});
  options.slots = {full_slots, window_slots};
  options.in_flight_max = 4;
  return options;
}

// cases/identity 25. After 20 tokens through three window slots, blocks 2, 3 and 4 are left: positions from 8
// on. Resuming at 12 takes [12 - window + 1, 12).
TEST(KvCacheWindow, WindowMissingOneRowIsAMiss) {
  const auto match = [](uint32_t window) {
    TestCache cache(Windowed(window, 32, 3));
    cache.Run(Count(20));
    return cache.Lookup(Count(12) + Count(5, 100));
  };
  EXPECT_EQ(match(6).tokens, 0u);  // position 7 is missing, and so is all of [0, 8)
  EXPECT_EQ(match(6).reason, MissReason::kWindowNotResident);
  EXPECT_EQ(match(5).tokens, 12u);  // control: position 8 is the first
  EXPECT_EQ(match(5).reason, MissReason::kTokensDiffer);
}

TEST(KvCacheWindow, ASequenceNeverPinsMoreThanItsWorstCase) {
  TestCache cache(Windowed(6, 64, 3));  // three slots are the worst case, and all there is
  Running running = cache.Admit(Count(100));
  while (running.sequence.length() < 100) {
    cache.Step(running, std::min(4u, 100 - running.sequence.length()));
    EXPECT_LE(cache->stats().groups[1].slots_active, 3u);
    cache->CheckIntegrity();
  }
}

TEST(KvCacheWindow, SlotsOutOfReachAreUnpinnedAndReusable) {
  TestCache cache(Windowed(6, 64, 64));
  Running running = cache.Admit(Count(40));
  cache.StepTo(running, 40);
  EXPECT_EQ(running.sequence.tables()[1][0], kNoSlot);
  EXPECT_NE(running.sequence.tables()[0][0], kNoSlot);
  EXPECT_EQ(cache->stats().groups[1].slots_active, 3u);
  EXPECT_EQ(cache->stats().groups[1].slots_reusable, 7u);
  EXPECT_EQ(cache.Lookup(Count(9)).tokens, 8u);  // all of it can be resumed while nothing needs the slots
}

// Sharing a window is not credited at admission: one that moves on frees nothing while its mate stays.
TEST(KvCacheWindow, SequencesThatShareAWindowCanBothMoveOn) {
  TestCache cache(Windowed(6, 64, 6));
  cache.Run(Count(10));
  Running first = cache.Admit(Count(11), {.output = 30}), second = cache.Admit(Count(11), {.output = 30}), third;
  EXPECT_EQ(cache.TryAdmit(Count(11), {.output = 30}, cache.name_space(), third), KvCache::Outcome::kWait);
  cache.StepTo(first, 11);
  cache.Generate(first, Count(30, 100));
  cache.StepTo(second, 11);
  cache.Generate(second, Count(30, 200));
  cache->CheckIntegrity();
}

TEST(KvCacheWindow, TheEndOfATurnIsKeptLongest) {
  TestCache cache(Windowed(6, 64, 12));
  cache.Run(Count(20), Count(10, 100));
  const std::vector<TokenId> turn = Count(20) + Count(10, 100);
  Running other = cache.Admit(Count(60, 500));
  cache.StepTo(other, 60);  // goes through every ordinary slot several times
  EXPECT_EQ(cache.Lookup(turn + Count(3, 900)).tokens, 30u);
  EXPECT_EQ(cache.Lookup(Count(12) + Count(3, 900)).reason, MissReason::kWindowNotResident);  // control: no edge there
}

TEST(KvCacheWindow, TheEndOfAPromptIsKeptLongestOnceMarked) {
  for (bool mark : {true, false}) {
    TestCache cache(Windowed(6, 64, 9));
    Running running = cache.Admit(Count(18), {.output = 40});
    cache.StepTo(running, 18);
    if (mark) running.sequence.MarkCheckpoint();
    cache.Generate(running, Count(40, 100));
    EXPECT_EQ(cache.Lookup(Count(18)).tokens, mark ? 17u : 0u);  // the same prompt again
    cache->CheckIntegrity();
  }
}

// The last token of a prompt is computed again, so what its window reaches is one position more.
TEST(KvCacheWindow, APromptThatEndsOnAnEdgeOfItsWindowCanBeAskedAgain) {
  for (uint32_t length = 12; length < 24; ++length) {
    TestCache cache(Windowed(5, 64, 9));
    Running running = cache.Admit(Count(length), {.output = 40});
    cache.StepTo(running, length);
    running.sequence.MarkCheckpoint();
    cache.Generate(running, Count(40, 100));
    EXPECT_EQ(cache.Lookup(Count(length)).tokens, length - 1);
  }
}

TEST(KvCacheWindow, AnObservedForkIsKeptLongest) {
  TestCache cache(Windowed(6, 200, 24));
  const std::vector<TokenId> system = Count(22);
  cache.Run(system + Count(15, 100));
  EXPECT_EQ(cache.Run(system + Count(15, 200)).tokens, 22u);  // parts here
  Running other = cache.Admit(Count(160, 500));
  cache.StepTo(other, 160);  // goes through every ordinary slot
  EXPECT_EQ(cache.Lookup(system + Count(3, 300)).tokens, 22u);
  EXPECT_EQ(cache.Lookup(Count(13) + Count(3, 300)).tokens, 0u);  // control: nobody parted there
}

// The next turn fills the block that the last one ended in: its tail goes, what it was kept for stays.
TEST(KvCacheWindow, TheEndOfATurnStaysAnEdgeWhenTheNextTurnGoesOn) {
  TestCache cache(Windowed(6, 200, 20));
  cache.Run(Count(18));
  cache.Run(Count(30), Count(40, 100));
  EXPECT_EQ(cache->stats().tails, 1u);  // of the second turn
  Running other = cache.Admit(Count(160, 500));
  cache.StepTo(other, 160);
  EXPECT_EQ(cache.Lookup(Count(18) + Count(3, 300)).tokens, 18u);  // the second turn asked differently
  EXPECT_EQ(cache.Lookup(Count(10) + Count(3, 300)).tokens, 0u);   // control: no edge there
}

// Where a window kept a match from going further, the place is remembered while it is computed again.
TEST(KvCacheWindow, AForkThatWasLostIsKeptWhenItIsComputedAgain) {
  TestCache cache(Windowed(6, 200, 9));
  const std::vector<TokenId> system = Count(22);
  const auto ask = [&](int32_t question) {  // long enough to push everything ordinary out
    Running running = cache.Admit(system + Count(40, question));
    const uint32_t matched = running.sequence.length();
    cache.StepTo(running, running.tokens.size());
    return matched;
  };
  EXPECT_EQ(ask(100), 0u);
  EXPECT_LT(ask(200), 22u);
  EXPECT_EQ(ask(300), 22u);
}

TEST(KvCacheWindow, ABlockThatLostItsWindowSlotGetsTheNextOne) {
  TestCache cache(Windowed(6, 64, 3));
  cache.Run(Count(30));
  EXPECT_EQ(cache.Lookup(Count(12)).tokens, 0u);
  Running again = cache.Admit(Count(12));
  cache.StepTo(again, 12);
  again.sequence.Finish();
  EXPECT_EQ(cache->stats().duplicate_seals, 3u);
  EXPECT_EQ(cache.Lookup(Count(12)).tokens, 11u);
  cache->CheckIntegrity();
}

TEST(KvCacheWindow, ATailNeedsItsRowsInEveryGroup) {
  TestCache cache(Windowed(6, 64, 6));
  cache.Run(Count(7));
  EXPECT_EQ(cache.Lookup(Count(9)).tokens, 7u);  // control
  Running first = cache.Admit(Count(40, 500)), second = cache.Admit(Count(40, 600));
  cache.StepTo(first, 12);
  cache.StepTo(second, 12);  // together they take every window slot
  EXPECT_EQ(cache->stats().groups[1].slots_active, 6u);
  EXPECT_EQ(cache.Lookup(Count(9)).tokens, 0u);
  EXPECT_EQ(cache->stats().tails, 0u);
  cache->CheckIntegrity();
}

}  // namespace
}  // namespace reprise
