// Soft pins: what goes last, for how long, and at whose cost. And what goes first.
#include "cache/cache_testing.h"

namespace reprise {
namespace {

constexpr uint32_t kSlots = 60;  // blocks of four tokens

class KvCacheSoftPin : public testing::TestWithParam<EvictionPolicy> {
 protected:
  TestCache::Options Options() const { return {.slots = {kSlots}, .eviction = GetParam(), .soft_pin_blocks = 10}; }
};
INSTANTIATE_TEST_SUITE_P(Policies, KvCacheSoftPin,
                         testing::Values(EvictionPolicy::kValuePerByte, EvictionPolicy::kLruWithTenantQuota),
                         [](const auto& info) {
                           return info.param == EvictionPolicy::kValuePerByte ? "ValuePerByte" : "LruWithTenantQuota";
                         });

void Use(TestCache& cache, const NamespaceDigests& name_space, const std::vector<TokenId>& prompt) {
  TestCache::Running running;
  ASSERT_EQ(cache.TryAdmit(prompt, {}, name_space, running), KvCache::Outcome::kAdmitted);
  cache.StepTo(running, prompt.size());
  running.sequence.Finish();
  cache->CheckIntegrity();
}
// Blocks of several times the cache, each used twice, so that they are worth as much as anything.
void Flood(TestCache& cache, const NamespaceDigests& name_space) {
  for (int i = 0; i < 30; ++i)
    for (int again = 0; again < 2; ++again) Use(cache, name_space, Count(41, 10'000 + 1000 * i));
}

TEST_P(KvCacheSoftPin, OutlivesAFloodUntilItsTimeIsUp) {
  TestCache cache(Options());
  const std::vector<TokenId> pinned = Count(21), other = Count(21, 500);
  cache.Run(pinned);
  cache.Run(other);
  EXPECT_EQ(cache->SoftPin(cache.name_space(), pinned, 1000), 20u);
  Flood(cache, cache.name_space());
  EXPECT_EQ(cache.Lookup(pinned).tokens, 20u);
  EXPECT_EQ(cache.Lookup(other).tokens, 0u) << "the control";
  cache->SetTime(999);
  Flood(cache, cache.name_space());
  EXPECT_EQ(cache.Lookup(pinned).tokens, 20u);
  cache->SetTime(1000);
  cache->CheckIntegrity();
  Flood(cache, cache.name_space());
  EXPECT_EQ(cache.Lookup(pinned).tokens, 0u);
}

TEST_P(KvCacheSoftPin, NeverStopsAnAdmission) {
  TestCache::Options options = Options();
  options.soft_pin_blocks = kSlots;
  TestCache cache(options);
  std::vector<TokenId> pinned = Count(4 * kSlots);
  cache.Run(pinned);
  EXPECT_EQ(cache->SoftPin(cache.name_space(), pinned, 1000), 4 * kSlots);
  Use(cache, cache.name_space(), Count(4 * (kSlots - 10), 500));
  EXPECT_EQ(cache.Lookup(pinned).tokens, 40u) << "from its end on, and no more than needed";
  Use(cache, cache.name_space(), Count(4 * kSlots, 900));
  EXPECT_EQ(cache.Lookup(pinned).tokens, 0u);
}

TEST_P(KvCacheSoftPin, OfMoreThanTheBudgetTheOldestGivesWay) {
  TestCache cache(Options());                                    // ten blocks
  const auto prompt = [](int i) { return Count(17, 100 * i); };  // four
  const auto pin = [&](int i) { EXPECT_EQ(cache->SoftPin(cache.name_space(), prompt(i), 9000), 16u); };
  for (int i = 0; i < 3; ++i) cache.Run(prompt(i));
  pin(0);
  pin(1);
  pin(0);  // renewed: 1 is the oldest
  pin(2);
  cache->CheckIntegrity();
  Flood(cache, cache.name_space());
  EXPECT_EQ(cache.Lookup(prompt(0)).tokens, 16u);
  EXPECT_EQ(cache.Lookup(prompt(1)).tokens, 0u);
  EXPECT_EQ(cache.Lookup(prompt(2)).tokens, 16u);
  // Of one that is longer than the budget, its beginning.
  cache.Run(Count(80, 5000));
  EXPECT_EQ(cache->SoftPin(cache.name_space(), Count(80, 5000), 9000), 40u);
  Flood(cache, cache.name_space());
  EXPECT_EQ(cache.Lookup(Count(80, 5000)).tokens, 40u);
}

TEST_P(KvCacheSoftPin, PrefixesOfOneAnotherCountOnce) {
  TestCache cache(Options());
  cache.Run(Count(41));
  for (const uint32_t tokens : {8, 16, 24, 32, 40}) {
    EXPECT_EQ(cache->SoftPin(cache.name_space(), Count(tokens), 100 * tokens), tokens);
    cache->CheckIntegrity();
  }
  for (const uint32_t tokens : {8, 16, 24, 32}) {
    cache->SetTime(100 * tokens);
    cache->CheckIntegrity();
  }
  Flood(cache, cache.name_space());
  EXPECT_EQ(cache.Lookup(Count(41)).tokens, 40u) << "the longest is left";
}

TEST_P(KvCacheSoftPin, QuotasHold) {
  TestCache::Options options = Options();
  options.soft_pin_blocks = 30;
  options.quotas = {{"quiet", 0.5}, {"loud", 0.3}};
  TestCache cache(options);
  const NamespaceDigests quiet = cache->Namespace({.tenant = "quiet"}), loud = cache->Namespace({.tenant = "loud"});
  Use(cache, quiet, Count(117));  // 29 blocks and a tail: all of its half
  Use(cache, loud, Count(120, 5000));
  EXPECT_EQ(cache->SoftPin(loud, Count(120, 5000), 9000), 120u);
  Use(cache, cache->Namespace({.tenant = "other"}), Count(40, 9000));
  EXPECT_EQ(cache->Lookup(quiet, Count(117)).tokens, 116u) << "within its quota, and not pinned";
  EXPECT_EQ(cache->Lookup(loud, Count(120, 5000)).tokens, 80u) << "above it, and pinned";
}

TEST_P(KvCacheSoftPin, APurgeEndsIt) {
  TestCache cache(Options());
  cache.Run(Count(21));
  cache->SoftPin(cache.name_space(), Count(21), 9000);
  EXPECT_EQ(cache->Purge("test").blocks, 6u);
  cache->CheckIntegrity();
  EXPECT_EQ(cache.Lookup(Count(21)).tokens, 0u);
  EXPECT_EQ(cache->SoftPin(cache.name_space(), Count(21), 9000), 0u) << "nothing is there";
}

TEST_P(KvCacheSoftPin, OfWindowsWhatResumingAtItsEndTakes) {
  TestCache cache({.geometry = SmallGeometry({FullGroup({0}), WindowGroup({1}, 10)}),
                   .slots = {100, 24},
                   .sequences_max = 2,
                   .context_max = 80,
                   .eviction = GetParam(),
                   .soft_pin_blocks = 20});
  for (const bool pin : {true, false}) {
    const std::vector<TokenId> prompt = Count(40, pin ? 0 : 300);
    cache.Run(prompt);
    const uint32_t pinned = pin ? cache->SoftPin(cache.name_space(), prompt, 9000) : 0;
    EXPECT_EQ(pinned, pin ? 40u : 0u);
    Flood(cache, cache.name_space());
    EXPECT_EQ(cache.Lookup(prompt + Count(3, 700)).tokens, pin ? 40u : 0u);
  }
}

TEST_P(KvCacheSoftPin, APrefixThatIsEveryonesCanBePinned) {
  TestCache::Options options = Options();
  options.shared_prefixes = {Count(20)};
  TestCache cache(options);
  const NamespaceDigests a = cache->Namespace({.tenant = "a"}), b = cache->Namespace({.tenant = "b"});
  Use(cache, a, Count(33));
  EXPECT_EQ(cache->SoftPin(b, Count(33), 9000), 20u) << "what follows is not b's";
  Flood(cache, cache.name_space());
  EXPECT_EQ(cache->Lookup(a, Count(33)).tokens, 20u);
}

TEST_P(KvCacheSoftPin, ExpiredBlocksGoBeforeAllOthers) {
  const std::vector<std::vector<LayerGroup>> models = {
      {FullGroup({0})}, {FullGroup({0}), WindowGroup({1}, 100)}, {WindowGroup({0}, 100)}};
  for (const uint32_t ttl_s : {10u, 0u}) {
    for (size_t model = 0; model < models.size(); ++model) {
      TestCache cache({.geometry = SmallGeometry(models[model]),
                       .slots = std::vector<uint32_t>(models[model].size(), kSlots),
                       .sequences_max = 2,
                       .context_max = 120,
                       .eviction = GetParam(),
                       .reusable_ttl_s = ttl_s,
                       .soft_pin_blocks = 20});
      const NamespaceDigests name_space = cache.name_space();
      for (int i = 0; i < 5; ++i) Use(cache, name_space, Count(81));  // used again, pinned, and then not for long
      cache->SoftPin(name_space, Count(81), 100'000);
      cache->SetTime(9'000);
      const std::vector<TokenId> young = Count(80, 1000);
      Use(cache, name_space, young);
      cache->SetTime(10'001);
      const uint64_t evicted = cache->stats().evicted_blocks;
      Use(cache, name_space, Count(100, 5000));  // six more than are free
      EXPECT_GT(cache->stats().evicted_blocks, evicted);
      if (ttl_s > 0) {
        EXPECT_EQ(cache.Lookup(young).tokens, 79u) << model;
      } else {
        EXPECT_LT(cache.Lookup(young).tokens, 79u) << "the control, " << model;
      }
    }
  }
}

TEST_P(KvCacheSoftPin, WhatIsLeftOfThoseWhoseEndsWentIsOne) {
  TestCache::Options options = Options();
  options.soft_pin_blocks = 3;
  TestCache cache(options);
  cache.Run(Count(12));
  for (const uint32_t tokens : {4, 8, 12}) EXPECT_EQ(cache->SoftPin(cache.name_space(), Count(tokens), 100), tokens);
  const std::vector<TokenId> other = Count(4 * (kSlots - 1), 500);
  Use(cache, cache.name_space(), other);
  EXPECT_EQ(cache.Lookup(Count(12)).tokens, 4u) << "one block of three";
  for (const uint32_t blocks : {1, 2})
    EXPECT_EQ(cache->SoftPin(cache.name_space(), std::span(other).first(4 * blocks), 100), 4 * blocks);
  cache->CheckIntegrity();
  Flood(cache, cache.name_space());
  EXPECT_EQ(cache.Lookup(Count(12)).tokens, 4u) << "still pinned";
  EXPECT_EQ(cache.Lookup(other).tokens, 8u);
}

TEST_P(KvCacheSoftPin, OneThatIsRenewedForeverIsOne) {
  TestCache cache(Options());
  cache.Run(Count(41));
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(cache->SoftPin(cache.name_space(), Count(21), 100), 20u);
    cache->CheckIntegrity();
  }
  cache->SetTime(100);
  Flood(cache, cache.name_space());
  EXPECT_EQ(cache.Lookup(Count(21)).tokens, 0u);
}

}  // namespace
}  // namespace reprise
