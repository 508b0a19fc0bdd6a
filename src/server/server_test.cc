// The live server over loopback, with a fake engine and a client that sends raw bytes.
#include "server/server.h"

#include <gtest/gtest.h>

#include <thread>

#include "server/live_server.h"

namespace reprise {
namespace {

class ServerTest : public LiveServerTest {};

TEST_F(ServerTest, AnswersACompletion) {
  Start();
  const RawResponse response = Complete(
      R"({"model":"alias","prompt":"hello","max_tokens":7,"seed":5,"stop":"x","logprobs":1,"return_tokens":true,
                   "cache":{"read":false,"salt":"s"}})");
  ASSERT_EQ(response.status, 200) << response.body;
  EXPECT_EQ(response.headers.at("content-type"), "application/json");
  const Json body = Json::parse(response.body);
  EXPECT_TRUE(body["id"].get<std::string>().starts_with("cmpl-"));
  EXPECT_EQ(body["model"], "alias");
  EXPECT_EQ(body["seed"], 5);
  const Json& choice = body["choices"][0];
  EXPECT_EQ(choice["text"], "hellohe");
  EXPECT_EQ(choice["finish_reason"], "length");
  EXPECT_EQ(choice["tokens"].size(), 7u);
  EXPECT_EQ(choice["logprobs"]["tokens"].size(), 7u);
  EXPECT_EQ(body["usage"]["prompt_tokens"], 5);
  EXPECT_EQ(body["usage"]["completion_tokens"], 7);
  EXPECT_EQ(body["usage"]["prompt_tokens_details"]["cached_tokens"], 4);
  EXPECT_EQ(body["timings"]["cached"]["pool"], 4);

