// LoRA adapters on tiny models: right against libllama, the same bits however it is cut and run, seen in the
// identity, and hostile files refused by name.
#include "model/adapter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <random>

#include "absl/strings/str_cat.h"
#include "model/identity.h"
#include "tests/allocation_counter.h"
#include "tests/llama_oracle.h"
#include "tests/logits.h"
#include "tests/model_runner.h"
#include "tests/random_lora.h"
#include "tests/tiny_model.h"

namespace reprise {
namespace {

using ::testing::HasSubstr;

const std::vector<std::string> kAllParts = {"attn_q",   "attn_k", "attn_v",  "attn_output",
                                            "ffn_gate", "ffn_up", "ffn_down"};

std::vector<TokenId> RandomTokens(uint32_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::uniform_int_distribution<int32_t> token(3, 319);
  std::vector<TokenId> out;
  for (uint32_t i = 0; i < count; ++i) out.push_back(TokenId(token(random)));
  return out;
}

std::string FreshName(const char* kind) {
  static int count = 0;
  return absl::StrCat(kind, "-", count++, ".gguf");
}

std::string WriteTiny(const TinyOptions& options) {
  const std::string path = TestPath(FreshName("adapted"));
  WriteFile(path, TinyModel(options).Bytes());
  return path;
}

std::unique_ptr<ModelDescription> Describe(const std::string& path, const std::vector<AdapterOptions>& adapters = {}) {
  auto model = ModelDescription::Read(path, {.adapters = adapters});
  EXPECT_TRUE(model.ok()) << model.status();
  return *std::move(model);
}

struct Case {
  const char* name;
  TinyOptions model;
  LoraOptions first, second;
  double kl_bound = 1e-5;
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

std::vector<Case> Cases() {
  const auto floats = [](TinyOptions options) {
    options.type = options.embedding_type = WeightType::kF32;
    return options;
  };
  LoraOptions all, some, bf16, f16, q8_0, no_alpha;
  all.parts = bf16.parts = kAllParts;
  some.parts = {"ffn_up"};
  some.rank = 3;
  some.alpha = 2;
  some.seed = 6;
  bf16.a_type = WeightType::kBF16;
  bf16.rank = 20;
  f16.a_type = WeightType::kF16;
  f16.rank = 16;
  q8_0.a_type = WeightType::kQ8_0;
  no_alpha.alpha = 0;
  no_alpha.strength = 0.2f;
  std::vector<Case> cases;
  const auto add = [&](const char* name, TinyOptions model, const LoraOptions& first, const LoraOptions& second,
                       double kl_bound) {
    cases.push_back({name, model, first, second, kl_bound});
  };
  add("Llama", floats({}), all, some, 1e-5);
  add("LlamaQ8_0", {}, all, some, 1e-2);
  add("LlamaHalfTypes", floats({}), bf16, f16, 1e-3);
  add("LlamaQuantisedA", floats({}), q8_0, some, 1e-3);
  add("LlamaWithoutAlpha", floats({}), no_alpha, some, 1e-5);
  add("Qwen2", floats({.family = Family::kQwen2}), all, some, 1e-5);
  add("Gemma3", floats({.family = Family::kGemma3, .layers = 7, .window = 24}), all, some, 1e-5);
  return cases;
}

class AdapterTest : public ::testing::TestWithParam<Case> {
 protected:
  AdapterTest()
      : path_(WriteTiny(GetParam().model)),
        first_(WriteRandomLora(*Describe(path_), GetParam().first, FreshName("first"))),
        second_(WriteRandomLora(*Describe(path_), GetParam().second, FreshName("second"))),
        model_(path_, ElementType::kF16, {{first_, 1.0f}, {second_, 1.0f}}) {}

  RunnerOptions Options() const { return {.context_max = 256, .batch_rows_max = 128}; }
  std::vector<float> Logits(const RunnerOptions& options, uint32_t slice, std::span<const AdapterUse> uses) const {
    return ModelRunner(model_, options).Feed(0, tokens_, slice, 0, uses);
  }

