#include "server/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cctype>
#include <map>
#include <set>
#include <sstream>

#include "server/live_server.h"

namespace reprise {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// What a scraper makes of it, checked as strictly as the format is: a HELP and a TYPE before a family's samples, which
// stand together; no sample twice.
std::map<std::string, double> Scrape(const std::string& text) {
  std::map<std::string, double> samples;
  std::set<std::string> families;
  std::string family, type;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string first, second, name;
    words >> first;
    if (first == "#") {
      words >> second >> name;
      if (second == "HELP") {
        family = name;
        EXPECT_TRUE(families.insert(family).second) << line;
        EXPECT_TRUE(family.starts_with("reprise_")) << line;
      } else {
        EXPECT_EQ(second, "TYPE") << line;
        EXPECT_EQ(name, family) << line;
        words >> type;
        EXPECT_TRUE(type == "gauge" || type == "counter" || type == "histogram" || type == "summary") << line;
        EXPECT_EQ(type == "counter", name.ends_with("_total")) << line;
      }
      continue;
    }
    const size_t space = line.rfind(' ');
    const std::string key = line.substr(0, space);
    const std::string of = key.substr(0, key.find('{'));
    EXPECT_TRUE(of == family || ((type == "histogram" || type == "summary") && of.starts_with(family + "_"))) << line;
    size_t read = 0;
    const double value = std::stod(line.substr(space + 1), &read);
    EXPECT_EQ(read, line.size() - space - 1) << line;
    EXPECT_TRUE(samples.emplace(key, value).second) << line;
  }
  EXPECT_TRUE(text.ends_with("\n"));
  return samples;
}

TEST(MetricsTest, EveryCounterHasItsName) {
  RequestCounters requests;
  requests.by_status = {{200, 5}, {429, 2}};
  PrefixCounters prefixes;
  prefixes.AddTokens({.computed_n = 100, .cached_pool = 250, .cached_disk = 50});
  prefixes.AddMiss(MissReason::kNeverSeen);
  KvCache::Stats cache{.nodes = 7, .fetches = 6, .fetches_worse = 1, .fetch_saved_ms = 2500, .evicted_blocks = 9};
  cache.groups = {{.slot_bytes = 100, .slots_total = 10, .slots_free = 4, .slots_active = 5, .slots_reusable = 1},
                  {.slot_bytes = 10, .slots_total = 8, .slots_free = 8}};
  std::optional<TierStats> tier = TierStats{.name = "disk", .writable = true};
  tier->usage = {.bytes = 11, .bytes_max = 22, .blocks = 33, .evicted_blocks = 44, .damaged = 55};
  tier->fetch = {.ok = 4, .checksum_failed = 1, .bytes = 400, .seconds = 0.25};
  tier->store = {.ok = 3, .declined = 2};
  tier->store_breaker = TierStats::Breaker::kOpen;
  const auto samples = Scrape(
      MetricsText({requests, prefixes, cache, {.queued_requests = 3, .queued_tokens = 333, .running = 2}, tier}));
  const std::map<std::string, double> expected = {
      {"reprise_kv_hit_rate", 0.75},
      {"reprise_kv_hit_rate{tier=\"disk\"}", 0.125},
      {"reprise_kv_tokens_total{source=\"pool\"}", 250},
      {"reprise_kv_tokens_total{source=\"disk\"}", 50},
      {"reprise_kv_tokens_total{source=\"computed\"}", 100},
      {"reprise_kv_miss_total{reason=\"never_seen\"}", 1},
      {"reprise_kv_miss_total{reason=\"tier_slower_than_recompute\"}", 0},
      {"reprise_pool_bytes{state=\"free\"}", 480},
      {"reprise_pool_bytes{state=\"active\"}", 500},
      {"reprise_pool_bytes{state=\"reusable\"}", 100},
      {"reprise_kv_evicted_blocks_total", 9},
      {"reprise_kv_fetches_total", 6},
      {"reprise_kv_fetches_worse_total", 1},
      {"reprise_kv_fetch_seconds_total{kind=\"saved\"}", 2.5},
      {"reprise_requests_total{code=\"200\"}", 5},
      {"reprise_requests_total{code=\"429\"}", 2},
      {"reprise_queue_depth", 3},
      {"reprise_queue_tokens", 333},
      {"reprise_sequences{state=\"running\"}", 2},
      {"reprise_tier_operations_total{tier=\"disk\",op=\"fetch\",result=\"ok\"}", 4},
      {"reprise_tier_operations_total{tier=\"disk\",op=\"fetch\",result=\"checksum_failed\"}", 1},
      {"reprise_tier_operations_total{tier=\"disk\",op=\"store\",result=\"declined\"}", 2},
      {"reprise_tier_bytes_total{tier=\"disk\",op=\"fetch\"}", 400},
      {"reprise_tier_latency_seconds_sum{tier=\"disk\",op=\"fetch\"}", 0.25},
      {"reprise_tier_latency_seconds_count{tier=\"disk\",op=\"fetch\"}", 4},
      {"reprise_tier_breaker{tier=\"disk\"}", 1},
      {"reprise_tier_used_bytes{tier=\"disk\"}", 11},
      {"reprise_tier_max_bytes{tier=\"disk\"}", 22},
      {"reprise_tier_damaged_total{tier=\"disk\"}", 55}};
  for (const auto& [name, value] : expected) {
    ASSERT_TRUE(samples.contains(name)) << name;
    EXPECT_EQ(samples.at(name), value) << name;
  }
}

