// Namespaces: why one's prompt finds nothing in another's blocks, purges, and more of them than are kept.
#include "cache/cache_testing.h"

namespace reprise {
namespace {

using Running = TestCache::Running;
constexpr uint32_t kBlock = 4;  // SmallGeometry's

MissReason ReasonIn(TestCache& cache, const NamespaceDigests& name_space, const std::vector<TokenId>& prompt,
                    ReportView view = ReportView::kOwner) {
  return cache->Explain(name_space, prompt, view).match.reason;
}

TEST(KvCacheNamespace, AMissNamesWhatDiffers) {
  TestCache cache;
  cache.Run(Count(20));
  const Scope own{.tenant = "test"};
  const auto with = [&](std::optional<std::string> salt, uint64_t epoch) {
    return cache->Namespace({.tenant = "test", .epoch = epoch, .salt = std::move(salt)});
  };
  EXPECT_EQ(ReasonIn(cache, cache->Namespace(own), Count(20)), MissReason::kLastTokenRule) << "the control: a hit";
  EXPECT_EQ(ReasonIn(cache, with("", 0), Count(20)), MissReason::kSaltDiffers);
  EXPECT_EQ(ReasonIn(cache, with(std::nullopt, 1), Count(20)), MissReason::kEpochStale);
  EXPECT_EQ(ReasonIn(cache, cache->Namespace(own, "another adapter"), Count(20)), MissReason::kAdapterDiffers);
  EXPECT_EQ(ReasonIn(cache, cache->Namespace(own, ""), Count(20)), MissReason::kLastTokenRule) << "none, as it was";
  EXPECT_EQ(ReasonIn(cache, with("", 0), Count(20, 500)), MissReason::kNeverSeen) << "nobody has that prompt";
}

TEST(KvCacheNamespace, AnotherTenantsBlocksAreNeverSeenButByOperators) {
  TestCache cache;
  cache.Run(Count(20));
  const NamespaceDigests other = cache->Namespace({.tenant = "other"});
  EXPECT_EQ(ReasonIn(cache, other, Count(20)), MissReason::kNeverSeen);
  EXPECT_EQ(ReasonIn(cache, other, Count(20), ReportView::kOperator), MissReason::kTenantDiffers);
  // Nor does anything else of the report tell.
  const PrefixReport seen = cache->Explain(other, Count(20));
  const PrefixReport unseen = cache->Explain(other, Count(20, 500));
  EXPECT_EQ(seen.key, unseen.key);
  EXPECT_EQ(seen.fork, 0u);
  EXPECT_FALSE(seen.cached_token.has_value());
}

TEST(KvCacheNamespace, AForkIsNamedWithBothTokensAndItsCost) {
  TestCache cache;
  cache.Run(Count(30));
  std::vector<TokenId> prompt = Count(30);
  prompt[13] = TokenId(999);
  const PrefixReport report = cache->Explain(cache.name_space(), prompt);
  EXPECT_EQ(report.match.tokens, 13u);
  EXPECT_EQ(report.match.reason, MissReason::kTokensDiffer);
  EXPECT_EQ(report.fork, 13u);
  EXPECT_EQ(report.cached_token, Count(30)[13]);
  EXPECT_EQ(report.cached_beyond, 30u - 13u);
  const PrefixReport longer = cache->Explain(cache.name_space(), Count(40));
  EXPECT_EQ(longer.match.tokens, 30u);
  EXPECT_FALSE(longer.cached_token.has_value()) << "it goes on from the end: nothing differs";
}

TEST(KvCacheNamespace, PurgeForgetsATenantWhateverItsSaltAndEpoch) {
  TestCache cache;
  const NamespaceDigests salted = cache->Namespace({.tenant = "test", .salt = "s"});
  const NamespaceDigests later = cache->Namespace({.tenant = "test", .epoch = 7});
  const NamespaceDigests other = cache->Namespace({.tenant = "other"});
  for (const NamespaceDigests& each : {cache.name_space(), salted, later, other}) {
    Running running;
    ASSERT_EQ(cache.TryAdmit(Count(20), {}, each, running), KvCache::Outcome::kAdmitted);
    cache.StepTo(running, 20);
    running.sequence.Finish();
  }
  const KvCache::Purged purged = cache->Purge("test");
  cache->CheckIntegrity();
  EXPECT_EQ(purged.blocks, 3u * 20 / kBlock);
  EXPECT_EQ(purged.pinned, 0u);
  for (const NamespaceDigests& each : {cache.name_space(), salted, later})
    EXPECT_EQ(cache->Lookup(each, Count(20)).tokens, 0u);
  EXPECT_EQ(cache->Lookup(other, Count(20)).tokens, 19u) << "the control";
  EXPECT_EQ(cache->Purge("nobody").blocks, 0u);
}

TEST(KvCacheNamespace, WhatRunsIsPurgedWithItsEnd) {
  TestCache cache;
  cache.Run(Count(20));
  Running running = cache.Admit(Count(24), {.output = 8});
  cache.Step(running, 2);
  const KvCache::Purged purged = cache->Purge("test");
  EXPECT_GT(purged.pinned, 0u);
  cache->CheckIntegrity();
  EXPECT_EQ(cache.Lookup(Count(24)).tokens, 0u) << "found by nobody any more";
  cache.Run(Count(20));  // the same prefix again, beside it
  cache->CheckIntegrity();
  cache.StepTo(running, 24);
  cache.Generate(running, Count(8, 700));
  cache.CheckRows(running);
  running.sequence.Finish();
  cache->CheckIntegrity();
  EXPECT_EQ(cache.Lookup(Count(24) + Count(8, 700)).tokens, 20u) << "nothing of what ran, all of what came after";
  EXPECT_EQ(cache->stats().nodes, 20u / kBlock);
}

TEST(KvCacheNamespace, AWaitingSequenceDoesNotReusePurgedBlocks) {
  TestCache cache;
  Running leader = cache.Admit(Count(24));
  Running follower = cache.Admit(Count(25));
  cache.StepTo(leader, 24);
  cache->Purge("test");
  EXPECT_EQ(follower.sequence.Rematch(), 0u);
  cache.StepTo(follower, 25);
  follower.sequence.Finish();
  leader.sequence.Finish();
  cache->CheckIntegrity();
  EXPECT_EQ(cache->stats().nodes, 0u);
}

TEST(KvCacheNamespace, MoreNamespacesThanAreKeptForgetTheOneUsedLeastOfLate) {
  TestCache cache({.slots = {4}, .sequences_max = 2});
  const auto name_space = [&](int salt) { return cache->Namespace({.tenant = "test", .salt = std::to_string(salt)}); };
  for (int salt = 0; salt < 100; ++salt) {
    Running running;
    ASSERT_EQ(cache.TryAdmit(Count(5, salt), {}, name_space(salt), running), KvCache::Outcome::kAdmitted);
    cache.StepTo(running, 5);
    running.sequence.Finish();
    cache->CheckIntegrity();
    ASSERT_EQ(cache->Lookup(name_space(salt), Count(5, salt)).tokens, 4u);
  }
  EXPECT_EQ(cache->Lookup(name_space(0), Count(5, 0)).tokens, 0u);
}

}  // namespace
}  // namespace reprise
