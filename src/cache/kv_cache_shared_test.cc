// Prefixes that are everyone's: shared by tenants, and not one token of what follows (cases/identity 15 to 20).
#include "cache/cache_testing.h"
#include "prefix/block_key.h"

namespace reprise {
namespace {

using Running = TestCache::Running;
constexpr uint32_t kBlock = 4;    // SmallGeometry's
constexpr uint32_t kShared = 20;  // tokens in whole blocks

// 22 tokens declared, of which five blocks are whole.
TestCache::Options Sharing() { return {.shared_prefixes = {Count(kShared + 2)}}; }

void Compute(TestCache& cache, const NamespaceDigests& name_space, const std::vector<TokenId>& prompt) {
  Running running;
  ASSERT_EQ(cache.TryAdmit(prompt, {}, name_space, running), KvCache::Outcome::kAdmitted);
  cache.StepTo(running, prompt.size());
  running.sequence.Finish();
  cache->CheckIntegrity();
}

class KvCacheShared : public testing::Test {
 protected:
  NamespaceDigests Tenant(const std::string& name, uint64_t epoch = 0) {
    return cache_->Namespace({.tenant = name, .epoch = epoch});
  }
  uint32_t Found(const NamespaceDigests& name_space, const std::vector<TokenId>& prompt) {
    return cache_->Lookup(name_space, prompt).tokens;
  }
  TestCache cache_{Sharing()};
  const std::vector<TokenId> prompt_ = Count(kShared + 15);
};

TEST_F(KvCacheShared, TwoTenantsShareTheDeclaredBlocksAndNotOneTokenMore) {
  Compute(cache_, Tenant("a"), prompt_);
  EXPECT_EQ(Found(Tenant("a"), prompt_), prompt_.size() - 1) << "the control: the tenant's own";
  EXPECT_EQ(Found(Tenant("b"), prompt_), kShared);
  Compute(cache_, Tenant("b"), prompt_);
  EXPECT_EQ(Found(Tenant("b"), prompt_), prompt_.size() - 1);
  EXPECT_EQ(cache_->stats().nodes, (kShared + 2 * 12) / kBlock) << "the shared blocks once, the rest of each";

  // Nothing is shared that is not declared, or not any more.
  TestCache private_cache;
  Compute(private_cache, private_cache->Namespace({.tenant = "a"}), prompt_);
  EXPECT_EQ(private_cache->Lookup(private_cache->Namespace({.tenant = "b"}), prompt_).tokens, 0u);
}

TEST_F(KvCacheShared, ABlockOfAnotherTenantBehindThePrefixIsNoPartialMatch) {
  std::vector<TokenId> other = prompt_;
  other[kShared + 2] = TokenId(900);  // two tokens of the next block are the same
  Compute(cache_, Tenant("a"), prompt_);
  EXPECT_EQ(Found(Tenant("b"), other), kShared);
  EXPECT_EQ(Found(Tenant("a"), other), kShared + 2) << "the control";
  Compute(cache_, Tenant("c"), Count(kShared + 3));  // a tail
  EXPECT_EQ(Found(Tenant("b"), other), kShared);
  EXPECT_EQ(Found(Tenant("c"), other), kShared + 2) << "the control";
}

TEST_F(KvCacheShared, APartOfADeclaredPrefixIsPrivate) {
  const std::vector<TokenId> part = Count(kShared - 1);
  Compute(cache_, Tenant("a"), part);
  EXPECT_EQ(Found(Tenant("a"), part), part.size() - 1);
  EXPECT_EQ(Found(Tenant("b"), part), 0u);
  EXPECT_EQ(Found(Tenant("b"), prompt_), 0u) << "nor did it fill the shared scope";
  Compute(cache_, Tenant("a"), prompt_);
  EXPECT_EQ(Found(Tenant("b"), part), 0u);
  EXPECT_EQ(Found(Tenant("b"), Count(kShared)), kShared - 1) << "the control: all of it, and the last token computed";
}

TEST_F(KvCacheShared, ASaltTakesNoPart) {
  const NamespaceDigests salted = cache_->Namespace({.tenant = "a", .salt = ""});
  Compute(cache_, salted, prompt_);
  EXPECT_EQ(Found(Tenant("a"), prompt_), 0u);
  Compute(cache_, Tenant("a"), prompt_);
  EXPECT_EQ(Found(cache_->Namespace({.tenant = "a", .salt = "s"}), prompt_), 0u);
  EXPECT_EQ(Found(salted, prompt_), prompt_.size() - 1) << "the control";
}

TEST_F(KvCacheShared, AnEpochTakesTheRestAndNotWhatIsEveryones) {
  Compute(cache_, Tenant("a", 1), prompt_);
  EXPECT_EQ(Found(Tenant("a", 1), prompt_), prompt_.size() - 1) << "the control";
  EXPECT_EQ(Found(Tenant("a", 2), prompt_), kShared);
  EXPECT_EQ(cache_->Explain(Tenant("a", 2), prompt_).match.reason, MissReason::kEpochStale);
  EXPECT_EQ(cache_->Explain(Tenant("b", 2), prompt_).match.reason, MissReason::kNeverSeen);
}

TEST_F(KvCacheShared, AnotherComputationSharesNothing) {
  Compute(cache_, cache_->Namespace({.tenant = "a"}, "an adapter"), prompt_);
  EXPECT_EQ(Found(Tenant("b"), prompt_), 0u);
  EXPECT_EQ(Found(cache_->Namespace({.tenant = "b"}, "an adapter"), prompt_), kShared) << "the control";
}

TEST_F(KvCacheShared, NoTenantsNameIsTheSharedScopes) {
  const NamespaceDigests shared = DeriveSharedNamespace(cache_.options().identity, cache_.options().geometry);
  EXPECT_EQ(Tenant("a").shared, shared.id);
  EXPECT_EQ(Tenant("").shared, shared.id);
  EXPECT_NE(Tenant("").id, shared.id);
}

TEST_F(KvCacheShared, PurgeLeavesWhatIsEveryones) {
  Compute(cache_, Tenant("a"), prompt_);
  Compute(cache_, Tenant("b"), prompt_);
  EXPECT_EQ(cache_->Purge("a").blocks, 12u / kBlock + 1) << "three blocks and a tail";
  cache_->CheckIntegrity();
  EXPECT_EQ(Found(Tenant("a"), prompt_), kShared);
  EXPECT_EQ(Found(Tenant("b"), prompt_), prompt_.size() - 1);
}

TEST_F(KvCacheShared, WhatRunsInThePrefixWhileItsTenantIsPurgedLeavesNothingBehindIt) {
  Running running;
  ASSERT_EQ(cache_.TryAdmit(prompt_, {}, Tenant("a"), running), KvCache::Outcome::kAdmitted);
  cache_.StepTo(running, kShared / 2);
  cache_->Purge("a");
  cache_->CheckIntegrity();
  cache_.StepTo(running, prompt_.size());
  running.sequence.Finish();
  cache_->CheckIntegrity();
  EXPECT_EQ(Found(Tenant("a"), prompt_), kShared / 2 / kBlock * kBlock);
  EXPECT_EQ(cache_->stats().nodes, kShared / 2 / kBlock);
}

TEST_F(KvCacheShared, KeysAreThoseOfTheDocument) {
  Compute(cache_, Tenant("a"), prompt_);
  BlockHasher hasher;
  Digest key = DeriveSharedNamespace(cache_.options().identity, cache_.options().geometry).id.digest;
  const auto block = [&](uint32_t i) { return std::span(prompt_).subspan(i * kBlock, kBlock); };
  for (uint32_t i = 0; i < kShared / kBlock; ++i) key = hasher.Next(key, block(i)).digest;
  EXPECT_EQ(cache_->Explain(Tenant("b"), prompt_).key, key);
  EXPECT_EQ(cache_->Explain(Tenant("a"), Count(kShared) + Count(9, 700)).key, key) << "nothing behind it";
  key = hasher.Reroot(key, Tenant("a").id);
  for (uint32_t i = kShared / kBlock; i < 8; ++i) key = hasher.Next(key, block(i)).digest;
  EXPECT_EQ(cache_->Explain(Tenant("a"), prompt_).key, key);
  EXPECT_EQ(cache_->Explain(Tenant("a"), Count(5, 700)).key, Tenant("a").id.digest) << "of the namespace";
}

// cases/identity 19: one report, whether another tenant went on from there or not.
TEST_F(KvCacheShared, AReportTellsNothingOfWhatAnotherGoesOnWith) {
  TestCache only_prefix(Sharing());
  Compute(only_prefix, only_prefix->Namespace({.tenant = "a"}), Count(kShared));
  Compute(cache_, Tenant("a"), prompt_);
  for (TestCache* cache : {&cache_, &only_prefix}) {
    const PrefixReport report = (*cache)->Explain(Tenant("b"), prompt_);
    EXPECT_EQ(report.match.tokens, kShared);
    EXPECT_EQ(report.match.reason, MissReason::kNeverSeen);
    EXPECT_EQ(report.fork, kShared);
    EXPECT_FALSE(report.cached_token.has_value());
    EXPECT_EQ(report.cached_beyond, 0u);
  }
  std::vector<TokenId> other = prompt_;
  other[kShared + 6] = TokenId(900);
  const PrefixReport own = cache_->Explain(Tenant("a"), other);
  EXPECT_EQ(own.fork, kShared + 6) << "the control";
  EXPECT_EQ(own.cached_token, prompt_[kShared + 6]);
  EXPECT_EQ(own.cached_beyond, prompt_.size() - kShared - 6);
}

TEST(KvCacheSharedPrefixes, TheLongestThatIsWholeCounts) {
  // One in another, and a third that parts from both within a block.
  const std::vector<TokenId> third = Count(10) + Count(6, 500);
  TestCache cache({.shared_prefixes = {Count(8), Count(16), third, Count(3)}});
  const NamespaceDigests a = cache->Namespace({.tenant = "a"}), b = cache->Namespace({.tenant = "b"});
  Compute(cache, a, Count(30));
  EXPECT_EQ(cache->Lookup(b, Count(30)).tokens, 16u);
  EXPECT_EQ(cache->Lookup(b, Count(15)).tokens, 8u) << "not all of the longer one: it goes on in private";
  EXPECT_EQ(cache->Lookup(a, Count(15)).tokens, 8u);
  EXPECT_EQ(cache->Explain(b, Count(15)).fork, 8u) << "nor does a report follow the longer one";
  EXPECT_EQ(cache->Explain(b, Count(15)).cached_token, std::nullopt);
  EXPECT_EQ(cache->Lookup(b, third + Count(9)).tokens, 10u) << "what two declared prefixes have in common";
  EXPECT_EQ(cache->Lookup(b, Count(7)).tokens, 0u);
  EXPECT_EQ(cache->SharedTokens(b, Count(30)), 16u);
  EXPECT_EQ(cache->SharedTokens(b, Count(15)), 8u);
  EXPECT_EQ(cache->SharedTokens(b, Count(7)), 0u);
}

TEST(KvCacheSharedPrefixes, AreEvictedAfterAllThatGoesOnFromThem) {
  for (const EvictionPolicy policy : {EvictionPolicy::kValuePerByte, EvictionPolicy::kLruWithTenantQuota}) {
    TestCache cache({.slots = {16}, .sequences_max = 2, .eviction = policy, .shared_prefixes = {Count(kShared)}});
    const std::vector<TokenId> prompt = Count(kShared + 12);
    for (const char* tenant : {"a", "b", "c", "d"}) Compute(cache, cache->Namespace({.tenant = tenant}), prompt);
    const NamespaceDigests other = cache->Namespace({.tenant = "other"});
    bool stayed = false;
    for (int i = 0; i < 40; ++i) {
      Compute(cache, other, Count(5, 1000 * (i + 1)));
      const uint32_t shared = cache->Lookup(other, prompt).tokens;
      for (const char* tenant : {"a", "b", "c", "d"}) {
        const uint32_t own = cache->Lookup(cache->Namespace({.tenant = tenant}), prompt).tokens;
        EXPECT_TRUE(own == shared || shared == kShared) << own << " of " << tenant << ", shared " << shared;
      }
      stayed |= shared == kShared;
    }
    EXPECT_TRUE(stayed);
    cache->Clear();
    cache->CheckIntegrity();
    EXPECT_EQ(cache->Lookup(other, prompt).tokens, 0u);
    EXPECT_EQ(cache->stats().nodes + cache->stats().namespaces, 0u);
    Compute(cache, cache->Namespace({.tenant = "a"}), prompt);  // and come back
    EXPECT_EQ(cache->Lookup(other, prompt).tokens, kShared);
  }
}

TEST(KvCacheSharedPrefixes, WindowsReachBackAcrossTheEnd) {
  TestCache cache({.geometry = SmallGeometry({FullGroup({0}), WindowGroup({1}, 10)}),
                   .slots = {64, 64},
                   .shared_prefixes = {Count(kShared)}});
  Compute(cache, cache->Namespace({.tenant = "a"}), Count(kShared + 9));
  const NamespaceDigests b = cache->Namespace({.tenant = "b"});
  EXPECT_EQ(cache->Lookup(b, Count(kShared) + Count(9, 300)).tokens, kShared);
  Compute(cache, b, Count(kShared) + Count(9, 300));  // rows of its window are checked in it
  EXPECT_EQ(cache->Lookup(b, Count(kShared) + Count(30, 300)).tokens, kShared + 9);
}

TEST(KvCacheSharedPrefixes, TakeExactlyWhatIsPlanned) {
  TestCache cache(Sharing());
  uint64_t planned = 0;
  for (const Footprint& line : KvCache::Footprints(cache.options())) planned += line.bytes;
  EXPECT_EQ(cache.ledger().taken_bytes(), planned);
  EXPECT_EQ(cache.ledger().taken_by_component().at("shared prefixes"), (kShared + 2) * sizeof(TokenId));
}

}  // namespace
}  // namespace reprise
