#include "server/request.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "server/completion_fields.h"

namespace reprise {
namespace {

const RequestLimits kLimits{.json = {}, .vocab_size = 1000};

MaybeError ParseText(const std::string& body, CompletionRequest* out) {
  return ParseCompletion(Endpoint::kText, body, kLimits, out);
}
MaybeError ParseChat(const std::string& body, CompletionRequest* out) {
  return ParseCompletion(Endpoint::kChat, body, kLimits, out);
}
// A text request with these fields besides the prompt.
MaybeError TextWith(const std::string& fields, CompletionRequest* out) {
  return ParseText(R"({"prompt":"p",)" + fields + "}", out);
}

TEST(RequestTest, DefaultsAreOpenAis) {
  CompletionRequest request;
  ASSERT_FALSE(ParseText(R"({"model":"m","prompt":"hello"})", &request));
  EXPECT_EQ(request.model, "m");
  EXPECT_EQ(request.prompt_text, "hello");
  EXPECT_EQ(request.max_tokens, std::nullopt);
  EXPECT_EQ(request.sampling.temperature, 1.0f);
  EXPECT_EQ(request.sampling.top_p, 1.0f);
  EXPECT_EQ(request.sampling.top_k, 0u);
  EXPECT_EQ(request.sampling.min_p, 0.0f);
  EXPECT_EQ(request.seed, std::nullopt);
  EXPECT_EQ(request.logprobs, std::nullopt);
  EXPECT_FALSE(request.stream);
  EXPECT_TRUE(request.cache_read && request.cache_write);
  EXPECT_EQ(request.salt, std::nullopt);
}

TEST(RequestTest, ReadsEveryFieldThatItHonours) {
  CompletionRequest request;
  ASSERT_FALSE(ParseText(R"({"model":"m","prompt":[1,2,999],"max_tokens":7,"temperature":0.25,"top_p":0.5,"top_k":40,
      "min_p":0.05,"seed":18446744073709551615,"stop":["a","bc"],"stream":true,"stream_options":{"include_usage":true},
      "logprobs":3,"ignore_eos":true,"return_tokens":true,"n":1,
      "cache":{"read":false,"write":false,"salt":"","receipt":false}})",
                         &request));
  EXPECT_EQ(request.prompt_tokens, (std::vector<TokenId>{TokenId(1), TokenId(2), TokenId(999)}));
  EXPECT_EQ(request.max_tokens, 7u);
  EXPECT_EQ(request.sampling.temperature, 0.25f);
  EXPECT_EQ(request.sampling.top_p, 0.5f);
  EXPECT_EQ(request.sampling.top_k, 40u);
  EXPECT_EQ(request.sampling.min_p, 0.05f);
  EXPECT_EQ(request.seed, UINT64_MAX);
  EXPECT_EQ(request.stop, (std::vector<std::string>{"a", "bc"}));
  EXPECT_TRUE(request.stream && request.include_usage && request.ignore_eos && request.return_tokens);
  EXPECT_EQ(request.logprobs, 3u);
  EXPECT_FALSE(request.cache_read || request.cache_write);
  EXPECT_EQ(request.salt, "");
}

TEST(RequestTest, ReadsMessages) {
  CompletionRequest request;
  ASSERT_FALSE(ParseChat(R"({"messages":[{"role":"developer","content":"be kind"},
      {"role":"user","name":"ann","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]},
      {"role":"assistant","content":null,"refusal":null,"tool_calls":[],"annotations":[]},
      {"role":"user","content":""}],
      "logprobs":true,"top_logprobs":2,"max_completion_tokens":9})",
                         &request));
  ASSERT_EQ(request.messages.size(), 4u);
  EXPECT_EQ(request.messages[0].role, "system");
  EXPECT_EQ(request.messages[1].content, "a\nb");
  EXPECT_EQ(request.messages[2].content, "");
  EXPECT_EQ(request.logprobs, 2u);
  EXPECT_EQ(request.max_tokens, 9u);
}

TEST(RequestTest, LogprobsOfChatAreOffUnlessTrue) {
  const std::string messages = R"({"messages":[{"role":"user","content":"x"}],)";
  CompletionRequest off, on;
  ASSERT_FALSE(ParseChat(messages + R"("logprobs":false})", &off));
  EXPECT_EQ(off.logprobs, std::nullopt);
  ASSERT_FALSE(ParseChat(messages + R"("logprobs":true})", &on));
  EXPECT_EQ(on.logprobs, 0u);
}

