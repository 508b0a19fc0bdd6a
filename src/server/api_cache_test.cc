#include <gtest/gtest.h>

#include "server/live_server.h"

namespace reprise {
namespace {

class ApiCacheTest : public LiveServerTest {
 protected:
  RawResponse Explain(const std::string& body) { return Ask("POST", "/v1/cache/explain", body); }
  Json ReceiptIn(const RawResponse& response) {
    EXPECT_EQ(response.status, 200) << response.body;
    return Json::parse(response.body)["prefix_cache_receipt"];
  }
  RawResponse AskAs(const std::string& key, const std::string& method, const std::string& path,
                    const std::string& body) {
    RawClient client = Connect();
    client.Send(method + " " + path + " HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + key +
                "\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body);
    return client.Read();
  }

  const PrefixReport report_{.match = {.tokens = 4, .reason = MissReason::kTokensDiffer},
                             .key = Sha256::Of("key"),
                             .fork = 4,
                             .cached_token = TokenId('!'),
                             .cached_beyond = 3};
};

TEST_F(ApiCacheTest, AReplyHasAReceiptWhereItIsAskedForAndNoneElse) {
  Start();
  engine_.set_report(report_);
  const std::string body = R"({"prompt":"still here","max_tokens":2)";
  const Json plain = Json::parse(Complete(body + "}").body);
  EXPECT_FALSE(plain.contains("prefix_cache_receipt"));
  const Json reply = Json::parse(Complete(body + R"(,"cache":{"receipt":true}})").body);
  const Json& receipt = reply["prefix_cache_receipt"];
  EXPECT_EQ(receipt["id"].get<std::string>().substr(4), reply["id"].get<std::string>().substr(5))
      << "one number for the reply, its receipt and its line of the log";
  EXPECT_EQ(receipt["hit"]["reusable_tokens"], 4);
  EXPECT_EQ(receipt["miss"][0]["detail"], R"(position 4: asked 108 "l", cached 33 "!")");
  EXPECT_EQ(receipt["compatibility"]["tenant_scope"], "default");
  EXPECT_EQ(receipt["decision"], "safe_reuse");
}

TEST_F(ApiCacheTest, AStreamHasItInTheLastChunkAlone) {
  Start();
  engine_.set_report(report_);
  for (const char* usage : {"true", "false"}) {
    const RawResponse response =
        Chat(R"({"messages":[{"role":"system","content":"s"},{"role":"user","content":"hi"}],"n":2,"stream":true,)"
             R"("stream_options":{"include_usage":)" +
             std::string(usage) + R"(},"cache":{"receipt":true}})");
    const std::vector<std::string> data = DataOf(response.body);
    ASSERT_GT(data.size(), 3u);
    EXPECT_EQ(data.back(), "[DONE]");
    for (size_t i = 0; i + 1 < data.size(); ++i) {
      EXPECT_EQ(Json::parse(data[i]).contains("prefix_cache_receipt"), i + 2 == data.size()) << data[i];
    }
    const Json last = Json::parse(data[data.size() - 2]);
    EXPECT_EQ(last["prefix_cache_receipt"]["compatibility"]["system_prompt_hash"], "sha256:" + Sha256::Of("s").Hex());
  }
}

TEST_F(ApiCacheTest, ExplainAsksWhatTheRequestWouldAndRunsNothing) {
  Start();
  engine_.set_report(report_);
  const Json receipt = ReceiptIn(Explain(
      R"({"messages":[{"role":"user","content":"hi"}],"stream":true,"n":3,"cache":{"salt":"s"},"max_tokens":5})"));
  EXPECT_EQ(receipt["prompt_tokens"], 8);
  EXPECT_EQ(receipt["hit"]["suffix_tokens"], 4);
  EXPECT_EQ(receipt["fork"]["asked"]["text"], ":");
  EXPECT_EQ(receipt["fork"]["message"]["index"], 0);
  EXPECT_EQ(engine_.last_explain().prompt, codec_.Encode("user:hi\n", true, true));
  EXPECT_EQ(engine_.last_explain().scope.tenant, "default");
  EXPECT_EQ(engine_.last_explain().scope.salt, "s");
  EXPECT_EQ(engine_.last_explain().view, ReportView::kOwner);
  EXPECT_TRUE(engine_.requests().empty());
  EXPECT_EQ(ReceiptIn(Explain(R"({"prompt":"still here"})"))["prompt_tokens"], 10);
}

TEST_F(ApiCacheTest, ExplainSaysReadDisabledAsTheRequestWould) {
  Start();
  engine_.set_report(report_);
  const Json receipt = ReceiptIn(Explain(R"({"prompt":"still here","cache":{"read":false}})"));
  EXPECT_EQ(receipt["decision"], "read_disabled");
  EXPECT_EQ(receipt["miss"][0]["reason"], "read_disabled");
  EXPECT_EQ(receipt["hit"]["reusable_tokens"], 0);
}

TEST_F(ApiCacheTest, ExplainRefusesWhatTheEndpointsRefuse) {
  engine_.context = 16;
  Start();
  struct Case {
    const char* body;
    int status;
    const char* code;
  };
  for (const Case& c : {Case{"{", 400, "invalid_json"}, Case{"{}", 400, "missing_field"},
                        Case{R"({"prompt":"a","messages":[]})", 400, "unknown_field"},
                        Case{R"({"prompt":"a","temperature":-1})", 400, "invalid_value"},
                        Case{R"({"prompt":"a","model":"other"})", 404, "model_not_found"},
                        Case{R"({"messages":[{"role":"user","content":"refuse me"}]})", 400, "invalid_value"},
                        Case{R"({"prompt":"0123456789abcdef"})", 400, "context_too_long"},
                        Case{R"({"prompt":"0123456789","max_tokens":7})", 400, "context_too_long"}}) {
    const RawResponse response = Explain(c.body);
    EXPECT_EQ(response.status, c.status) << c.body << response.body;
    EXPECT_EQ(CodeOf(response), c.code) << c.body;
    const std::string body = c.body;
    const RawResponse real = body.find("messages") == std::string::npos ? Complete(body) : Chat(body);
    EXPECT_EQ(real.status, c.status) << c.body;
    EXPECT_EQ(CodeOf(real), c.code) << c.body;
  }
  EXPECT_EQ(Explain(R"({"prompt":"0123456789","max_tokens":6})").status, 200) << "the control";
}

TEST_F(ApiCacheTest, QuestionsCountAsRequestsWhileTheyWait) {
  options_.limits.requests_max = 1;
  Start();
  const std::string body = R"({"prompt":"a"})";
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(Explain(body).status, 200) << "each is given back";
    EXPECT_EQ(CodeOf(Explain("{")), "invalid_json") << "refused ones too";
    EXPECT_EQ(Ask("POST", "/v1/cache/purge").status, 200);
  }
  engine_.stay = FakeEngine::Phase::kQueued;
  RawClient busy = Connect();
  busy.Send("POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" +
            body);
  ASSERT_TRUE(Eventually([&] { return engine_.live() == 1; }));
  EXPECT_EQ(CodeOf(Explain(body)), "queue_full");
  EXPECT_EQ(CodeOf(Ask("POST", "/v1/cache/purge")), "queue_full");
}

TEST_F(ApiCacheTest, MessagesThatTruncationDroppedAreNotNamed) {
  engine_.context = 40;
  Start();
  engine_.set_report({.match = {.tokens = 2}, .fork = 2});
  const auto fork = [&](const std::string& first) {
    return ReceiptIn(Explain(R"({"messages":[{"role":"user","content":")" + first +
                             R"("},{"role":"assistant","content":"b"},{"role":"user","content":"c"}],)"
                             R"("truncation":{"type":"middle"},"max_tokens":8})"))["fork"];
  };
  EXPECT_FALSE(fork("a text that is too long for the context").contains("message"));
  EXPECT_TRUE(fork("a").contains("message")) << "the control";
}

