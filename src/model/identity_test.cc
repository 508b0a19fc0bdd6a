// What is the same computation, and what is not (shared cases: same text, other computation). Each
// difference must be seen in its own tag, and a difference that does not matter in none.
#include "model/identity.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdio>
#include <functional>

#include "absl/strings/str_cat.h"
#include "model/weights.h"
#include "tests/gguf_writer.h"
#include "tests/tiny_model.h"

namespace reprise {
namespace {

ComputationIdentity IdentityOfFile(const std::string& path) {
  const auto model = ModelDescription::Read(path, {});
  EXPECT_TRUE(model.ok()) << model.status();
  Ledger ledger(uint64_t{1} << 30);
  WorkerPool pool(2);
  const auto weights = ModelWeights::Load(**model, pool, ledger, {});
  EXPECT_TRUE(weights.ok()) << weights.status();
  return (*weights)->identity();
}

ComputationIdentity IdentityOf(const GgufWriter& writer) {
  static int count = 0;
  const std::string path = TestPath(absl::StrCat("identity-", count++, ".gguf"));
  WriteFile(path, writer.Bytes());
  return IdentityOfFile(path);
}

ComputationIdentity IdentityOf(const TinyOptions& options, const std::function<void(GgufWriter&)>& change) {
  GgufWriter writer = TinyModel(options);
  change(writer);
  writer.Layout();
  return IdentityOf(writer);
}

// Which tags differ: m(odel) t(okenizer) p(osition) a(ttention) n(umerics).
std::string Difference(const ComputationIdentity& a, const ComputationIdentity& b) {
  return std::string(a.model != b.model ? "m" : "") + (a.tokenizer != b.tokenizer ? "t" : "") +
         (a.position != b.position ? "p" : "") + (a.attention != b.attention ? "a" : "") +
         (a.numerics != b.numerics ? "n" : "");
}

std::string DifferenceBy(const std::function<void(GgufWriter&)>& change, const TinyOptions& options = {.layers = 1}) {
  return Difference(IdentityOf(options, [](GgufWriter&) {}), IdentityOf(options, change));
}

TEST(IdentityTest, NamesAndLicencesDoNotMatter) {
  EXPECT_EQ(DifferenceBy([](GgufWriter& w) {
              w.EraseValue("general.name");
              w.Text("general.name", "other");
              w.Text("general.license", "MIT");
              w.Text("tokenizer.chat_template", "{{ messages }}");
              w.U32("general.file_type", 7);
            }),
            "");
}

TEST(IdentityTest, TheOrderInTheFileDoesNotMatter) {
  EXPECT_EQ(DifferenceBy([](GgufWriter& w) {
              std::reverse(w.tensors.begin(), w.tensors.end());
              std::reverse(w.values.begin(), w.values.end());
            }),
            "");
  EXPECT_EQ(DifferenceBy([](GgufWriter& w) {
              w.U32("general.alignment", 64);
              w.alignment = 64;
            }),
            "");
}

TEST(IdentityTest, EveryTensorCounts) {
  const size_t tensors = TinyModel({.layers = 1}).tensors.size();
  for (size_t t = 0; t < tensors; ++t)
    EXPECT_EQ(DifferenceBy([&](GgufWriter& w) { w.tensors[t].data[40] ^= 1; }), "m") << t;
}

TEST(IdentityTest, BothEndsOfALongTensorCount) {
  const TinyOptions options = {.embedding_type = WeightType::kF32, .layers = 1, .vocab = 2000};
  const auto flip = [&](uint64_t from_end) {
    return DifferenceBy(
        [&](GgufWriter& w) {
          std::string& data = w.FindTensor("token_embd.weight")->data;
          data[from_end == 0 ? 0 : data.size() - from_end] ^= 1;
        },
        options);
  };
  EXPECT_EQ(flip(0), "m");
  EXPECT_EQ(flip(1), "m");
  EXPECT_EQ(flip(1000000), "m");
}

TEST(IdentityTest, SwappedTensorsAreAnotherModel) {
  EXPECT_EQ(DifferenceBy([](GgufWriter& w) {
              std::swap(w.FindTensor("blk.0.ffn_gate.weight")->data, w.FindTensor("blk.0.ffn_up.weight")->data);
            }),
            "m");
}

TEST(IdentityTest, RequantisedTensorsAreAnotherModel) {
  EXPECT_EQ(Difference(IdentityOf({.type = WeightType::kF16, .layers = 1}, [](GgufWriter&) {}),
                       IdentityOf({.type = WeightType::kBF16, .layers = 1}, [](GgufWriter&) {})),
            "m");
}

TEST(IdentityTest, NormEpsilonIsTheModel) {
  EXPECT_EQ(DifferenceBy([](GgufWriter& w) {
              w.EraseValue("llama.attention.layer_norm_rms_epsilon");
              w.F32("llama.attention.layer_norm_rms_epsilon", 1e-6f);
            }),
            "m");
}

TEST(IdentityTest, TokenizerHasItsOwnTag) {
  EXPECT_EQ(DifferenceBy([](GgufWriter& w) {
              w.EraseValue("tokenizer.ggml.pre");
              w.Text("tokenizer.ggml.pre", "qwen2");
            }),
            "t");
  EXPECT_EQ(DifferenceBy([](GgufWriter& w) { w.FindValue("tokenizer.ggml.tokens")->bytes.back() ^= 1; }), "t");
  EXPECT_EQ(DifferenceBy([](GgufWriter& w) { w.FindValue("tokenizer.ggml.scores")->bytes.back() ^= 1; }), "t");
  EXPECT_EQ(DifferenceBy([](GgufWriter& w) {
              w.EraseValue("tokenizer.ggml.eos_token_id");
              w.U32("tokenizer.ggml.eos_token_id", 1);
            }),
            "t");
}

TEST(IdentityTest, RopeHasItsOwnTag) {
  EXPECT_EQ(DifferenceBy([](GgufWriter& w) {
              w.EraseValue("llama.rope.freq_base");
              w.F32("llama.rope.freq_base", 50001.0f);
            }),
            "p");
  EXPECT_EQ(DifferenceBy([](GgufWriter& w) { w.F32("llama.rope.scaling.factor", 2.0f); }), "p");
  // Said or implied: the same.
  EXPECT_EQ(DifferenceBy([](GgufWriter& w) { w.EraseValue("llama.rope.dimension_count"); }), "");
  EXPECT_EQ(DifferenceBy([](GgufWriter& w) { w.Text("llama.rope.scaling.type", "none"); }), "");
}

TEST(IdentityTest, RopeFactorsCountTwice) {
  EXPECT_EQ(DifferenceBy([](GgufWriter& w) { w.FindTensor("rope_freqs.weight")->data[2] ^= 1; },
                         {.layers = 1, .rope_factors = true}),
            "mp");
}

TEST(IdentityTest, WindowsHaveTheirOwnTag) {
  const TinyOptions gemma = {.family = Family::kGemma3, .layers = 7, .window = 8};
  EXPECT_EQ(DifferenceBy(
                [](GgufWriter& w) {
                  w.EraseValue("gemma3.attention.sliding_window");
                  w.U32("gemma3.attention.sliding_window", 16);
                },
                gemma),
            "a");
  EXPECT_EQ(DifferenceBy([](GgufWriter& w) { w.U32("gemma3.attention.sliding_window_pattern", 6); }, gemma), "");
  EXPECT_EQ(DifferenceBy([](GgufWriter& w) { w.U32("gemma3.attention.sliding_window_pattern", 2); }, gemma), "pa");
}

TEST(IdentityTest, TypesWithoutAKernelAreNamedInTheNumerics) {
  const ComputationIdentity foreign =
      IdentityOf({.type = static_cast<WeightType>(20), .layers = 1}, [](GgufWriter&) {});  // IQ4_NL
  EXPECT_THAT(foreign.numerics, ::testing::HasSubstr("iq4_nl"));
  EXPECT_EQ(IdentityOf({.layers = 1}, [](GgufWriter&) {}).numerics, absl::StrCat(kNumericsVersion));
}

// Shared case 1: neither name, size nor times tell what a file holds.
TEST(IdentityTest, OtherWeightsUnderTheSameNameSizeAndTimeAreSeen) {
  const std::string path = TestPath("same-name.gguf"), aside = TestPath("aside.gguf");
  const GgufWriter plain = TinyModel({.layers = 1});
  GgufWriter changed = plain;
  changed.FindTensor("blk.0.ffn_down.weight")->data[1000] ^= 1;
  WriteFile(path, plain.Bytes());
  struct stat first;
  ASSERT_EQ(stat(path.c_str(), &first), 0);
  const Digest before = IdentityOfFile(path).model;

  const auto set_time = [&first](const std::string& file) {
    const struct timespec times[2] = {first.st_atim, first.st_mtim};
    ASSERT_EQ(utimensat(AT_FDCWD, file.c_str(), times, 0), 0);
    struct stat now;
    ASSERT_EQ(stat(file.c_str(), &now), 0);
    ASSERT_EQ(now.st_size, first.st_size);
    ASSERT_EQ(now.st_mtim.tv_nsec, first.st_mtim.tv_nsec);
  };
  WriteFile(path, changed.Bytes());  // in place
  set_time(path);
  const Digest rewritten = IdentityOfFile(path).model;
  EXPECT_NE(rewritten, before);
  WriteFile(aside, plain.Bytes());  // replaced by another file
  set_time(aside);
  ASSERT_EQ(std::rename(aside.c_str(), path.c_str()), 0);
  EXPECT_EQ(IdentityOfFile(path).model, before) << "the control: the same content is the same model";
  WriteFile(aside, changed.Bytes());
  set_time(aside);
  ASSERT_EQ(std::rename(aside.c_str(), path.c_str()), 0);
  EXPECT_EQ(IdentityOfFile(path).model, rewritten);
}

// The bytes of docs/format/identity_model.md: changing them makes every stored entry a miss.
TEST(IdentityTest, TextsAreCanonical) {
  const ComputationIdentity plain = IdentityOf({.layers = 1}, [](GgufWriter&) {});
  EXPECT_EQ(plain.position, "rope_normal/dims=64/base=50000/scale=1");
  EXPECT_EQ(plain.attention, "causal/scale=0.125");
  const ComputationIdentity gemma =
      IdentityOf({.family = Family::kGemma3, .layers = 3, .window = 8, .window_period = 3}, [](GgufWriter&) {});
  EXPECT_EQ(gemma.position, "rope_neox/dims=64/base=50000/scale=1;rope_neox/dims=64/base=10000/scale=1;layers=110");
  EXPECT_EQ(gemma.attention, "causal/scale=0.125/windows=8,8,0");
  const ComputationIdentity yarn = IdentityOf({.layers = 1, .rope_scaling = "yarn"}, [](GgufWriter&) {});
  EXPECT_EQ(yarn.position, "rope_normal/dims=64/base=50000/scale=0.25/yarn=1,32,1,1024");
}

}  // namespace
}  // namespace reprise
