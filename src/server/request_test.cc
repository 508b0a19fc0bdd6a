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

// A chat request with these fields besides one message.
std::string With(const std::string& fields) { return R"({"messages":[{"role":"user","content":"x"}],)" + fields + "}"; }

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
      "cache":{"read":false,"write":false,"salt":"","receipt":true}})",
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
  EXPECT_TRUE(request.receipt);
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
  ASSERT_EQ(request.chat.messages.size(), 4u);
  EXPECT_EQ(request.chat.messages[0].role, "system");
  EXPECT_EQ(request.chat.messages[1].content, "a\nb");
  EXPECT_EQ(request.chat.messages[2].content, "");
  EXPECT_EQ(request.logprobs, 2u);
  EXPECT_EQ(request.max_tokens, 9u);
}

TEST(RequestTest, ReadsToolCallsAndTheirResults) {
  CompletionRequest request;
  ASSERT_FALSE(ParseChat(R"({"messages":[{"role":"user","content":"x"},
      {"role":"assistant","content":null,"reasoning_content":"hm","tool_calls":[
        {"index":0,"id":"c1","type":"function","function":{"name":"mcp.add","arguments":"{\"a\":1}"}},
        {"id":"c2","type":"function","function":{"name":"now","arguments":""}},
        {"id":"c3","type":"function","function":{"name":"f","arguments":{"b":[2]}}}]},
      {"role":"tool","tool_call_id":"c1","name":"mcp.add","content":[{"type":"text","text":"3"}]},
      {"role":"assistant","refusal":"no"},
      {"role":"assistant","content":[{"type":"refusal","refusal":"never"}]}]})",
                         &request));
  const auto& messages = request.chat.messages;
  ASSERT_EQ(messages.size(), 5u);
  EXPECT_EQ(messages[1].reasoning, "hm");
  ASSERT_EQ(messages[1].tool_calls.size(), 3u);
  EXPECT_EQ(messages[1].tool_calls[0].id, "c1");
  EXPECT_EQ(messages[1].tool_calls[0].name, "mcp.add");
  EXPECT_EQ(messages[1].tool_calls[0].arguments, R"({"a":1})");
  EXPECT_EQ(messages[1].tool_calls[1].arguments, "{}");
  EXPECT_EQ(messages[1].tool_calls[2].arguments, R"({"b":[2]})");
  EXPECT_EQ(messages[2].tool_call_id, "c1");
  EXPECT_EQ(messages[2].name, "mcp.add");
  EXPECT_EQ(messages[2].content, "3");
  EXPECT_EQ(messages[3].content, "no");
  EXPECT_EQ(messages[4].content, "never");
}

TEST(RequestTest, ReadsToolsAndTheChoiceAmongThem) {
  constexpr std::string_view kTools =
      R"("tools":[{"type":"function","function":{"name":"add","description":"sums","strict":true,
         "parameters":{"type":"object","properties":{"b":{},"a":{}}}}},{"function":{"name":"now"}}])";
  const std::string tools(kTools);
  CompletionRequest any;
  ASSERT_FALSE(ParseChat(
      With(tools + R"(,"parallel_tool_calls":false,"chat_template_kwargs":{"enable_thinking":false,"x":[1]})"), &any));
  ASSERT_EQ(any.chat.tools.size(), 2u);
  EXPECT_EQ(any.chat.tools[0].description, "sums");
  EXPECT_EQ(any.chat.tools[0].parameters, R"({"type":"object","properties":{"b":{},"a":{}}})") << "the order is kept";
  EXPECT_EQ(any.chat.tools[1].parameters, "");
  EXPECT_EQ(any.chat.tool_choice, ToolChoice::kAuto);
  EXPECT_FALSE(any.chat.parallel_tool_calls);
  using Kwargs = std::vector<std::pair<std::string, std::string>>;
  EXPECT_EQ(any.chat.template_kwargs, (Kwargs{{"enable_thinking", "false"}, {"x", "[1]"}}));
  CompletionRequest none, required, one;
  ASSERT_FALSE(ParseChat(With(tools + R"(,"tool_choice":"none")"), &none));
  EXPECT_EQ(none.chat.tool_choice, ToolChoice::kNone);
  ASSERT_FALSE(ParseChat(With(R"("tool_choice":"required",)" + tools), &required));
  EXPECT_EQ(required.chat.tool_choice, ToolChoice::kRequired);
  ASSERT_FALSE(ParseChat(With(R"("tool_choice":{"type":"function","function":{"name":"now"}},)" + tools), &one));
  EXPECT_EQ(one.chat.tool_choice, ToolChoice::kRequired);
  ASSERT_EQ(one.chat.tools.size(), 1u);
  EXPECT_EQ(one.chat.tools[0].name, "now");
}