TEST_F(ApiCacheTest, WhatExplainKeepsIsCharged) {
  options_.limits.bodies_bytes_max = 3000;
  options_.limits.body_bytes_max = 3000;
  Start();
  const auto body = [](size_t bytes) {
    return R"({"messages":[{"role":"user","content":")" + std::string(bytes, 'a') + R"("}]})";
  };
  EXPECT_EQ(CodeOf(Explain(body(1000))), "queue_full") << "the body, its text in the prompt, and four bytes a token";
  for (int i = 0; i < 5; ++i) EXPECT_EQ(Explain(body(400)).status, 200) << "and given back";
}

TEST_F(ApiCacheTest, WhatARequestKeptIsGivenBackBeforeItsAnswer) {
  options_.limits.bodies_bytes_max = 3000;
  options_.limits.body_bytes_max = 3000;
  Start();
  const std::string text(2000, 'a');
  EXPECT_EQ(Complete(R"({"prompt":")" + std::string(2990, 'a') + "\"}").status, 413) << "control: bodies count";
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(Ask("POST", "/tokenize", R"({"content":")" + text + "\"}").status, 200);
    EXPECT_EQ(Complete(R"({"temperature":-1,"prompt":")" + text + "\"}").status, 400);
    EXPECT_EQ(Ask("POST", "/v1/cache/purge", R"({"unknown":")" + text + "\"}").status, 400);
  }
}

TEST_F(ApiCacheTest, StatsCountEveryRequestOnce) {
  Start();
  engine_.set_report(report_);
  Complete(R"({"prompt":"still here","n":3,"max_tokens":1})");
  Complete(R"({"prompt":"still here","max_tokens":1})");
  Explain(R"({"prompt":"still here"})");
  const RawResponse response = Ask("GET", "/v1/cache/stats");
  ASSERT_EQ(response.status, 200);
  const Json stats = Json::parse(response.body);
  EXPECT_EQ(stats["kv_miss_total"]["tokens_differ"], 2);
  EXPECT_EQ(stats["kv_tokens_total"]["pool"], 4 * 9) << "every choice has a prompt";
  EXPECT_EQ(stats["kv_tokens_total"]["computed"], 4);
  EXPECT_EQ(stats["nodes"], 3);
}

