#include "server/response.h"

#include <gtest/gtest.h>

#include <limits>

#include "server/fakes.h"
#include "server/json.h"
#include "server/sse.h"

namespace reprise {
namespace {

const Timings kTimings{.queue_ms = 0.1,
                       .lookup_ms = 0.2,
                       .prefill_ms = 80,
                       .first_token_ms = 84.25,
                       .decode_ms = 900,
                       .prompt_n = 480,
                       .computed_n = 96,
                       .predicted_n = 2,
                       .cached_pool = 256,
                       .cached_disk = 128};

constexpr std::string_view kEnd =
    R"("timings":{"queue_ms":0.1,"lookup_ms":0.2,"load_ms":0.0,"load_exposed_ms":0.0,"prefill_ms":80.0,)"
    R"("first_token_ms":84.25,"decode_ms":900.0,"prompt_n":480,"computed_n":96,"predicted_n":2,)"
    R"("cached":{"pool":256,"ram":0,"disk":128,"redis":0}},"seed":7})";
constexpr std::string_view kUsage =
    R"("usage":{"prompt_tokens":480,"completion_tokens":2,"total_tokens":482,"prompt_tokens_details":{"cached_tokens":384}},)";

std::string operator+(std::string a, std::string_view b) { return a.append(b); }

ReplyHead Head(Endpoint endpoint) {
  return {.endpoint = endpoint, .id = "cmpl-1", .model = "m", .created = 1700000000, .seed = 7};
}

ReplyPart Hi() {
  return {.text = "Hi",
          .tokens = {{TokenId('H'), -0.5f, {{TokenId('H'), -0.5f}, {TokenId(0xC3), -2.0f}}},
                     {TokenId('i'), -std::numeric_limits<float>::infinity(), {}}}};
}

std::string Whole(const ReplyHead& head, std::string_view finish, ReplyPart all = Hi()) {
  const WholeChoice choice{std::move(all), finish};
  return WholeReply(head, {&choice, 1}, kTimings, FakeCodec());
}

TEST(ResponseTest, WholeTextReply) {
  EXPECT_EQ(Whole(Head(Endpoint::kText), "stop"),
            std::string(R"({"id":"cmpl-1","object":"text_completion","created":1700000000,"model":"m","choices":[)"
                        R"({"text":"Hi","index":0,"logprobs":null,"finish_reason":"stop"}],)") +
                kUsage + kEnd);
}

TEST(ResponseTest, WholeChatReply) {
  EXPECT_EQ(Whole(Head(Endpoint::kChat), "length"),
            std::string(R"({"id":"cmpl-1","object":"chat.completion","created":1700000000,"model":"m","choices":[)"
                        R"({"index":0,"message":{"role":"assistant","content":"Hi","refusal":null},)"
                        R"("logprobs":null,"finish_reason":"length"}],)") +
                kUsage + kEnd);
}

TEST(ResponseTest, TextLogprobsAndTokens) {
  ReplyHead head = Head(Endpoint::kText);
  head.logprobs = 2;
  head.return_tokens = true;
  const Json reply = Json::parse(Whole(head, "stop"));
  EXPECT_EQ(Dump(reply["choices"][0]["logprobs"]),
            R"({"tokens":["H","i"],"token_logprobs":[-0.5,-9999.0],)"
            R"("top_logprobs":[{"H":-0.5,"bytes:\\xc3":-2.0},{}],"text_offset":[0,1]})");
  EXPECT_EQ(Dump(reply["choices"][0]["tokens"]), "[72,105]");
}

TEST(ResponseTest, ChatLogprobs) {
  ReplyHead head = Head(Endpoint::kChat);
  head.logprobs = 2;
  const Json reply = Json::parse(Whole(head, "stop"));
  EXPECT_EQ(Dump(reply["choices"][0]["logprobs"]["content"][0]),
            std::string(R"({"token":"H","logprob":-0.5,"bytes":[72],"top_logprobs":[)"
                        R"({"token":"H","logprob":-0.5,"bytes":[72]},{"token":")") +
                "\xEF\xBF\xBD" + R"(","logprob":-2.0,"bytes":[195]}]})");
}

