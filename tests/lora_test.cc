// LoRA adapters on a real model: right against libllama with the same files, and kept apart by the cache.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/corpus.h"
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

}  // namespace
}  // namespace reprise
