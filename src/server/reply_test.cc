// Replies of several choices, and of messages that are more than text, over a live server.
#include <gtest/gtest.h>

#include <map>

#include "server/live_server.h"
#include "server/response.h"

namespace reprise {
namespace {

using Phase = FakeEngine::Phase;

class ReplyTest : public LiveServerTest {
 protected:
  // The messages that a client puts together from the chunks of a chat stream, by choice.
  struct Streamed {
    ReplyPart message;
    std::string finish;
    size_t roles = 0;
  };
  static std::map<int, Streamed> Gather(const std::vector<std::string>& data) {
    std::map<int, Streamed> choices;
    for (const std::string& line : data) {
      if (line == "[DONE]") break;
      const Json chunk = Json::parse(line);
      for (const Json& choice : chunk["choices"]) {
        Streamed& to = choices[choice["index"].get<int>()];
        const Json& delta = choice["delta"];
        to.roles += delta.contains("role") ? 1 : 0;
        ChatDelta add;
        add.content = delta.value("content", "");
        add.reasoning = delta.value("reasoning_content", "");
        for (const Json& call : delta.value("tool_calls", Json::array())) {
          const Json& function = call["function"];
          add.tool_calls.push_back({call["index"].get<uint32_t>(), call.value("id", ""), function.value("name", ""),
                                    function.value("arguments", "")});
        }
        Join(std::move(add), to.message);
        if (!choice["finish_reason"].is_null()) to.finish = choice["finish_reason"].get<std::string>();
      }
    }
    return choices;
  }
};

TEST_F(ReplyTest, EveryChoiceHasItsSeedAndUsageSumsThem) {
  Start();
  const RawResponse response = Complete(R"({"prompt":"abc","n":3,"seed":40,"max_tokens":5})");
  ASSERT_EQ(response.status, 200) << response.body;
  const Json body = Json::parse(response.body);
  ASSERT_EQ(body["choices"].size(), 3u);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(body["choices"][i]["index"], i);
    EXPECT_EQ(body["choices"][i]["text"], "abcab");
    EXPECT_EQ(engine_.requests()[i].sampling.seed, 40u + i) << "choice 0 is the reply with n=1";
  }
  EXPECT_EQ(body["seed"], 40);
  EXPECT_EQ(body["usage"]["prompt_tokens"], 3);
  EXPECT_EQ(body["usage"]["completion_tokens"], 15);
  EXPECT_EQ(body["timings"]["predicted_n"], 15);
}

TEST_F(ReplyTest, ChunksOfAStreamCarryTheirIndex) {
  Start();
  const RawResponse response = Chat(
      R"({"messages":[{"role":"user","content":"x"}],"n":4,"stream":true,"stream_options":{"include_usage":true}})");
  ASSERT_EQ(response.status, 200);
  const auto data = DataOf(response.body);
  EXPECT_EQ(data.back(), "[DONE]");
  const auto choices = Gather(data);
  ASSERT_EQ(choices.size(), 4u);
  for (const auto& [index, choice] : choices) {
    EXPECT_EQ(choice.message.text, "user:x\n");
    EXPECT_EQ(choice.finish, "stop");
    EXPECT_EQ(choice.roles, 1u);
  }
  const Json usage = Json::parse(data[data.size() - 2]);
  EXPECT_EQ(usage["usage"]["completion_tokens"], 4 * 7);
  for (size_t i = 0; i + 2 < data.size(); ++i) EXPECT_FALSE(Json::parse(data[i]).contains("timings")) << data[i];
}

TEST_F(ReplyTest, TheLastChoiceThatEndsCarriesTheTimings) {
  Start();
  const auto data = DataOf(Complete(R"({"prompt":"abc","n":2,"stream":true})").body);
  for (size_t i = 0; i + 1 < data.size(); ++i) {
    EXPECT_EQ(Json::parse(data[i]).contains("timings"), i + 2 == data.size());
  }
}

TEST_F(ReplyTest, ARefusalOfOneRefusesAll) {
  Start();
  engine_.stay = Phase::kDecoding;
  engine_.refuse_from = 2;
  for (const char* stream : {"false", "true"}) {
    const RawResponse response = Complete(std::string(R"({"prompt":"abc","n":3,"stream":)") + stream + "}");
    EXPECT_EQ(response.status, 429) << response.body;
    EXPECT_EQ(CodeOf(response), "queue_full");
    EXPECT_TRUE(Eventually([&] { return engine_.live() == 0; })) << "those that were taken are cancelled";
  }
  engine_.refuse_from = 0;
  ExpectServing();
}

TEST_F(ReplyTest, AFailureOfOneEndsAll) {
  Start();
  engine_.fail_at = 3;
  EXPECT_EQ(Complete(R"({"prompt":"abcdef","n":3})").status, 500);
  const RawResponse stream = Complete(R"({"prompt":"abcdef","n":3,"stream":true})");
  EXPECT_TRUE(stream.complete);
  EXPECT_EQ(Json::parse(DataOf(stream.body).back())["error"]["code"], "internal");
  EXPECT_TRUE(Eventually([&] { return engine_.live() == 0; }));
  engine_.fail_at = -1;
  ExpectServing();
}

TEST_F(ReplyTest, AVanishedClientCancelsEveryChoice) {
  Start();
  engine_.stay = Phase::kDecoding;
  RawClient client = Connect();
  client.Post("/v1/completions", R"({"prompt":"abc","n":5,"stream":true})");
  ASSERT_TRUE(client.ReadUntil("data:"));
  EXPECT_EQ(engine_.live(), 5u);
  client.Close();
  EXPECT_TRUE(Eventually([&] { return engine_.live() == 0; }));
  EXPECT_EQ(engine_.cancelled(), 5);
}

TEST_F(ReplyTest, ChoicesCountAsRequests) {
  options_.limits.requests_max = 4;
  Start();
  EXPECT_EQ(Complete(R"({"prompt":"abc","n":4})").status, 200);
  EXPECT_EQ(CodeOf(Complete(R"({"prompt":"abc","n":5})")), "queue_full");
  EXPECT_TRUE(Eventually([&] { return Complete(R"({"prompt":"abc","n":4})").status == 200; })) << "they are given back";
}

TEST_F(ReplyTest, StreamedMessagesAreTheWholeOnes) {
  Start();
  // The fake engine repeats its prompt, "user:" and the content.
  const std::string content = R"((hm...)I add [add {"a":1}] and [now ] done 😀)";
  const Json request = {{"messages", {{{"role", "user"}, {"content", content}}}}, {"seed", 3}, {"n", 2}};
  const Json whole = Json::parse(Chat(Dump(request)).body);
  Json streaming = request;
  streaming["stream"] = true;
  const auto streamed = Gather(DataOf(Chat(Dump(streaming)).body));
  ASSERT_EQ(streamed.size(), 2u);
  for (const auto& [index, choice] : streamed) {
    const Json& message = whole["choices"][index]["message"];
    EXPECT_EQ(message["content"], "user:I add  and  done 😀\n");
    EXPECT_EQ(message["reasoning_content"], "hm...");
    ASSERT_EQ(message["tool_calls"].size(), 2u);
    EXPECT_EQ(message["tool_calls"][0]["function"]["name"], "add");
    EXPECT_EQ(message["tool_calls"][0]["function"]["arguments"], R"({"a":1})");
    EXPECT_EQ(message["tool_calls"][1]["function"]["arguments"], "");
    EXPECT_EQ(whole["choices"][index]["finish_reason"], "tool_calls");

    EXPECT_EQ(choice.message.text, message["content"]);
    EXPECT_EQ(choice.message.reasoning, message["reasoning_content"]);
    ASSERT_EQ(choice.message.tool_calls.size(), 2u);
    for (size_t i = 0; i < 2; ++i) {
      EXPECT_EQ(choice.message.tool_calls[i].id, message["tool_calls"][i]["id"]) << "the same seed, the same ids";
      EXPECT_EQ(choice.message.tool_calls[i].name, message["tool_calls"][i]["function"]["name"]);
      EXPECT_EQ(choice.message.tool_calls[i].arguments, message["tool_calls"][i]["function"]["arguments"]);
    }
    EXPECT_EQ(choice.finish, "tool_calls");
  }
  EXPECT_NE(streamed.at(0).message.tool_calls[0].id, streamed.at(1).message.tool_calls[0].id);
}

TEST_F(ReplyTest, AMessageThatIsNotStreamedIsReadOnce) {
  Start();
  const std::string body = R"({"messages":[{"role":"user","content":"(a)[now ]b"}],"n":2)";
  EXPECT_EQ(Chat(body + "}").status, 200);
  EXPECT_EQ(codec_.appends, 2);
  EXPECT_EQ(Chat(body + R"(,"stream":true})").status, 200);
  EXPECT_GT(codec_.appends, 20) << "the control";
}

TEST_F(ReplyTest, IdsOfToolCallsDifferBetweenConversations) {
  Start();
  const auto id_of = [&](const std::string& content) {
    const Json request = {{"messages", {{{"role", "user"}, {"content", content}}}}, {"seed", 3}};
    const Json body = Json::parse(Chat(Dump(request)).body);
    return body["choices"][0]["message"]["tool_calls"][0]["id"].get<std::string>();
  };
  EXPECT_EQ(id_of("[now ]"), id_of("[now ]"));
  EXPECT_NE(id_of("[now ]"), id_of("then [now ]"));
}

TEST_F(ReplyTest, AToolCallThatIsCutShortEndsWithLength) {
  Start();
  const RawResponse response =
      Chat(R"({"messages":[{"role":"user","content":"[add {\"a\":1}]"}],"max_tokens":12,"logprobs":true})");
  const Json choice = Json::parse(response.body)["choices"][0];
  EXPECT_EQ(choice["finish_reason"], "length");
  EXPECT_EQ(choice["message"]["tool_calls"][0]["function"]["arguments"], "{\"");
  EXPECT_EQ(choice["logprobs"]["content"].size(), 12u);
}

