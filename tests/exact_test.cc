// Exact, on real models: the logits of a prompt are the same bits however it is cut, whoever is in the
// batch, on however many threads and whichever instruction set, and after any prefix that was kept.
// With controls that must be seen. REPRISE_LONG runs the whole matrix.
#include <gtest/gtest.h>
#include <llama.h>

#include <cstdlib>
#include <filesystem>

#include "tests/corpus.h"
#include "tests/llama_oracle.h"
#include "tests/logits.h"
#include "tests/model_runner.h"
#include "tests/models.h"
#include "tests/tiny_model.h"

namespace reprise {
namespace {

bool Long() { return std::getenv("REPRISE_LONG") != nullptr; }

struct ModelFileCase {
  std::string name;
  std::string file;
  int quantise_to = -1;  // llama_ftype: a version that llama.cpp's own quantiser makes of it
};
void PrintTo(const ModelFileCase& c, std::ostream* out) { *out << c.name; }

std::vector<ModelFileCase> Files() {
  std::vector<ModelFileCase> files = {
      {"SmolLm2", SmallModels()[0]}, {"Gemma3", SmallModels()[1]}, {"Qwen2", SmallModels()[2]}};
  files.push_back({"SmolLm2Q8_0", SmallModels()[0], LLAMA_FTYPE_MOSTLY_Q8_0});
  files.push_back({"SmolLm2F16", SmallModels()[0], LLAMA_FTYPE_MOSTLY_F16});
  files.push_back({"SmolLm2Bf16", SmallModels()[0], LLAMA_FTYPE_MOSTLY_BF16});
  if (Long()) files.push_back({"Qwen2Large", LargeModel()});
  return files;
}

std::string PathOf(const ModelFileCase& c) {
  const std::string source = ModelPath(c.file);
  if (c.quantise_to < 0) return source;
  const std::string path = TestPath(c.name + ".gguf");
  if (std::filesystem::exists(path)) return path;
  llama_model_quantize_params params = llama_model_quantize_default_params();
  params.ftype = static_cast<llama_ftype>(c.quantise_to);
  params.allow_requantize = true;
  params.nthread = 2;
  llama_log_set([](ggml_log_level, const char*, void*) {}, nullptr);
  EXPECT_EQ(llama_model_quantize(source.c_str(), path.c_str(), &params), 0u);
  return path;
}

class ExactTest : public ::testing::TestWithParam<ModelFileCase> {
 protected:
  // One model at a time is in memory, for all tests over it.
  static void Use(const ModelFileCase& c) {
    if (loaded_ == c.name) return;
    model_.reset();
    const std::string path = PathOf(c);
    model_ = std::make_unique<LoadedModel>(path, ElementType::kF16);
    tokens_ = LlamaOracle(path, {.context = 64}).Tokenize(Corpus().substr(100000, 40000), true);
    loaded_ = c.name;
  }
  static void TearDownTestSuite() { model_.reset(); }

  void SetUp() override {
    Use(GetParam());
    tokens_.resize(std::max<size_t>(tokens_.size(), 4096));
    prompt_ = std::span<const TokenId>(tokens_).first(Long() ? 200 : 72);
    vocab_ = model_->description().vocab_size;
  }

  static RunnerOptions Options() {
    return {.context_max = 512, .batch_rows_max = 256, .logits_rows_max = 256, .sequences_max = 4};
  }
  std::vector<float> Logits(const RunnerOptions& options, uint32_t slice, std::span<const TokenId> tokens) const {
    return ModelRunner(*model_, options).Feed(0, tokens, slice, 0);
  }
  std::vector<float> Cold() const { return Logits(Options(), 256, prompt_); }

