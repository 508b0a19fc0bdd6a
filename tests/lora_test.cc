// LoRA adapters on a real model: right against libllama with the same files, and kept apart by the cache.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "engine/local_engine.h"
#include "tests/corpus.h"
#include "tests/engine_client.h"
#include "tests/llama_oracle.h"
#include "tests/logits.h"
#include "tests/model_runner.h"
#include "tests/models.h"
#include "tests/random_lora.h"

namespace reprise {
namespace {

// Two adapters of rank 8 with alpha 16, beside several matrices, that move replies without making them nonsense.
class LoraTest : public ::testing::Test {
 protected:
  LoraTest() : model_path_(ModelPath(SmallModels()[0])) {
    const auto description = ModelDescription::Read(model_path_, {});
    first_ = WriteRandomLora(**description, {.strength = 0.06f, .seed = 1}, "first.gguf");
    second_ = WriteRandomLora(**description,
                              {.strength = 0.06f, .a_type = WeightType::kF16, .parts = {"attn_k", "ffn_up"}, .seed = 2},
                              "second.gguf");
  }

  const std::string model_path_;
  std::string first_, second_;
};

TEST_F(LoraTest, NextTokenDistributionsAgreeWithLibllama) {
  constexpr uint32_t kPositions = 64, kPrompts = 4;
  const LoadedModel model(model_path_, ElementType::kF16, {{first_, 1.0f}, {second_, 1.0f}});
  ModelRunner runner(model, {.context_max = 512, .batch_rows_max = 128, .logits_rows_max = 64, .sequences_max = 1});
  LlamaOracle oracle(model_path_, {.context = 512});
  const std::string corpus = Corpus();
  struct Case {
    std::vector<AdapterUse> uses;
    bool moves;
  };
  const std::vector<Case> cases = {
      {{}, false}, {{{0, 1.0f}}, true}, {{{0, 0.5f}}, true}, {{{0, 1.0f}, {1, 0.75f}}, true}};
  std::vector<float> base;
  for (const Case& c : cases) {
    std::vector<std::pair<std::string, float>> adapters;
    for (const AdapterUse& use : c.uses) adapters.emplace_back(use.adapter == 0 ? first_ : second_, use.scale);
    oracle.UseAdapters(adapters);
    std::vector<float> theirs, ours;
    const auto append = [](std::vector<float>& to, const std::vector<float>& logits) {
      to.insert(to.end(), logits.begin(), logits.end());
    };
    for (uint32_t p = 0; p < kPrompts; ++p) {
      const uint32_t length = kPositions * (p + 1);
      std::vector<TokenId> tokens = oracle.Tokenize(corpus.substr(corpus.size() / 17 * p, size_t{length} * 12), true);
      tokens.resize(length);
      append(theirs, oracle.Logits(tokens, length - kPositions));
      append(ours, runner.Feed(0, tokens, kPositions, length - kPositions, c.uses));
    }
    if (c.uses.empty()) base = ours;
    const Agreement agreement = Compare(theirs, ours, oracle.vocab_size());
    const Agreement without = Compare(theirs, base, oracle.vocab_size());
    std::printf("%zu adapters, %u positions: first choice agrees %.4f, mean KL %.6f; without them %.4f, %.6f\n",
                c.uses.size(), kPrompts * kPositions, agreement.same_first, agreement.mean_kl, without.same_first,
                without.mean_kl);
    // The measure of right_test: chance is three standard errors of so few positions.
    EXPECT_GE(agreement.same_first, 0.97 - 3 * std::sqrt(0.97 * 0.03 / (kPrompts * kPositions)));
    EXPECT_LE(agreement.mean_kl, 0.01);
    // The control: the same prompts without adapters are clearly another distribution.
    if (c.moves) {
      EXPECT_GT(without.mean_kl, 0.05);
    }
  }
}

// An engine with both adapters loaded.
class LoraEngineTest : public LoraTest {
 protected:
  void SetUp() override {
    LocalEngineOptions options{
        .model_path = model_path_, .adapters = {{first_, 1.0f}, {second_, 0.5f}}, .memory_bytes = 2ull << 30};
    options.context = 2048;
    options.shuffle_seed = 5;
    auto engine = LocalEngine::Load(options, nullptr);
    ASSERT_TRUE(engine.ok()) << engine.status();
    local_ = *std::move(engine);
    local_->engine().CheckEveryStep();
  }

  GenerationRequest Request(const std::vector<TokenId>& prompt,
                            const std::optional<std::vector<AdapterUse>>& adapters) const {
    GenerationRequest request = GreedyRequest(prompt, 8);
    request.adapters = adapters;
    return request;
  }
  Reply Run(GenerationRequest request) const { return PendingReply(local_->engine(), std::move(request)).Wait(); }
  Reply Cold(GenerationRequest request) const {
    request.cache_read = request.cache_write = false;
    return Run(std::move(request));
  }