TEST_F(ReplyTest, ToolsSchemasAndStopsReachTemplateAndEngine) {
  codec_.template_stop = {"<end>"};
  codec_.template_written = {TokenId(256)};
  Start();
  const RawResponse response = Chat(R"({"messages":[{"role":"user","content":"x"}],"stop":"mine",
      "tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object"}}}],"tool_choice":"none",
      "parallel_tool_calls":false,"response_format":{"type":"json_object"},"chat_template_kwargs":{"k":true},
      "logit_bias":{"65":-100},"frequency_penalty":0.5,"presence_penalty":0.25,"repeat_penalty":1.5})");
  ASSERT_EQ(response.status, 200) << response.body;
  const ChatRequest chat = codec_.last_chat();
  EXPECT_EQ(chat.tools.at(0).name, "f");
  EXPECT_EQ(chat.tool_choice, ToolChoice::kNone);
  EXPECT_FALSE(chat.parallel_tool_calls);
  EXPECT_EQ(chat.json_schema, R"({"type":"object"})");
  EXPECT_EQ(chat.template_kwargs.at(0).second, "true");
  const GenerationRequest got = engine_.last_request();
  EXPECT_EQ(got.stop, (std::vector<std::string>{"mine", "<end>"}));
  EXPECT_EQ(got.written_tokens, std::vector<TokenId>{TokenId(256)});
  ASSERT_EQ(got.logit_bias.size(), 1u);
  EXPECT_EQ(got.logit_bias[0].token, TokenId(65));
  EXPECT_EQ(got.sampling.frequency_penalty, 0.5f);
  EXPECT_EQ(got.sampling.presence_penalty, 0.25f);
  EXPECT_EQ(got.sampling.repeat_penalty, 1.5f);
}

