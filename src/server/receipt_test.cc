#include "server/receipt.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "server/cache_stats.h"
#include "server/fakes.h"

namespace reprise {
namespace {

std::vector<TokenId> Bytes(std::string_view text) { return FakeCodec().Encode(text, false, false); }

class ReceiptTest : public ::testing::Test {
 protected:
  Json Of(const PrefixReport& report) const { return ReceiptOf(facts_, prompt_, report, codec_); }
  std::string Detail(const PrefixReport& report) const { return Of(report)["miss"][0]["detail"]; }

  const FakeCodec codec_;
  FakeEngine engine_;
  ReceiptFacts facts_{.id = "pcr_1", .identity = &engine_.identity(), .tenant = "team-a", .epoch = 418};
  std::vector<TokenId> prompt_ = Bytes("Hello World");
};

TEST_F(ReceiptTest, Golden) {
  facts_.system_prompt = Sha256::Of("Be brief.");
  facts_.adapters.push_back(Json({{"name", "sql"}, {"revision", "sha256:00"}, {"scale", 0.5}}));
  const PrefixReport report{.match = {.tokens = 6, .reason = MissReason::kTokensDiffer},
                            .key = Sha256::Of("key"),
                            .fork = 6,
                            .cached_token = TokenId('Z'),
                            .cached_beyond = 9};
  const auto sha = [](std::string_view text) { return "sha256:" + Sha256::Of(text).Hex(); };
  EXPECT_EQ(Dump(Of(report)),
            R"({"id":"pcr_1","key":")" + sha("key") + R"(","compatibility":{"model_revision":")" + sha("model") +
                R"(","tokenizer_revision":")" + sha("tokenizer") +
                R"(","position_encoding":"rope_neox/base=1e6","adapters":[)"
                R"({"name":"sql","revision":"sha256:00","scale":0.5}],"numerics":"1","geometry":")" +
                sha("geometry") + R"(","system_prompt_hash":")" + sha("Be brief.") +
                R"(","tenant_scope":"team-a","acl_epoch":418},)"
                R"("hit":{"reusable_tokens":6,"prefill_skipped":true,"suffix_tokens":5,)"
                R"("by_tier":{"pool":6,"ram":0,"disk":0,"redis":0}},)"
                R"("plan":{"fetch_tokens":0,"estimated_saved_ms":0.0,"estimated_cost_ms":0.0,"actual_load_ms":0.0},)"
                R"("gates":{"cross_tenant":"reject","acl_epoch_mismatch":"miss_and_recompute",)"
                R"("active_sequence":"never_evict"},"miss":[{"at_token":6,"reason":"tokens_differ",)"
                R"("detail":"position 6: asked 87 \"W\", cached 90 \"Z\""}],"decision":"safe_reuse"})");
}

TEST_F(ReceiptTest, TheDecisionIsWhatWasDone) {
  EXPECT_EQ(Of({.match = {.tokens = 10, .reason = MissReason::kLastTokenRule}, .fork = 11})["decision"], "safe_reuse");
  const Json cold = Of({.match = {.reason = MissReason::kNeverSeen}});
  EXPECT_EQ(cold["decision"], "recompute");
  EXPECT_EQ(cold["hit"]["prefill_skipped"], false);
  EXPECT_EQ(cold["hit"]["suffix_tokens"], 11);
  EXPECT_EQ(cold["compatibility"]["system_prompt_hash"], nullptr) << "there is no system message";
  facts_.cache_read = false;
  EXPECT_EQ(Of({.match = {.reason = MissReason::kReadDisabled}})["decision"], "read_disabled");
}

TEST_F(ReceiptTest, WhatTheDiskGaveIsPartOfTheHitAndOfThePlan) {
  const Json receipt = Of({.match = {.tokens = 9, .reason = MissReason::kTokensDiffer},
                           .tier = {.tokens = 6, .saved_ms = 80.5, .cost_ms = 3.25, .load_ms = 4},
                           .fork = 9});
  EXPECT_EQ(Dump(receipt["hit"]), R"({"reusable_tokens":9,"prefill_skipped":true,"suffix_tokens":2,)"
                                  R"("by_tier":{"pool":3,"ram":0,"disk":6,"redis":0}})");
  EXPECT_EQ(Dump(receipt["plan"]),
            R"({"fetch_tokens":6,"estimated_saved_ms":80.5,"estimated_cost_ms":3.25,"actual_load_ms":4.0})");
  EXPECT_EQ(receipt["decision"], "safe_reuse");
  const Json slower =
      Of({.match = {.reason = MissReason::kTierSlowerThanRecompute}, .tier = {.saved_ms = 2, .cost_ms = 3}});
  EXPECT_EQ(slower["decision"], "recompute");
  EXPECT_EQ(Dump(slower["plan"]),
            R"({"fetch_tokens":0,"estimated_saved_ms":2.0,"estimated_cost_ms":3.0,"actual_load_ms":0.0})");
}

TEST_F(ReceiptTest, EveryReasonHasItsOwnWords) {
  std::set<std::string> details;
  for (size_t i = 1; i < PrefixCounters::kReasons; ++i) {
    const auto reason = static_cast<MissReason>(i);
    const std::string detail = Detail({.match = {.tokens = 1, .reason = reason}, .fork = 2});
    EXPECT_FALSE(detail.empty()) << Name(reason);
    EXPECT_TRUE(details.insert(detail).second) << Name(reason);
  }
}