TEST(MetricsTest, WithoutATierThereIsNothingOfOne) {
  EXPECT_THAT(MetricsText({{}, {}, {}, {}, std::nullopt}), Not(HasSubstr("reprise_tier_")));
}

TEST(MetricsTest, BucketsOfAHistogramAreCumulative) {
  RequestCounters requests;
  for (const double seconds : {0.001, 0.005, 0.2, 1e6}) requests.first_token.Add(seconds);
  const auto samples = Scrape(MetricsText({requests, {}, {}, {}, std::nullopt}));
  const auto at = [&](const std::string& le) { return samples.at("reprise_ttft_seconds_bucket{le=\"" + le + "\"}"); };
  EXPECT_EQ(at("0.005"), 2) << "a bound is within its bucket";
  EXPECT_EQ(at("0.1"), 2);
  EXPECT_EQ(at("0.25"), 3);
  EXPECT_EQ(at("300"), 3);
  EXPECT_EQ(at("+Inf"), 4);
  EXPECT_EQ(samples.at("reprise_ttft_seconds_count"), 4);
}

class MetricsServerTest : public LiveServerTest {};

TEST_F(MetricsServerTest, CountsWhatWasAnswered) {
  Start();
  engine_.set_tier({.name = "disk"}, 2);
  Complete(R"({"prompt":"still here","n":2})");
  Complete(R"({"prompt":"still here","temperature":-1})");
  const RawResponse response = Ask("GET", "/metrics");
  ASSERT_EQ(response.status, 200);
  EXPECT_EQ(response.headers.at("content-type"), "text/plain; version=0.0.4; charset=utf-8");
  const auto samples = Scrape(response.body);
  EXPECT_EQ(samples.at("reprise_requests_total{code=\"200\"}"), 1);
  EXPECT_EQ(samples.at("reprise_requests_total{code=\"400\"}"), 1);
  EXPECT_EQ(samples.at("reprise_kv_tokens_total{source=\"disk\"}"), 4);
  EXPECT_EQ(samples.at("reprise_e2e_seconds_count"), 1);
  EXPECT_EQ(samples.at("reprise_ttft_seconds_count"), 1);
  EXPECT_EQ(samples.at("reprise_tier_breaker{tier=\"disk\"}"), 0);
  EXPECT_EQ(Ask("POST", "/metrics").status, 405);
}

}  // namespace
}  // namespace reprise
