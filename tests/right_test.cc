// Right: the same tokens through libllama and through the forward pass, on real models. What differs is
// rounding; how much llama.cpp's own rounding moves is printed beside it, from the same model with
// four tokens per graph, without flash attention and without its interleaved weights.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>

#include "tests/corpus.h"
#include "tests/llama_oracle.h"
#include "tests/logits.h"
#include "tests/model_runner.h"
#include "tests/models.h"

namespace reprise {
namespace {

bool Long() { return std::getenv("REPRISE_LONG") != nullptr; }

// The 1.5B model takes minutes: with all the others only in the long run.
std::vector<std::string> Models() {
  std::vector<std::string> models = SmallModels();
  if (Long()) models.push_back(LargeModel());
  return models;
}

std::string TestName(const ::testing::TestParamInfo<std::string>& info) {
  std::string name = info.param.substr(0, info.param.find(".gguf"));
  for (char& c : name)
    if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
  return name;
}

class RightTest : public ::testing::TestWithParam<std::string> {
 protected:
  RightTest() : path_(ModelPath(GetParam())), model_(path_, ElementType::kF16) {}

  // Tokens of the corpus from a place of its own for every prompt.
  std::vector<TokenId> Prompt(const LlamaOracle& oracle, uint32_t index, uint32_t count, bool add_special) const {
    static const std::string corpus = Corpus();
    const size_t from = corpus.size() / 17 * (index % 17);
    std::vector<TokenId> tokens = oracle.Tokenize(corpus.substr(from, size_t{count} * 12), add_special);
    EXPECT_GE(tokens.size(), count);
    tokens.resize(count);
    return tokens;
  }

  const std::string path_;
  const LoadedModel model_;
};

// 16 prompts, the last 64 positions of each: the first choice agrees in 97 %, mean KL at most 0.01.
TEST_P(RightTest, NextTokenDistributionsAgree) {
  constexpr uint32_t kPositions = 64;
  const uint32_t prompts = Long() ? 16 : 4;
  LlamaOracle oracle(path_, {.context = 1024});
  LlamaOracle other(path_, {.context = 1024, .batch = 4, .flash_attention = false, .repack = false});
  ModelRunner runner(model_, {.context_max = 1024, .batch_rows_max = 128, .logits_rows_max = 64, .sequences_max = 1});
  std::vector<float> theirs, ours, theirs_again;
  for (uint32_t p = 0; p < prompts; ++p) {
    const uint32_t length = kPositions + 40 * (p % 16);
    const std::vector<TokenId> tokens = Prompt(oracle, p, length, true);
    const auto append = [](std::vector<float>& to, const std::vector<float>& logits) {
      to.insert(to.end(), logits.begin(), logits.end());
    };
    append(theirs, oracle.Logits(tokens, length - kPositions));
    append(theirs_again, other.Logits(tokens, length - kPositions));
    append(ours, runner.Feed(0, tokens, kPositions, length - kPositions));
  }
  const Agreement agreement = Compare(theirs, ours, oracle.vocab_size());
  const Agreement rounding = Compare(theirs, theirs_again, oracle.vocab_size());
  std::printf(
      "%s, %u positions: first choice agrees %.4f, mean KL %.6f, max %.4f; llama.cpp with itself, four tokens at a "
      "time, without flash attention and repacking: %.4f, %.6f, %.4f\n",
      GetParam().c_str(), prompts * kPositions, agreement.same_first, agreement.mean_kl, agreement.max_kl,
      rounding.same_first, rounding.mean_kl, rounding.max_kl);
  // Few positions have a wide margin of chance: two standard errors.
  const double chance = Long() ? 0.0 : 2 * std::sqrt(0.97 * 0.03 / (prompts * kPositions));
  EXPECT_GE(agreement.same_first, std::min(0.97, rounding.same_first) - chance);
  EXPECT_LE(agreement.mean_kl, std::max(0.01, rounding.mean_kl));
  // The control: logits of the row before are another distribution.
  const uint32_t vocab = oracle.vocab_size();
  const size_t rows = ours.size() - vocab;
  EXPECT_GT(Compare(std::span(theirs).first(rows), std::span(ours).last(rows), vocab).mean_kl, 0.5);
}

// Perplexity of 16k tokens of documentation, in windows of 2,048: within 0.5 %.
TEST_P(RightTest, PerplexitiesAgree) {
  if (!Long()) GTEST_SKIP() << "long";
  constexpr uint32_t kWindow = 2048;
  constexpr uint32_t kWindows = 8;
  LlamaOracle oracle(path_, {.context = kWindow});
  ModelRunner runner(model_,
                     {.context_max = kWindow, .batch_rows_max = 256, .logits_rows_max = 256, .sequences_max = 1});
  const uint32_t vocab = oracle.vocab_size();
  double theirs = 0;
  double ours = 0;
  uint32_t scored = 0;
  for (uint32_t w = 0; w < kWindows; ++w) {
    const std::vector<TokenId> tokens = Prompt(oracle, 2 * w, kWindow, true);
    // Half of each window is scored, where there is context; all logits of it at once would be 1 GB.
    const std::vector<float> reference = oracle.Logits(tokens, kWindow / 2);
    for (uint32_t t = kWindow / 2; t + 1 < kWindow; ++t)
      theirs += Surprise(std::span(reference).subspan(uint64_t{t - kWindow / 2} * vocab, vocab), tokens[t + 1]);
    runner.Restart(0);
    for (uint32_t from = 0; from < kWindow; from += 256) {
      const bool wanted = from >= kWindow / 2;
      const ModelRunner::Part part{0, std::span(tokens).subspan(from, 256), wanted ? 256u : 0u};
      const std::span<const float> logits = runner.Step({&part, 1});
      for (uint32_t t = from; wanted && t < from + 256 && t + 1 < kWindow; ++t) {
        ours += Surprise(logits.subspan(uint64_t{t - from} * vocab, vocab), tokens[t + 1]);
        ++scored;
      }
    }
  }
  const double reference = std::exp(theirs / scored);
  const double perplexity = std::exp(ours / scored);
  std::printf("%s, %u tokens read, %u scored: perplexity %.4f, llama.cpp %.4f, ratio %.5f\n", GetParam().c_str(),
              kWindow * kWindows, scored, perplexity, reference, perplexity / reference);
  EXPECT_NEAR(perplexity / reference, 1.0, 0.005);
}

INSTANTIATE_TEST_SUITE_P(Real, RightTest, ::testing::ValuesIn(Models()), TestName);

}  // namespace
}  // namespace reprise