TEST(RequestTest, OnePromptInAnArrayIsThatPrompt) {
  CompletionRequest text, tokens;
  ASSERT_FALSE(ParseText(R"({"prompt":["hello"]})", &text));
  EXPECT_EQ(text.prompt_text, "hello");
  ASSERT_FALSE(ParseText(R"({"prompt":[[5,6]]})", &tokens));
  EXPECT_EQ(tokens.prompt_tokens.size(), 2u);
}

struct Bad {
  std::string body;
  std::string code;
  std::string param;
};

TEST(RequestTest, RefusesWrongTextRequestsByFieldAndCode) {
  const Bad kBad[] = {
      {R"([])", "invalid_json", ""},
      {R"("prompt")", "invalid_json", ""},
      {R"({})", "missing_field", "prompt"},
      {R"({"prompt":null})", "missing_field", "prompt"},
      {R"({"prompt":1})", "invalid_value", "prompt"},
      {R"({"prompt":{}})", "invalid_value", "prompt"},
      {R"({"prompt":[]})", "invalid_value", "prompt"},
      {R"({"prompt":[[]]})", "invalid_value", "prompt[0]"},
      {R"({"prompt":[1,-1]})", "invalid_value", "prompt[1]"},
      {R"({"prompt":[1,1000]})", "invalid_value", "prompt[1]"},
      {R"({"prompt":[1,"a"]})", "invalid_value", "prompt[1]"},
      {R"({"prompt":[1,2.5]})", "invalid_value", "prompt[1]"},
      {R"({"prompt":[99999999999999999999]})", "invalid_value", "prompt[0]"},
      {R"({"prompt":["a","b"]})", "unsupported", "prompt"},
      {R"({"prompt":[[1],[2]]})", "unsupported", "prompt"},
      {R"({"prompt":[["a"]]})", "invalid_value", "prompt[0][0]"},
      {R"({"prompt":"p","messages":[]})", "unknown_field", "messages"},
      {R"({"prompt":"p","model":7})", "invalid_value", "model"},
      {R"({"prompt":"p","model":""})", "invalid_value", "model"},
      {R"({"prompt":"p","max_tokens":0})", "invalid_value", "max_tokens"},
      {R"({"prompt":"p","max_tokens":-5})", "invalid_value", "max_tokens"},
      {R"({"prompt":"p","max_tokens":1.5})", "invalid_value", "max_tokens"},
      {R"({"prompt":"p","max_tokens":"9"})", "invalid_value", "max_tokens"},
      {R"({"prompt":"p","max_tokens":18446744073709551615})", "invalid_value", "max_tokens"},
      {R"({"prompt":"p","max_tokens":4,"max_completion_tokens":5})", "invalid_value", "max_completion_tokens"},
      {R"({"prompt":"p","temperature":-0.1})", "invalid_value", "temperature"},
      {R"({"prompt":"p","temperature":1e-20})", "invalid_value", "temperature"},
      {R"({"prompt":"p","temperature":1e300})", "invalid_value", "temperature"},
      {R"({"prompt":"p","temperature":"hot"})", "invalid_value", "temperature"},
      {R"({"prompt":"p","top_p":0})", "invalid_value", "top_p"},
      {R"({"prompt":"p","top_p":1e-60})", "invalid_value", "top_p"},
      {R"({"prompt":"p","top_p":1.01})", "invalid_value", "top_p"},
      {R"({"prompt":"p","top_k":-1})", "invalid_value", "top_k"},
      {R"({"prompt":"p","min_p":1.5})", "invalid_value", "min_p"},
      {R"({"prompt":"p","seed":1.5})", "invalid_value", "seed"},
      {R"({"prompt":"p","seed":18446744073709551616})", "invalid_value", "seed"},
      {R"({"prompt":"p","stop":""})", "invalid_value", "stop"},
      {R"({"prompt":"p","stop":[""]})", "invalid_value", "stop[0]"},
      {R"({"prompt":"p","stop":["a",1]})", "invalid_value", "stop[1]"},
      {R"({"prompt":"p","stop":[0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16]})", "invalid_value", "stop"},
      {R"({"prompt":"p","stream":1})", "invalid_value", "stream"},
      {R"({"prompt":"p","stream_options":true})", "invalid_value", "stream_options"},
      {R"({"prompt":"p","stream_options":{"include_use":true}})", "unknown_field", "stream_options.include_use"},
      {R"({"prompt":"p","logprobs":true})", "invalid_value", "logprobs"},
      {R"({"prompt":"p","logprobs":21})", "invalid_value", "logprobs"},
      {R"({"prompt":"p","n":0})", "invalid_value", "n"},
      {R"({"prompt":"p","n":2})", "unsupported", "n"},
      {R"({"prompt":"p","best_of":2})", "unsupported", "best_of"},
      {R"({"prompt":"p","echo":true})", "unsupported", "echo"},
      {R"({"prompt":"p","suffix":"x"})", "unsupported", "suffix"},
      {R"({"prompt":"p","cache":1})", "invalid_value", "cache"},
      {R"({"prompt":"p","cache":{"read":0}})", "invalid_value", "cache.read"},
      {R"({"prompt":"p","cache":{"receipt":true}})", "unsupported", "cache.receipt"},
      {R"({"prompt":"p","cache":{"sald":"x"}})", "unknown_field", "cache.sald"},
      {R"({"prompt":"p","presence_penalty":0.5})", "unsupported", "presence_penalty"},
      {R"({"prompt":"p","frequency_penalty":"0"})", "invalid_value", "frequency_penalty"},
      {R"({"prompt":"p","logit_bias":{"1":5}})", "unsupported", "logit_bias"},
      {R"({"prompt":"p","response_format":{"type":"json_object"}})", "unsupported", "response_format"},
      {R"({"prompt":"p","temprature":1})", "unknown_field", "temprature"},
  };
  for (const Bad& bad : kBad) {
    CompletionRequest request;
    const MaybeError error = ParseText(bad.body, &request);
    ASSERT_TRUE(error) << bad.body;
    EXPECT_EQ(error->code, bad.code) << bad.body;
    EXPECT_EQ(error->param, bad.param) << bad.body << ": " << error->message;
    EXPECT_EQ(error->http_status, 400) << bad.body;
    EXPECT_FALSE(error->message.empty());
  }
}