TEST_F(ApiCacheTest, WhatComesFromTheDiskIsCountedAsCachedEverywhere) {
  Start();
  engine_.set_tier({.name = "disk", .writable = true, .usage = {.bytes = 70, .bytes_max = 90, .blocks = 5}}, 6);
  PrefixReport report = report_;
  report.match.tokens = 9;
  report.fork = 9;
  report.tier = {.tokens = 6, .saved_ms = 50, .cost_ms = 2, .load_ms = 3};
  engine_.set_report(report);
  const Json reply = Json::parse(Complete(R"({"prompt":"still here","cache":{"receipt":true}})").body);
  EXPECT_EQ(reply["usage"]["prompt_tokens_details"]["cached_tokens"], 9);
  EXPECT_EQ(Dump(reply["timings"]["cached"]), R"({"pool":3,"ram":0,"disk":6,"redis":0})");
  const Json& receipt = reply["prefix_cache_receipt"];
  EXPECT_EQ(receipt["hit"]["by_tier"], reply["timings"]["cached"]);
  EXPECT_EQ(receipt["plan"]["fetch_tokens"], 6);
  EXPECT_EQ(receipt["plan"]["actual_load_ms"], 3);
  const Json told = ReceiptIn(Explain(R"({"prompt":"still here"})"));
  EXPECT_EQ(told["hit"]["by_tier"], receipt["hit"]["by_tier"]);
  EXPECT_EQ(told["plan"]["estimated_saved_ms"], 50);
  const Json off = ReceiptIn(Explain(R"({"prompt":"still here","cache":{"read":false}})"));
  EXPECT_EQ(off["hit"]["by_tier"]["disk"], 0);
  EXPECT_EQ(off["plan"]["fetch_tokens"], 0);
  const Json stats = Json::parse(Ask("GET", "/v1/cache/stats").body);
  EXPECT_EQ(stats["kv_tokens_total"]["disk"], 6);
  EXPECT_EQ(stats["kv_hit_rate"], 0.9);
  EXPECT_EQ(stats["tiers"]["disk"]["bytes"], 70);
  EXPECT_EQ(Ask("POST", "/v1/cache/purge").body, R"({"purged":{"blocks":3,"pinned":1,"disk_blocks":8}})");
}

TEST_F(ApiCacheTest, EveryKeyIsATenantOfItsOwn) {
  options_.api_keys = {"one", "two"};
  options_.port = 0;
  auto server = Server::Start(options_);
  ASSERT_TRUE(server.ok());
  server_ = *std::move(server);
  server_->Attach(engine_, codec_, {"fake"});
  ASSERT_TRUE(Eventually([&] { return Ask("GET", "/ready").status == 200; }));
  const auto tenant = [&](const std::string& key) {
    EXPECT_EQ(AskAs(key, "POST", "/v1/completions", R"({"prompt":"a"})").status, 200);
    return engine_.last_request().scope.tenant;
  };
  const std::string one = tenant("one"), two = tenant("two");
  EXPECT_NE(one, two);
  EXPECT_EQ(tenant("one"), one);
  EXPECT_EQ(one, "key-" + Sha256::Of("one").Hex().substr(0, 32));
  EXPECT_EQ(AskAs("two", "POST", "/v1/cache/explain", R"({"prompt":"a"})").status, 200);
  EXPECT_EQ(engine_.last_explain().scope.tenant, two);
  const RawResponse purged = AskAs("two", "POST", "/v1/cache/purge", "{}");
  EXPECT_EQ(purged.body, R"({"purged":{"blocks":3,"pinned":1}})");
  EXPECT_EQ(engine_.purged_tenants(), std::vector<std::string>{two});
  for (const char* path : {"/v1/cache/explain", "/v1/cache/purge"}) EXPECT_EQ(Ask("POST", path, "{}").status, 401);
  for (const char* path : {"/v1/cache/stats", "/metrics"}) {
    EXPECT_EQ(Ask("GET", path).status, 401) << path;
    EXPECT_EQ(AskAs("one", "GET", path, "").status, 200) << path;
  }
}

TEST_F(ApiCacheTest, PurgeTakesNoFields) {
  Start();
  EXPECT_EQ(Ask("POST", "/v1/cache/purge").status, 200);
  EXPECT_EQ(CodeOf(Ask("POST", "/v1/cache/purge", R"({"tenant":"other"})")), "unknown_field");
  EXPECT_EQ(engine_.purged_tenants(), std::vector<std::string>{"default"});
  EXPECT_EQ(Ask("GET", "/v1/cache/purge").status, 405);
}

TEST_F(ApiCacheTest, AnEngineThatStopsIsShuttingDown) {
  Start();
  engine_.stopping_for_good = true;
  for (const RawResponse& response : {Explain(R"({"prompt":"a"})"), Ask("POST", "/v1/cache/purge")}) {
    EXPECT_EQ(response.status, 503);
    EXPECT_EQ(CodeOf(response), "shutting_down");
  }
}

}  // namespace
}  // namespace reprise
