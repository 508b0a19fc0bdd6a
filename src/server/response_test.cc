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
                       .cached_pool = 384};

constexpr std::string_view kEnd =
    R"("timings":{"queue_ms":0.1,"lookup_ms":0.2,"load_ms":0.0,"load_exposed_ms":0.0,"prefill_ms":80.0,)"
    R"("first_token_ms":84.25,"decode_ms":900.0,"prompt_n":480,"computed_n":96,"predicted_n":2,)"
    R"("cached":{"pool":384,"ram":0,"disk":0,"redis":0}},"seed":7})";
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

TEST(ResponseTest, WholeTextReply) {
  EXPECT_EQ(WholeReply(Head(Endpoint::kText), Hi(), FinishReason::kStop, kTimings, FakeCodec()),
            std::string(R"({"id":"cmpl-1","object":"text_completion","created":1700000000,"model":"m","choices":[)"
                        R"({"text":"Hi","index":0,"logprobs":null,"finish_reason":"stop"}],)") +
                kUsage + kEnd);
}

TEST(ResponseTest, WholeChatReply) {
  EXPECT_EQ(WholeReply(Head(Endpoint::kChat), Hi(), FinishReason::kLength, kTimings, FakeCodec()),
            std::string(R"({"id":"cmpl-1","object":"chat.completion","created":1700000000,"model":"m","choices":[)"
                        R"({"index":0,"message":{"role":"assistant","content":"Hi","refusal":null},)"
                        R"("logprobs":null,"finish_reason":"length"}],)") +
                kUsage + kEnd);
}

TEST(ResponseTest, TextLogprobsAndTokens) {
  ReplyHead head = Head(Endpoint::kText);
  head.logprobs = 2;
  head.return_tokens = true;
  const Json reply = Json::parse(WholeReply(head, Hi(), FinishReason::kStop, kTimings, FakeCodec()));
  EXPECT_EQ(Dump(reply["choices"][0]["logprobs"]),
            R"({"tokens":["H","i"],"token_logprobs":[-0.5,-9999.0],)"
            R"("top_logprobs":[{"H":-0.5,"bytes:\\xc3":-2.0},{}],"text_offset":[0,1]})");
  EXPECT_EQ(Dump(reply["choices"][0]["tokens"]), "[72,105]");
}

TEST(ResponseTest, ChatLogprobs) {
  ReplyHead head = Head(Endpoint::kChat);
  head.logprobs = 2;
  const Json reply = Json::parse(WholeReply(head, Hi(), FinishReason::kStop, kTimings, FakeCodec()));
  EXPECT_EQ(Dump(reply["choices"][0]["logprobs"]["content"][0]),
            std::string(R"({"token":"H","logprob":-0.5,"bytes":[72],"top_logprobs":[)"
                        R"({"token":"H","logprob":-0.5,"bytes":[72]},{"token":")") +
                "\xEF\xBF\xBD" + R"(","logprob":-2.0,"bytes":[195]}]})");
}

TEST(ResponseTest, ChatChunks) {
  const ReplyHead head = Head(Endpoint::kChat);
  const std::string start =
      R"({"id":"cmpl-1","object":"chat.completion.chunk","created":1700000000,"model":"m","choices":[{"index":0,"delta":)";
  EXPECT_EQ(RoleChunk(head),
            start + R"({"role":"assistant","content":"","refusal":null},"logprobs":null,"finish_reason":null}]})");
  EXPECT_EQ(PartChunk(head, Hi(), FakeCodec()), start + R"({"content":"Hi"},"logprobs":null,"finish_reason":null}]})");
  EXPECT_EQ(EndChunk(head, FinishReason::kStop, kTimings),
            start + R"({},"logprobs":null,"finish_reason":"stop"}],)" + kEnd);
}

TEST(ResponseTest, TextChunksWithUsageInTheLastOneOnly) {
  ReplyHead head = Head(Endpoint::kText);
  head.include_usage = true;
  const std::string start = R"({"id":"cmpl-1","object":"text_completion","created":1700000000,"model":"m","choices":[)";
  EXPECT_EQ(PartChunk(head, Hi(), FakeCodec()),
            start + R"({"text":"Hi","index":0,"logprobs":null,"finish_reason":null}],"usage":null})");
  EXPECT_EQ(EndChunk(head, FinishReason::kLength, kTimings),
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

TEST(ResponseTest, Lists) {
  const std::vector<std::string> names = {"a", "b"};
  EXPECT_EQ(ModelList(names, 5),
            R"({"object":"list","data":[{"id":"a","object":"model","created":5,"owned_by":"reprise"},)"
            R"({"id":"b","object":"model","created":5,"owned_by":"reprise"}]})");
  EXPECT_EQ(TokenList({}), R"({"tokens":[]})");
}

TEST(SseTest, Framing) {
  EXPECT_EQ(SseData("{}"), "data: {}\n\n");
  EXPECT_EQ(SseComment("prefill 1/2"), ": prefill 1/2\n\n");
}

}  // namespace
}  // namespace reprise
