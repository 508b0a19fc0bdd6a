// What is kept when not all fits: scans, tenants, time.
#include "cache/cache_testing.h"

namespace reprise {
namespace {

constexpr uint32_t kSlots = 200;  // blocks of four tokens

using Policies = testing::TestWithParam<EvictionPolicy>;
class KvCacheEviction : public Policies {};
INSTANTIATE_TEST_SUITE_P(Policies, KvCacheEviction,
                         testing::Values(EvictionPolicy::kValuePerByte, EvictionPolicy::kLruWithTenantQuota),
                         [](const auto& info) {
                           return info.param == EvictionPolicy::kValuePerByte ? "ValuePerByte" : "LruWithTenantQuota";
                         });

// Admits, computes and drops: no tails.
uint32_t Use(TestCache& cache, const NamespaceDigests& name_space, const std::vector<TokenId>& prompt) {
  TestCache::Running running;
  EXPECT_EQ(cache.TryAdmit(prompt, {}, name_space, running), KvCache::Outcome::kAdmitted);
  const uint32_t reused = running.sequence.match().tokens;
  cache.StepTo(running, prompt.size());
  return reused;
}

TEST(KvCacheScan, OneShotPromptsOfTenTimesTheCacheLeaveAHotPrefixResident) {
  for (const EvictionPolicy policy : {EvictionPolicy::kValuePerByte, EvictionPolicy::kLruWithTenantQuota}) {
    TestCache cache({.geometry = SmallGeometry({FullGroup({0})}, 64),
                     .slots = {kSlots},
                     .context_max = 2048,
                     .in_flight_max = 2048,
                     .eviction = policy});
    const std::vector<TokenId> hot = Count(1281, 10'000'000);  // 20 blocks
    for (int i = 0; i < 3; ++i) Use(cache, cache.name_space(), hot);
    for (int scan = 0; scan < static_cast<int>(10 * kSlots / 25); ++scan)
      Use(cache, cache.name_space(), Count(1601, 10'000 * scan));
    cache->CheckIntegrity();
    EXPECT_GT(cache->stats().evicted_blocks, 8u * kSlots);
    EXPECT_EQ(cache.Lookup(hot).tokens, policy == EvictionPolicy::kValuePerByte ? 1280u : 0u)
        << "the least recently used is the control";
  }
}

TEST(KvCacheScan, ANewWorkingSetTakesThePlaceOfOneThatIsNotUsedAnyMore) {
  TestCache cache({.slots = {kSlots}});
  const auto prompt = [](int set, int i) { return Count(41, 1'000'000 * set + 1000 * i); };
  const auto round = [&](int set) {
    uint32_t reused = 0;
    for (int i = 0; i < 15; ++i) reused += Use(cache, cache.name_space(), prompt(set, i));
    return reused;
  };
  for (int i = 0; i < 20; ++i) round(1);
  EXPECT_EQ(round(1), 15u * 40) << "15 prompts of ten blocks fit";
  uint32_t reused = 0;
  for (int i = 0; i < 40; ++i) reused = round(2);
  EXPECT_EQ(reused, 15u * 40);
}

TEST_P(KvCacheEviction, AFloodDoesNotTakeWhatIsWithinAnotherTenantsQuota) {
  TestCache cache({.slots = {kSlots}, .eviction = GetParam(), .quotas = {{"quiet", 0.5}, {"loud", 0.3}}});
  const NamespaceDigests quiet = cache->Namespace({.tenant = "quiet"});
  const NamespaceDigests loud = cache->Namespace({.tenant = "loud", .salt = "any"});
  const auto prompt = [](int i) { return Count(37, 1'000'000 + 1000 * i); };  // nine blocks
  for (int i = 0; i < 11; ++i) Use(cache, quiet, prompt(i));                  // 99 blocks: its quota and no more
  for (int scan = 0; scan < 300; ++scan) {
    Use(cache, loud, Count(41, 1000 * scan));
    if (scan % 3 == 0) Use(cache, loud, Count(41, 1000 * scan));  // used again: worth more than the quiet one's
  }
  cache->CheckIntegrity();
  for (int i = 0; i < 11; ++i) EXPECT_EQ(cache->Lookup(quiet, prompt(i)).tokens, 36u) << i;
  EXPECT_EQ(cache->Lookup(loud, Count(41, 0)).tokens, 0u);

  // The control: without quotas the flood takes all there is.
  TestCache open({.slots = {kSlots}, .eviction = EvictionPolicy::kLruWithTenantQuota});
  Use(open, quiet, prompt(0));
  for (int scan = 0; scan < 300; ++scan) Use(open, loud, Count(41, 1000 * scan));
  EXPECT_EQ(open->Lookup(quiet, prompt(0)).tokens, 0u);
}

TEST_P(KvCacheEviction, WhatAQuotaDoesNotUseOthersMay) {
  TestCache cache({.slots = {kSlots}, .eviction = GetParam(), .quotas = {{"quiet", 0.9}}});
  const NamespaceDigests other = cache->Namespace({.tenant = "other"});
  for (int i = 0; i < 19; ++i) Use(cache, other, Count(41, 1000 * i));  // 190 blocks of 200
  for (int i = 0; i < 19; ++i) EXPECT_EQ(cache->Lookup(other, Count(41, 1000 * i)).tokens, 40u);
  const NamespaceDigests quiet = cache->Namespace({.tenant = "quiet"});
  for (int i = 0; i < 17; ++i) Use(cache, quiet, Count(41, 1000 * i));  // 170 blocks: it comes for its share
  for (int i = 0; i < 17; ++i) EXPECT_EQ(cache->Lookup(quiet, Count(41, 1000 * i)).tokens, 40u);
}

TEST_P(KvCacheEviction, WhatNobodyUsedForLongerThanTheLimitIsAMissThatSaysSo) {
  TestCache cache({.slots = {kSlots}, .eviction = GetParam(), .reusable_ttl_s = 60});
  cache->SetTime(1000);
  cache.Run(Count(30));
  cache->SetTime(61'000);
  EXPECT_EQ(cache.Lookup(Count(31)).tokens, 30u) << "the control: just in time, tail and all";
  cache->SetTime(61'001);
  const PrefixMatch late = cache.Lookup(Count(31));
  EXPECT_EQ(late.tokens, 0u);
  EXPECT_EQ(late.reason, MissReason::kExpired);
  cache.Run(Count(30));  // computed again, it is young again
  EXPECT_EQ(cache.Lookup(Count(31)).tokens, 30u);
  // What runs does not expire.
  TestCache::Running running = cache.Admit(Count(40));
  cache.StepTo(running, 32);
  cache->SetTime(10'000'000);
  EXPECT_EQ(cache.Lookup(Count(40)).tokens, 32u);
  cache->CheckIntegrity();
}

// With windows a prefix lives where its checkpoint edges do.
TestCache::Options WithWindows() {
  return {.geometry = SmallGeometry({FullGroup({0}), WindowGroup({1}, 16)}),
          .slots = {120, 30},
          .sequences_max = 2,
          .context_max = 80,
          .in_flight_max = 16};
}

TEST_P(KvCacheEviction, AFloodDoesNotTakeAnotherTenantsWindows) {
  for (const bool quotas : {true, false}) {
    TestCache::Options options = WithWindows();
    options.eviction = GetParam();
    if (quotas) options.quotas = {{"test", 0.5}, {"flood", 0.5}};
    TestCache cache(options);
    cache.Run(Count(64));
    cache.Run(Count(64) + Count(4, 900));
    const NamespaceDigests flood = cache->Namespace({.tenant = "flood"});
    for (int i = 0; i < 200; ++i) {
      TestCache::Running running;
      ASSERT_EQ(cache.TryAdmit(Count(64, 100'000 + 100 * i), {}, flood, running), KvCache::Outcome::kAdmitted);
      cache.StepTo(running, 64);
      running.sequence.MarkCheckpoint();
      running.sequence.Finish();
    }
    cache->CheckIntegrity();
    const uint32_t left = cache.Lookup(Count(64) + Count(4, 7000)).tokens;
    if (quotas) {
      EXPECT_EQ(left, 64u);
    } else if (GetParam() == EvictionPolicy::kLruWithTenantQuota) {
      EXPECT_EQ(left, 0u) << "the control";
    }
  }
}

TEST(KvCacheScan, LeavesTheWindowsOfAHotPrefixToo) {
  TestCache::Options options = WithWindows();
  options.geometry.block_tokens = 64;
  options.geometry.groups[1].window = 256;
  options.context_max = 80 * 16;
  options.in_flight_max = 256;
  for (const EvictionPolicy policy : {EvictionPolicy::kValuePerByte, EvictionPolicy::kLruWithTenantQuota}) {
    options.eviction = policy;
    TestCache cache(options);
    const std::vector<TokenId> hot = Count(1024, 10'000'000);
    for (int i = 0; i < 3; ++i) cache.Run(hot + Count(64, 20'000'000 + 100 * i));
    for (int scan = 0; scan < 80; ++scan) cache.Run(Count(1024, 10'000 * scan));
    EXPECT_EQ(cache.Lookup(hot + Count(64, 30'000'000)).tokens, policy == EvictionPolicy::kValuePerByte ? 1024u : 0u)
        << "the least recently used is the control";
  }
}

TEST(KvCacheExpiry, HoldsForModelsWithWindowsOnly) {
  TestCache cache({.geometry = SmallGeometry({WindowGroup({0}, 100)}), .slots = {16}, .reusable_ttl_s = 10});
  cache->SetTime(1'000'000);
  cache.Run(Count(12));
  cache->SetTime(1'000'001);
  EXPECT_EQ(cache.Lookup(Count(12) + Count(3, 70)).tokens, 12u);
  cache->SetTime(1'020'000);
  EXPECT_EQ(cache.Lookup(Count(12) + Count(3, 70)).reason, MissReason::kExpired);
}

TEST(KvCacheExpiry, IsNoReasonWhereSomethingYoungerIsLonger) {
  TestCache cache({.geometry = SmallGeometry({FullGroup({0})}, 16), .slots = {16}, .reusable_ttl_s = 10});
  cache->SetTime(1000);
  cache.Run(Count(5) + Count(11, 100));
  cache->SetTime(100'000);
  cache.Run(Count(10));
  EXPECT_EQ(cache.Lookup(Count(12)).tokens, 10u);
  EXPECT_EQ(cache.Lookup(Count(12)).reason, MissReason::kNeverSeen);
}

// Rows that are copied again and again are in use, though their own block never becomes part of a path.
TEST(KvCacheScan, TheSourceOfCopiesIsHot) {
  TestCache cache(
      {.geometry = SmallGeometry({FullGroup({0})}, 16), .slots = {16}, .sequences_max = 2, .context_max = 32});
  cache.Run(Count(15));
  for (int i = 0; i < 60; ++i) {
    TestCache::Running running = cache.Admit(Count(15) + Tokens({1000}), {.write = false});
    ASSERT_EQ(running.sequence.match().tokens, 15u) << i;
    cache.StepTo(running, 16);
    running.sequence.Finish();
    cache.Run(Count(32, 2000 + 100 * i));
  }
}

// The last slot of a window group may be the source's own: what is left of the source can still be evicted.
TEST(KvCacheTakeover, WhatLosesItsWindowSlotStaysEvictable) {
  TestCache cache({.geometry = SmallGeometry({FullGroup({0}), WindowGroup({1}, 100)}),
                   .slots = {4, 3},
                   .sequences_max = 1,
                   .context_max = 12,
                   .in_flight_max = 12});
  cache.Run(Count(12));
  for (int i = 0; i < 10; ++i) {
    cache.Run(Count(10) + Count(2, 50 + 10 * i));
    cache->CheckIntegrity();
  }
  EXPECT_EQ(cache.Run(Count(12, 500)).tokens, 0u);
}

}  // namespace
}  // namespace reprise
