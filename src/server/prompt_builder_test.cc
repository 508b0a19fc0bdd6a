#include "server/prompt_builder.h"

#include <gtest/gtest.h>

#include <random>

#include "server/fakes.h"

namespace reprise {
namespace {

using Groups = std::vector<std::vector<size_t>>;

// One letter for each message: s(ystem), u(ser), a(ssistant), t(ool).
std::vector<ChatMessage> Messages(std::string_view roles) {
  std::vector<ChatMessage> messages;
  for (const char role : roles) {
    messages.push_back({.role = role == 's' ? "system" : role == 'u' ? "user" : role == 'a' ? "assistant" : "tool"});
  }
  return messages;
}

TEST(PromptBuilderTest, DropsTurnsThenRoundsOfTools) {
  EXPECT_EQ(DroppableGroups({}, true), Groups());
  EXPECT_EQ(DroppableGroups(Messages("u"), true), Groups());
  EXPECT_EQ(DroppableGroups(Messages("su"), true), Groups());
  EXPECT_EQ(DroppableGroups(Messages("su"), false), (Groups{{0}}));
  EXPECT_EQ(DroppableGroups(Messages("suauau"), true), (Groups{{1, 2}, {3, 4}}));
  EXPECT_EQ(DroppableGroups(Messages("suauau"), false), (Groups{{0}, {1, 2}, {3, 4}}));
  EXPECT_EQ(DroppableGroups(Messages("suatau"), true), (Groups{{1, 2, 3, 4}}));
  EXPECT_EQ(DroppableGroups(Messages("sua"), true), Groups()) << "the last message stays";
  EXPECT_EQ(DroppableGroups(Messages("suatatat"), true), (Groups{{2, 3}, {4, 5}}));
  EXPECT_EQ(DroppableGroups(Messages("uauatat"), true), (Groups{{0, 1}, {3, 4}}));
  EXPECT_EQ(DroppableGroups(Messages("aau"), true), (Groups{{0, 1}})) << "a conversation that the assistant begins";
  EXPECT_EQ(DroppableGroups(Messages("aa"), true), (Groups{{0}})) << "no user at all";
  EXPECT_EQ(DroppableGroups(Messages("uasau"), true), (Groups{{0, 1, 3}})) << "system messages stay where they are";
}

// As templates leave out the thoughts of old turns: every "y" of the messages.
class ForgetfulCodec : public FakeCodec {
 public:
  absl::StatusOr<ChatPrompt> Prompt(const ChatRequest& request) const override {
    ChatRequest shorter = request;
    for (ChatMessage& message : shorter.messages) std::erase(message.content, 'y');
    return FakeCodec::Prompt(shorter);
  }
};

// Against the simplest search: the fewest groups that fit.
void ExpectFewestGroups(const FakeCodec& codec) {
  std::mt19937 random(7);
  for (int round = 0; round < 300; ++round) {
    CompletionRequest request;
    request.truncation = {.keep_system = random() % 2 == 0};
    request.max_tokens = 1 + random() % 50;
    const size_t count = 1 + random() % 12;
    std::string roles;
    for (size_t i = 0; i < count; ++i) roles += "suat"[random() % 4];
    request.chat.messages = Messages(roles);
    for (ChatMessage& message : request.chat.messages) message.content = std::string(random() % 60, "xy"[random() % 2]);
    const uint32_t context = 100 + random() % 300;

    const Groups groups = DroppableGroups(request.chat.messages, request.truncation->keep_system);
    std::vector<size_t> sizes;  // of the prompt, with so many groups left out
    for (size_t dropped = 0; dropped <= groups.size(); ++dropped) {
      std::vector<bool> out(count);
      for (size_t i = 0; i < dropped; ++i)
        for (const size_t index : groups[i]) out[index] = true;
      ChatRequest left;
      for (size_t i = 0; i < count; ++i)
        if (!out[i]) left.messages.push_back(request.chat.messages[i]);
      sizes.push_back(codec.Prompt(left)->text.size());
    }
    size_t fewest = 0;
    while (fewest < groups.size() && sizes[fewest] > context - *request.max_tokens) ++fewest;

    BuiltPrompt built;
    ASSERT_FALSE(BuildPrompt(Endpoint::kChat, request, codec, context, &built)) << round;
    EXPECT_EQ(built.tokens.size(), sizes[fewest]) << roles << " round " << round;
    uint32_t messages = 0;
    for (size_t i = 0; i < fewest; ++i) messages += groups[i].size();
    EXPECT_EQ(built.truncation->dropped_messages, messages);
    EXPECT_EQ(built.truncation->prompt_tokens_before, sizes[0]);
    EXPECT_EQ(built.truncation->dropped_tokens, sizes[0] - sizes[fewest]);
  }
}

TEST(PromptBuilderTest, LeavesOutAsFewAsMakeItFit) { ExpectFewestGroups(FakeCodec()); }

TEST(PromptBuilderTest, LeavesOutAsFewAsMakeItFitWhateverTheTemplateKeeps) { ExpectFewestGroups(ForgetfulCodec()); }

TEST(PromptBuilderTest, TextsLoseTheirMiddle) {
  CompletionRequest request;
  request.prompt_text = "abcdefghij";
  request.max_tokens = 5;
  request.truncation.emplace();
  BuiltPrompt built;
  ASSERT_FALSE(BuildPrompt(Endpoint::kText, request, FakeCodec(), 10, &built));
  std::string left;
  for (const TokenId token : built.tokens) left += FakeCodec().Piece(token);
  EXPECT_EQ(left, "abcij");
  request.max_tokens = 50;  // nothing would make it fit
  ASSERT_FALSE(BuildPrompt(Endpoint::kText, request, FakeCodec(), 10, &built));
  EXPECT_EQ(built.tokens.size(), 10u);
}

TEST(PromptBuilderTest, FarTooLongIsSeenWithoutTokenisingAll) {
  constexpr uint32_t kContext = 1000;
  class Counting : public FakeCodec {
   public:
    std::vector<TokenId> Encode(std::string_view text, bool add_special, bool parse_special) const override {
      bytes += text.size();
      longest = std::max(longest, text.size());
      return FakeCodec::Encode(text, add_special, parse_special);
    }
    mutable size_t bytes = 0, longest = 0;
  };
  const std::string words = [] {
    std::string text;
    while (text.size() < 4 << 20) text += "wörd ";
    return text;
  }();
  for (const Endpoint endpoint : {Endpoint::kText, Endpoint::kChat}) {
    for (const bool truncate : {false, true}) {
      Counting codec;
      CompletionRequest request;
      request.prompt_text = words;
      request.chat.messages = {{.role = "user", .content = "first"},
                               {.role = "assistant", .content = words},
                               {.role = "user", .content = truncate ? "last" : words}};
      if (truncate) request.truncation.emplace();
      BuiltPrompt built;
      const MaybeError error = BuildPrompt(endpoint, request, codec, kContext, &built);
      EXPECT_LE(codec.longest, EncodeBytesMax(kContext));
      if (truncate) {
        ASSERT_FALSE(error) << error->message;
        EXPECT_LE(built.tokens.size(), 750u);
        EXPECT_GE(built.truncation->prompt_tokens_before, words.size());
        EXPECT_EQ(built.truncation->dropped_tokens, built.truncation->prompt_tokens_before - built.tokens.size());
      } else {
        ASSERT_TRUE(error);
        EXPECT_EQ(error->code, "context_too_long");
        EXPECT_EQ(error->limit, kContext);
        EXPECT_GT(*error->got, kContext);
        EXPECT_LE(codec.bytes, 64u << 10) << "the first part tells";
      }
    }
  }
}

TEST(PromptBuilderTest, PartsAreWholeCharactersAndAllOfTheText) {
  std::mt19937 random(3);
  for (int round = 0; round < 50; ++round) {
    std::string text;
    const size_t size = random() % 300'000;
    while (text.size() < size) text += random() % 1000 == 0 ? " " : random() % 2 == 0 ? "é" : "😀";
    EXPECT_EQ(CountTokens(FakeCodec(), text, UINT64_MAX), text.size());
  }
}

TEST(PromptBuilderTest, NothingIsDroppedUnlessAsked) {
  CompletionRequest request;
  request.prompt_text = "abcdefghij";
  BuiltPrompt built;
  ASSERT_FALSE(BuildPrompt(Endpoint::kText, request, FakeCodec(), 4, &built));
  EXPECT_EQ(built.tokens.size(), 10u);
  EXPECT_FALSE(built.truncation.has_value());
}

}  // namespace
}  // namespace reprise