TEST(ResponseTest, ChatChunks) {
  const ReplyHead head = Head(Endpoint::kChat);
  const std::string start =
      R"({"id":"cmpl-1","object":"chat.completion.chunk","created":1700000000,"model":"m","choices":[{"index":0,"delta":)";
  EXPECT_EQ(RoleChunk(head, 0),
            start + R"({"role":"assistant","content":"","refusal":null},"logprobs":null,"finish_reason":null}]})");
  EXPECT_EQ(PartChunk(head, Hi(), FakeCodec()), start + R"({"content":"Hi"},"logprobs":null,"finish_reason":null}]})");
  EXPECT_EQ(EndChunk(head, 0, "stop", &kTimings), start + R"({},"logprobs":null,"finish_reason":"stop"}],)" + kEnd);
}

TEST(ResponseTest, TextChunksWithUsageInTheLastOneOnly) {
  ReplyHead head = Head(Endpoint::kText);
  head.include_usage = true;
  const std::string start = R"({"id":"cmpl-1","object":"text_completion","created":1700000000,"model":"m","choices":[)";
  EXPECT_EQ(PartChunk(head, Hi(), FakeCodec()),
            start + R"({"text":"Hi","index":0,"logprobs":null,"finish_reason":null}],"usage":null})");
  EXPECT_EQ(EndChunk(head, 0, "length", nullptr),
            start + R"({"text":"","index":0,"logprobs":null,"finish_reason":"length"}],"usage":null})");
  EXPECT_EQ(UsageChunk(head, kTimings), start + "]," + kUsage + kEnd);
}

TEST(ResponseTest, OffsetsCountCharactersAcrossTokensThatSplitThem) {
  ReplyHead head = Head(Endpoint::kText);
  head.logprobs = 0;
  ReplyPart part{.text = "\xC3\xA9x", .text_offset = 10};
  for (const int byte : {0xC3, 0xA9, 0x78}) part.tokens.push_back({TokenId(byte), -1.0f, {}});
  const Json chunk = Json::parse(PartChunk(head, part, FakeCodec()));
  EXPECT_EQ(Dump(chunk["choices"][0]["logprobs"]),
            R"({"tokens":["bytes:\\xc3","bytes:\\xa9","x"],"token_logprobs":[-1.0,-1.0,-1.0],)"
            R"("top_logprobs":null,"text_offset":[10,11,11]})");
  EXPECT_EQ(CountCharacters(FakeCodec(), part.tokens), 2u);
}

TEST(ResponseTest, OnlyUtf8IsAName) {
  ReplyHead head = Head(Endpoint::kText);
  head.logprobs = 0;
  class Pieces : public FakeCodec {
   public:
    std::string Piece(TokenId token) const override { return pieces[token.value()]; }
    std::vector<std::string> pieces = {
        "\xC3\xA9", "\xE2\x82\xAC", "\xF0\x9F\x98\x80",  // é € 😀
        "\xC0\x80", "\xED\xA0\x80", "\xF4\x90\x80\x80", "\xE0\x80\x80", "\xF0\x80\x80\x80", "\x80", "\xE2\x82",
        "a\xFF",    "\xC3("};
  } codec;
  for (size_t i = 0; i < codec.pieces.size(); ++i) {
    ReplyPart part{.tokens = {{TokenId(static_cast<int32_t>(i)), -1.0f, {}}}};
    const Json chunk = Json::parse(PartChunk(head, part, codec));
    const auto name = chunk["choices"][0]["logprobs"]["tokens"][0].get<std::string>();
    EXPECT_EQ(name.starts_with("bytes:"), i >= 3) << i;
    if (i < 3) {
      EXPECT_EQ(name, codec.pieces[i]);
    }
  }
}

ReplyPart Called() {
  ReplyPart part;
  Join({.reasoning = "hm"}, part);
  Join({.tool_calls = {{0, "call_1", "add", "{\"a\":"}}}, part);
  Join({.tool_calls = {{0, "", "", "1}"}, {1, "call_2", "now", "{}"}}}, part);
  return part;
}