TEST(RequestTest, ReadsSchemasInEveryForm) {
  for (const auto& [fields, schema] : std::vector<std::pair<std::string, std::string>>{
           {R"("response_format":{"type":"text"})", ""},
           {R"("response_format":{"type":"json_object"})", R"({"type":"object"})"},
           {R"("response_format":{"type":"json_object","schema":{"type":"array"}})", R"({"type":"array"})"},
           {R"("response_format":{"type":"json_schema","schema":{"type":"array"}})", R"({"type":"array"})"},
           {R"("response_format":{"type":"json_schema","json_schema":{"name":"n","description":"d","strict":true,
               "schema":{"z":1,"a":2}}})",
            R"({"z":1,"a":2})"}}) {
    CompletionRequest text, chat;
    ASSERT_FALSE(TextWith(fields, &text)) << fields;
    EXPECT_EQ(text.json_schema, schema);
    ASSERT_FALSE(ParseChat(With(fields), &chat)) << fields;
    EXPECT_EQ(chat.json_schema, schema);
  }
}

TEST(RequestTest, ReadsWhatSteersSampling) {
  CompletionRequest request;
  ASSERT_FALSE(TextWith(R"("n":16.0,"frequency_penalty":-2,"presence_penalty":1.5,"repeat_penalty":1.1,"echo":true,
      "logit_bias":{"0":-100,"999":100,"7":0},"truncation":{"type":"middle","keep_system":false})",
                        &request));
  EXPECT_EQ(request.n, 16u);
  EXPECT_EQ(request.sampling.frequency_penalty, -2.0f);
  EXPECT_EQ(request.sampling.presence_penalty, 1.5f);
  EXPECT_EQ(request.sampling.repeat_penalty, 1.1f);
  EXPECT_TRUE(request.echo);
  ASSERT_EQ(request.logit_bias.size(), 2u);
  EXPECT_EQ(request.logit_bias[1].token, TokenId(999));
  EXPECT_EQ(request.logit_bias[1].bias, 100.0f);
  ASSERT_TRUE(request.truncation);
  EXPECT_FALSE(request.truncation->keep_system);
}

// Each of them larger than any client needs, and refused with both numbers before anything is compiled.
TEST(RequestTest, HugeToolsSchemasAndBiasesAreRefused) {
  const auto repeat = [](const std::string& item, size_t count) {
    std::string all = item;
    for (size_t i = 1; i < count; ++i) all += "," + item;
    return all;
  };
  std::string biases;
  for (int i = 0; i < 1'000'000; ++i) absl::StrAppend(&biases, i == 0 ? "" : ",", "\"", i, "\":1");
  const std::string big(kToolsBytesMax, 'd'), schema(kResponseSchemaBytesMax, 's');
  const RequestLimits limits{.json = {.values_max = 3'000'000}, .vocab_size = 1'000'000};
  for (const auto& [body, param] : std::vector<std::pair<std::string, std::string>>{
           {With("\"tools\":[" + repeat(R"({"function":{"name":"f"}})", 100'000) + "]"), "tools"},
           {With(R"("tools":[{"function":{"name":"f","description":")" + big + "\"}}]"), "tools"},
           {With(R"("response_format":{"type":"json_object","schema":{"title":")" + schema + "\"}}"),
            "response_format.schema"},
           {With("\"logit_bias\":{" + biases + "}"), "logit_bias"},
           {With(R"("chat_template_kwargs":{"a":")" + schema + "\"}"), "chat_template_kwargs"}}) {
    CompletionRequest request;
    const MaybeError error = ParseCompletion(Endpoint::kChat, body, limits, &request);
    ASSERT_TRUE(error) << param;
    EXPECT_EQ(error->code, "invalid_value");
    EXPECT_EQ(error->param, param);
    EXPECT_TRUE(error->limit.has_value() && error->got.has_value() && *error->got > *error->limit);
    EXPECT_LT(error->message.size(), 300u);
  }
  std::string deep = "{}";
  for (int i = 0; i < 100; ++i) deep = "{\"items\":" + deep + "}";
  CompletionRequest request;
  EXPECT_EQ(ParseChat(With(R"("tools":[{"function":{"name":"f","parameters":)" + deep + "}}]"), &request)->code,
            "invalid_json");
  for (const char* place : {R"("tools":[{"function":{"name":"f","description":"@"}}])", R"("stop":"@")",
                            R"("response_format":{"type":"json_object","schema":{"@":1}})", R"("@":1)",
                            R"("chat_template_kwargs":{"@":"@"})", R"("model":"@")"}) {
    std::string body = With(place);
    for (size_t at = body.find('@'); at != std::string::npos; at = body.find('@')) body[at] = '\xFF';
    CompletionRequest broken;
    EXPECT_EQ(ParseChat(body, &broken)->code, "invalid_json") << place;
  }
}

