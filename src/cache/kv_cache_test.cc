// What may be reused, and what must not be (each with the hit that must happen when only the named thing is
// equal again), and who gets memory.
#include <cmath>
#include <cstring>

#include "base/bytes.h"
#include "cache/cache_testing.h"

namespace reprise {
namespace {

using Running = TestCache::Running;
using Outcome = KvCache::Outcome;

TestCache::Options WithSlots(std::vector<uint32_t> slots) {
  TestCache::Options options;
  options.slots = std::move(slots);
  return options;
}

// --- the same computation is found, to the token ---

TEST(KvCacheReuse, LastTokenIsAlwaysComputed) {
  for (uint32_t length : {255u, 256u, 257u}) {
    TestCache::Options options;
    options.geometry.block_tokens = 16;
    options.context_max = 512;
    TestCache cache(options);
    EXPECT_EQ(cache.Run(Count(length)).tokens, 0u);
    const PrefixMatch match = cache.Run(Count(length));
    EXPECT_EQ(match.tokens, length - 1);
    EXPECT_EQ(match.reason, MissReason::kLastTokenRule);
    EXPECT_EQ(cache.Lookup(Count(length + 1)).tokens, length);  // control: one token more, and it is reused
  }
}

TEST(KvCacheReuse, NextTurnReusesEverythingThatWasWritten) {
  TestCache cache;
  std::vector<TokenId> conversation = Count(10);
  for (int turn = 0; turn < 6; ++turn) {
    const std::vector<TokenId> answer = Count(7, 1000 * (turn + 1));
    const PrefixMatch match = cache.Run(conversation, answer);
    EXPECT_EQ(match.tokens, turn == 0 ? 0 : conversation.size() - 3);
    conversation = conversation + answer + Count(3, 2000 * (turn + 1));
  }
}

TEST(KvCacheReuse, ReuseIsExactToTheTokenWherePromptsPart) {
  TestCache cache;
  cache.Run(Count(30));
  for (uint32_t shared = 0; shared < 30; ++shared) {
    const PrefixMatch match = cache.Lookup(Count(shared) + Count(5, 500));
    EXPECT_EQ(match.tokens, shared);
    EXPECT_EQ(match.reason, shared == 0 ? MissReason::kNeverSeen : MissReason::kTokensDiffer);
  }
  EXPECT_EQ(cache.Lookup(Count(30) + Count(5, 500)).reason, MissReason::kNeverSeen);
}

TEST(KvCacheReuse, PrefixesOfEachOtherAreFound) {  // cases/identity 12
  TestCache cache;
  cache.Run(Count(21));
  EXPECT_EQ(cache.Lookup(Count(10)).tokens, 9u);   // the prompt is a prefix of a cached one
  EXPECT_EQ(cache.Lookup(Count(40)).tokens, 21u);  // a cached one is a prefix of the prompt
  for (uint32_t changed : {0u, 3u, 4u, 19u}) {     // the very first token, the edges of a block, the last one
    std::vector<TokenId> prompt = Count(21);
    prompt[changed] = TokenId(999);
    EXPECT_EQ(cache.Lookup(prompt).tokens, changed);
  }
}

TEST(KvCacheReuse, RematchFindsWhatOthersSealedMeanwhile) {
  TestCache cache;
  Running leader = cache.Admit(Count(30));
  Running follower = cache.Admit(Count(30));
  EXPECT_EQ(follower.sequence.Rematch(), 0u);
  cache.StepTo(leader, 10);
  EXPECT_EQ(follower.sequence.Rematch(), 8u);
  EXPECT_EQ(follower.sequence.Rematch(), 0u);
  cache.StepTo(leader, 30);
  leader.sequence.Finish();
  EXPECT_EQ(follower.sequence.Rematch(), 21u);
  cache.CheckRows(follower);
  EXPECT_EQ(follower.sequence.length(), 29u);
  EXPECT_EQ(follower.sequence.match().tokens, 29u);
  cache.StepTo(follower, 30);
  EXPECT_DEATH(follower.sequence.Rematch(), "started");
  cache->CheckIntegrity();
}

TEST(KvCacheReuse, WhatTwoComputeAtOnceIsKeptOnce) {
  TestCache cache;
  Running first = cache.Admit(Count(30)), second = cache.Admit(Count(30));
  cache.StepTo(first, 30);
  EXPECT_EQ(cache->stats().groups[0].slots_active, 8u);
  cache.StepTo(second, 30);
  EXPECT_EQ(cache->stats().duplicate_seals, 7u);
  EXPECT_EQ(cache->stats().groups[0].slots_active, 9u);  // seven shared, and a partial block each
  cache->CheckIntegrity();
}

// --- same text, other history (cases/identity 10-14) ---

TEST(KvCacheSafety, ADocumentAfterAnotherBeginningMisses) {
  TestCache cache;
  cache.Run(Count(8, 100) + Count(20));
  EXPECT_EQ(cache.Lookup(Count(8, 200) + Count(20)).tokens, 0u);
  EXPECT_EQ(cache.Lookup(Count(8, 100) + Count(20)).tokens, 27u);  // control
}

TEST(KvCacheSafety, SameBlockAtAnotherDepthMisses) {
  TestCache cache;
  cache.Run(Count(4) + Count(4, 100));
  EXPECT_EQ(cache.Lookup(Count(4, 100) + Count(4)).tokens, 0u);
  EXPECT_EQ(cache.Lookup(Count(4) + Count(4) + Count(4, 100)).tokens, 4u);
  EXPECT_EQ(cache.Lookup(Count(4) + Count(4, 100) + Count(1)).tokens, 8u);  // control
}

BlockKey OneKeyForAll(const Digest&, std::span<const TokenId>) { return BlockKey{Sha256::Of("one")}; }

TEST(KvCacheSafety, ForcedKeyCollisionIsToldApartByTokens) {
  TestCache::Options options;
  options.block_key = OneKeyForAll;
  TestCache cache(options);
  cache.Run(Count(5));
  const uint64_t before = cache->stats().key_collisions;
  EXPECT_EQ(cache.Lookup(Count(9, 50)).tokens, 0u);
  EXPECT_EQ(cache->stats().key_collisions, before + 1);
  EXPECT_EQ(cache.Lookup(Count(4) + Count(9)).tokens, 4u);  // the same tokens under another parent
  EXPECT_EQ(cache->stats().key_collisions, before + 2);
  EXPECT_EQ(cache.Lookup(Count(5)).tokens, 4u);  // control
  cache.Run(Count(9, 50));                       // cannot be sealed, still runs and checks its rows
  EXPECT_EQ(cache.Run(Count(5)).tokens, 4u);
}

TEST(KvCacheSafety, TailIsNeverTakenForAFullBlock) {  // cases/identity 24
  TestCache cache;
  cache.Run(Count(7));  // one block and a tail of three
  EXPECT_EQ(cache->stats().tails, 1u);
  EXPECT_EQ(cache->stats().nodes, 1u);
  EXPECT_EQ(cache.Lookup(Count(20)).tokens, 7u);  // not 8
  EXPECT_EQ(cache.Lookup(Count(7) + Count(9, 50)).tokens, 7u);
  cache.Run(Count(8));
  EXPECT_EQ(cache->stats().tails, 0u);            // its block replaced it
  EXPECT_EQ(cache.Lookup(Count(20)).tokens, 8u);  // control
}

// --- not yours (cases/identity 15-17) ---

TEST(KvCacheSafety, OtherTenantEpochAndSaltMiss) {
  TestCache cache;
  const Scope own = {.tenant = "a", .epoch = 4, .salt = "s"};
  std::vector<Scope> others(6, own);
  others[0].tenant = "b";
  others[1].epoch = 5;
  others[2].epoch = 3;
  others[3].salt = "t";
  others[4].salt = "";
  others[5].salt = std::nullopt;
  Running running;
  ASSERT_EQ(cache.TryAdmit(Count(20), {}, cache->Namespace(own), running), Outcome::kAdmitted);
  cache.StepTo(running, 20);
  running.sequence.Finish();
  for (const Scope& other : others) {
    const PrefixMatch match = cache->Lookup(cache->Namespace(other), Count(20));
    EXPECT_EQ(match.tokens, 0u);
    EXPECT_EQ(match.reason, MissReason::kNeverSeen);  // tells nothing of another scope
  }
  EXPECT_EQ(cache->Lookup(cache->Namespace(own), Count(20)).tokens, 19u);  // control
}

// --- same text, other computation (cases/identity 1-8) ---

// Each field of the identity alone: what a cache of that other computation would ask for is not here.
TEST(KvCacheSafety, BlocksOfAnotherComputationMiss) {
  TestCache cache;
  cache.Run(Count(20));
  const ComputationIdentity own = cache.options().identity;
  std::vector<ComputationIdentity> others(6, own);
  others[0].model = Sha256::Of("another model");
  others[1].tokenizer = Sha256::Of("another tokenizer");
  others[2].adapters = "an adapter";
  others[3].position = "another base";
  others[4].attention = "another window";
  others[5].numerics = "another version";
  Ledger ledger(uint64_t{1} << 30);
  const auto asked_by = [&](const ComputationIdentity& identity) {
    KvCacheOptions options = cache.options();
    options.identity = identity;
    return KvCache(options, ledger).Namespace({.tenant = "test"});
  };
  for (const ComputationIdentity& other : others) EXPECT_EQ(cache->Lookup(asked_by(other), Count(20)).tokens, 0u);
  EXPECT_EQ(cache->Lookup(asked_by(own), Count(20)).tokens, 19u);  // control
}

// --- not ready, not whole (cases/identity 21, 27) ---

TEST(KvCacheSafety, OnlyCommittedBlocksAreSeen) {
  TestCache cache;
  Running running = cache.Admit(Count(12));
  running.sequence.Prepare(12);
  cache.WriteRows(running, 0, 12);
  EXPECT_EQ(cache.Lookup(Count(12)).tokens, 0u);  // written, not committed
  running.sequence.Commit(std::span(running.tokens).first(6));
  EXPECT_EQ(cache.Lookup(Count(12)).tokens, 4u);  // the second block is half filled
  running.sequence.Commit(std::span(running.tokens).subspan(6, 6));
  EXPECT_EQ(cache.Lookup(Count(12)).tokens, 11u);  // control
}

TEST(KvCacheSafety, ACancelledSequenceLeavesItsSealedBlocksOnly) {
  TestCache cache;
  {
    Running running = cache.Admit(Count(30));
    cache.StepTo(running, 14);
    running.sequence.Prepare(8);
    cache.WriteRows(running, 14, 8);
  }
  EXPECT_EQ(cache.Lookup(Count(30)).tokens, 12u);
  EXPECT_EQ(cache->stats().tails, 0u);
  EXPECT_EQ(cache->stats().groups[0].slots_active, 0u);
  EXPECT_EQ(cache->stats().groups[0].slots_reusable, 3u);
  cache->CheckIntegrity();
}

// A failed step leaves NaN behind its sequence's rows: no later user of a slot may meet it, where it would be
// multiplied by a weight of 0.
TEST(KvCacheSafety, RowsThatWereNeverCommittedAreClearedBeforeTheSlotIsReused) {
  TestCache cache(WithSlots({8}));
  const auto count_nan = [&] {
    const KvGroupView view = cache->group_views()[0];
    const uint64_t elements = SlotBytes(cache.options().geometry, GroupId(0)) * view.slots / 2;
    const uint16_t* values = reinterpret_cast<const uint16_t*>(view.base);
    return std::count(values, values + elements, uint16_t{0x7E00});
  };
  const auto poison = [&](Running& running, uint32_t first_block) {
    const std::span<const SlotId> table = running.sequence.tables()[0];
    const KvGroupView view = cache->group_views()[0];
    const uint64_t bytes = SlotBytes(cache.options().geometry, GroupId(0));
    for (uint32_t block = first_block; block < table.size(); ++block) {
      uint16_t* values = reinterpret_cast<uint16_t*>(view.base + table[block].value() * bytes);
      std::fill(values, values + bytes / 2, uint16_t{0x7E00});
    }
  };
  {
    Running failed = cache.Admit(Count(30));
    cache.StepTo(failed, 8);
    failed.sequence.Prepare(10);
    poison(failed, 2);
    EXPECT_GT(count_nan(), 0);  // control
  }
  EXPECT_EQ(count_nan(), 0);
  Running ended = cache.Admit(Count(30));
  cache.StepTo(ended, 12);
  ended.sequence.Prepare(3);
  poison(ended, 3);
  ended.sequence.Finish();
  EXPECT_EQ(count_nan(), 0);
  cache->CheckIntegrity();
}

TEST(KvCacheSafety, AFoundPrefixThatIsEvictedBeforeAdmissionIsNotUsed) {
  TestCache cache(WithSlots({8}));
  cache.Run(Count(30));
  EXPECT_EQ(cache.Lookup(Count(30)).tokens, 29u);
  cache.Run(Count(32, 100));
  Running running = cache.Admit(Count(30));
  EXPECT_EQ(running.sequence.length(), 0u);
  EXPECT_EQ(running.sequence.match().reason, MissReason::kEvicted);
}

TEST(KvCacheSafety, WithoutWriteNothingStays) {
  TestCache cache;
  Running running = cache.Admit(Count(21), {.write = false});
  cache.StepTo(running, 21);
  running.sequence.Finish();
  EXPECT_EQ(cache->stats().groups[0].slots_free, 64u);
  EXPECT_EQ(cache.Lookup(Count(21)).reason, MissReason::kNeverSeen);
  cache.Run(Count(21));
  EXPECT_EQ(cache.Admit(Count(21), {.write = false}).sequence.length(), 20u);  // control: it still reads
}

TEST(KvCacheSafety, WithoutReadNothingIsReusedAndDuplicatesMerge) {
  TestCache cache;
  cache.Run(Count(21));
  Running running = cache.Admit(Count(21), {.read = false});
  EXPECT_EQ(running.sequence.match().reason, MissReason::kReadDisabled);
  EXPECT_EQ(running.sequence.Rematch(), 0u);
  EXPECT_EQ(running.sequence.length(), 0u);
  cache.StepTo(running, 21);
  EXPECT_EQ(cache->stats().duplicate_seals, 5u);
  running.sequence.Finish();
  EXPECT_EQ(cache->stats().groups[0].slots_reusable, 6u);
  EXPECT_EQ(cache.Lookup(Count(21)).tokens, 20u);
}

// --- eviction ---

TEST(KvCacheEviction, PinnedBlocksAreNeverEvicted) {
  TestCache cache(WithSlots({16}));
  Running running = cache.Admit(Count(24));
  cache.StepTo(running, 20);
  for (int i = 1; i < 20; ++i) cache.Run(Count(30, 100 * i));
  EXPECT_GT(cache->stats().evicted_blocks, 100u);
  cache->Clear();
  cache.CheckRows(running);
  EXPECT_EQ(cache.Lookup(Count(21)).tokens, 20u);
  running = Running();
  cache->Clear();
  EXPECT_EQ(cache.Lookup(Count(21)).tokens, 0u);  // control: without its pins it goes
}

TEST(KvCacheEviction, ChildrenAreEvictedBeforeParents) {
  TestCache cache(WithSlots({8}));
  cache.Run(Count(32));
  cache.Lookup(Count(5));
  for (uint32_t taken = 1; taken < 8; ++taken) {
    Running other = cache.Admit(Count(4 * taken, 100 * static_cast<int32_t>(taken)), {.write = false});
    cache.StepTo(other, 4 * taken);
    other.sequence.Finish();
    EXPECT_EQ(cache.Lookup(Count(33)).tokens, 32 - 4 * taken);  // the last blocks went, the head stays
  }
}

TEST(KvCacheEviction, TheLeastRecentlyUsedGoesFirst) {
  TestCache cache(WithSlots({9}));
  cache.Run(Count(12, 100));
  cache.Run(Count(12, 200));
  cache.Run(Count(12, 300));
  cache.Run(Count(12, 100));  // used again
  Running other = cache.Admit(Count(12, 400));
  cache.StepTo(other, 12);
  EXPECT_EQ(cache.Lookup(Count(13, 100)).tokens, 12u);
  EXPECT_EQ(cache.Lookup(Count(13, 200)).tokens, 0u);
  EXPECT_EQ(cache.Lookup(Count(13, 200)).reason, MissReason::kEvicted);
  EXPECT_EQ(cache.Lookup(Count(13, 300)).tokens, 12u);
}

TEST(KvCacheEviction, OneParentKeepsAFewTails) {
  TestCache cache;
  for (int i = 0; i < 20; ++i) cache.Run(Count(4) + Count(3, 100 * (i + 1)));
  EXPECT_EQ(cache->stats().tails, 16u);
  EXPECT_EQ(cache.Lookup(Count(4) + Count(9, 100)).tokens, 4u);   // the oldest is gone
  EXPECT_EQ(cache.Lookup(Count(4) + Count(9, 2000)).tokens, 7u);  // the youngest is there
  cache.Run(Count(4) + Count(2, 2000));
  EXPECT_EQ(cache->stats().tails, 16u);  // a longer one holds the same rows
}

TEST(KvCacheEviction, ALongerTailReplacesItsPrefix) {
  TestCache cache;
  cache.Run(Count(5));
  cache.Run(Count(7));
  EXPECT_EQ(cache->stats().tails, 1u);
  EXPECT_EQ(cache.Lookup(Count(9)).tokens, 7u);
}

// The tail that the next turn goes on from is the last slot left: it is taken over instead of copied.
TEST(KvCacheEviction, TheLastSlotMayBeTheSourceItself) {
  TestCache cache(WithSlots({2}));
  cache.Run(Count(6));
  Running running = cache.Admit(Count(7));
  EXPECT_EQ(running.sequence.length(), 6u);
  EXPECT_EQ(cache->stats().tails, 0u);
  cache->CheckIntegrity();
  cache.StepTo(running, 7);
  running.sequence.Finish();
  EXPECT_EQ(cache.Lookup(Count(9)).tokens, 7u);
}

// --- admission ---

TEST(KvCacheAdmission, ReservesAllOrNothing) {
  TestCache cache(WithSlots({10}));
  Running first = cache.Admit(Count(8), {.output = 16});  // six blocks
  Running second;
  const KvCache::Stats before = cache->stats();
  EXPECT_EQ(cache.TryAdmit(Count(17), {}, cache.name_space(), second), Outcome::kWait);  // five, four are left
  EXPECT_FALSE(second.sequence);
  EXPECT_EQ(cache->stats().groups[0].slots_active, before.groups[0].slots_active);
  EXPECT_EQ(cache->stats().sequences, 1u);
  cache->CheckIntegrity();
  EXPECT_EQ(cache.TryAdmit(Count(16), {}, cache.name_space(), second), Outcome::kAdmitted);  // control: four
  cache.StepTo(second, 16);
  cache.Generate(first, Count(16, 50));  // what was reserved is there
  cache->CheckIntegrity();
}

TEST(KvCacheAdmission, AWaitingRequestFitsWhenOthersHaveEnded) {
  TestCache cache(WithSlots({10}));
  Running first = cache.Admit(Count(8), {.output = 20}), second;
  EXPECT_EQ(cache.TryAdmit(Count(30, 100), {}, cache.name_space(), second), Outcome::kWait);
  first = Running();
  EXPECT_EQ(cache.TryAdmit(Count(30, 100), {}, cache.name_space(), second), Outcome::kAdmitted);
}

TEST(KvCacheAdmission, WhatWouldNotFitAnEmptyCacheIsNeverAdmitted) {
  TestCache cache(WithSlots({10}));
  Running running;
  EXPECT_EQ(cache.TryAdmit(Count(20), {.output = 21}, cache.name_space(), running), Outcome::kNever);
  EXPECT_EQ(cache.TryAdmit(Count(20), {.output = 20}, cache.name_space(), running), Outcome::kAdmitted);
}

TEST(KvCacheAdmission, SharedBlocksCountOnce) {
  TestCache cache(WithSlots({12}));
  Running first = cache.Admit(Count(32));
  cache.StepTo(first, 32);
  Running second = cache.Admit(Count(32) + Count(4, 100));  // nine blocks, eight of them shared
  Running third = cache.Admit(Count(32) + Count(4, 200));
  Running fourth;
  EXPECT_EQ(cache.TryAdmit(Count(8, 500), {}, cache.name_space(), fourth), Outcome::kAdmitted);
  EXPECT_EQ(cache.TryAdmit(Count(1), {}, cache.name_space(), fourth = Running()), Outcome::kAdmitted);
  cache.StepTo(second, 36);
  cache.StepTo(third, 36);
  cache->CheckIntegrity();
}

TEST(KvCacheAdmission, NoMoreSequencesThanPlanned) {
  TestCache::Options options;
  options.sequences_max = 2;
  TestCache cache(options);
  Running first = cache.Admit(Count(5)), second = cache.Admit(Count(5)), third;
  EXPECT_EQ(cache.TryAdmit(Count(5), {}, cache.name_space(), third), Outcome::kWait);
  second.sequence = CacheSequence();
  EXPECT_EQ(cache.TryAdmit(Count(5), {}, cache.name_space(), third), Outcome::kAdmitted);
}

TEST(KvCacheAdmission, MisuseAborts) {
  TestCache cache;
  Running running = cache.Admit(Count(20));
  EXPECT_DEATH(running.sequence.Prepare(17), "in_flight_max");
  EXPECT_DEATH(running.sequence.Commit(std::span(running.tokens).first(1)), "prepared");
  running.sequence.Prepare(4);
  EXPECT_DEATH(running.sequence.Commit(Count(4, 7)), "token");  // not the prompt it was admitted with
  cache.StepTo(running, 20);
  EXPECT_DEATH(running.sequence.Prepare(1), "tokens_max");
}

}  // namespace
}  // namespace reprise