TEST_F(ReplyTest, SchemasThatCannotBeFollowedAreNamed) {
  Start();
  const std::string start = R"({"messages":[{"role":"user","content":"x"}],)";
  const auto param = [](const RawResponse& response) {
    EXPECT_EQ(response.status, 400);
    EXPECT_EQ(CodeOf(response), "invalid_value");
    return Json::parse(response.body)["error"]["param"].get<std::string>();
  };
  const std::string bad = R"("response_format":{"type":"json_object","schema":{"bad":1}}})";
  EXPECT_EQ(param(Chat(start + bad)), "response_format");
  EXPECT_EQ(param(Complete(R"({"prompt":"x",)" + bad)), "response_format");
  EXPECT_EQ(param(Chat(start + R"("tools":[{"function":{"name":"f","parameters":{}}},
                                           {"function":{"name":"g","parameters":{"bad":1}}}]})")),
            "tools[1].function.parameters");
  codec_.has_tools = false;
  EXPECT_EQ(param(Chat(start + R"("tools":[{"function":{"name":"f"}}],"tool_choice":"required"})")), "tool_choice");
}

TEST_F(ReplyTest, GrammarsOfRunningRequestsHaveABudget) {
  codec_.grammar_bytes = options_.limits.grammars_bytes_max / 2 + 1;
  Start();
  engine_.stay = Phase::kDecoding;
  const std::string body = R"({"messages":[{"role":"user","content":"x"}],"stream":true})";
  RawClient first = Connect();
  first.Post("/v1/chat/completions", body);
  ASSERT_TRUE(first.ReadUntil("data:"));
  EXPECT_EQ(CodeOf(Chat(body)), "queue_full");
  first.Close();
  ASSERT_TRUE(Eventually([&] { return engine_.live() == 0; }));
  engine_.stay = Phase::kNever;
  EXPECT_TRUE(Eventually([&] { return Chat(body).status == 200; })) << "what it took is given back";
}