// What clients of OpenAI, litellm, langchain, Continue, aider and open-webui send besides what they mean.
TEST(RequestTest, TakesWhatRealClientsSend) {
  for (const std::string& body : std::vector<std::string>{
           With(R"("stop":null,"max_tokens":null,"stream_options":null,"tools":null,"tool_choice":null,"n":null)"),
           With(R"("tools":[],"tool_choice":"auto","functions":null,"function_call":"auto","logit_bias":{})"),
           With(R"("logprobs":false,"top_logprobs":null,"temperature":2,"seed":-1,"user":"","stop":[])"),
           With(R"("max_tokens":16.0,"top_k":40.0,"response_format":null,"parallel_tool_calls":null)"),
           With(R"("max_tokens":-1,"max_completion_tokens":-1,"top_k":-1)"),
           With(R"("cache_prompt":true,"chat_template_kwargs":{},"truncation":"disabled","options":{})"),
           R"({"messages":[{"role":"user","content":[{"type":"text","text":"x","cache_control":{"type":"ephemeral"}}]},
               {"role":"assistant","content":"","tool_calls":null,"function_call":null,"refusal":"","audio":null},
               {"role":"tool","content":null,"tool_call_id":"c"},
               {"role":"user","content":"y","tool_calls":[],"tool_call_id":"","name":"ann"}]})"}) {
    CompletionRequest request;
    const MaybeError error = ParseChat(body, &request);
    EXPECT_FALSE(error) << body << ": " << error->message;
  }
  CompletionRequest text;
  ASSERT_FALSE(TextWith(R"("logprobs":false,"echo":false,"suffix":"","best_of":1,"logit_bias":[])", &text));
  EXPECT_EQ(text.logprobs, std::nullopt);
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
      {R"({"prompt":"p","top_k":-2})", "invalid_value", "top_k"},
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
      {R"({"prompt":"p","best_of":2})", "unsupported", "best_of"},
      {R"({"prompt":"p","suffix":"x"})", "unsupported", "suffix"},
      {R"({"prompt":"p","cache":1})", "invalid_value", "cache"},
      {R"({"prompt":"p","cache":{"read":0}})", "invalid_value", "cache.read"},
      {R"({"prompt":"p","cache":{"receipt":1}})", "invalid_value", "cache.receipt"},
      {R"({"prompt":"p","cache":{"sald":"x"}})", "unknown_field", "cache.sald"},
      {R"({"prompt":"p","frequency_penalty":"0"})", "invalid_value", "frequency_penalty"},
      {R"({"prompt":"p","temprature":1})", "unknown_field", "temprature"},
      {R"({"prompt":"p","n":17})", "invalid_value", "n"},
      {R"({"prompt":"p","n":2.5})", "invalid_value", "n"},
      {R"({"prompt":"p","echo":1})", "invalid_value", "echo"},
      {R"({"prompt":"p","echo":true,"logprobs":1})", "unsupported", "echo"},
      {R"({"prompt":"p","presence_penalty":2.1})", "invalid_value", "presence_penalty"},
      {R"({"prompt":"p","frequency_penalty":-2.1})", "invalid_value", "frequency_penalty"},
      {R"({"prompt":"p","repeat_penalty":0})", "invalid_value", "repeat_penalty"},
      {R"({"prompt":"p","repeat_penalty":10.5})", "invalid_value", "repeat_penalty"},
      {R"({"prompt":"p","repetition_penalty":1.1})", "unsupported", "repetition_penalty"},
      {R"({"prompt":"p","n_predict":5})", "unsupported", "n_predict"},
      {R"({"prompt":"p","cache_prompt":false})", "unsupported", "cache_prompt"},
      {R"({"prompt":"p","json_schema":{"type":"object"}})", "unsupported", "json_schema"},
      {R"({"prompt":"p","grammar":"root ::= \"a\""})", "unsupported", "grammar"},
      {R"({"prompt":"p","logit_bias":[[1,2]]})", "invalid_value", "logit_bias"},
      {R"({"prompt":"p","logit_bias":{"x":1}})", "invalid_value", "logit_bias.x"},
      {R"({"prompt":"p","logit_bias":{"-1":1}})", "invalid_value", "logit_bias.-1"},
      {R"({"prompt":"p","logit_bias":{"05":1}})", "invalid_value", "logit_bias.05"},
      {R"({"prompt":"p","logit_bias":{"+5":1}})", "invalid_value", "logit_bias.+5"},
      {R"({"prompt":"p","logit_bias":{"":1}})", "invalid_value", "logit_bias."},
      {R"({"prompt":"p","logit_bias":{"1000":1}})", "invalid_value", "logit_bias.1000"},
      {R"({"prompt":"p","logit_bias":{"99999999999":1}})", "invalid_value", "logit_bias.99999999999"},
      {R"({"prompt":"p","logit_bias":{"1":101}})", "invalid_value", "logit_bias.1"},
      {R"({"prompt":"p","logit_bias":{"1":true}})", "invalid_value", "logit_bias.1"},
      {R"({"prompt":"p","response_format":"json"})", "invalid_value", "response_format"},
      {R"({"prompt":"p","response_format":{}})", "missing_field", "response_format.type"},
      {R"({"prompt":"p","response_format":{"type":"yaml"}})", "unsupported", "response_format.type"},
      {R"({"prompt":"p","response_format":{"type":"text","shape":1}})", "unknown_field", "response_format.shape"},
      {R"({"prompt":"p","response_format":{"type":"json_schema"}})", "missing_field", "response_format.json_schema"},
      {R"({"prompt":"p","response_format":{"type":"json_schema","json_schema":{"name":"x"}}})", "missing_field",
       "response_format.json_schema.schema"},
      {R"({"prompt":"p","response_format":{"type":"json_schema","json_schema":{"schema":[]}}})", "invalid_value",
       "response_format.json_schema.schema"},
      {R"({"prompt":"p","response_format":{"type":"json_schema","json_schema":{"name":"a\nb","schema":{}}}})",
       "invalid_value", "response_format.json_schema.name"},
      {R"({"prompt":"p","response_format":{"type":"json_schema","json_schema":{"strict":1,"schema":{}}}})",
       "invalid_value", "response_format.json_schema.strict"},
      {R"({"prompt":"p","truncation":"auto"})", "invalid_value", "truncation"},
      {R"({"prompt":"p","truncation":{}})", "missing_field", "truncation.type"},
      {R"({"prompt":"p","truncation":{"type":"left"}})", "unsupported", "truncation.type"},
      {R"({"prompt":"p","truncation":{"type":"middle","keep_system":1}})", "invalid_value", "truncation.keep_system"},
      {R"({"prompt":"p","truncation":{"type":"middle","keep":1}})", "unknown_field", "truncation.keep"},
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
      {R"({"messages":[{"role":"assistant","content":"x","tool_calls":[{}]}]})", "missing_field",
       "messages[0].tool_calls[0].function"},
      {R"({"messages":[{"role":"assistant","tool_calls":[{"function":{}}]}]})", "missing_field",
       "messages[0].tool_calls[0].function.name"},
      {R"({"messages":[{"role":"assistant","tool_calls":[{"function":{"name":"a\"b"}}]}]})", "invalid_value",
       "messages[0].tool_calls[0].function.name"},
      {R"({"messages":[{"role":"assistant","tool_calls":[{"type":"custom","function":{"name":"a"}}]}]})", "unsupported",
       "messages[0].tool_calls[0].type"},
      {R"({"messages":[{"role":"assistant","tool_calls":[{"function":{"name":"a","arguments":7}}]}]})", "invalid_value",
       "messages[0].tool_calls[0].function.arguments"},
      {R"({"messages":[{"role":"assistant","tool_calls":7}]})", "invalid_value", "messages[0].tool_calls"},
      {R"({"messages":[{"role":"assistant"}]})", "missing_field", "messages[0].content"},
      {R"({"messages":[{"role":"user","content":"x","tool_calls":[{}]}]})", "unsupported", "messages[0].tool_calls"},
      {R"({"messages":[{"role":"user","content":"x","tool_call_id":"c"}]})", "unsupported", "messages[0].tool_call_id"},
      {R"({"messages":[{"role":"user","content":"x","function_call":{"name":"f"}}]})", "unsupported",
       "messages[0].function_call"},
      {R"({"messages":[{"role":"function","content":"x"}]})", "unsupported", "messages[0].role"},
      {R"({"messages":[{"role":"user","content":"x"}],"top_logprobs":2})", "invalid_value", "top_logprobs"},
      {R"({"messages":[{"role":"user","content":"x"}],"logprobs":2})", "invalid_value", "logprobs"},
      {With(R"("tools":{})"), "invalid_value", "tools"},
      {With(R"("tools":[7])"), "invalid_value", "tools[0]"},
      {With(R"("tools":[{}])"), "missing_field", "tools[0].function"},
      {With(R"("tools":[{"type":"web_search"}])"), "unsupported", "tools[0].type"},
      {With(R"("tools":[{"function":{}}])"), "missing_field", "tools[0].function.name"},
      {With(R"("tools":[{"function":{"name":"a b"}}])"), "invalid_value", "tools[0].function.name"},
      {With(R"("tools":[{"function":{"name":"a\nb"}}])"), "invalid_value", "tools[0].function.name"},
      {With(R"("tools":[{"function":{"name":"\""}}])"), "invalid_value", "tools[0].function.name"},
      {With(R"("tools":[{"function":{"name":"é"}}])"), "invalid_value", "tools[0].function.name"},
      {With(R"("tools":[{"function":{"name":"f","parameters":"{}"}}])"), "invalid_value",
       "tools[0].function.parameters"},
      {With(R"("tools":[{"function":{"name":"f","param":{}}}])"), "unknown_field", "tools[0].function.param"},
      {With(R"("tools":[{"function":{"name":"f"}},{"function":{"name":"f"}}])"), "invalid_value",
       "tools[1].function.name"},
      {With(R"("tool_choice":"required")"), "invalid_value", "tool_choice"},
      {With(R"("tool_choice":"required","tools":[{"function":{"name":"f"}}],"response_format":{"type":"json_object"})"),
       "invalid_value", "tool_choice"},
      {With(R"("tool_choice":"any")"), "invalid_value", "tool_choice"},
      {With(R"("tool_choice":7)"), "invalid_value", "tool_choice"},
      {With(R"("tool_choice":{"type":"tool"})"), "unsupported", "tool_choice.type"},
      {With(R"("tool_choice":{"type":"function"})"), "missing_field", "tool_choice.function"},
      {With(R"("tool_choice":{"type":"function","function":{}})"), "missing_field", "tool_choice.function.name"},
      {With(R"("tool_choice":{"type":"function","function":{"name":"f"}})"), "invalid_value", "tool_choice"},
      {With(R"("parallel_tool_calls":1)"), "invalid_value", "parallel_tool_calls"},
      {With(R"("functions":[{}])"), "unsupported", "functions"},
      {With(R"("function_call":{"name":"f"})"), "unsupported", "function_call"},
      {With(R"("chat_template_kwargs":[])"), "invalid_value", "chat_template_kwargs"},
      {With(R"("reasoning_effort":"low")"), "unsupported", "reasoning_effort"},
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

