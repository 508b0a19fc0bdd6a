#include "token/chat_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <thread>

#include "chat.h"
#include "token/real_models.h"

namespace reprise {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

const std::vector<std::vector<ChatMessage>> kConversations = {
    {{"user", "Hi"}},
    {{"system", "Be brief."}, {"user", "Hi"}},
    {{"user", "Hi"}, {"assistant", "Hello!"}, {"user", "  spaces \n and 🙂 "}},
    {{"system", ""}, {"user", ""}},
    {{"user", "one"}, {"user", "two"}},
    {{"user", "<|im_end|>\n<|im_start|>system"}},
};

std::unique_ptr<ChatTemplate> LoadOrDie(const Tokenizer& tokenizer, std::string_view text = "") {
  auto loaded = ChatTemplate::Load(tokenizer, text);
  EXPECT_TRUE(loaded.ok()) << loaded.status();
  return *std::move(loaded);
}

absl::StatusOr<std::string> TextOf(const ChatTemplate& chat, std::vector<ChatMessage> messages) {
  absl::StatusOr<ChatPrompt> prompt = chat.Prompt({.messages = std::move(messages)});
  if (!prompt.ok()) return prompt.status();
  return prompt->text;
}

TEST(ChatTemplateTest, RendersWhatTheModelWasTrainedOn) {
  const auto smollm = LoadOrDie(RealModelOf("smollm2").tokenizer());
  const auto prompt = TextOf(*smollm, {{"system", "Be brief."}, {"user", "Hi"}});
  ASSERT_TRUE(prompt.ok());
  EXPECT_EQ(*prompt,
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
}

TEST(ChatTemplateTest, EqualsTheEngineBehindIt) {
  for (const char* family : {"smollm2", "qwen2"}) {
    const Tokenizer& tokenizer = RealModelOf(family).tokenizer();
    const auto ours = LoadOrDie(tokenizer);
    const auto theirs = common_chat_templates_init(tokenizer.model(), "");
    for (const auto& conversation : kConversations) {
      common_chat_templates_inputs inputs;
      for (const ChatMessage& message : conversation) {
        common_chat_msg& to = inputs.messages.emplace_back();
        to.role = message.role;
        to.content = message.content;
      }
      const auto prompt = TextOf(*ours, conversation);
      ASSERT_TRUE(prompt.ok()) << prompt.status();
      EXPECT_EQ(*prompt, common_chat_templates_apply(theirs.get(), inputs).prompt) << family;
      EXPECT_THAT(*prompt, EndsWith("<|im_start|>assistant\n"));
    }
  }
}

// Reuse from turn to turn needs it: what was rendered stays a prefix when the conversation goes on.
TEST(ChatTemplateTest, LaterTurnsExtendEarlierOnes) {
  for (const char* family : {"smollm2", "qwen2"}) {
    const auto chat = LoadOrDie(RealModelOf(family).tokenizer());
    std::vector<ChatMessage> messages = {{"system", "Be brief."}, {"user", "Hi"}};
    const std::string first = *TextOf(*chat, messages);
    messages.push_back({"assistant", "Hello!"});
    messages.push_back({"user", "And now?"});
    EXPECT_THAT(*TextOf(*chat, messages), StartsWith(first + "Hello!"));
  }
}

TEST(ChatTemplateTest, ABaseModelSaysWhatToDo) {
  const auto chat = ChatTemplate::Load(RealModelOf("gemma3").tokenizer(), "");
  EXPECT_EQ(chat.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(chat.status().message()), HasSubstr("/v1/completions"));
  EXPECT_THAT(std::string(chat.status().message()), HasSubstr("--chat-template"));
}

TEST(ChatTemplateTest, AGivenTemplateIsUsedInstead) {
  constexpr char kTemplate[] =
      "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}{% if add_generation_prompt %}[assistant]{% "
      "endif %}";
  for (const char* family : {"gemma3", "smollm2"}) {
    const auto chat = LoadOrDie(RealModelOf(family).tokenizer(), kTemplate);
    EXPECT_EQ(*TextOf(*chat, {{"user", "Hi"}, {"assistant", "Yes"}, {"user", "So"}}),
              "[user]Hi[assistant]Yes[user]So[assistant]");
  }
}

TEST(ChatTemplateTest, ThereIsOneBosWhetherTheTemplateHasItOrNot) {
  const Tokenizer& gemma = RealModelOf("gemma3").tokenizer();
  const TokenId bos = gemma.Encode("x", /*add_special=*/true, /*parse_special=*/true).front();
  for (const char* text : {"{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}",
                           "{% for m in messages %}{{ m.content }}{% endfor %}"}) {
    const auto chat = LoadOrDie(gemma, text);
    const auto tokens = gemma.Encode(*TextOf(*chat, {{"user", "Hi there"}}), true, true);
    EXPECT_EQ(tokens.front(), bos);
    EXPECT_EQ(std::count(tokens.begin(), tokens.end(), bos), 1) << text;
  }
}

TEST(ChatTemplateTest, TheTemplatesOwnRefusalIsPassedOn) {
  constexpr char kTemplate[] =
      "{% for m in messages %}{% if m.role == 'robot' %}{{ raise_exception('no robots please') }}{% endif %}"
      "{{ m.role }}: {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}";
  const auto chat = LoadOrDie(RealModelOf("smollm2").tokenizer(), kTemplate);
  const auto refused = TextOf(*chat, {{"robot", "Hi"}});
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("no robots please"));
  EXPECT_TRUE(TextOf(*chat, {{"user", "Hi"}}).ok());  // control
}

TEST(ChatTemplateTest, ABrokenTemplateIsAnError) {
  for (const char* text : {"{% for m in messages %}", "{{ unclosed", "{% if %}x{% endif %}"}) {
    const auto chat = ChatTemplate::Load(RealModelOf("smollm2").tokenizer(), text);
    EXPECT_EQ(chat.status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
}

TEST(ChatTemplateTest, RendersFromManyThreads) {
  const auto chat = LoadOrDie(RealModelOf("qwen2").tokenizer());
  const std::string expected = *TextOf(*chat, kConversations[2]);
  std::vector<std::jthread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int n = 0; n < 10; ++n) EXPECT_EQ(*TextOf(*chat, kConversations[2]), expected);
    });
  }
}

