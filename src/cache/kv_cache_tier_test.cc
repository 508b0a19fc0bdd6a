// A tier behind the cache: what comes back after a restart, and what does not.
#include <random>

#include "cache/cache_testing.h"
#include "tier/memory_store.h"
#include "tier/threaded_tier.h"

namespace reprise {
namespace {

using Running = TestCache::Running;

// A tier that outlives caches, as a directory does. What was stored is there when Flush returns.
struct Place {
  explicit Place(const Geometry& geometry) : ledger(uint64_t{1} << 30) {
    uint64_t slot_bytes = 0;
    for (uint32_t g = 0; g < geometry.groups.size(); ++g)
      slot_bytes = std::max(slot_bytes, SlotBytes(geometry, GroupId(g)));
    tier = MakeThreadedTier({.slot_bytes_max = slot_bytes, .store_bytes = 256 * slot_bytes},
                            MakeMemoryStore(geometry, uint64_t{1} << 28), ledger);
  }
  void Flush() { ASSERT_TRUE(tier->Flush(Tier::Clock::now() + std::chrono::seconds(10))); }
  Ledger ledger;
  std::unique_ptr<Tier> tier;
};

struct Model {
  std::string name;
  Geometry geometry;
  std::vector<uint32_t> slots;
};
std::vector<Model> Models() {
  return {{"full", SmallGeometry({FullGroup({0, 1})}), {64}},
          {"window", SmallGeometry({FullGroup({0, 2}), WindowGroup({1, 3}, 6)}), {64, 40}},
          {"window first", SmallGeometry({WindowGroup({1, 3}, 11), FullGroup({0, 2})}), {24, 48}},
          {"windows only", SmallGeometry({WindowGroup({0, 1}, 7)}), {48}},
          {"recurrent", SmallGeometry({FullGroup({0}), RecurrentGroup({1})}), {64, 32}},
          {"all",
           SmallGeometry({FullGroup({0}), WindowGroup({1}, 9), LatentGroup({2}), RecurrentGroup({3})}),
           {64, 40, 64, 40}}};
}
TestCache::Options OptionsOf(const Model& model, Place& place) {
  return {.geometry = model.geometry, .slots = model.slots, .in_flight_max = 4, .tier = place.tier.get()};
}

TEST(KvCacheTier, TheSamePromptIsThereAfterARestart) {
  for (const Model& model : Models()) {
    SCOPED_TRACE(model.name);
    Place place(model.geometry);
    const std::vector<TokenId> prompt = Count(30);
    {
      TestCache cache(OptionsOf(model, place));
      EXPECT_EQ(cache.Run(prompt, Count(5, 500)).tokens, 0u);  // control: nothing is there at first
    }
    place.Flush();
    TestCache cache(OptionsOf(model, place));
    // All of it and the reply: the next turn.
    const PrefixMatch match = cache.Run(prompt + Count(5, 500) + Count(3, 900));
    EXPECT_EQ(match.tokens, 35u);
    EXPECT_EQ(cache->stats().tokens_fetched, 35u);
    // And the pool has it now.
    EXPECT_GT(cache.Lookup(prompt + Count(5, 500) + Count(3, 900)).tokens, 30u);
  }
}

TEST(KvCacheTier, AnotherTenantEpochOrSaltFindsNothing) {
  const Model model = Models()[0];
  Place place(model.geometry);
  {
    TestCache cache(OptionsOf(model, place));
    cache.Run(Count(30));
  }
  place.Flush();
  TestCache cache(OptionsOf(model, place));
  const auto fetched = [&](const Scope& scope) {
    Running running;
    EXPECT_EQ(cache.TryAdmit(Count(30), {}, cache->Namespace(scope), running), KvCache::Outcome::kAdmitted);
    cache.Fetch(running);
    return running.sequence.match().tokens;
  };
  EXPECT_EQ(fetched({.tenant = "other"}), 0u);
  EXPECT_EQ(fetched({.tenant = "test", .epoch = 1}), 0u);
  EXPECT_EQ(fetched({.tenant = "test", .salt = "s"}), 0u);
  EXPECT_EQ(fetched({.tenant = "test"}), 29u);  // control
}

TEST(KvCacheTier, ASharedPrefixComesBackForEveryoneAndTheRestForItsTenant) {
  for (const Model& model : Models()) {
    SCOPED_TRACE(model.name);
    Place place(model.geometry);
    TestCache::Options options = OptionsOf(model, place);
    options.shared_prefixes = {Count(20)};
    const auto run = [&](TestCache& cache, const Scope& scope, uint32_t tokens) {
      Running running;
      EXPECT_EQ(cache.TryAdmit(Count(tokens), {}, cache->Namespace(scope), running), KvCache::Outcome::kAdmitted);
      const PrefixReport report = cache->Explain(running.name_space, Count(tokens));
      cache.Fetch(running);
      const uint32_t found = running.sequence.match().tokens;
      EXPECT_EQ(report.match.tokens, found);
      cache.StepTo(running, tokens);
      running.sequence.MarkCheckpoint();
      running.sequence.Finish();
      cache->CheckIntegrity();
      return found;
    };
    {
      TestCache cache(options);
      EXPECT_EQ(run(cache, {.tenant = "a"}, 20), 0u);
      EXPECT_EQ(run(cache, {.tenant = "a"}, 34), 20u);
      cache->Poll(UINT64_MAX);
    }
    place.Flush();
    {
      TestCache cache(options);
      EXPECT_EQ(run(cache, {.tenant = "b"}, 30), 20u) << "and not one token of what follows";
      EXPECT_EQ(run(cache, {.tenant = "a"}, 40), 34u) << "the control";
      EXPECT_EQ(run(cache, {.tenant = "a", .salt = "s"}, 30), 0u);
    }
    options.shared_prefixes.clear();
    TestCache cache(options);
    EXPECT_EQ(run(cache, {.tenant = "c"}, 30), 0u) << "it is not declared any more";
  }
}

TEST(KvCacheTier, ExplainSaysWhatTheTierHasAndWhoseItIs) {
  const Model model = Models()[0];
  Place place(model.geometry);
  {
    TestCache cache(OptionsOf(model, place));
    cache.Run(Count(30));
  }
  place.Flush();
  TestCache cache(OptionsOf(model, place));
  PrefixReport report = cache->Explain(cache.name_space(), Count(40));
  EXPECT_EQ(report.match.tokens, 30u);
  EXPECT_EQ(report.tier.tokens, 30u);
  EXPECT_GT(report.tier.saved_ms, report.tier.cost_ms);
  report = cache->Explain(cache->Namespace({.tenant = "test", .epoch = 1}), Count(40));
  EXPECT_EQ(report.match.tokens, 0u);
  EXPECT_EQ(report.match.reason, MissReason::kEpochStale);
  report = cache->Explain(cache->Namespace({.tenant = "other"}), Count(40));
  EXPECT_EQ(report.match.reason, MissReason::kNeverSeen);
  report = cache->Explain(cache->Namespace({.tenant = "other"}), Count(40), ReportView::kOperator);
  EXPECT_EQ(report.match.reason, MissReason::kTenantDiffers);
}

TEST(KvCacheTier, TokensPartWithinABlock) {
  for (const Model& model : Models()) {
    if (model.name == "recurrent" || model.name == "all") continue;  // states cannot be cut
    SCOPED_TRACE(model.name);
    Place place(model.geometry);
    {
      TestCache cache(OptionsOf(model, place));
      cache.Run(Count(30));
    }
    place.Flush();
    TestCache cache(OptionsOf(model, place));
    // Kept windows are those of the ends: 30 tokens, of which 29 are shared in the tail.
    EXPECT_EQ(cache.Run(Count(29) + Count(6, 700)).tokens, 29u);
  }
}

TEST(KvCacheTier, NothingIsStoredWithoutWrite) {
  const Model model = Models()[0];
  Place place(model.geometry);
  {
    TestCache cache(OptionsOf(model, place));
    Running running = cache.Admit(Count(30), {.write = false});
    cache.StepTo(running, 30);
    running.sequence.Finish();
    cache->Poll(UINT64_MAX);
  }
  place.Flush();
  EXPECT_EQ(place.tier->stats().usage.blocks, 0u);
}

TEST(KvCacheTier, ADroppedSequenceLeavesNothingBehind) {
  for (const Model& model : Models()) {
    SCOPED_TRACE(model.name);
    Place place(model.geometry);
    {
      TestCache cache(OptionsOf(model, place));
      cache.Run(Count(60));
    }
    place.Flush();
    TestCache cache(OptionsOf(model, place));
    Running running = cache.Admit(Count(60) + Count(2, 900));
    ASSERT_TRUE(running.sequence.BeginFetch());
    cache->CheckIntegrity();
    running.sequence = {};
    cache->CheckIntegrity();
    cache->Poll(0);
    EXPECT_EQ(cache->stats().sequences, 0u);
    EXPECT_EQ(cache.Run(Count(60) + Count(2, 900)).tokens, 60u);  // control
  }
}

TEST(KvCacheTier, ASlowTierIsNotAsked) {
  const Model model = Models()[0];
  Place place(model.geometry);
  {
    TestCache cache(OptionsOf(model, place));
    cache.Run(Count(30));
  }
  place.Flush();
  TestCache cache(OptionsOf(model, place));
  for (int i = 0; i < 50; ++i) cache->ObservePrefill(100, 100 * 50, 1e-6);  // computing is as good as free
  Running running = cache.Admit(Count(30));
  EXPECT_FALSE(running.sequence.BeginFetch());
  EXPECT_EQ(running.sequence.match().reason, MissReason::kTierSlowerThanRecompute);
  EXPECT_EQ(cache->Explain(cache.name_space(), Count(30)).match.reason, MissReason::kTierSlowerThanRecompute);
}

// Random programs over a small pool and a tier that outlives it: every row that is ever seen has its stamp.
TEST(KvCacheTierRandom, RowsFromTheTierAreThoseThatWereComputed) {
  const char* wanted = std::getenv("REPRISE_SEED");
  const uint64_t seed = wanted != nullptr ? std::strtoull(wanted, nullptr, 10) : std::random_device{}();
  RecordProperty("seed", std::to_string(seed));
  SCOPED_TRACE("REPRISE_SEED=" + std::to_string(seed));
  std::mt19937_64 random(seed);
  const auto below = [&](uint64_t n) { return random() % n; };
  uint64_t fetched = 0;
  for (const Model& model : Models()) {
    SCOPED_TRACE(model.name);
    Place place(model.geometry);
    for (int life = 0; life < 12; ++life) {
      TestCache::Options options = OptionsOf(model, place);
      options.shuffle_seed = random() | 1;
      options.context_max = 64;
      options.sequences_max = 3;
      // What is declared may change with a restart.
      if (life % 3 == 1) options.shared_prefixes = {Count(8), Count(20)};
      if (life % 3 == 2) options.shared_prefixes = {Count(20), Count(12, 1)};
      TestCache cache(options);
      std::vector<Running> running;
      for (int step = 0; step < 120; ++step) {
        const uint64_t what = below(10);
        if (what < 3 && running.size() < 3) {
          // A few roots, and forks anywhere in them.
          std::vector<TokenId> prompt = Count(static_cast<uint32_t>(1 + below(40)), static_cast<int32_t>(below(2)));
          prompt = prompt + Count(static_cast<uint32_t>(below(8)), static_cast<int32_t>(1000 * below(3)));
          Running added;
          const NamespaceDigests name_space =
              cache->Namespace({.tenant = below(4) == 0 ? "other" : "test", .epoch = below(8) == 0 ? uint64_t{1} : 0});
          if (cache.TryAdmit(prompt, {.output = 6, .write = below(8) != 0}, name_space, added) !=
              KvCache::Outcome::kAdmitted)
            continue;
          if (below(4) != 0) {
            if (below(5) == 0) {
              added.sequence.BeginFetch();
              cache->CheckIntegrity();
              if (added.sequence.fetching()) {
                if (below(2) == 0) cache->Poll(0);
                if (added.sequence.fetching()) continue;  // dropped in the middle of it
              }
            } else {
              cache.Fetch(added);
            }
          }
          running.push_back(std::move(added));
        } else if (what < 8 && !running.empty()) {
          Running& one = running[below(running.size())];
          if (one.sequence.length() == one.tokens.size() && one.tokens.size() < one.sequence.length() + 6) {
            one.sequence.MarkCheckpoint();
            std::vector<TokenId> next = Count(1, static_cast<int32_t>(below(3)));
            const uint32_t end = std::min<uint32_t>(one.sequence.length() + 1, 64);
            if (end > one.sequence.length() && below(3) != 0 && one.stamps != nullptr && next.size() == 1) {
              const size_t at = &one - running.data();
              one.sequence.Finish();
              running.erase(running.begin() + static_cast<std::ptrdiff_t>(at));
            }
          } else {
            const uint32_t left = static_cast<uint32_t>(one.tokens.size()) - one.sequence.length();
            if (left > 0)
              cache.Step(one, static_cast<uint32_t>(1 + below(std::min({left, 4u, one.sequence.rows_to_edge()}))));
          }
        } else if (!running.empty() && below(3) == 0) {
          const size_t at = below(running.size());
          if (below(2) == 0) running[at].sequence.Finish();
          running.erase(running.begin() + static_cast<std::ptrdiff_t>(at));
        }
        if (below(3) == 0) cache->Poll(below(2) == 0 ? 64 : UINT64_MAX);
        if (below(60) == 0) {
          cache->Purge("test");
        }
        cache->CheckIntegrity();
        if (HasFatalFailure()) return;
      }
      fetched += cache->stats().tokens_fetched;
      running.clear();
      cache->Poll(UINT64_MAX);
      place.Flush();
    }
  }
  EXPECT_GT(fetched, 500u);  // control: the tier was of use
}

}  // namespace
}  // namespace reprise