TEST(RequestTest, RefusesWrongChatRequestsByFieldAndCode) {
  const Bad kBad[] = {
      {R"({"prompt":"p"})", "unknown_field", "prompt"},
      {R"({})", "missing_field", "messages"},
      {R"({"messages":"hi"})", "invalid_value", "messages"},
      {R"({"messages":[]})", "invalid_value", "messages"},
      {R"({"messages":["hi"]})", "invalid_value", "messages[0]"},
      {R"({"messages":[{"content":"x"}]})", "missing_field", "messages[0].role"},
      {R"({"messages":[{"role":"user"}]})", "missing_field", "messages[0].content"},
      {R"({"messages":[{"role":"king","content":"x"}]})", "invalid_value", "messages[0].role"},
      {R"({"messages":[{"role":1,"content":"x"}]})", "invalid_value", "messages[0].role"},
      {R"({"messages":[{"role":"user","content":null}]})", "invalid_value", "messages[0].content"},
      {R"({"messages":[{"role":"user","content":5}]})", "invalid_value", "messages[0].content"},
      {R"({"messages":[{"role":"user","content":["x"]}]})", "invalid_value", "messages[0].content[0]"},
      {R"({"messages":[{"role":"user","content":[{"type":"text"}]}]})", "missing_field", "messages[0].content[0].text"},
      {R"({"messages":[{"role":"user","content":[{"type":"image_url","image_url":{}}]}]})", "unsupported",
       "messages[0].content[0].type"},
      {R"({"messages":[{"role":"user","content":"x","colour":1}]})", "unknown_field", "messages[0].colour"},
      {R"({"messages":[{"role":"assistant","content":"x","tool_calls":[{}]}]})", "unsupported",
       "messages[0].tool_calls"},
      {R"({"messages":[{"role":"user","content":"x"}],"top_logprobs":2})", "invalid_value", "top_logprobs"},
      {R"({"messages":[{"role":"user","content":"x"}],"logprobs":2})", "invalid_value", "logprobs"},
      {R"({"messages":[{"role":"user","content":"x"}],"tools":[{}]})", "unsupported", "tools"},
      {R"({"messages":[{"role":"user","content":"x"}],"tool_choice":"required"})", "unsupported", "tool_choice"},
      {R"({"messages":[{"role":"user","content":"x"}],"modalities":["audio"]})", "unsupported", "modalities"},
      {R"({"messages":[{"role":"user","content":"x"}],"return_tokens":true})", "unknown_field", "return_tokens"},
  };
  for (const Bad& bad : kBad) {
    CompletionRequest request;
    const MaybeError error = ParseChat(bad.body, &request);
    ASSERT_TRUE(error) << bad.body;
    EXPECT_EQ(error->code, bad.code) << bad.body;
    EXPECT_EQ(error->param, bad.param) << bad.body << ": " << error->message;
  }
}