  const GenerationRequest got = engine_.last_request();
  EXPECT_EQ(got.max_tokens, 7u);
  EXPECT_EQ(got.sampling.seed, 5u);
  EXPECT_EQ(got.stop, std::vector<std::string>{"x"});
  EXPECT_FALSE(got.cache_read);
  EXPECT_TRUE(got.cache_write);
  EXPECT_EQ(got.scope.tenant, "default");
  EXPECT_EQ(got.scope.salt, "s");
}

TEST_F(ServerTest, AnswersAConversationWithTheTemplate) {
  Start();
  const RawResponse response =
      Ask("POST", "/v1/chat/completions", R"({"model":"fake","messages":[{"role":"user","content":"hé"}]})");
  ASSERT_EQ(response.status, 200) << response.body;
  const Json body = Json::parse(response.body);
  EXPECT_TRUE(body["id"].get<std::string>().starts_with("chatcmpl-"));
  EXPECT_EQ(body["choices"][0]["message"]["content"], "user:hé\n");
  EXPECT_EQ(body["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(engine_.last_request().prompt_param, "messages");
}

TEST_F(ServerTest, ADefaultSeedIsRandomAndReturned) {
  Start();
  const Json first = Json::parse(Complete(R"({"prompt":"a"})").body);
  EXPECT_EQ(first["seed"].get<uint64_t>(), engine_.last_request().sampling.seed);
  const Json second = Json::parse(Complete(R"({"prompt":"a"})").body);
  EXPECT_NE(first["seed"], second["seed"]);
  EXPECT_NE(first["id"], second["id"]);
}

TEST_F(ServerTest, AStreamIsTheReplyInPieces) {
  Start();
  const std::string text = "naïve 😀 text";
  const RawResponse response = Complete(
      Dump(Json({{"prompt", text}, {"stream", true}, {"stream_options", {{"include_usage", true}}}, {"logprobs", 0}})));
  ASSERT_EQ(response.status, 200);
  EXPECT_TRUE(response.complete);
  EXPECT_EQ(response.headers.at("content-type"), "text/event-stream");
  const auto data = DataOf(response.body);
  ASSERT_GE(data.size(), 4u);
  EXPECT_EQ(data.back(), "[DONE]");
  std::string sum;
  size_t tokens = 0;
  for (size_t i = 0; i + 3 < data.size(); ++i) {
    const Json chunk = Json::parse(data[i]);  // aborts the test if a character is split
    sum += chunk["choices"][0]["text"].get<std::string>();
    tokens += chunk["choices"][0]["logprobs"]["tokens"].size();
    EXPECT_TRUE(chunk["choices"][0]["finish_reason"].is_null());
    EXPECT_TRUE(chunk["usage"].is_null());
    EXPECT_FALSE(chunk.contains("timings"));
  }
  EXPECT_EQ(sum, text);
  EXPECT_EQ(tokens, text.size());
  EXPECT_EQ(Json::parse(data[data.size() - 3])["choices"][0]["finish_reason"], "stop");
  const Json last = Json::parse(data[data.size() - 2]);
  EXPECT_TRUE(last["choices"].empty());
  EXPECT_EQ(last["usage"]["completion_tokens"], text.size());
  EXPECT_TRUE(last.contains("timings"));
}

TEST_F(ServerTest, AChatStreamStartsWithTheRole) {
  Start();
  const RawResponse response = Ask("POST", "/v1/chat/completions",
                                   R"({"messages":[{"role":"user","content":"x"}],"stream":true,"max_tokens":3})");
  const auto data = DataOf(response.body);
  ASSERT_EQ(data.size(), 6u) << response.body;
  EXPECT_EQ(Json::parse(data[0])["choices"][0]["delta"]["role"], "assistant");
  EXPECT_EQ(Json::parse(data[1])["choices"][0]["delta"]["content"], "u");
  const Json end = Json::parse(data[4]);
  EXPECT_EQ(end["choices"][0]["finish_reason"], "length");
  EXPECT_TRUE(end.contains("timings") && end.contains("seed"));
}

TEST_F(ServerTest, Http10ClientsGetAStreamThatEndsWithTheConnection) {
  Start();
  RawClient client = Connect();
  const std::string body = R"({"prompt":"abc","stream":true})";
  client.Send("POST /v1/completions HTTP/1.0\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body);
  const RawResponse response = client.Read();
  EXPECT_FALSE(response.headers.contains("transfer-encoding"));
  EXPECT_TRUE(response.complete);
  EXPECT_EQ(DataOf(response.body).back(), "[DONE]");
}

TEST_F(ServerTest, Http10ClientsKeepTheConnectionWhenTheyAskTo) {
  Start();
  RawClient client = Connect();
  for (int i = 0; i < 2; ++i) {
    client.Send("GET /health HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
    EXPECT_EQ(client.Read().headers["connection"], "keep-alive");
  }
  client.Send("GET /health HTTP/1.0\r\n\r\n");
  EXPECT_EQ(client.Read().headers["connection"], "close");
  EXPECT_TRUE(client.ClosedByServer());
}

TEST_F(ServerTest, ServesTheSmallEndpoints) {
  Start();
  EXPECT_EQ(Ask("GET", "/health").body, R"({"status":"ok"})");
  EXPECT_EQ(Ask("GET", "/health?verbose=1").status, 200);
  EXPECT_EQ(Ask("HEAD", "/health").status, 200);
  const Json models = Json::parse(Ask("GET", "/v1/models").body);
  EXPECT_EQ(models["data"][0]["id"], "fake");
  EXPECT_EQ(models["data"][1]["id"], "alias");
  EXPECT_EQ(Ask("POST", "/tokenize", R"({"content":"AB"})").body, R"({"tokens":[65,66]})");
  EXPECT_EQ(CodeOf(Ask("POST", "/tokenize", R"({})")), "missing_field");
  const RawResponse missing = Ask("GET", "/v2/nothing");
  EXPECT_EQ(missing.status, 404);
  EXPECT_EQ(CodeOf(missing), "unsupported");
  const RawResponse wrong = Ask("GET", "/v1/completions");
  EXPECT_EQ(wrong.status, 405);
  EXPECT_EQ(wrong.headers.at("allow"), "POST");
}

TEST_F(ServerTest, TextOfTokensIsGivenUpToALimit) {
  engine_.context = 64;
  codec_.bos_piece = std::string(128, 'x');
  Start();
  const auto detokenize = [this](size_t count) {
    return Ask("POST", "/detokenize", Dump(Json({{"tokens", std::vector<int>(count, 256)}})));
  };
  EXPECT_EQ(detokenize(520).status, 200) << "the control: 65 KiB";
  const RawResponse refused = detokenize(4000);
  EXPECT_EQ(refused.status, 413);
  EXPECT_EQ(CodeOf(refused), "body_too_large");
  const Json error = Json::parse(refused.body)["error"];
  EXPECT_EQ(error["param"], "tokens");
  EXPECT_EQ(error["limit"], 16 * 64 + 65536);
  EXPECT_EQ(error["got"], 4000 * 128);
}

TEST_F(ServerTest, LoadsBeforeItServes) {
  Start(/*attach=*/false);
  EXPECT_EQ(Ask("GET", "/health").status, 200);
  EXPECT_EQ(Ask("GET", "/ready").status, 503);
  const RawResponse early = Complete(R"({"prompt":"a"})");
  EXPECT_EQ(early.status, 503);
  EXPECT_EQ(CodeOf(early), "loading");
  server_->Attach(engine_, codec_, {"fake"});
  EXPECT_TRUE(Eventually([&] { return Ask("GET", "/ready").status == 200; }));
  ExpectServing();
}

TEST_F(ServerTest, OtherModelsAreNotFoundUnlessAnyIsServed) {
  Start();
  const RawResponse response = Complete(R"({"model":"gpt-4","prompt":"a"})");
  EXPECT_EQ(response.status, 404);
  EXPECT_EQ(CodeOf(response), "model_not_found");
  EXPECT_NE(response.body.find("fake, alias"), std::string::npos);
  server_->Stop(0);
  options_.any_model = true;
  Start();
  EXPECT_EQ(Json::parse(Complete(R"({"model":"gpt-4","prompt":"a"})").body)["model"], "gpt-4");
}

TEST_F(ServerTest, ABaseModelSaysWhatToDoAboutConversations) {
  codec_.has_template = false;
  Start();
  const RawResponse response = Ask("POST", "/v1/chat/completions", R"({"messages":[{"role":"user","content":"x"}]})");
  EXPECT_EQ(response.status, 400);
  EXPECT_EQ(CodeOf(response), "unsupported");
  EXPECT_NE(response.body.find("/v1/completions"), std::string::npos);
}

TEST_F(ServerTest, ATemplateThatRefusesIsTheCallersFault) {
  Start();
  const RawResponse response =
      Ask("POST", "/v1/chat/completions", R"({"messages":[{"role":"user","content":"refuse me"}]})");
  EXPECT_EQ(response.status, 400);
  EXPECT_EQ(CodeOf(response), "invalid_value");
  EXPECT_NE(response.body.find("the template refused"), std::string::npos);
}

TEST_F(ServerTest, AnEmptyPromptIsFineOnlyWhereTheModelHasABeginning) {
  Start();
  EXPECT_EQ(CodeOf(Complete(R"({"prompt":""})")), "invalid_value");
  codec_.bos = true;
  EXPECT_EQ(Complete(R"({"prompt":""})").status, 200);
}

TEST_F(ServerTest, RefusalsOfTheEngineAreHttpErrors) {
  Start();
  engine_.fail_at = 0;
  for (const char* stream : {"false", "true"}) {
    const RawResponse response = Complete(std::string(R"({"prompt":"abc","stream":)") + stream + "}");
    EXPECT_EQ(response.status, 429);
    EXPECT_EQ(response.headers.at("retry-after"), "7");
    EXPECT_EQ(CodeOf(response), "queue_full");
  }
}

TEST_F(ServerTest, ErrorsBeforeTheFirstByteAreHttpErrorsAndLaterOnesEndTheStream) {
  Start();
  engine_.fail_at = 3;
  EXPECT_EQ(Complete(R"({"prompt":"abcdef"})").status, 500);
  const RawResponse cut = Complete(R"({"prompt":"abcdef","stream":true})");
  EXPECT_EQ(cut.status, 200);
  EXPECT_TRUE(cut.complete);
  const auto data = DataOf(cut.body);
  ASSERT_EQ(data.size(), 3u);
  EXPECT_EQ(Json::parse(data.back())["error"]["code"], "internal");
  engine_.fail_at = 1;
  EXPECT_EQ(Complete(R"({"prompt":"abcdef","stream":true})").status, 500);
}

TEST_F(ServerTest, TooManyRequestsAreToldToComeAgain) {
  options_.limits.requests_max = 2;
  Start();
  engine_.stay = FakeEngine::Phase::kDecoding;
  RawClient first = Connect(), second = Connect();
  first.Post("/v1/completions", R"({"prompt":"abc","stream":true})");
  second.Post("/v1/completions", R"({"prompt":"abc","stream":true})");
  ASSERT_TRUE(first.ReadUntil("data:") && second.ReadUntil("data:"));
  const RawResponse third = Complete(R"({"prompt":"abc"})");
  EXPECT_EQ(third.status, 429);
  EXPECT_EQ(CodeOf(third), "queue_full");
  EXPECT_TRUE(third.headers.contains("retry-after"));
  first.Close();
  second.Close();
  ASSERT_TRUE(Eventually([&] { return engine_.live() == 0; }));
  engine_.stay = FakeEngine::Phase::kNever;
  EXPECT_TRUE(Eventually([&] { return Complete(R"({"prompt":"abc","max_tokens":1})").status != 429; }));
}

TEST_F(ServerTest, SilentStreamsGetComments) {
  options_.limits.comment_ms = 20;
  Start();
  engine_.stay = FakeEngine::Phase::kQueued;
  RawClient queued = Connect();
  queued.Post("/v1/completions", R"({"prompt":"abc","stream":true})");
  EXPECT_TRUE(queued.ReadUntil(": queued\n\n"));
  engine_.stay = FakeEngine::Phase::kPrefill;
  EXPECT_TRUE(queued.ReadUntil(": prefill 1/3\n\n"));
  engine_.stay = FakeEngine::Phase::kNever;
  EXPECT_TRUE(queued.ReadUntil("[DONE]"));
}

TEST_F(ServerTest, PortBusyAndBadHostSayWhatToDo) {
  Start();
  ServerOptions second;
  second.port = server_->port();
  const auto busy = Server::Start(second);
  EXPECT_EQ(busy.status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_NE(busy.status().message().find("--port"), absl::string_view::npos);
  second.host = "203.0.113.7";  // an address for documentation: nobody's
  second.port = 0;
  const auto foreign = Server::Start(second);
  EXPECT_EQ(foreign.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(foreign.status().message().find("127.0.0.1"), absl::string_view::npos);
}

TEST_F(ServerTest, StopLetsRunningRepliesFinish) {
  Start();
  engine_.stay = FakeEngine::Phase::kDecoding;
  RawClient client = Connect(), late = Connect();
  client.Post("/v1/completions", R"({"prompt":"abc","stream":true})");
  ASSERT_TRUE(client.ReadUntil("data:"));
  std::thread stop([&] { server_->Stop(5000); });
  EXPECT_TRUE(Eventually([&] { return Ask("GET", "/ready").status == 503; }));
  late.Post("/v1/completions", R"({"prompt":"abc"})");
  const RawResponse refused = late.Read();
  EXPECT_EQ(refused.status, 503);
  EXPECT_EQ(CodeOf(refused), "shutting_down");
  engine_.stay = FakeEngine::Phase::kNever;
  EXPECT_TRUE(client.ReadUntil("data: [DONE]\n\n"));
  stop.join();
  EXPECT_EQ(engine_.cancelled(), 0);
  EXPECT_TRUE(client.ClosedByServer());
  EXPECT_FALSE(RawClient(server_->port()).connected());
}

TEST_F(ServerTest, StopCancelsWhatOutlivesTheDeadline) {
  Start();
  engine_.stay = FakeEngine::Phase::kDecoding;
  RawClient client = Connect();
  client.Post("/v1/completions", R"({"prompt":"abc","stream":true})");
  ASSERT_TRUE(client.ReadUntil("data:"));
  server_->Stop(20);
  EXPECT_EQ(engine_.cancelled(), 1);
  EXPECT_TRUE(client.ReadUntil("shutting_down"));
  EXPECT_TRUE(client.ClosedByServer());
}

TEST_F(ServerTest, TheFootprintIsModest) {
  const ServerLimits limits;
  EXPECT_LT(Server::Footprint(limits, 32'768), 384u << 20);
  EXPECT_GT(Server::Footprint(limits, 32'768), uint64_t{limits.connections_max} * limits.header_bytes_max);
}

}  // namespace
}  // namespace reprise