  const std::string path_, first_, second_;
  const LoadedModel model_;
  const std::vector<TokenId> tokens_ = RandomTokens(100, 7);
  const std::vector<AdapterUse> both_ = {{0, 0.5f}, {1, 1.5f}};
};

TEST_P(AdapterTest, AgreesWithLibllama) {
  LlamaOracle oracle(path_, {.context = 256});
  const std::vector<float> base = Logits(Options(), 100, {});
  const std::vector<std::vector<AdapterUse>> all_uses = {{}, {{0, 1.0f}}, {{0, 0.5f}}, {{1, -2.0f}}, both_};
  for (const std::vector<AdapterUse>& uses : all_uses) {
    std::vector<std::pair<std::string, float>> theirs;
    for (const AdapterUse& use : uses) theirs.emplace_back(use.adapter == 0 ? first_ : second_, use.scale);
    oracle.UseAdapters(theirs);
    const std::vector<float> reference = oracle.Logits(tokens_, 0);
    const Agreement agreement = Compare(reference, Logits(Options(), 100, uses), oracle.vocab_size());
    const double moved = Compare(reference, base, oracle.vocab_size()).mean_kl;
    std::printf("%s, %zu adapters: same first choice %.3f, mean KL %.2e; without them %.2e\n", GetParam().name,
                uses.size(), agreement.same_first, agreement.mean_kl, moved);
    EXPECT_LE(agreement.mean_kl, GetParam().kl_bound);
    // The control: the adapters do much more than rounding.
    if (!uses.empty()) {
      EXPECT_GT(moved, 20 * agreement.mean_kl);
    }
  }
}

TEST_P(AdapterTest, SlicesThreadsAndInstructionSetsDoNotMatter) {
  const std::vector<float> whole = Logits(Options(), 100, both_);
  for (const uint32_t slice : {64u, 7u, 1u}) EXPECT_TRUE(SameBits(whole, Logits(Options(), slice, both_))) << slice;
  for (const uint32_t threads : {1u, 3u}) {
    RunnerOptions options = Options();
    options.threads = threads;
    EXPECT_TRUE(SameBits(whole, Logits(options, 33, both_))) << threads;
  }
  for (const Isa isa : {Isa::kPortable, Isa::kAvx2, Isa::kAvx512}) {
    if (!Supported(isa)) continue;
    RunnerOptions options = Options();
    options.isa = isa;
    EXPECT_TRUE(SameBits(whole, Logits(options, 50, both_))) << Name(isa);
  }
}

// Others in the same batches use other adapters, or none, in changing numbers and order.
TEST_P(AdapterTest, BatchMatesDoNotMatter) {
  const std::vector<AdapterUse> one = {{1, 1.0f}}, none, other_order = {{1, 1.5f}, {0, 0.5f}};
  const std::vector<std::span<const AdapterUse>> choices = {both_, none, one, other_order};
  const uint32_t vocab = model_.description().vocab_size;
  const std::vector<TokenId> others = RandomTokens(200, 8);
  for (const std::span<const AdapterUse> ours : choices) {
    const std::vector<float> alone = Logits(Options(), 100, ours);
    ModelRunner runner(model_, Options());
    std::mt19937_64 random(5);
    for (uint32_t done = 0; done < tokens_.size();) {
      const uint32_t rows = std::min<uint32_t>(1 + random() % 30, static_cast<uint32_t>(tokens_.size()) - done);
      std::vector<ModelRunner::Part> parts;
      uint32_t before = 0;  // rows of logits in front of ours
      for (uint32_t m = 1; m < 4; ++m) {
        const uint32_t mate_rows = 1 + random() % 17, wanted = random() % (mate_rows + 1);
        if (runner.length(m) + mate_rows > others.size()) continue;
        parts.push_back({m, std::span(others).subspan(runner.length(m), mate_rows), wanted, choices[m]});
        before += wanted;
      }
      parts.push_back({0, std::span(tokens_).subspan(done, rows), rows, ours});
      parts.push_back({4, std::span(others).subspan(runner.length(4), 1), random() % 2 == 0 ? 1u : 0u, choices[0]});
      const std::span<const float> logits =
          runner.Step(parts).subspan(uint64_t{before} * vocab, uint64_t{rows} * vocab);
      ASSERT_TRUE(SameBits(std::span(alone).subspan(uint64_t{done} * vocab, uint64_t{rows} * vocab), logits)) << done;
      done += rows;
    }
  }
}

// What must be seen, and what must not.
TEST_P(AdapterTest, WhatTakesPartIsSeen) {
  const std::vector<float> base = Logits(Options(), 100, {});
  const std::vector<float> both = Logits(Options(), 100, both_);
  const std::vector<AdapterUse> weaker = {{0, 0.25f}, {1, 1.5f}}, off = {{0, 0.0f}, {1, -0.0f}},
                                half_off = {{0, 0.5f}, {1, 0.0f}}, first_half = {{0, 0.5f}};
  EXPECT_FALSE(SameBits(base, both));
  EXPECT_FALSE(SameBits(both, Logits(Options(), 100, weaker)));
  EXPECT_TRUE(SameBits(base, Logits(Options(), 100, off)));
  EXPECT_TRUE(SameBits(Logits(Options(), 100, half_off), Logits(Options(), 100, first_half)));
  EXPECT_TRUE(SameBits(base, ModelRunner(LoadedModel(path_, ElementType::kF16), Options()).Feed(0, tokens_, 100, 0)));
}

TEST_P(AdapterTest, RunAllocatesNothing) {
  ModelRunner runner(model_, Options());
  runner.Feed(0, tokens_, 100, 0, both_);
  const std::vector<std::vector<SlotId>> tables(model_.description().geometry.groups.size(),
                                                std::vector<SlotId>(16, SlotId(0)));
  const std::vector<std::span<const SlotId>> views(tables.begin(), tables.end());
  const BatchSlice slice{std::span(tokens_).first(40), 0, views, 1, both_};
  const uint64_t before = AllocationCount();
  EXPECT_TRUE(runner.forward().Run({{&slice, 1}}).ok());
  EXPECT_EQ(AllocationCount(), before);
}

INSTANTIATE_TEST_SUITE_P(Tiny, AdapterTest, ::testing::ValuesIn(Cases()),
                         [](const auto& info) { return std::string(info.param.name); });

// The head has its own matrix: an adapter of it, over rows of logits in several parts.
TEST(AdapterHeadTest, AnOwnHeadIsAdapted) {
  const TinyOptions tiny = {.type = WeightType::kF32, .embedding_type = WeightType::kF32, .tied = false};
  const std::string path = WriteTiny(tiny);
  const auto description = Describe(path);
  GgufWriter lora = RandomLora(*description, {.parts = {"attn_q"}});
  lora.AddTensor("output.weight.lora_a", 0, {256, 4}, RandomRows(WeightType::kF32, 4, 256, 0.06f, 1));
  lora.AddTensor("output.weight.lora_b", 0, {4, 320}, RandomRows(WeightType::kF32, 320, 4, 0.2f, 2));
  lora.Layout();
  const std::string lora_path = TestPath(FreshName("head"));
  WriteFile(lora_path, lora.Bytes());
  const LoadedModel model(path, ElementType::kF16, {{lora_path, 1.0f}});
  ModelRunner runner(model, {.context_max = 256, .batch_rows_max = 128, .sequences_max = 1});
  const std::vector<TokenId> tokens = RandomTokens(100, 7);
  const std::vector<AdapterUse> uses = {{0, 1.0f}};
  LlamaOracle oracle(path, {.context = 256});
  const std::vector<std::pair<std::string, float>> theirs = {{lora_path, 1.0f}};
  oracle.UseAdapters(theirs);
  const std::vector<float> reference = oracle.Logits(tokens, 0);
  EXPECT_LE(Compare(reference, runner.Feed(0, tokens, 100, 0, uses), 320).mean_kl, 1e-5);
  EXPECT_GT(Compare(reference, runner.Feed(0, tokens, 100, 0), 320).mean_kl, 1e-3);
}

// Scratch holds 256 rows of a layer's matrix, and one of the head's: longer batches go through it in parts.
TEST(AdapterScratchTest, MoreRowsThanItHoldsAreTheSame) {
  const std::string path = WriteTiny({.tied = false});
  const auto description = Describe(path);
  const std::string layers = WriteRandomLora(*description, {.parts = kAllParts}, FreshName("layers"));
  GgufWriter head = RandomLora(*description, {.parts = {}});
  head.AddTensor("output.weight.lora_a", 0, {256, 4}, RandomRows(WeightType::kF32, 4, 256, 0.06f, 1));
  head.AddTensor("output.weight.lora_b", 0, {4, 320}, RandomRows(WeightType::kF32, 320, 4, 0.2f, 2));
  head.Layout();
  const std::string head_path = TestPath(FreshName("head"));
  WriteFile(head_path, head.Bytes());
  const std::vector<TokenId> tokens = RandomTokens(600, 7);
  const std::vector<AdapterUse> uses = {{0, 1.0f}};
  for (const std::string& lora : {layers, head_path}) {
    const LoadedModel model(path, ElementType::kF16, {{lora, 1.0f}});
    const RunnerOptions options = {.context_max = 1024, .batch_rows_max = 600, .logits_rows_max = 600};
    const std::vector<float> whole = ModelRunner(model, options).Feed(0, tokens, 600, 0, uses);
    EXPECT_TRUE(SameBits(whole, ModelRunner(model, options).Feed(0, tokens, 41, 0, uses))) << lora;
    EXPECT_FALSE(SameBits(whole, ModelRunner(model, options).Feed(0, tokens, 600, 0))) << "the control";
  }
}

TEST(AdapterIdentityTest, NamesTheContentOrderAndScale) {
  const std::vector<AdapterInfo> infos = {{.name = "a", .content = Sha256::Of("lora-1")},
                                          {.name = "b", .content = Sha256::Of("lora-2")}};
  const auto identity = [&](const std::vector<AdapterUse>& uses) { return AdaptersIdentity(infos, uses); };
  EXPECT_EQ(identity({}), "");
  EXPECT_EQ(identity({{0, 0.0f}, {1, -0.0f}}), "");
  EXPECT_EQ(identity({{0, 0.0f}, {1, 2.0f}}), identity({{1, 2.0f}}));
  EXPECT_NE(identity({{0, 0.5f}, {1, 1.0f}}), identity({{1, 1.0f}, {0, 0.5f}}));
  EXPECT_NE(identity({{0, 0.5f}}), identity({{0, 0.25f}}));
  EXPECT_NE(identity({{0, 0.5f}}), identity({{1, 0.5f}}));
  // Byte for byte, as docs/format/identity.md has it.
  const std::string two = identity({{0, 0.5f}, {1, 1.0f}});
  ASSERT_EQ(two.size(), 4u + 2 * 36);
  EXPECT_EQ(two.substr(0, 4), std::string("\2\0\0\0", 4));
  EXPECT_EQ(two.substr(4, 32), std::string(reinterpret_cast<const char*>(infos[0].content.bytes.data()), 32));
  EXPECT_EQ(two.substr(36, 4), std::string("\0\0\0\x3f", 4));
}

class AdapterFileTest : public ::testing::Test {
 protected:
  const std::string path_ = WriteTiny({.layers = 2});
  const std::unique_ptr<ModelDescription> model_ = Describe(path_);