TEST(RequestTest, AcceptsWhatChangesNothing) {
  for (const char* fields :
       {R"("user":"u","metadata":{"a":1},"store":true,"service_tier":"auto")",
        R"("frequency_penalty":0,"presence_penalty":0.0,"repeat_penalty":1,"logit_bias":{},"best_of":1,"echo":false)",
        R"("response_format":{"type":"text"},"suffix":"","truncation":null,"n":null,"stop":null,"seed":null)",
        R"("stream_options":null,"cache":{},"logprobs":null,"max_tokens":null,"temperature":null)"}) {
    CompletionRequest request;
    const MaybeError error = TextWith(fields, &request);
    EXPECT_FALSE(error) << fields << ": " << error->message;
  }
  CompletionRequest chat;
  EXPECT_FALSE(ParseChat(R"({"messages":[{"role":"user","content":"x"}],"tools":[],"tool_choice":"auto",
                             "modalities":["text"],"parallel_tool_calls":true,"reasoning_effort":null})",
                         &chat));
}

TEST(RequestTest, RangeErrorsCarryLimitAndValue) {
  CompletionRequest request;
  MaybeError error = TextWith(R"("top_p":1.5)", &request);
  ASSERT_TRUE(error);
  EXPECT_EQ(error->limit, 1);
  EXPECT_EQ(error->got, 1.5);
  error = TextWith(R"("stop":")" + std::string(257, 'x') + "\"", &request);
  ASSERT_TRUE(error);
  EXPECT_EQ(error->limit, 256);
  EXPECT_EQ(error->got, 257);
}

TEST(RequestTest, UnknownFieldsNameTheNearestKnownOne) {
  CompletionRequest request;
  const MaybeError error = TextWith(R"("temprature":1)", &request);
  ASSERT_TRUE(error);
  EXPECT_NE(error->message.find("`temperature`"), std::string::npos) << error->message;
  const MaybeError huge = TextWith("\"" + std::string(1 << 20, 'x') + "\":1", &request);
  ASSERT_TRUE(huge);
  EXPECT_LT(huge->message.size(), 300u);
}

TEST(RequestTest, EveryKnownFieldHasAParserAndTakesNull) {
  for (const Endpoint endpoint : {Endpoint::kText, Endpoint::kChat}) {
    const std::string start =
        endpoint == Endpoint::kText ? R"({"prompt":"p")" : R"({"messages":[{"role":"user","content":"x"}])";
    for (const std::string_view name : KnownFields(endpoint)) {
      EXPECT_NE(FindField(endpoint, name), nullptr);
      if (name == "prompt" || name == "messages") continue;
      CompletionRequest request;
      EXPECT_FALSE(ParseCompletion(endpoint, start + ",\"" + std::string(name) + "\":null}", kLimits, &request))
          << name;
    }
  }
}

TEST(RequestTest, EveryKnownFieldIsInTheDocumentation) {
  std::ifstream file(std::filesystem::path(__FILE__).parent_path() / "../../docs/http.md");
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  ASSERT_FALSE(text.empty());
  for (const Endpoint endpoint : {Endpoint::kText, Endpoint::kChat}) {
    for (const std::string_view name : KnownFields(endpoint)) {
      EXPECT_NE(text.find(absl::StrCat("`", std::string(name), "`")), std::string::npos) << name;
    }
  }
}

TEST(RequestTest, ReadsTokenize) {
  TokenizeRequest request;
  ASSERT_FALSE(ParseTokenize(R"({"content":"a","add_special":true,"parse_special":false})", kLimits, &request));
  EXPECT_EQ(request.text, "a");
  EXPECT_TRUE(request.add_special);
  EXPECT_FALSE(request.parse_special);
  for (const char* body : {R"({})", R"({"content":1})", R"({"content":"a","text":"b"})", R"({"txt":"a"})"}) {
    TokenizeRequest bad;
    EXPECT_TRUE(ParseTokenize(body, kLimits, &bad)) << body;
  }
}

}  // namespace
}  // namespace reprise