TEST(ResponseTest, JoinedToolCallsAreTheMessage) {
  const Json reply = Json::parse(Whole(Head(Endpoint::kChat), "tool_calls", Called()));
  EXPECT_EQ(Dump(reply["choices"][0]["message"]),
            R"({"role":"assistant","content":null,"refusal":null,"reasoning_content":"hm","tool_calls":[)"
            R"({"id":"call_1","type":"function","function":{"name":"add","arguments":"{\"a\":1}"}},)"
            R"({"id":"call_2","type":"function","function":{"name":"now","arguments":"{}"}}]})");
}

TEST(ResponseTest, DeltasOfToolCallsNameThemOnce) {
  const ReplyHead head = Head(Endpoint::kChat);
  const auto delta = [&](const ReplyPart& part) {
    return Dump(Json::parse(PartChunk(head, part, FakeCodec()))["choices"][0]["delta"]);
  };
  EXPECT_EQ(delta({.tool_calls = {{1, "call_2", "now", ""}}}),
            R"({"tool_calls":[{"index":1,"id":"call_2","type":"function","function":{"name":"now","arguments":""}}]})");
  EXPECT_EQ(delta({.tool_calls = {{1, "", "", "{}"}}}),
            R"({"tool_calls":[{"index":1,"function":{"arguments":"{}"}}]})");
  EXPECT_EQ(delta({.reasoning = "hm"}), R"({"reasoning_content":"hm"})");
  EXPECT_EQ(delta({}), R"({"content":""})");
}

TEST(ResponseTest, ChoicesCarryTheirIndexAndUsageTheirSum) {
  Timings second = kTimings;
  second.predicted_n = 5;
  second.computed_n = 1;
  second.decode_ms = 1000;
  const Timings both[] = {kTimings, second};
  std::vector<WholeChoice> choices = {{Hi(), "stop"}, {Hi(), "length"}};
  choices[1].all.choice = 1;
  const Json reply = Json::parse(WholeReply(Head(Endpoint::kText), choices, Together(both), FakeCodec()));
  EXPECT_EQ(reply["choices"][1]["index"], 1);
  EXPECT_EQ(reply["choices"][1]["finish_reason"], "length");
  EXPECT_EQ(reply["usage"]["prompt_tokens"], 480);
  EXPECT_EQ(reply["usage"]["completion_tokens"], 7);
  EXPECT_EQ(reply["usage"]["total_tokens"], 487);
  EXPECT_EQ(reply["usage"]["prompt_tokens_details"]["cached_tokens"], 384);
  EXPECT_EQ(reply["timings"]["decode_ms"], 1000.0);
}

TEST(ResponseTest, TruncationIsReported) {
  ReplyHead head = Head(Endpoint::kChat);
  head.truncation = {.dropped_messages = 2, .dropped_tokens = 30, .prompt_tokens_before = 100};
  constexpr std::string_view kReport =
      R"("seed":7,"truncation":{"dropped_messages":2,"dropped_tokens":30,"prompt_tokens_before":100}})";
  EXPECT_TRUE(Whole(head, "stop").ends_with(kReport));
  EXPECT_TRUE(EndChunk(head, 0, "stop", &kTimings).ends_with(kReport));
  EXPECT_EQ(EndChunk(head, 0, "stop", nullptr).find("truncation"), std::string::npos);
}

TEST(ResponseTest, Lists) {
  const std::vector<ModelEntry> models = {{"a", 5, 4096, 257}, {"b", 5, 4096, 257}};
  const std::string a =
      R"({"id":"a","object":"model","created":5,"owned_by":"reprise","meta":{"n_ctx":4096,"n_vocab":257}})";
  EXPECT_EQ(ModelBody(models[0]), a);
  EXPECT_EQ(ModelList(models), R"({"object":"list","data":[)" + a + "," + ModelBody(models[1]) + "]}");
  EXPECT_EQ(TokenList({}), R"({"tokens":[]})");
  const std::vector<TokenId> tokens = {TokenId('H'), TokenId(0xC3), TokenId(0xA9), TokenId(0xFF)};
  EXPECT_EQ(DetokenizedBody(tokens, FakeCodec()), "{\"content\":\"H\xC3\xA9\xEF\xBF\xBD\"}");
}

TEST(SseTest, Framing) {
  EXPECT_EQ(SseData("{}"), "data: {}\n\n");
  EXPECT_EQ(SseComment("prefill 1/2"), ": prefill 1/2\n\n");
}

}  // namespace
}  // namespace reprise
