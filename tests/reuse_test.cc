// What a conversation reuses, with real models of all three families.
#include <gtest/gtest.h>

#include "engine/local_engine.h"
#include "tests/engine_client.h"
#include "tests/models.h"

namespace reprise {
namespace {

std::unique_ptr<LocalEngine> Load(const std::string& file) {
  LocalEngineOptions options{.model_path = ModelPath(file), .memory_bytes = 3ull << 30, .context = 4096};
  options.shuffle_seed = 5;
  auto engine = LocalEngine::Load(options, nullptr);
  EXPECT_TRUE(engine.ok()) << engine.status();
  return engine.ok() ? *std::move(engine) : nullptr;
}

std::vector<TokenId> Join(std::vector<TokenId> a, const std::vector<TokenId>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

class Reuse : public testing::TestWithParam<std::string> {};

// Turn n computes its new tokens and the last sampled one, no more, also past the sliding window, and
// says what a run without any cache says.
TEST_P(Reuse, TurnsComputeTheirNewTokensAndTheLastSampledOne) {
  const auto local = Load(GetParam());
  ASSERT_NE(local, nullptr);
  const uint32_t vocab_size = local->model().vocab_size;
  std::vector<TokenId> conversation = RandomTokens(150, vocab_size, 1);
  uint32_t in_place = 0;
  for (uint32_t turn = 0; turn < 8; ++turn) {
    const Reply reply = PendingReply(local->engine(), GreedyRequest(conversation, 12)).Wait();
    ASSERT_FALSE(reply.last.error) << reply.last.error->message;
    EXPECT_EQ(reply.timings().computed_n, conversation.size() - in_place) << "turn " << turn;

    GenerationRequest cold = GreedyRequest(conversation, 12);
    cold.cache_read = cold.cache_write = false;
    const Reply alone = PendingReply(local->engine(), cold).Wait();
    EXPECT_EQ(alone.timings().computed_n, conversation.size());
    EXPECT_EQ(reply.tokens, alone.tokens) << "turn " << turn;

    // Asked again, only the last token is computed.
    const Reply again = PendingReply(local->engine(), GreedyRequest(conversation, 12)).Wait();
    EXPECT_EQ(again.timings().computed_n, 1u) << "turn " << turn;
    EXPECT_EQ(again.tokens, alone.tokens);

    in_place = static_cast<uint32_t>(conversation.size()) + 11;
    conversation = Join(Join(conversation, reply.tokens), RandomTokens(100, vocab_size, 100 + turn));
  }
  EXPECT_GT(conversation.size(), 900u);
}

// Turns as text: what the template and the tokeniser give again is reused to the token.
TEST_P(Reuse, TextTurnsLoseAtMostTheSeam) {
  const auto local = Load(GetParam());
  ASSERT_NE(local, nullptr);
  const auto render = [&](const std::vector<ChatMessage>& messages) {
    if (local->chat_template() == nullptr) {  // a base model: the words one after the other
      std::string text;
      for (const ChatMessage& message : messages) text += message.content + "\n";
      return local->tokenizer().Encode(text, true, false);
    }
    return local->tokenizer().Encode(local->chat_template()->Prompt({.messages = messages})->text, true, true);
  };
  std::vector<ChatMessage> messages = {{"system", "You answer in one short sentence."},
                                       {"user", "Why is the sky blue? Begin with the word \"because\"."}};
  std::vector<TokenId> in_place;
  size_t previous_prompt = 0;
  for (uint32_t turn = 0; turn < 4; ++turn) {
    const std::vector<TokenId> prompt = render(messages);
    const size_t limit = std::min(in_place.size(), prompt.size() - 1);
    const size_t common =
        std::mismatch(prompt.begin(), prompt.begin() + limit, in_place.begin()).first - prompt.begin();
    GenerationRequest request = GreedyRequest(prompt, 24);
    request.ignore_eos = false;
    const Reply reply = PendingReply(local->engine(), request).Wait();
    ASSERT_FALSE(reply.last.error) << reply.last.error->message;
    EXPECT_EQ(reply.timings().cached_pool, common) << "turn " << turn;
    in_place = Join(prompt, reply.tokens);
    in_place.pop_back();  // the last sampled token was never computed
    EXPECT_GE(common + 8, previous_prompt) << "more than the seam was lost, turn " << turn;
    previous_prompt = prompt.size();
    messages.push_back({"assistant", reply.text});
    messages.push_back({"user", "And why is that, in other words? Answer number " + std::to_string(turn) + "."});
  }
}

// One new prompt of 4,000 tokens from so many clients at once: computed once, and everyone gets the lone run's tokens.
TEST(ReuseTogether, OneNewPromptOfManyClientsIsComputedOnce) {
  LocalEngineOptions options{.model_path = ModelPath(SmallModels()[0]), .memory_bytes = 2ull << 30, .context = 4352};
  auto local = LocalEngine::Load(options, nullptr);
  ASSERT_TRUE(local.ok()) << local.status();
  EngineInterface& engine = (*local)->engine();
  const uint32_t block_tokens = (*local)->model().geometry.block_tokens;
  std::vector<uint32_t> counts = {32};
  if (std::getenv("REPRISE_LONG") != nullptr) counts = {8, 32, 128};
  for (const uint32_t clients : counts) {
    const GenerationRequest request = GreedyRequest(RandomTokens(4000, (*local)->model().vocab_size, clients), 2);
    GenerationRequest cold = request;
    cold.cache_read = cold.cache_write = false;
    const Reply alone = PendingReply(engine, cold).Wait();
    std::vector<std::unique_ptr<PendingReply>> pending;
    for (uint32_t i = 0; i < clients; ++i) pending.push_back(std::make_unique<PendingReply>(engine, request));
    uint64_t computed = 0;
    for (const auto& each : pending) {
      const Reply reply = each->Wait();
      ASSERT_FALSE(reply.last.error) << reply.last.error->message;
      EXPECT_EQ(reply.tokens, alone.tokens);
      computed += reply.timings().computed_n;
    }
    EXPECT_EQ(alone.timings().computed_n, 4000u) << "the control";
    EXPECT_LE(computed, 4000 + (clients - 1) * uint64_t{block_tokens});
    std::printf("%u clients: %llu prompt tokens computed of %u\n", clients, static_cast<unsigned long long>(computed),
                clients * 4000);
  }
}

INSTANTIATE_TEST_SUITE_P(SmallModels, Reuse, testing::ValuesIn(SmallModels()), [](const auto& info) {
  std::string name = info.param.substr(0, info.param.find('-'));
  std::erase_if(name, [](char c) { return c == '.'; });
  return name;
});

}  // namespace
}  // namespace reprise