  // Why the file is refused after a change; empty: it is not.
  std::string Refusal(const std::function<void(GgufWriter&)>& change, absl::StatusCode* code = nullptr) const {
    GgufWriter writer = RandomLora(*model_, {});
    change(writer);
    writer.Layout();
    const std::string bytes = writer.Bytes();
    AdapterDescription adapter;
    const absl::Status status = DescribeAdapter(MemorySource(bytes), *model_, adapter);
    if (code != nullptr) *code = status.code();
    return std::string(status.message());
  }
  Digest Content(const std::function<void(GgufWriter&)>& change) const {
    GgufWriter writer = RandomLora(*model_, {});
    change(writer);
    writer.Layout();
    const std::string path = TestPath(FreshName("content"));
    WriteFile(path, writer.Bytes());
    Ledger ledger(1 << 28);
    WorkerPool pool(2);
    const auto description = ReadAdapter({path}, *model_);
    EXPECT_TRUE(description.ok()) << description.status();
    const auto weights = AdapterWeights::Load(*description, pool, ledger);
    EXPECT_TRUE(weights.ok()) << weights.status();
    EXPECT_EQ(ledger.taken_bytes(), AdapterWeights::FootprintOf(*description).bytes);
    return (*weights)->info().content;
  }
};

TEST_F(AdapterFileTest, ContentIsTensorsAndAlpha) {
  const Digest plain = Content([](GgufWriter&) {});
  EXPECT_EQ(plain, Content([](GgufWriter& w) { w.Text("general.name", "another name"); }));
  EXPECT_EQ(plain, Content([](GgufWriter& w) { std::reverse(w.tensors.begin(), w.tensors.end()); }));
  EXPECT_NE(plain, Content([](GgufWriter& w) { w.tensors[3].data[17] ^= 1; }));
  EXPECT_NE(plain, Content([](GgufWriter& w) {
              w.EraseValue("adapter.lora.alpha");
              w.F32("adapter.lora.alpha", 8.0f);
            }));
}

TEST_F(AdapterFileTest, RefusesWhatIsNotThisModelsAdapter) {
  const auto replace = [](const char* key, const char* text) {
    return [=](GgufWriter& w) {
      w.EraseValue(key);
      w.Text(key, text);
    };
  };
  EXPECT_EQ(Refusal([](GgufWriter&) {}), "");
  EXPECT_THAT(Refusal(replace("general.type", "model")), HasSubstr("general.type is 'model', must be 'adapter'"));
  EXPECT_THAT(Refusal(replace("adapter.type", "control")), HasSubstr("adapter.type is 'control'"));
  EXPECT_THAT(Refusal(replace("general.architecture", "qwen2")), HasSubstr("must be 'llama'"));
  EXPECT_THAT(Refusal([](GgufWriter& w) { w.EraseValue("general.type"); }), HasSubstr("general.type is absent"));
  EXPECT_THAT(Refusal([](GgufWriter& w) {
                w.U32Array("adapter.alora.invocation_tokens", {1, 2});
              }),
              HasSubstr("activated LoRA"));
  EXPECT_THAT(Refusal([](GgufWriter& w) { w.tensors.clear(); }), HasSubstr("has no tensors"));
  EXPECT_THAT(Refusal([](GgufWriter& w) { w.FindValue("adapter.lora.alpha")->bytes.replace(4, 4, "\0\0\xc0\x7f", 4); }),
              HasSubstr("adapter.lora.alpha"));
}

TEST_F(AdapterFileTest, RefusesTensorsByNameAndShape) {
  const auto rename = [](const char* from, const char* to) {
    return [=](GgufWriter& w) { w.FindTensor(from)->name = to; };
  };
  EXPECT_THAT(Refusal([](GgufWriter& w) { w.EraseTensor("blk.0.attn_q.weight.lora_b"); }),
              HasSubstr("'blk.0.attn_q.weight.lora_b': is missing"));
  EXPECT_THAT(Refusal([](GgufWriter& w) { w.EraseTensor("blk.1.attn_q.weight.lora_a"); }),
              HasSubstr("'blk.1.attn_q.weight.lora_a': is missing"));
  EXPECT_THAT(Refusal(rename("blk.0.attn_q.weight.lora_a", "blk.0.attn_norm.weight")), HasSubstr("not one of a pair"));
  EXPECT_THAT(Refusal([](GgufWriter& w) {
                for (GgufWriter::Tensor& tensor : w.tensors) tensor.name[4] = tensor.name[4] == '1' ? '7' : '0';
              }),
              HasSubstr("the model has no 'blk.7."));
  EXPECT_THAT(Refusal([](GgufWriter& w) {
                w.FindTensor("blk.0.attn_q.weight.lora_a")->name = "token_embd.weight.lora_a";
                w.FindTensor("blk.0.attn_q.weight.lora_b")->name = "token_embd.weight.lora_b";
              }),
              HasSubstr("adapters of the embedding are not supported"));
  // Rank of B other than of A; a shape that is another matrix's.
  EXPECT_THAT(Refusal([](GgufWriter& w) {
                GgufWriter::Tensor& b = *w.FindTensor("blk.0.attn_q.weight.lora_b");
                b.dims = {4, 256};
                b.data.resize(4 * 256 * 4);
              }),
              HasSubstr("'blk.0.attn_q.weight.lora_b': shape [4, 256] must be [8, 256]"));
  EXPECT_THAT(Refusal([](GgufWriter& w) {
                std::swap(w.FindTensor("blk.0.ffn_down.weight.lora_a")->name,
                          w.FindTensor("blk.0.attn_q.weight.lora_a")->name);
              }),
              HasSubstr("must be ["));
  absl::StatusCode code = absl::StatusCode::kOk;
  EXPECT_THAT(Refusal(
                  [](GgufWriter& w) {
                    GgufWriter::Tensor& a = *w.FindTensor("blk.0.attn_q.weight.lora_a");
                    a.type = 20;  // IQ4_NL
                    a.data = RandomRows(static_cast<WeightType>(20), 8, 256, 0.1f, 1);
                  },
                  &code),
              HasSubstr("is not supported"));
  EXPECT_EQ(code, absl::StatusCode::kUnimplemented);
}

// Bytes changed at random, and files cut short: a refusal or an adapter that fits the model, never anything else.
TEST_F(AdapterFileTest, DamagedFilesAreRefusedOrFit) {
  const std::string bytes = RandomLora(*model_, {.rank = 2}).Bytes();
  const size_t head = bytes.find("ffn_down.weight.lora_b") + 200;  // what is read; behind it are numbers
  std::mt19937_64 random(3);
  uint32_t refused = 0;
  for (uint32_t round = 0; round < 3000; ++round) {
    std::string damaged = bytes;
    for (uint32_t flips = 1 + random() % 3; flips > 0; --flips)
      damaged[random() % head] = static_cast<char>(random() % 2 == 0 ? random() : 1 << random() % 7);
    if (random() % 4 == 0) damaged.resize(random() % damaged.size());
    AdapterDescription adapter;
    if (!DescribeAdapter(MemorySource(damaged), *model_, adapter).ok()) {
      ++refused;
      continue;
    }
    ASSERT_EQ(adapter.tensors.size() % 2, 0u);
    for (size_t i = 0; i < adapter.tensors.size(); i += 2) {
      const TensorSource& a = adapter.tensors[i];
      const TensorSource& b = adapter.tensors[i + 1];
      ASSERT_EQ(a.rows, b.cols) << round;
      ASSERT_LE(a.rows, adapter.rank_max);
      ASSERT_LE(a.offset + a.bytes, damaged.size());
      ASSERT_LE(b.offset + b.bytes, damaged.size());
    }
  }
  EXPECT_GT(refused, 1000u);
  EXPECT_LT(refused, 3000u) << "the control: not everything is refused";
}

TEST_F(AdapterFileTest, AFileThatChangesBeforeItIsLoadedIsRefused) {
  const std::string path = WriteRandomLora(*model_, {}, "changing.gguf");
  const auto description = ReadAdapter({path}, *model_);
  ASSERT_TRUE(description.ok());
  Ledger ledger(1 << 28);
  WorkerPool pool(1);
  EXPECT_TRUE(AdapterWeights::Load(*description, pool, ledger).ok()) << "the control";
  std::filesystem::rename(WriteRandomLora(*model_, {.seed = 2}, "other.gguf"), path);
  EXPECT_EQ(AdapterWeights::Load(*description, pool, ledger).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(ledger.taken_bytes(), 0u);
}

TEST_F(AdapterFileTest, RefusesNamesTwiceScalesThatAreNoneAndMissingFiles) {
  const std::string path = WriteRandomLora(*model_, {}, "same.gguf");
  const auto read = [&](const std::vector<AdapterOptions>& adapters) {
    return std::string(ModelDescription::Read(path_, {.adapters = adapters}).status().message());
  };
  EXPECT_EQ(read({{path, 1.0f}}), "");
  EXPECT_THAT(read({{path, 1.0f}, {path, 0.5f}}), HasSubstr("would both be called 'same'"));
  EXPECT_THAT(read({{path, std::nanf("")}}), HasSubstr("scale nan"));
  EXPECT_THAT(read({{path + "x", 1.0f}}), HasSubstr(path + "x"));
  EXPECT_THAT(read({{path_, 1.0f}}), HasSubstr("general.type is absent, must be 'adapter'"));
}

}  // namespace
}  // namespace reprise