TEST_F(ReplyTest, WholeRepliesAreKeptWithinABudgetAndStreamsAreNot) {
  options_.limits.replies_bytes_max = 64 << 10;
  engine_.step_us = 20;
  engine_.repeat_text = 1000;
  Start();
  const std::string body = R"({"prompt":"abc","max_tokens":200)";
  EXPECT_EQ(CodeOf(Complete(body + "}")), "queue_full");
  EXPECT_TRUE(Eventually([&] { return engine_.live() == 0; }));
  EXPECT_EQ(DataOf(Complete(body + R"(,"stream":true})").body).back(), "[DONE]");
  EXPECT_EQ(Complete(R"({"prompt":"abc","max_tokens":20})").status, 200) << "what it took is given back";
}

TEST_F(ReplyTest, LogprobsOfAWholeReplyAreLimitedAndOfAStreamAreNot) {
  engine_.step_us = 1;
  engine_.context = 100'000;
  Start();
  // The fake engine gives two likeliest tokens for each.
  const std::string body = R"({"prompt":"abc","n":16,"logprobs":2,"max_tokens":750)";
  const RawResponse refused = Complete(body + "}");
  EXPECT_EQ(refused.status, 400);
  EXPECT_EQ(CodeOf(refused), "invalid_value");
  EXPECT_EQ(Json::parse(refused.body)["error"]["param"], "logprobs");
  EXPECT_TRUE(Eventually([&] { return engine_.live() == 0; }));
  EXPECT_EQ(Complete(R"({"prompt":"abc","n":16,"logprobs":2,"max_tokens":500})").status, 200) << "the control";
}

TEST_F(ReplyTest, EchoStartsEveryChoiceWithThePrompt) {
  Start();
  const Json whole = Json::parse(Complete(R"({"prompt":"abc","n":2,"max_tokens":2,"echo":true})").body);
  EXPECT_EQ(whole["choices"][0]["text"], "abcab");
  EXPECT_EQ(whole["choices"][1]["text"], "abcab");
  EXPECT_EQ(whole["usage"]["completion_tokens"], 4);
  const Json ids = Json::parse(Complete(R"({"prompt":[65,66],"max_tokens":1,"echo":true})").body);
  EXPECT_EQ(ids["choices"][0]["text"], "ABA");
  const auto data = DataOf(Complete(R"({"prompt":"abc","max_tokens":2,"echo":true,"stream":true})").body);
  std::string sum;
  for (size_t i = 0; i + 1 < data.size(); ++i) sum += Json::parse(data[i])["choices"][0]["text"].get<std::string>();
  EXPECT_EQ(sum, "abcab");
}

