#include "token/chat_reply.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "token/chat_template.h"
#include "token/real_models.h"
#include "token/text_stream.h"

namespace reprise {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

constexpr char kThinking[] =
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n"
    "</think>\n\n{% endif %}{{ m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt "
    "%}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}{% endif %}";

std::shared_ptr<const ReplyFormat> FormatOf(const ChatRequest& request, std::string_view text = "") {
  const auto chat = ChatTemplate::Load(RealModelOf("qwen2").tokenizer(), text);
  EXPECT_TRUE(chat.ok()) << chat.status();
  auto prompt = (*chat)->Prompt(request);
  EXPECT_TRUE(prompt.ok()) << prompt.status();
  return prompt->format;
}

ChatRequest WithTools() {
  ChatRequest request{.messages = {{.role = "user", .content = "Hi"}}};
  request.tools = {
      {"add", "Adds", R"({"type": "object", "properties": {"a": {"type": "integer"}, "text": {"type": "string"}}})"},
      {"now", "", R"({"type": "object", "properties": {}})"}};
  return request;
}

// The sum of deltas.
struct Message {
  std::string content, reasoning;
  std::vector<ToolCall> calls;
  void Add(const ChatDelta& delta) {
    content += delta.content;
    reasoning += delta.reasoning;
    for (const ToolCallDelta& call : delta.tool_calls) {
      if (call.index == calls.size()) {
        EXPECT_FALSE(call.id.empty());
        EXPECT_FALSE(call.name.empty());
        calls.push_back({call.id, call.name, ""});
      } else {
        EXPECT_TRUE(call.id.empty() && call.name.empty());
      }
      ASSERT_LT(call.index, calls.size());
      calls[call.index].arguments += call.arguments;
    }
  }
};

// `cuts`: lengths of the pieces; what is left comes last.
Message Read(const std::shared_ptr<const ReplyFormat>& format, std::string_view text, const std::vector<size_t>& cuts) {
  ChatReplyParser parser(format, 7);
  Message message;
  for (const size_t size : cuts) {
    message.Add(parser.Append(text.substr(0, size)));
    text.remove_prefix(std::min(size, text.size()));
  }
  message.Add(parser.Append(text));
  message.Add(parser.Finish());
  EXPECT_EQ(parser.tool_calls(), message.calls.size());
  return message;
}

const std::vector<std::string> kReplies = {
    "Hello there.",
    "",
    "  \n spaces \n ",
    "Grüße 🙂 日本",
    "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 12, \"text\": \"x\\n\\\"y\\\"\"}}\n</tool_call>",
    "Let me see.\n<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>\n<tool_call>\n{\"name\": \"add\", "
    "\"arguments\": {\"text\": \"é\"}}\n</tool_call>",
    "<tool_call>\n{\"name\": \"add\", \"argum",
    "<tool_call> no call at all",
    "a < b and <tool without end",
};

TEST(ChatReplyTest, WithoutAFormatAllIsContent) {
  for (const std::string& reply : kReplies) EXPECT_EQ(Read(nullptr, reply, {3, 1}).content, reply);
}

TEST(ChatReplyTest, PlainTemplatesPassTextThrough) {
  const auto format = FormatOf({.messages = {{.role = "user", .content = "Hi"}}});
  for (const std::string& reply : kReplies) {
    const Message message = Read(format, reply, {1, 2, 3});
    EXPECT_EQ(message.content, reply);
    EXPECT_THAT(message.calls, IsEmpty());
  }
  ChatReplyParser parser(format, 1);
  EXPECT_EQ(parser.Append("<tool").content, "<tool");  // at once
}

TEST(ChatReplyTest, ToolCallsAreRead) {
  const Message one = Read(FormatOf(WithTools()), kReplies[4], {});
  ASSERT_EQ(one.calls.size(), 1u);
  EXPECT_EQ(one.calls[0].name, "add");
  EXPECT_THAT(one.calls[0].arguments, HasSubstr("\"a\": 12"));
  EXPECT_THAT(one.calls[0].id, StartsWith("call_"));
  EXPECT_EQ(one.content, "");
  const Message two = Read(FormatOf(WithTools()), kReplies[5], {});
  ASSERT_EQ(two.calls.size(), 2u);
  EXPECT_EQ(two.calls[0].name, "now");
  EXPECT_EQ(two.calls[1].name, "add");
  EXPECT_NE(two.calls[0].id, two.calls[1].id);
  EXPECT_THAT(two.content, HasSubstr("Let me see."));
}

TEST(ChatReplyTest, IdsAreThoseOfTheSeed) {
  const auto format = FormatOf(WithTools());
  const auto id_with = [&](uint64_t seed) {
    ChatReplyParser parser(format, seed);
    Message message;
    message.Add(parser.Append(kReplies[4]));
    message.Add(parser.Finish());
    return message.calls.at(0).id;
  };
  EXPECT_EQ(id_with(1), id_with(1));
  EXPECT_NE(id_with(1), id_with(2));
}

TEST(ChatReplyTest, ReasoningIsSeparated) {
  const auto format = FormatOf({.messages = {{.role = "user", .content = "Hi"}}}, kThinking);
  const Message message = Read(format, "<think>\nSix times seven.\n</think>\n\nIt is 42.", {});
  EXPECT_THAT(message.reasoning, HasSubstr("Six times seven."));
  EXPECT_THAT(message.content, HasSubstr("It is 42."));
  EXPECT_THAT(message.content, testing::Not(HasSubstr("think")));
}

// The prompt may end within the reasoning.
TEST(ChatReplyTest, ReasoningThatThePromptBeganIsSeparated) {
  const std::string open = std::string(kThinking).replace(std::string(kThinking).find("{% if enable_thinking"),
                                                          std::string::npos, "<think>\n{% endif %}");
  const auto format = FormatOf({.messages = {{.role = "user", .content = "Hi"}}}, open);
  const Message message = Read(format, "Six times seven.\n</think>\n\nIt is 42.", {5, 14, 3});
  EXPECT_THAT(message.reasoning, HasSubstr("Six times seven."));
  EXPECT_THAT(message.content, HasSubstr("It is 42."));
  EXPECT_THAT(message.content, testing::Not(HasSubstr("seven")));
}

// A schema's reply is the JSON and nothing that a reader would have to take away.
TEST(ChatReplyTest, JsonComesWithoutAFence) {
  ChatRequest request{.messages = {{.role = "user", .content = "Hi"}}};
  request.json_schema = R"({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]})";
  const Tokenizer& tokenizer = RealModelOf("qwen2").tokenizer();
  const auto prompt = (*ChatTemplate::Load(tokenizer, ""))->Prompt(request);
  ASSERT_TRUE(prompt.ok()) << prompt.status();
  EXPECT_EQ(prompt->format, nullptr);
  GrammarState state(prompt->grammar);
  EXPECT_TRUE(state.Allows(tokenizer.Encode("{", false, false).at(0)));
  EXPECT_FALSE(state.Allows(tokenizer.Encode("```", false, false).at(0)));
}

TEST(ChatReplyTest, AToolNeedsNoParameters) {
  ChatRequest request{.messages = {{.role = "user", .content = "What time is it?"}}};
  request.tools = {{.name = "now"}};
  for (const ToolChoice choice : {ToolChoice::kAuto, ToolChoice::kRequired}) {
    request.tool_choice = choice;
    const auto prompt = (*ChatTemplate::Load(RealModelOf("qwen2").tokenizer(), ""))->Prompt(request);
    EXPECT_TRUE(prompt.ok()) << prompt.status();
  }
}

TEST(ChatReplyTest, WhatThePromptHoldsIsNotRepeated) {
  ChatRequest request{
      .messages = {{.role = "user", .content = "A poem"}, {.role = "assistant", .content = "Roses are"}}};
  EXPECT_EQ(Read(FormatOf(request), " red.", {2}).content, " red.");
}

// Wherever the pieces divide the text: the same sums.
TEST(ChatReplyTest, PiecesAddUpToTheWhole) {
  std::mt19937 random(3);
  std::vector<std::pair<std::shared_ptr<const ReplyFormat>, std::vector<std::string>>> cases = {
      {FormatOf(WithTools()), kReplies},
      {FormatOf({.messages = {{.role = "user", .content = "Hi"}}}, kThinking),
       {"<think>\nLong 🙂 thought.\n</think>\n\nAnswer", "<think>never ends", "No thought", "<thin", ""}}};
  for (const auto& [format, replies] : cases) {
    for (const std::string& reply : replies) {
      const Message whole = Read(format, reply, {});
      for (int round = 0; round < 100; ++round) {
        std::vector<size_t> cuts;
        size_t at = 0;
        while (at < reply.size()) {
          size_t size = 1 + random() % (round % 2 == 0 ? 3 : 12);
          while (at + size < reply.size() && (reply[at + size] & 0xC0) == 0x80) ++size;  // whole characters
          cuts.push_back(size);
          at += size;
        }
        const Message pieces = Read(format, reply, cuts);
        EXPECT_EQ(pieces.content, whole.content) << reply;
        EXPECT_EQ(pieces.reasoning, whole.reasoning) << reply;
        ASSERT_EQ(pieces.calls.size(), whole.calls.size()) << reply;
        for (size_t i = 0; i < whole.calls.size(); ++i) {
          EXPECT_EQ(pieces.calls[i].arguments, whole.calls[i].arguments);
          EXPECT_EQ(pieces.calls[i].name, whole.calls[i].name);
          EXPECT_EQ(pieces.calls[i].id, whole.calls[i].id);
        }
      }
    }
  }
}

// Noise of the letters that formats are made of never throws, and no delta breaks a character.
TEST(ChatReplyTest, LongRepliesAreNotReadAgainWithEveryPiece) {
  const std::string words(20'000, 'x');
  const std::string reply =
      "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"text\": \"" + words + "\"}}\n</tool_call>";
  ChatReplyParser parser(FormatOf(WithTools()), 7);
  Message message;
  size_t deltas = 0, early = 0;
  for (size_t i = 0; i < reply.size(); ++i) {
    const ChatDelta delta = parser.Append(reply.substr(i, 1));
    if (delta.empty()) continue;
    message.Add(delta);
    ++deltas;
    early += i < 120 ? 1 : 0;
  }
  message.Add(parser.Finish());
  EXPECT_GT(early, 50u) << "short replies come as they are written";
  EXPECT_LT(deltas, 600u) << "64 ln(20000 / 64) and the first ones";
  ASSERT_EQ(message.calls.size(), 1u);
  EXPECT_EQ(message.calls[0].arguments, Read(FormatOf(WithTools()), reply, {}).calls[0].arguments);
}

TEST(ChatReplyTest, AnyTextIsRead) {
  const std::vector<std::string> parts = {"<tool_call>",
                                          "</tool_call>",
                                          "\n",
                                          "{",
                                          "}",
                                          "\"name\"",
                                          ": ",
                                          "\"add\"",
                                          "\"arguments\"",
                                          ", ",
                                          "é",
                                          "🙂",
                                          "\\",
                                          "\"",
                                          "x",
                                          "<",
                                          "{\"name\": \"add\", \"arguments\": {"};
  const auto format = FormatOf(WithTools());
  std::mt19937 random(8);
  for (int round = 0; round < 500; ++round) {
    ChatReplyParser parser(format, 1);
    for (int i = 0; i < 20; ++i) {
      const ChatDelta delta = parser.Append(parts[random() % parts.size()]);
      EXPECT_EQ(ToUtf8(delta.content, nullptr), delta.content);
      for (const ToolCallDelta& call : delta.tool_calls) EXPECT_EQ(ToUtf8(call.arguments, nullptr), call.arguments);
    }
    (void)parser.Finish();
  }
}

// Far more brackets than the parser's stack would hold; and fewer than the limit are read.
TEST(ChatReplyTest, DeepRepliesAreContentFromThereOn) {
  const auto format = FormatOf(WithTools());
  const std::string begin = "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"text\": ";
  ChatReplyParser parser(format, 1);
  Message message;
  message.Add(parser.Append(begin));
  for (int i = 0; i < 2000; ++i) message.Add(parser.Append(std::string(50, i % 2 == 0 ? '[' : '{')));
  message.Add(parser.Append("end"));
  message.Add(parser.Finish());
  EXPECT_THAT(message.content, testing::EndsWith("end"));
  const std::string nested = begin + std::string(400, '[') + std::string(400, ']') + "}}\n</tool_call>";
  EXPECT_EQ(Read(format, nested, {70, 200}).calls.size(), 1u);
}

}  // namespace
}  // namespace reprise