  std::unique_ptr<LocalEngine> local_;
};

TEST_F(LoraEngineTest, EqualPromptsShareUnderTheSameAdaptersAndNoOthers) {
  const std::vector<TokenId> prompt = RandomTokens(150, local_->model().vocab_size, 1);
  // All different computations: contents, scales and order.
  const std::vector<std::vector<AdapterUse>> different = {
      {}, {{0, 1.0f}}, {{0, 0.5f}}, {{1, 0.5f}}, {{0, 1.0f}, {1, 0.5f}}, {{1, 0.5f}, {0, 1.0f}}};
  for (const std::vector<AdapterUse>& uses : different) {
    const Reply alone = Cold(Request(prompt, uses));
    const Reply first = Run(Request(prompt, uses));
    ASSERT_FALSE(first.last.error) << first.last.error->message;
    EXPECT_EQ(first.timings().cached_pool, 0u);
    EXPECT_EQ(first.tokens, alone.tokens);
    // The control: now it is there, and gives the same reply.
    const Reply again = Run(Request(prompt, uses));
    EXPECT_EQ(again.timings().cached_pool, 149u);
    EXPECT_EQ(again.tokens, alone.tokens);
  }
  // The same computations, said otherwise: nothing said is all with the scales of the start; scale 0 is none.
  EXPECT_EQ(Run(Request(prompt, std::nullopt)).timings().cached_pool, 149u);
  EXPECT_EQ(Run(Request(prompt, {{{0, 0.0f}, {1, -0.0f}}})).timings().cached_pool, 149u);
  EXPECT_EQ(Run(Request(prompt, {{{1, 0.0f}, {0, 1.0f}}})).timings().cached_pool, 149u);
}

TEST_F(LoraEngineTest, AdaptersChangeTheReply) {
  std::set<std::vector<TokenId>> replies;
  const std::vector<TokenId> prompt = RandomTokens(60, local_->model().vocab_size, 4);
  const std::vector<std::vector<AdapterUse>> different = {{}, {{0, 4.0f}}, {{1, 8.0f}}};
  for (const std::vector<AdapterUse>& uses : different) replies.insert(Run(Request(prompt, uses)).tokens);
  EXPECT_EQ(replies.size(), different.size());
}

// Sequences with and without adapters in the same batches, warm and cold, say what each says alone.
TEST_F(LoraEngineTest, MatesWithOtherAdaptersDoNotMatter) {
  const std::vector<std::optional<std::vector<AdapterUse>>> uses = {
      std::nullopt, {{}}, {{{0, 2.0f}}}, {{{1, 4.0f}, {0, 2.0f}}}};
  std::vector<GenerationRequest> requests;
  for (uint32_t i = 0; i < 12; ++i) {
    // Prompts that begin alike, so that some are warm where their adapters are equal too.
    std::vector<TokenId> prompt = RandomTokens(100 + 40 * (i % 3), local_->model().vocab_size, 7);
    prompt.push_back(TokenId(static_cast<int32_t>(100 + i)));
    requests.push_back(Request(prompt, uses[i % uses.size()]));
  }
  std::vector<Reply> alone;
  for (const GenerationRequest& request : requests) alone.push_back(Cold(request));
  std::vector<PendingReply> pending;
  for (const GenerationRequest& request : requests) pending.emplace_back(local_->engine(), request);
  uint32_t reused = 0;
  for (size_t i = 0; i < pending.size(); ++i) {
    const Reply reply = pending[i].Wait();
    ASSERT_FALSE(reply.last.error) << reply.last.error->message;
    EXPECT_EQ(reply.tokens, alone[i].tokens) << i;
    reused += reply.timings().cached_pool;
  }
  EXPECT_GT(reused, 0u) << "the control: equal adapters share";
}

TEST_F(LoraEngineTest, RefusesUsesThatCannotBe) {
  const std::vector<TokenId> prompt = RandomTokens(20, local_->model().vocab_size, 1);
  const std::vector<std::vector<AdapterUse>> wrong = {{{2, 1.0f}},
                                                      {{0, 1.0f}, {1, 1.0f}, {0, 0.5f}},
                                                      {{0, std::nanf("")}},
                                                      {{0, INFINITY}},
                                                      std::vector<AdapterUse>(9, AdapterUse{0, 1.0f})};
  for (const std::vector<AdapterUse>& uses : wrong) {
    const Reply reply = Run(Request(prompt, uses));
    ASSERT_TRUE(reply.last.error);
    EXPECT_EQ(reply.last.error->code, "invalid_value");
    EXPECT_EQ(reply.last.error->param, "lora");
  }
  EXPECT_FALSE(Run(Request(prompt, {{{0, -1.0f}}})).last.error) << "the control";
}

TEST_F(LoraEngineTest, MemoryIsPlanned) {
  const auto taken = local_->ledger().taken_by_component();
  for (const char* component : {"adapter first", "adapter second"}) {
    const auto line = std::find_if(local_->plan().lines.begin(), local_->plan().lines.end(),
                                   [&](const Footprint& f) { return f.component == component; });
    ASSERT_NE(line, local_->plan().lines.end()) << component;
    EXPECT_EQ(taken.at(component), line->bytes);
    EXPECT_GT(line->bytes, 0u);
  }
}

}  // namespace
}  // namespace reprise
