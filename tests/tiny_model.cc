#include "tests/tiny_model.h"

#include <ggml.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <random>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/check.h"

namespace reprise {
namespace {

void AddTokenizer(const TinyOptions& o, GgufWriter& out) {
  std::vector<std::string> tokens = {"<unk>", "<s>", "</s>"};
  std::vector<uint32_t> types = {2, 3, 3};
  for (int byte = 0; byte < 256; ++byte) {
    tokens.push_back(absl::StrFormat("<0x%02X>", byte));
    types.push_back(6);
  }
  while (tokens.size() < o.vocab) {
    tokens.push_back(absl::StrCat("t", tokens.size()));
    types.push_back(1);
  }
  out.Text("tokenizer.ggml.model", "llama");
  out.Text("tokenizer.ggml.pre", "default");
  out.TextArray("tokenizer.ggml.tokens", tokens);
  out.F32Array("tokenizer.ggml.scores", std::vector<float>(tokens.size(), 0.0f));
  std::string array;
  out.U32Array("tokenizer.ggml.token_type", types);
  out.values.back().bytes[4] = static_cast<char>(GgufType::kI32);  // the element type that libllama expects
  out.U32("tokenizer.ggml.bos_token_id", 1);
  out.U32("tokenizer.ggml.eos_token_id", 2);
}

void AddMetadata(const TinyOptions& o, GgufWriter& out) {
  const std::string family(Name(o.family));
  const auto key = [&](const char* name) { return absl::StrCat(family, ".", name); };
  out.Text("general.architecture", family);
  out.Text("general.name", "tiny");
  out.U32(key("block_count"), o.layers);
  out.U32(key("context_length"), o.context);
  out.U32(key("embedding_length"), o.width);
  out.U32(key("feed_forward_length"), o.feed_forward);
  out.U32(key("attention.head_count"), o.query_heads);
  out.U32(key("attention.head_count_kv"), o.kv_heads);
  out.U32(key("attention.key_length"), o.head_dim);
  out.U32(key("attention.value_length"), o.head_dim);
  out.F32(key("attention.layer_norm_rms_epsilon"), 1e-5f);
  out.U32(key("rope.dimension_count"), o.head_dim);
  out.F32(key("rope.freq_base"), 50000.0f);
  if (o.window > 0) out.U32(key("attention.sliding_window"), o.window);
  if (o.window_period > 0) out.U32(key("attention.sliding_window_pattern"), o.window_period);
  if (!o.rope_scaling.empty()) {
    out.Text(key("rope.scaling.type"), o.rope_scaling);
    out.F32(key("rope.scaling.factor"), 4.0f);
    out.U32(key("rope.scaling.original_context_length"), o.context / 4);
  }
}

class TensorMaker {
 public:
  TensorMaker(const TinyOptions& options, GgufWriter& out) : options_(options), out_(out), seed_(options.seed * 1000) {}

  void Matrix(const std::string& name, uint64_t rows, uint64_t cols, WeightType type) {
    const float size = 1.0f / std::sqrt(static_cast<float>(cols));
    out_.AddTensor(name, static_cast<uint32_t>(type), {cols, rows}, RandomRows(type, rows, cols, size, ++seed_));
  }
  void Matrix(const std::string& name, uint64_t rows, uint64_t cols) { Matrix(name, rows, cols, options_.type); }

  // Around `middle`, so that a norm that is left out is seen.
  void Vector(const std::string& name, uint64_t count, float middle, float spread) {
    std::mt19937_64 random(++seed_);
    std::uniform_real_distribution<float> value(middle - spread, middle + spread);
    std::string data(count * sizeof(float), '\0');
    for (uint64_t i = 0; i < count; ++i) reinterpret_cast<float*>(data.data())[i] = value(random);
    out_.AddTensor(name, static_cast<uint32_t>(WeightType::kF32), {count}, std::move(data));
  }

 private:
  const TinyOptions& options_;
  GgufWriter& out_;
  uint64_t seed_;
};

void AddLayer(const TinyOptions& o, uint32_t layer, TensorMaker& maker) {
  const auto name = [&](const char* part) { return absl::StrCat("blk.", layer, ".", part); };
  const uint64_t queries = uint64_t{o.query_heads} * o.head_dim;
  const uint64_t keys = uint64_t{o.kv_heads} * o.head_dim;
  maker.Vector(name("attn_norm.weight"), o.width, 1.0f, 0.3f);
  maker.Matrix(name("attn_q.weight"), queries, o.width);
  maker.Matrix(name("attn_k.weight"), keys, o.width);
  maker.Matrix(name("attn_v.weight"), keys, o.width);
  if (o.family == Family::kQwen2) {
    maker.Vector(name("attn_q.bias"), queries, 0.0f, 0.5f);
    maker.Vector(name("attn_k.bias"), keys, 0.0f, 0.5f);
    maker.Vector(name("attn_v.bias"), keys, 0.0f, 0.5f);
  }
  if (o.family == Family::kQwen3 || o.family == Family::kGemma3) {
    maker.Vector(name("attn_q_norm.weight"), o.head_dim, 1.0f, 0.3f);
    maker.Vector(name("attn_k_norm.weight"), o.head_dim, 1.0f, 0.3f);
  }
  maker.Matrix(name("attn_output.weight"), o.width, queries);
  if (o.family == Family::kGemma3) maker.Vector(name("post_attention_norm.weight"), o.width, 1.0f, 0.3f);
  maker.Vector(name("ffn_norm.weight"), o.width, 1.0f, 0.3f);
  maker.Matrix(name("ffn_gate.weight"), o.feed_forward, o.width);
  maker.Matrix(name("ffn_up.weight"), o.feed_forward, o.width);
  maker.Matrix(name("ffn_down.weight"), o.width, o.feed_forward);
  if (o.family == Family::kGemma3) maker.Vector(name("post_ffw_norm.weight"), o.width, 1.0f, 0.3f);
}

}  // namespace

std::string RandomRows(WeightType type, uint64_t rows, uint64_t cols, float size, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal(0.0f, size);
  std::vector<float> values(rows * cols);
  for (float& value : values) value = normal(random);
  const ggml_type ggml = static_cast<ggml_type>(type);
  std::string out(rows * ggml_row_size(ggml, static_cast<int64_t>(cols)), '\0');
  ggml_quantize_chunk(ggml, values.data(), out.data(), 0, static_cast<int64_t>(rows), static_cast<int64_t>(cols),
                      nullptr);
  return out;
}

GgufWriter TinyModel(const TinyOptions& o) {
  GgufWriter out;
  AddMetadata(o, out);
  AddTokenizer(o, out);
  TensorMaker maker(o, out);
  maker.Matrix("token_embd.weight", o.vocab, o.width, o.embedding_type);
  if (!o.tied) maker.Matrix("output.weight", o.vocab, o.width);
  maker.Vector("output_norm.weight", o.width, 4.0f, 1.0f);  // logits that are far from even
  if (o.rope_factors) maker.Vector("rope_freqs.weight", o.head_dim / 2, 2.0f, 1.0f);
  for (uint32_t layer = 0; layer < o.layers; ++layer) AddLayer(o, layer, maker);
  out.Layout();
  return out;
}

std::string TestPath(const std::string& name) {
  struct Directory {
    std::filesystem::path path = std::filesystem::temp_directory_path() / absl::StrCat("reprise-test-", getpid());
    Directory() { std::filesystem::create_directories(path); }
    ~Directory() {
      std::error_code ignored;  // at exit nobody can be told
      std::filesystem::remove_all(path, ignored);
    }
  };
  static const Directory directory;
  return directory.path / name;
}

}  // namespace reprise