TEST_F(ReceiptTest, NoWordOfACachedTokenThatTheReportDoesNotHave) {
  const PrefixReport report{.match = {.tokens = 6, .reason = MissReason::kTokensDiffer}, .fork = 6};
  EXPECT_EQ(Detail(report), R"(position 6: asked 87 "W")");
}

TEST_F(ReceiptTest, TokensThatAreNotUtf8AreStillJson) {
  prompt_ = Bytes("ab\xC3\xA9");
  const PrefixReport report{
      .match = {.tokens = 2, .reason = MissReason::kTokensDiffer}, .fork = 2, .cached_token = TokenId('"')};
  EXPECT_EQ(Detail(report), "position 2: asked 195 \"\xEF\xBF\xBD\", cached 34 \"\\\"\"");
}

TEST_F(ReceiptTest, TheSystemPromptIsItsTextsAlone) {
  const std::vector<ChatMessage> messages = {
      {.role = "system", .content = "Be "}, {.role = "user", .content = "x"}, {.role = "system", .content = "brief."}};
  EXPECT_EQ(SystemPromptDigest(messages), Sha256::Of("Be brief."));
  EXPECT_EQ(SystemPromptDigest(std::span(messages).subspan(1, 1)), std::nullopt);
}

TierStats Disk() {
  TierStats tier{.name = "disk", .writable = true};
  tier.usage = {.bytes = 1000,
                .bytes_max = 2000,
                .bytes_live = 900,
                .records = 4,
                .blocks = 30,
                .tails = 2,
                .segments = 1,
                .namespaces = 3,
                .evicted_blocks = 6,
                .damaged = 1};
  tier.fetch = {.ok = 9,
                .missing = 1,
                .checksum_failed = 2,
                .damaged = 3,
                .error = 4,
                .timeout = 5,
                .declined = 6,
                .cancelled = 7,
                .bytes = 900,
                .seconds = 0.5};
  tier.store.ok = 4;
  tier.store_breaker = TierStats::Breaker::kOpen;
  tier.last_error = "disk full";
  return tier;
}

TEST(CacheStatsTest, Golden) {
  PrefixCounters counters;
  counters.AddTokens({.computed_n = 100, .cached_pool = 200, .cached_disk = 100});
  counters.AddMiss(MissReason::kTokensDiffer);
  counters.AddMiss(MissReason::kTokensDiffer);
  counters.AddMiss(MissReason::kTierSlowerThanRecompute);  // the last one
  const FakeEngine engine;
  const Json body =
      Json::parse(CacheStatsBody(counters, engine.cache_stats(), {.queued_requests = 4, .queued_tokens = 44}, Disk()));
  EXPECT_EQ(body["kv_hit_rate"], 0.75);
  EXPECT_EQ(Dump(body["kv_tokens_total"]), R"({"pool":200,"ram":0,"disk":100,"redis":0,"computed":100})");
  EXPECT_EQ(body["kv_miss_total"]["tokens_differ"], 2);
  EXPECT_EQ(body["kv_miss_total"]["tier_slower_than_recompute"], 1);
  EXPECT_EQ(body["kv_miss_total"]["evicted"], 0);
  EXPECT_FALSE(body["kv_miss_total"].contains("none"));
  EXPECT_EQ(Dump(body["pool_bytes"]), R"({"free":480,"active":500,"reusable":100,"held":0})");
  EXPECT_EQ(Dump(body["groups"][1]), R"({"kind":"window","window":512,"slot_bytes":10,"slots":8,)"
                                     R"("pool_bytes":{"free":80,"active":0,"reusable":0,"held":0}})");
  EXPECT_EQ(
      Dump(body["tiers"]),
      R"({"disk":{"writable":true,"bytes":1000,"bytes_max":2000,"bytes_live":900,"records":4,"blocks":30,"tails":2,)"
      R"("segments":1,"namespaces":3,"evicted_blocks":6,"damaged":1,"operations":{"fetch":{"ok":9,"missing":1,)"
      R"("checksum_failed":2,"record_damaged":3,"tier_error":4,"tier_timeout":5,"declined":6,"cancelled":7,)"
      R"("bytes":900,"seconds":0.5},"store":{"ok":4,"missing":0,"checksum_failed":0,"record_damaged":0,"tier_error":0,)"
      R"("tier_timeout":0,"declined":0,"cancelled":0,"bytes":0,"seconds":0.0},"erase":{"ok":0,"missing":0,)"
      R"("checksum_failed":0,"record_damaged":0,"tier_error":0,"tier_timeout":0,"declined":0,"cancelled":0,"bytes":0,)"
      R"("seconds":0.0}},"breaker":{"fetch":"closed","store":"open"},"last_error":"disk full"}})");
  EXPECT_EQ(body["evicted_blocks"], 5);
  EXPECT_EQ(body["queue_depth"], 4);
}

TEST(CacheStatsTest, NothingSeenIsNoHitAndNoNaN) {
  const Json body = Json::parse(CacheStatsBody({}, {}, {}, std::nullopt));
  EXPECT_EQ(body["kv_hit_rate"], 0.0);
  EXPECT_EQ(Dump(body["tiers"]), "{}") << "there is none";
  EXPECT_EQ(body["pool_bytes"]["free"], 0);
}

}  // namespace
}  // namespace reprise
