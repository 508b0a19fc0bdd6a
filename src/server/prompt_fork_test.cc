#include "server/prompt_fork.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "server/fakes.h"

namespace reprise {
namespace {

// A template of the test's own.
class TemplateCodec : public FakeCodec {
 public:
  using Render = std::function<std::string(const ChatRequest&)>;
  explicit TemplateCodec(Render render) : render_(std::move(render)) {}
  absl::StatusOr<ChatPrompt> Prompt(const ChatRequest& request) const override {
    return ChatPrompt{.text = render_(request)};
  }

 private:
  const Render render_;
};

std::string ChatMl(const ChatRequest& chat) {
  std::string text;
  for (const ChatMessage& message : chat.messages) {
    text += "<|start|>" + message.role + "\n";
    if (message.role == "system" && !chat.tools.empty()) {
      text += "<tools>";
      for (const ChatTool& tool : chat.tools) text += "{" + tool.name + ": " + tool.description + "}\n";
      text += "</tools>\n";
    }
    text += message.content;
    for (const ToolCall& call : message.tool_calls) text += "<call>" + call.name + call.arguments + "</call>";
    text += "<|end|>\n";
  }
  return text + "<|start|>assistant\n";
}

ChatRequest Talk() {
  ChatRequest chat;
  chat.messages = {{.role = "system", .content = "You are an assistant. Today is 2026-11-29."},
                   {.role = "user", .content = "user"},  // also what the template writes
                   {.role = "assistant", .content = "Hello!"},
                   {.role = "user", .content = "a"}};
  return chat;
}

// Where `needle` is in the rendered text, from its `count`-th place on.
std::optional<PromptPlace> PlaceOf(const ChatRequest& chat, const std::string& needle, size_t into = 0) {
  const TemplateCodec codec(ChatMl);
  const std::string text = ChatMl(chat);
  const size_t at = text.find(needle);
  EXPECT_NE(at, std::string::npos) << needle;
  return FindPlace(chat, text, at + into, codec);
}

TEST(PromptForkTest, EveryByteOfEveryTextIsFoundAtItsMessage) {
  const ChatRequest chat = Talk();
  const TemplateCodec codec(ChatMl);
  const std::string text = ChatMl(chat);
  size_t cursor = 0;
  for (size_t i = 0; i < chat.messages.size(); ++i) {
    cursor = text.find("\n", text.find("<|start|>", cursor)) + 1;
    for (size_t offset = 0; offset <= chat.messages[i].content.size(); ++offset) {
      const auto place = FindPlace(chat, text, cursor + offset, codec);
      ASSERT_TRUE(place) << i << " " << offset;
      EXPECT_EQ(place->message, i);
      EXPECT_EQ(place->part, PromptPart::kText);
      EXPECT_EQ(place->offset, offset);
    }
    cursor += chat.messages[i].content.size();
  }
}

TEST(PromptForkTest, WhatTheTemplateWritesBelongsToTheMessageThatFollows) {
  const auto header = PlaceOf(Talk(), "<|start|>assistant");
  ASSERT_TRUE(header);
  EXPECT_EQ(header->message, 2u);
  EXPECT_EQ(header->part, PromptPart::kTemplate);
  const auto first = PlaceOf(Talk(), "<|start|>");
  EXPECT_EQ(first->message, 0u);
  EXPECT_EQ(first->part, PromptPart::kTemplate);
}

TEST(PromptForkTest, ACallInAnOldReplyIsTheReplysAndNotTheListOfTools) {
  ChatRequest chat = Talk();
  chat.tools = {{.name = "add", .description = "adds numbers"}};
  chat.messages.insert(chat.messages.begin() + 2,
                       {.role = "assistant", .tool_calls = {{.name = "add", .arguments = "{\"a\": 1}"}}});
  const auto place = PlaceOf(chat, "<call>add");
  ASSERT_TRUE(place);
  EXPECT_EQ(place->message, 2u);
  EXPECT_EQ(place->part, PromptPart::kText);
  EXPECT_EQ(PlaceOf(chat, "adds numbers")->part, PromptPart::kTools) << "the control";
}

TEST(PromptForkTest, ToolsAreNamed) {
  ChatRequest chat = Talk();
  chat.tools = {{.name = "add", .description = "adds numbers"}, {.name = "now", .description = "tells the time"}};
  const auto place = PlaceOf(chat, "tells the time");
  ASSERT_TRUE(place);
  EXPECT_EQ(place->message, 0u);
  EXPECT_EQ(place->part, PromptPart::kTools);
  EXPECT_EQ(place->tool, "now");
  const auto text = PlaceOf(chat, "You are");
  EXPECT_EQ(text->part, PromptPart::kText) << "the control: beside the list there is the message";
  EXPECT_EQ(PlaceOf(chat, "<|end|>\n<|start|>user", 3)->part, PromptPart::kTemplate);
}

TEST(PromptForkTest, AMessageOfToolCallsAloneIsFoundBetweenItsNeighbours) {
  ChatRequest chat = Talk();
  chat.messages[2].content.clear();
  chat.messages[2].tool_calls = {{.id = "1", .name = "now", .arguments = "{}"}};
  EXPECT_EQ(PlaceOf(chat, "<call>")->message, 2u);
}

TEST(PromptForkTest, TemplatesThatTrimOrMoveTextsAreFollowed) {
  // The system text goes into the first user's message, as one family has it; texts lose their margins.
  const auto render = [](const ChatRequest& chat) {
    std::string text, system;
    for (const ChatMessage& message : chat.messages) {
      std::string content = message.content;
      content.erase(0, content.find_first_not_of(' '));
      if (message.role == "system") {
        system = content + "\n\n";
      } else {
        text += "[" + message.role + "] " + std::exchange(system, "") + content + "\n";
      }
    }
    return text;
  };
  ChatRequest chat = Talk();
  chat.messages[0].content = "  be brief";
  chat.messages[1].content = "   why?";
  const TemplateCodec codec(render);
  const std::string text = render(chat);
  EXPECT_EQ(FindPlace(chat, text, text.find("brief"), codec)->message, 0u);
  EXPECT_EQ(FindPlace(chat, text, text.find("why?"), codec)->message, 1u);
  EXPECT_EQ(FindPlace(chat, text, text.find("Hello"), codec)->message, 2u);
}

TEST(PromptForkTest, ATemplateThatCannotBeFollowedGivesNoPlaceOrAWrongOneButNeverFails) {
  const ChatRequest chat = Talk();
  const std::string text = ChatMl(chat);
  const TemplateCodec reversed([](const ChatRequest& request) {
    std::string out = ChatMl(request);
    return std::string(out.rbegin(), out.rend());
  });
  const TemplateCodec empty([](const ChatRequest&) { return std::string(); });
  FakeCodec none;
  none.has_template = false;
  for (const TextCodec* codec : std::initializer_list<const TextCodec*>{&reversed, &empty, &none}) {
    for (size_t offset = 0; offset <= text.size(); ++offset) {
      const auto place = FindPlace(chat, text, offset, *codec);
      if (place) {
        EXPECT_LT(place->message, chat.messages.size());
      }
    }
  }
  EXPECT_EQ(FindPlace({}, "", 0, none), std::nullopt);
}

class ForkTest : public ::testing::Test {
 protected:
  // As if the cache had `cached` at the first byte of `needle`.
  Json At(const std::string& needle, std::optional<char> cached, uint32_t beyond = 7) {
    const std::string text = ChatMl(chat_);
    const std::vector<TokenId> prompt = codec_.Encode(text, /*add_special=*/true, true);
    const uint32_t fork = static_cast<uint32_t>(text.find(needle)) + codec_.bos;
    PrefixReport report{.match = {.tokens = fork, .reason = MissReason::kTokensDiffer}, .fork = fork};
    if (cached) report.cached_token = TokenId(*cached);
    if (cached) report.cached_beyond = beyond;
    return ForkOf(prompt, report, &chat_, text, codec_);
  }
  ChatRequest chat_ = Talk();
  TemplateCodec codec_{ChatMl};
};

TEST_F(ForkTest, ATimeStampInTheSystemPromptIsNamedWithItsCost) {
  const Json fork = At("29.", '8', 1234);
  EXPECT_EQ(fork["asked"]["text"], "2");
  EXPECT_EQ(fork["cached"]["text"], "8");
  EXPECT_EQ(fork["lost_tokens"], 1234);
  EXPECT_EQ(Dump(fork["message"]), R"({"index":0,"role":"system","part":"text","offset":39})");
  EXPECT_EQ(fork["old_text"], true);
  EXPECT_TRUE(fork["summary"].get<std::string>().starts_with("message 0 (system) differs from what is cached: "));
  EXPECT_NE(fork["advice"].get<std::string>().find("a date or time"), std::string::npos);
}

TEST_F(ForkTest, ABosThatTheTextHasNotIsNotCounted) {
  codec_.bos = true;
  EXPECT_EQ(At("29.", '8')["message"]["offset"], 39);
}

TEST_F(ForkTest, AnotherQuestionIsNoOldText) {
  const Json fork = At("a<|end|>", 'b');
  EXPECT_EQ(fork["message"]["index"], 3);
  EXPECT_EQ(fork["old_text"], false);
  EXPECT_EQ(fork["summary"].get<std::string>().find("in every turn"), std::string::npos);
}

TEST_F(ForkTest, AReplyThatCameBackChangedIsOldText) {
  const Json fork = At("Hello!", '<');
  EXPECT_EQ(fork["message"]["index"], 2);
  EXPECT_EQ(fork["message"]["role"], "assistant");
  EXPECT_EQ(fork["old_text"], true);
  EXPECT_NE(fork["advice"].get<std::string>().find("reasoning_content"), std::string::npos);
}

TEST_F(ForkTest, AListOfToolsIsOldTextWhereverItStands) {
  chat_.messages = {{.role = "user", .content = "why?"}};
  chat_.tools = {{.name = "add", .description = "adds"}, {.name = "now", .description = "tells"}};
  const TemplateCodec codec([](const ChatRequest& chat) {
    std::string text;
    for (const ChatTool& tool : chat.tools) text += tool.name + ": " + tool.description + "\n";
    return text + chat.messages[0].content;
  });
  const std::string text = codec.Prompt(chat_)->text;
  const std::vector<TokenId> prompt = codec.Encode(text, false, true);
  PrefixReport report{.fork = static_cast<uint32_t>(text.find("tells")), .cached_token = TokenId('s')};
  const Json fork = ForkOf(prompt, report, &chat_, text, codec);
  EXPECT_EQ(Dump(fork["message"]), R"({"index":0,"role":"user","part":"tools","tool":"now"})");
  EXPECT_EQ(fork["old_text"], true);
  report.fork = static_cast<uint32_t>(text.find("why"));
  EXPECT_EQ(ForkOf(prompt, report, &chat_, text, codec)["old_text"], false) << "control";
}

TEST_F(ForkTest, OneReplyInOtherTokensIsToldFromAChangedOne) {
  class Pairs : public TemplateCodec {  // token 'P' is two letters
   public:
    Pairs() : TemplateCodec(ChatMl) {}
    std::string Piece(TokenId token) const override { return token == TokenId('P') ? "He" : FakeCodec::Piece(token); }
  } codec;
  const std::string text = ChatMl(chat_);
  const std::vector<TokenId> prompt = codec.Encode(text, false, true);
  PrefixReport report{.fork = static_cast<uint32_t>(text.find("Hello")), .cached_token = TokenId('P')};
  EXPECT_NE(Dump(ForkOf(prompt, report, &chat_, text, codec)["advice"]).find("other tokens"), std::string::npos);
  report.cached_token = TokenId('h');
  EXPECT_EQ(Dump(ForkOf(prompt, report, &chat_, text, codec)["advice"]).find("other tokens"), std::string::npos);
}

TEST_F(ForkTest, WhereNothingIsCachedThereIsNothingLost) {
  const Json fork = At("a<|end|>", std::nullopt);
  EXPECT_EQ(fork["cached"], nullptr);
  EXPECT_EQ(fork["lost_tokens"], 0);
  EXPECT_EQ(fork["old_text"], false);
  EXPECT_NE(fork["summary"].get<std::string>().find("is new"), std::string::npos);
}

TEST_F(ForkTest, AKnownPromptHasNone) {
  const std::vector<TokenId> prompt = codec_.Encode("abc", false, true);
  EXPECT_EQ(ForkOf(prompt, {.match = {.tokens = 2}, .fork = 3}, nullptr, "", codec_), nullptr);
}

TEST_F(ForkTest, PromptsWithoutMessagesHaveTheTextAround) {
  const std::vector<TokenId> prompt = codec_.Encode("The year is 2026", false, true);
  const PrefixReport report{.match = {.tokens = 15}, .fork = 15, .cached_token = TokenId('5'), .cached_beyond = 1};
  const Json fork = ForkOf(prompt, report, nullptr, "", codec_);
  EXPECT_EQ(fork["before"], " year is 202");
  EXPECT_EQ(fork["after"], "6");
  EXPECT_FALSE(fork.contains("message"));
  EXPECT_EQ(fork["summary"], "what begins at position 15 differs from what is cached: 1 token has to be computed");
}

}  // namespace
}  // namespace reprise