TEST_F(ReplyTest, TooLongIsAnErrorWithBothNumbersBeforeTheFirstByte) {
  engine_.context = 100;
  Start();
  const std::string prompt(99, 'p');
  for (const char* rest :
       {R"(","max_tokens":5})", R"(","max_tokens":5,"stream":true})", R"(","max_tokens":5,"stream":true,"n":3})",
        R"(","max_tokens":5,"echo":true,"stream":true})"}) {
    const RawResponse response = Complete(R"({"prompt":")" + prompt + rest);
    EXPECT_EQ(response.status, 400);
    const Json error = Json::parse(response.body)["error"];
    EXPECT_EQ(error["code"], "context_too_long");
    EXPECT_EQ(error["limit"], 100);
    EXPECT_EQ(error["got"], 104);
  }
}

TEST_F(ReplyTest, TruncationMakesItFitAndSaysSo) {
  engine_.context = 100;
  Start();
  const std::string prompt = std::string(60, 'a') + std::string(60, 'z');
  const Json text =
      Json::parse(Complete(R"({"prompt":")" + prompt + R"(","max_tokens":20,"truncation":{"type":"middle"}})").body);
  EXPECT_EQ(engine_.last_request().prompt.size(), 80u);
  EXPECT_EQ(text["choices"][0]["text"], std::string(20, 'a'));
  EXPECT_EQ(Dump(text["truncation"]), R"({"dropped_messages":0,"dropped_tokens":40,"prompt_tokens_before":120})");

  Json messages = Json::array();
  messages.push_back({{"role", "system"}, {"content", "be kind"}});
  for (int i = 0; i < 9; ++i) {
    messages.push_back({{"role", i % 2 == 0 ? "user" : "assistant"}, {"content", "0123456789" + std::to_string(i)}});
  }
  const Json request = {{"messages", messages}, {"stream", true}, {"truncation", {{"type", "middle"}}}};
  const auto data = DataOf(Chat(Dump(request)).body);
  const Json report = Json::parse(data[data.size() - 2])["truncation"];
  const GenerationRequest got = engine_.last_request();
  EXPECT_LE(got.prompt.size(), 75u) << "a quarter of the context is the reply's";
  EXPECT_EQ(report["dropped_messages"].get<int>() % 2, 0) << "whole turns";
  EXPECT_EQ(report["prompt_tokens_before"].get<size_t>() - report["dropped_tokens"].get<size_t>(), got.prompt.size());
  EXPECT_EQ(
      Json::parse(Complete(R"({"prompt":"a","truncation":{"type":"middle"}})").body)["truncation"]["dropped_tokens"],
      0);
  const RawResponse still = Chat(R"({"messages":[{"role":"user","content":")" + std::string(200, 'x') +
                                 R"("}],"truncation":{"type":"middle"}})");
  EXPECT_EQ(CodeOf(still), "context_too_long");
}

TEST_F(ReplyTest, ASilentStreamOfChoicesGetsComments) {
  options_.limits.comment_ms = 20;
  Start();
  engine_.stay = Phase::kPrefill;
  RawClient client = Connect();
  client.Post("/v1/chat/completions", R"({"messages":[{"role":"user","content":"x"}],"stream":true,"n":2})");
  EXPECT_TRUE(client.ReadUntil(": prefill 1/7\n\n"));
  engine_.stay = Phase::kNever;
  const RawResponse response = client.Read();
  const auto choices = Gather(DataOf(response.body));
  ASSERT_EQ(choices.size(), 2u);
  EXPECT_EQ(choices.at(1).roles, 1u);
  EXPECT_EQ(choices.at(1).message.text, "user:x\n");
}

}  // namespace
}  // namespace reprise