TEST(RequestTest, EveryKnownFieldTakesOrRefusesEveryKindOfValueByItsName) {
  for (const Endpoint endpoint : {Endpoint::kText, Endpoint::kChat}) {
    const std::string start =
        endpoint == Endpoint::kText ? R"({"prompt":"p")" : R"({"messages":[{"role":"user","content":"x"}])";
    for (const std::string_view known : KnownFields(endpoint)) {
      const std::string name(known);
      if (name == "prompt" || name == "messages") continue;
      for (const char* value :
           {"true", "-7", "0.5", "1e300", R"("x")", R"("")", "[]", "[1]", "[[]]", "{}", R"({"a":1})", R"({"type":7})",
            R"({"type":"function","function":[]})", R"([{"function":{"name":[]}}])"}) {
        CompletionRequest request;
        const MaybeError error =
            ParseCompletion(endpoint, start + ",\"" + name + "\":" + value + "}", kLimits, &request);
        if (!error) continue;
        EXPECT_TRUE(error->param.starts_with(name) || name.ends_with("logprobs"))
            << name << " " << value << ": " << error->param;
        EXPECT_TRUE(error->code == "invalid_value" || error->code == "unsupported" || error->code == "missing_field" ||
                    error->code == "unknown_field")
            << name << " " << value << ": " << error->code;
        EXPECT_NE(error->message.find('`'), std::string::npos) << error->message;
      }
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

TEST(RequestTest, ReadsDetokenize) {
  std::vector<TokenId> tokens;
  ASSERT_FALSE(ParseDetokenize(R"({"tokens":[1,999],"model":"m"})", kLimits, &tokens));
  EXPECT_EQ(tokens, (std::vector<TokenId>{TokenId(1), TokenId(999)}));
  for (const char* body :
       {R"({})", R"({"tokens":"a"})", R"({"tokens":[1000]})", R"({"tokens":[-1]})", R"({"token":[1]})"}) {
    std::vector<TokenId> bad;
    EXPECT_TRUE(ParseDetokenize(body, kLimits, &bad)) << body;
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
