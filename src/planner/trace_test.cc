#include "planner/trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "absl/strings/str_cat.h"

namespace reprise {
namespace {

using testing::HasSubstr;

std::string Line(uint32_t tokens, const std::string& hashes, uint32_t reply = 5) {
  return absl::StrCat("{\"timestamp\": 3, \"input_length\": ", tokens, ", \"output_length\": ", reply,
                      ", \"hash_ids\": [", hashes, "]}\n");
}

TEST(Trace, IsReadWithItsIdsRenumbered) {
  const auto trace = ParseTrace(Line(600, "18446744073709551615, -9") + "\n" + Line(512, "18446744073709551615"));
  ASSERT_TRUE(trace.ok()) << trace.status();
  ASSERT_EQ(trace->requests.size(), 2u);
  EXPECT_EQ(trace->requests[0].blocks, (std::vector<uint32_t>{0, 1}));
  EXPECT_EQ(trace->requests[1].blocks, std::vector<uint32_t>{0});
  EXPECT_EQ(trace->requests[0].time_ms, 3u);
  EXPECT_EQ(trace->requests[0].reply_tokens, 5u);
  EXPECT_EQ(trace->distinct_blocks, 2u);
  EXPECT_EQ(trace->blocks, 3u);
  EXPECT_EQ(trace->tokens, 1112u);
}

TEST(Trace, OtherLinesOfALogAreSkipped) {
  const std::string started = "{\"time\": \"now\", \"level\": \"info\", \"message\": \"serving\"}\n";
  const auto trace = ParseTrace(started + Line(512, "1") + started);
  ASSERT_TRUE(trace.ok()) << trace.status();
  EXPECT_EQ(trace->requests.size(), 1u);
  EXPECT_FALSE(ParseTrace(started).ok());
  EXPECT_FALSE(ParseTrace(started + "{\"message\": \"no log\"}").ok()) << "the control";
}

TEST(Trace, ABadLineIsNamed) {
  const std::string good = Line(512, "1");
  const std::pair<std::string, std::string> cases[] = {
      {good + "no json", "line 2: no JSON object"},
      {good + "[1]", "line 2: no JSON object"},
      {"{\"input_length\": 1}", "line 1: `hash_ids`"},
      {"{\"hash_ids\": [1]}", "line 1: `input_length`"},
      {"{\"input_length\": -1, \"hash_ids\": [1]}", "`input_length`"},
      {"{\"input_length\": 5, \"hash_ids\": [\"a\"]}", "list of whole numbers"},
      {Line(600, "1"), "`hash_ids` has 1 entries for 600 tokens"},
      {"{\"input_length\": 18446744073709551615, \"hash_ids\": [1]}", "`hash_ids` has 1 entries"},
      {Line(1024, "1,2") + Line(512, "2"), "line 2: hash 2 follows another one"},
      {Line(1024, "1,1"), "hash 1 follows another one"},
      {Line(512, "18446744073709551616"), "whole numbers below 2^64"},
      {"", "no requests"},
  };
  for (const auto& [text, message] : cases) {
    const auto trace = ParseTrace(text);
    ASSERT_FALSE(trace.ok()) << text;
    EXPECT_THAT(std::string(trace.status().message()), HasSubstr(message)) << text;
  }
  EXPECT_THAT(std::string(ReadTrace("/no/such/file").status().message()), HasSubstr("is no file"));
}

// Conversations that grow, and one-shot prompts among them.
Trace Conversations(uint32_t requests, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<std::vector<uint32_t>> open;
  uint32_t next = 0;
  std::string text;
  for (uint32_t i = 0; i < requests; ++i) {
    std::vector<uint32_t> blocks;
    if (!open.empty() && random() % 2 == 0) {
      std::vector<uint32_t>& chosen = open[random() % open.size()];
      for (uint32_t more = 1 + random() % 3; more > 0; --more) chosen.push_back(next++);
      blocks = chosen;
    } else {
      for (uint32_t more = 2 + random() % 4; more > 0; --more) blocks.push_back(next++);
      if (random() % 2 == 0) open.push_back(blocks);
    }
    std::string ids;
    for (const uint32_t block : blocks) absl::StrAppend(&ids, ids.empty() ? "" : ",", block);
    text += Line(static_cast<uint32_t>(blocks.size()) * kTraceBlockTokens, ids);
  }
  return *ParseTrace(text);
}

TEST(TraceReplay, UnlimitedReachesTheCeilingToTheToken) {
  const Trace trace = Conversations(300, 1);
  const ReplayResult ceiling = ReplayUnlimited(trace);
  EXPECT_GT(ceiling.blocks_hit, 100u);
  for (const EvictionPolicy policy : {EvictionPolicy::kValuePerByte, EvictionPolicy::kLruWithTenantQuota}) {
    const ReplayResult all = Replay(trace, {.capacity_blocks = trace.distinct_blocks, .eviction = policy});
    EXPECT_EQ(all.blocks_hit, ceiling.blocks_hit);
    EXPECT_EQ(all.tokens_hit, ceiling.tokens_hit);
  }
  EXPECT_EQ(ClairvoyantHits(trace, trace.distinct_blocks), ceiling.blocks_hit);
}

TEST(TraceReplay, LruEvictsWhatAListEvictsAndNobodyBeatsTheClairvoyant) {
  const Trace trace = Conversations(300, 2);
  for (const uint32_t capacity : {40u, 100u, 250u}) {
    // A list of blocks, the last used first; a request's own blocks from its first on.
    std::vector<uint32_t> list;
    uint64_t hits = 0;
    for (const TraceRequest& request : trace.requests) {
      uint32_t matched = 0;
      const auto held = [&](uint32_t block) { return std::find(list.begin(), list.end(), block) != list.end(); };
      while (matched < request.blocks.size() && held(request.blocks[matched])) ++matched;
      hits += matched;
      std::vector<uint32_t> now = request.blocks;
      for (const uint32_t block : list)
        if (std::find(request.blocks.begin(), request.blocks.end(), block) == request.blocks.end())
          now.push_back(block);
      now.resize(std::min<size_t>(now.size(), capacity));
      list = now;
    }
    const ReplayResult lru =
        Replay(trace, {.capacity_blocks = capacity, .eviction = EvictionPolicy::kLruWithTenantQuota});
    EXPECT_EQ(lru.blocks_hit, hits) << capacity;
    const uint64_t best = ClairvoyantHits(trace, capacity);
    EXPECT_LE(lru.blocks_hit, best);
    EXPECT_LE(Replay(trace, {.capacity_blocks = capacity}).blocks_hit, best);
    EXPECT_LT(hits, best) << "the control: there is something to gain";
  }
}

TEST(TraceReplay, TheSizeOfTheCachesBlocksMakesLittleDifference) {
  const Trace trace = Conversations(300, 3);
  const double large = static_cast<double>(Replay(trace, {.capacity_blocks = 100, .block_tokens = 512}).blocks_hit);
  const double small = static_cast<double>(Replay(trace, {.capacity_blocks = 100, .block_tokens = 32}).blocks_hit);
  EXPECT_NEAR(small / large, 1, 0.1);
}

}  // namespace
}  // namespace reprise
