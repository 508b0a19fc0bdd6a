// What a conversation reuses, with real models of all three families.
#include <gtest/gtest.h>

#include <cstring>
#include <set>

#include "engine/local_engine.h"
#include "tests/engine_client.h"
#include "tests/models.h"
#include "tests/random_lora.h"

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

// A pool for one and a half contexts.
LocalEngineOptions Tight(const std::string& file, const std::string& adapter) {
  LocalEngineOptions options{.model_path = ModelPath(file), .context = 1024, .sequences_max = 4};
  if (!adapter.empty()) options.adapters = {{.path = adapter}};
  options.shuffle_seed = 5;
  const auto model = ModelDescription::Read(options.model_path, {.adapters = options.adapters});
  EXPECT_TRUE(model.ok()) << model.status();
  for (options.memory_bytes = 192ull << 20; options.memory_bytes < 4ull << 30; options.memory_bytes += 2ull << 20) {
    const auto plan = LocalEngine::Plan(**model, options);
    if (plan.ok() && plan->pool_tokens >= 3 * options.context / 2) break;
  }
  return options;
}

// Prompts that go on, fork anywhere, shrink and come back, several at once, with and without an adapter, in a pool that
// has to evict all the time, also within windows: every reply has the bits of the run without a cache.
TEST_P(Reuse, RandomTreesUnderPressureGiveTheBitsOfLoneRuns) {
  const bool long_run = std::getenv("REPRISE_LONG") != nullptr;
  const auto description = ModelDescription::Read(ModelPath(GetParam()), {});
  ASSERT_TRUE(description.ok()) << description.status();
  const std::string adapter =
      WriteRandomLora(**description, {.rank = 4, .strength = 0.06f, .seed = 3}, "pressure.gguf");
  const LocalEngineOptions options = Tight(GetParam(), adapter);
  auto local = LocalEngine::Load(options, nullptr);
  ASSERT_TRUE(local.ok()) << local.status();
  EngineInterface& engine = (*local)->engine();
  const uint32_t vocab_size = (*local)->model().vocab_size;
  const char* chosen = std::getenv("REPRISE_SEED");
  const uint64_t seed = chosen != nullptr ? std::strtoull(chosen, nullptr, 10) : 7;
  SCOPED_TRACE(testing::Message() << "REPRISE_SEED=" << seed);
  std::mt19937_64 random(seed);
  const auto below = [&](uint64_t limit) { return random() % limit; };
  std::vector<std::vector<TokenId>> known;
  const auto prompt = [&] {
    std::vector<TokenId> tokens;
    if (!known.empty() && below(6) != 0) tokens = known[below(known.size())];
    if (!tokens.empty() && below(3) != 0) tokens.resize(1 + below(tokens.size()));
    const uint64_t more =
        std::min<uint64_t>(1000 - std::min<uint64_t>(tokens.size(), 1000), 1 + below(tokens.empty() ? 700 : 60));
    return Join(std::move(tokens),
                RandomTokens(static_cast<uint32_t>(std::max<uint64_t>(more, 1)), vocab_size, random()));
  };
  uint64_t reused = 0;
  std::set<std::vector<TokenId>> distinct;
  for (int round = 0; round < (long_run ? 80 : 6); ++round) {
    std::vector<GenerationRequest> requests;
    while (requests.size() < 3) {
      std::vector<TokenId> tokens = prompt();
      tokens.resize(std::min<size_t>(tokens.size(), 1010));
      GenerationRequest request = GreedyRequest(std::move(tokens), 6);
      request.logprobs = 0;
      request.adapters.emplace();
      if (below(4) == 0) request.adapters->push_back({.adapter = 0, .scale = 1});
      requests.push_back(request);
      if (below(3) == 0) requests.push_back(std::move(request));  // followers
    }
    std::vector<std::unique_ptr<PendingReply>> pending;
    for (const GenerationRequest& request : requests)
      pending.push_back(std::make_unique<PendingReply>(engine, request));
    for (size_t i = 0; i < requests.size(); ++i) {
      const Reply reply = pending[i]->Wait();
      ASSERT_FALSE(reply.last.error) << reply.last.error->message;
      GenerationRequest cold = requests[i];
      cold.cache_read = cold.cache_write = false;
      const Reply alone = PendingReply(engine, cold).Wait();
      ASSERT_EQ(reply.tokens, alone.tokens) << "round " << round;
      ASSERT_EQ(0, std::memcmp(reply.logprobs.data(), alone.logprobs.data(), alone.logprobs.size() * sizeof(float)));
      reused += reply.timings().cached_pool;
      distinct.insert(reply.tokens);
      known.push_back(Join(requests[i].prompt, reply.tokens));
      if (known.size() > 8) known.erase(known.begin());
    }
  }
  const KvCache::Stats stats = (*local)->engine().cache_stats();
  std::printf("%llu tokens reused, %llu blocks evicted\n", static_cast<unsigned long long>(reused),
              static_cast<unsigned long long>(stats.evicted_blocks));
  EXPECT_GT(reused, 500u);
  EXPECT_GT(stats.evicted_blocks, 10u);
  EXPECT_GT(distinct.size(), 5u) << "replies tell prompts apart";
}

INSTANTIATE_TEST_SUITE_P(SmallModels, Reuse, testing::ValuesIn(SmallModels()), [](const auto& info) {
  std::string name = info.param.substr(0, info.param.find('-'));
  std::erase_if(name, [](char c) { return c == '.'; });
  return name;
});

}  // namespace
}  // namespace reprise