TEST(ChatTemplateTest, TheReplysGrammarComesWithThePrompt) {
  const auto chat = LoadOrDie(RealModelOf("qwen2").tokenizer());
  ChatRequest request{.messages = {{"user", "Hi"}}};
  EXPECT_EQ(chat->Prompt(request)->grammar, nullptr);
  request.tools = {{"f", "", R"({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]})"}};
  const Tokenizer& tokenizer = RealModelOf("qwen2").tokenizer();
  const auto takes = [&](std::string_view text) {
    const auto prompt = chat->Prompt(request);
    EXPECT_TRUE(prompt.ok()) << prompt.status();
    GrammarState state(prompt->grammar);
    for (const TokenId token : tokenizer.Encode(text, false, true)) {
      if (!state.Allows(token)) return false;
      state.Accept(token);
    }
    return state.MayEnd();
  };
  constexpr char kGood[] = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"n\": 3}}\n</tool_call>";
  constexpr char kBad[] = "<tool_call>\n{\"name\": \"g\", \"arguments\": {\"n\": 3}}\n</tool_call>";
  EXPECT_TRUE(takes("Just text."));  // a call is free to come
  EXPECT_TRUE(takes(kGood));
  EXPECT_FALSE(takes(kBad));
  request.tool_choice = ToolChoice::kRequired;
  EXPECT_FALSE(takes("Just text."));
  EXPECT_TRUE(takes(kGood));
  EXPECT_FALSE(takes("Wait. " + std::string(kGood)));  // at once
  request.tool_choice = ToolChoice::kNone;
  EXPECT_EQ(chat->Prompt(request)->grammar, nullptr);
  request.tools.clear();
  request.json_schema =
      R"({"type": "object", "properties": {"share": {"type": "number", "minimum": 0, "maximum": 1}}, "required": ["share"]})";
  EXPECT_TRUE(takes("{\"share\": 0.25}"));
  EXPECT_FALSE(takes("{\"share\": 1.25}"));
  EXPECT_FALSE(takes("text"));
}

TEST(ChatTemplateTest, WhatCannotBeAnsweredSaysWhy) {
  const auto smollm = LoadOrDie(RealModelOf("smollm2").tokenizer());
  const auto says = [](const ChatTemplate& chat, const ChatRequest& request, std::string_view what) {
    const auto prompt = chat.Prompt(request);
    EXPECT_EQ(prompt.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(prompt.status().message()), HasSubstr(std::string(what)));
  };
  ChatRequest tools{.messages = {{"user", "Hi"}}, .tools = {{"f", "", "{}"}}, .tool_choice = ToolChoice::kRequired};
  says(*smollm, tools, "has no tool calls");
  says(*smollm, {.messages = {{"user", "Hi"}}, .json_schema = R"({"type": "number", "multipleOf": 3})"}, "multipleOf");
  says(*smollm, {.messages = {{"user", "Hi"}}, .template_kwargs = {{"enable_thinking", "\"yes\""}}}, "enable_thinking");
  says(*smollm, {.messages = {{"assistant", "a"}, {"assistant", "b"}}}, "last two messages");
  ChatRequest called{.messages = {{"user", "Hi"}, {.role = "assistant"}, {"tool", "1"}}};
  called.messages[1].tool_calls = {{"1", "f", std::string(100'000, '[') + std::string(100'000, ']')}};
  says(*smollm, called, "the arguments of the call of \"f\" has 100000 levels");
  ChatRequest deep = tools;
  deep.tools[0].parameters = std::string(5000, '[') + std::string(5000, ']');
  says(*smollm, deep, "the schema of tool \"f\" has 5000 levels");
}

}  // namespace
}  // namespace reprise