  static inline std::string loaded_;
  static inline std::unique_ptr<LoadedModel> model_;
  static inline std::vector<TokenId> tokens_;
  std::span<const TokenId> prompt_;
  uint32_t vocab_ = 0;
};

TEST_P(ExactTest, Slices) {
  const std::vector<float> cold = Cold();
  for (const uint32_t slice : {64u, 7u, 1u}) EXPECT_TRUE(SameBits(cold, Logits(Options(), slice, prompt_))) << slice;
}

TEST_P(ExactTest, ThreadsAndSlots) {
  const std::vector<float> cold = Cold();
  for (const uint32_t threads : {1u, 4u}) {
    RunnerOptions options = Options();
    options.threads = threads;
    options.slot_seed = threads;
    EXPECT_TRUE(SameBits(cold, Logits(options, 64, prompt_))) << threads;
  }
}

TEST_P(ExactTest, InstructionSets) {
  RunnerOptions options = Options();
  options.isa = Isa::kPortable;
  const std::span<const TokenId> prompt = prompt_.first(Long() ? 72 : 24);
  const std::vector<float> portable = Logits(options, 17, prompt);
  for (const Isa isa : {Isa::kAvx2, Isa::kAvx512}) {
    if (!Supported(isa)) {
      std::printf("%s: unverified, this CPU has none\n", std::string(Name(isa)).c_str());
      continue;
    }
    options.isa = isa;
    EXPECT_TRUE(SameBits(portable, Logits(options, 24, prompt))) << Name(isa);
    EXPECT_TRUE(SameBits(portable, Logits(options, 1, prompt))) << Name(isa);
  }
}

// Slices of every size beside three other sequences that decode or are sliced themselves.
TEST_P(ExactTest, RaggedMix) {
  const std::vector<float> cold = Cold();
  ModelRunner runner(*model_, Options());
  const std::span<const TokenId> others = std::span<const TokenId>(tokens_).subspan(1000, 400);
  std::mt19937_64 random(11);
  for (uint32_t done = 0; done < prompt_.size();) {
    const uint32_t rows = std::min<uint32_t>(1 + random() % 23, static_cast<uint32_t>(prompt_.size()) - done);
    std::vector<ModelRunner::Part> parts;
    for (uint32_t mate = 1; mate < 4; ++mate) {
      const uint32_t mate_rows = random() % 3 == 0 ? 1 + random() % 29 : 1;
      if (runner.length(mate) + mate_rows <= others.size() && random() % 4 != 0)
        parts.push_back({mate, others.subspan(runner.length(mate), mate_rows), 0});
    }
    parts.insert(parts.begin() + static_cast<std::ptrdiff_t>(random() % (parts.size() + 1)),
                 {0, prompt_.subspan(done, rows), rows});
    const std::span<const float> logits = runner.Step(parts);
    ASSERT_TRUE(SameBits(std::span(cold).subspan(uint64_t{done} * vocab_, uint64_t{rows} * vocab_), logits)) << done;
    done += rows;
  }
}

// After a kept prefix of every length the rest gives the logits of the cold run.
TEST_P(ExactTest, EveryPrefix) {
  const std::vector<float> cold = Cold();
  const uint32_t length = static_cast<uint32_t>(prompt_.size());
  ModelRunner runner(*model_, Options());
  runner.Feed(0, prompt_, 256, length);
  // From the longest to the shortest: what a rest overwrites is then never kept again.
  for (uint32_t kept = length - 1; kept >= 1; kept -= std::min(kept, Long() ? 1u : 9u)) {
    runner.Rewind(0, kept);
    const ModelRunner::Part part{0, prompt_.subspan(kept), length - kept};
    const std::span<const float> logits = runner.Step({&part, 1});
    ASSERT_TRUE(SameBits(std::span(cold).subspan(uint64_t{kept} * vocab_), logits)) << kept;
  }
}

// Past the sliding window, and many partitions of attention: sampled prefixes of a long prompt.
TEST_P(ExactTest, LongPrompt) {
  const uint32_t length = Long() ? 4000 : 700;
  const std::span<const TokenId> prompt = std::span<const TokenId>(tokens_).first(length);
  RunnerOptions options = Options();
  options.context_max = length;
  options.sequences_max = 1;
  const auto last = [&](ModelRunner& runner, uint32_t kept, uint32_t slice) {
    runner.Rewind(0, kept);
    std::vector<float> out;
    for (uint32_t done = kept; done < length; done += slice) {
      const uint32_t rows = std::min(slice, length - done);
      const ModelRunner::Part part{0, prompt.subspan(done, rows), done + rows == length ? 1u : 0u};
      const std::span<const float> logits = runner.Step({&part, 1});
      out.assign(logits.begin(), logits.end());
    }
    return out;
  };
  ModelRunner runner(*model_, options);
  const std::vector<float> cold = last(runner, 0, 256);
  for (const uint32_t kept : {length - 1, length - 2, length - 77, length - 300})
    EXPECT_TRUE(SameBits(cold, last(runner, kept, 250))) << kept;
  if (!Long()) return;
  for (const uint32_t kept : {2048u, 1025u, 512u, 1u}) EXPECT_TRUE(SameBits(cold, last(runner, kept, 129))) << kept;
}

// The controls: one token, one bit.
TEST_P(ExactTest, OneOtherTokenIsSeen) {
  std::vector<TokenId> other(prompt_.begin(), prompt_.end());
  other[20] = TokenId(other[20].value() + 1);
  const std::vector<float> cold = Cold();
  const std::vector<float> changed = Logits(Options(), 256, other);
  const auto row = [&](const std::vector<float>& logits, uint32_t r) {
    return std::span(logits).subspan(uint64_t{r} * vocab_, vocab_);
  };
  EXPECT_TRUE(SameBits(row(cold, 19), row(changed, 19)));
  for (uint32_t r = 20; r < prompt_.size(); ++r) EXPECT_FALSE(SameBits(row(cold, r), row(changed, r))) << r;
}

TEST_P(ExactTest, OneFlippedKeyBitIsSeen) {
  const uint32_t length = static_cast<uint32_t>(prompt_.size());
  const auto last = [&](bool flip) {
    ModelRunner runner(*model_, Options());
    runner.Feed(0, prompt_.first(length - 1), 256, length);
    if (flip) runner.FlipKeyBit(0, GroupId(0), length / 2);
    const ModelRunner::Part part{0, prompt_.last(1), 1};
    const std::span<const float> logits = runner.Step({&part, 1});
    return std::vector<float>(logits.begin(), logits.end());
  };
  EXPECT_TRUE(SameBits(last(false), last(false)));
  EXPECT_FALSE(SameBits(last(false), last(true)));
}

INSTANTIATE_TEST_SUITE_P(Real, ExactTest, ::testing::ValuesIn(Files()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace reprise
