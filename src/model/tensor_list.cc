#include "model/tensor_list.h"

#include <algorithm>
#include <map>
#include <unordered_map>

#include "absl/strings/str_cat.h"
#include "model/status_macros.h"

namespace reprise {
namespace {

constexpr uint64_t kVocabularyMax = 1 << 22;

struct Expected {
  std::string name;
  Part part;
  uint32_t layer;
  uint64_t rows;  // 0: a vector
  uint64_t cols;
  bool required;
};

// The tensors of a family, in the order of the formulas.
std::vector<Expected> ExpectedTensors(const ModelDescription& model) {
  const uint64_t width = model.width;
  const uint64_t queries = uint64_t{model.query_heads} * model.head_dim;
  const uint64_t keys = uint64_t{model.kv_heads} * model.head_dim;
  const uint64_t hidden = model.feed_forward;
  const bool gemma3 = model.family == Family::kGemma3;
  const bool head_norms = gemma3 || model.family == Family::kQwen3;
  const bool llama = model.family == Family::kLlama;

  std::vector<Expected> out = {{"token_embd.weight", Part::kEmbedding, 0, model.vocab_size, width, true},
                               {"output.weight", Part::kHead, 0, model.vocab_size, width, false},
                               {"output.bias", Part::kHeadBias, 0, 0, model.vocab_size, false},
                               {"output_norm.weight", Part::kFinalNorm, 0, 0, width, true}};
  if (llama) out.push_back({"rope_freqs.weight", Part::kRopeFactors, 0, 0, model.head_dim / 2, false});
  for (uint32_t l = 0; l < model.layers; ++l) {
    const auto add = [&](const char* name, Part part, uint64_t rows, uint64_t cols, bool required) {
      out.push_back({absl::StrCat("blk.", l, ".", name), part, l, rows, cols, required});
    };
    add("attn_norm.weight", Part::kAttentionNorm, 0, width, true);
    add("attn_q.weight", Part::kQuery, queries, width, true);
    add("attn_k.weight", Part::kKey, keys, width, true);
    add("attn_v.weight", Part::kValue, keys, width, true);
    add("attn_q.bias", Part::kQueryBias, 0, queries, false);
    add("attn_k.bias", Part::kKeyBias, 0, keys, false);
    add("attn_v.bias", Part::kValueBias, 0, keys, false);
    if (head_norms) {
      add("attn_q_norm.weight", Part::kQueryNorm, 0, model.head_dim, true);
      add("attn_k_norm.weight", Part::kKeyNorm, 0, model.head_dim, true);
    }
    add("attn_output.weight", Part::kOutput, width, queries, true);
    if (llama) add("attn_output.bias", Part::kOutputBias, 0, width, false);
    if (gemma3) add("post_attention_norm.weight", Part::kAttentionPostNorm, 0, width, true);
    add("ffn_norm.weight", Part::kFeedForwardNorm, 0, width, true);
    add("ffn_gate.weight", Part::kGate, hidden, width, true);
    add("ffn_up.weight", Part::kUp, hidden, width, true);
    add("ffn_down.weight", Part::kDown, width, hidden, true);
    if (llama) {
      add("ffn_gate.bias", Part::kGateBias, 0, hidden, false);
      add("ffn_up.bias", Part::kUpBias, 0, hidden, false);
      add("ffn_down.bias", Part::kDownBias, 0, width, false);
    }
    if (gemma3) add("post_ffw_norm.weight", Part::kFeedForwardPostNorm, 0, width, true);
  }
  return out;
}

absl::Status Bad(const std::string& name, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat("GGUF: tensor '", name, "': ", what));
}

std::string Shape(const GgufTensor& tensor) {
  std::string out = "[";
  for (uint32_t d = 0; d < tensor.dimensions; ++d) absl::StrAppend(&out, d == 0 ? "" : ", ", tensor.dims[d]);
  return out + "]";
}

// The rows of the embedding are the vocabulary; the tokenizer must have as many tokens.
absl::Status ResolveVocabulary(const Gguf& gguf, ModelDescription& model) {
  const GgufTensor* embedding = gguf.FindTensor("token_embd.weight");
  if (embedding == nullptr) return Bad("token_embd.weight", "is missing");
  const uint64_t rows = embedding->dims[1];
  if (embedding->dimensions != 2 || rows > kVocabularyMax)
    return Bad(embedding->name, absl::StrCat("shape ", Shape(*embedding), " must be [", model.width,
                                             ", vocabulary], at most ", kVocabularyMax, " tokens"));
  const GgufValue* tokens = gguf.Find("tokenizer.ggml.tokens");
  if (tokens == nullptr) return absl::InvalidArgumentError("GGUF: metadata 'tokenizer.ggml.tokens': is missing");
  if (tokens->type != GgufType::kArray || tokens->element != GgufType::kString)
    return absl::InvalidArgumentError("GGUF: metadata 'tokenizer.ggml.tokens': must be an array of strings");
  if (tokens->count != rows)
    return absl::InvalidArgumentError(absl::StrCat("GGUF: metadata 'tokenizer.ggml.tokens': ", tokens->count,
                                                   " tokens, but 'token_embd.weight' has ", rows, " rows"));
  model.vocab_size = static_cast<uint32_t>(rows);
  return absl::OkStatus();
}

absl::StatusOr<TensorSource> Check(const GgufTensor& tensor, const Expected& expected) {
  TensorSource source{.name = tensor.name,
                      .part = expected.part,
                      .layer = expected.layer,
                      .matrix = expected.rows > 0,
                      .type = static_cast<WeightType>(tensor.type),
                      .rows = static_cast<uint32_t>(std::max<uint64_t>(expected.rows, 1)),
                      .cols = static_cast<uint32_t>(expected.cols),
                      .offset = tensor.offset,
                      .bytes = tensor.bytes};
  const bool same =
      tensor.dims[0] == expected.cols && tensor.dims[1] == source.rows && tensor.dims[2] == 1 && tensor.dims[3] == 1;
  if (!same)
    return Bad(tensor.name, absl::StrCat("shape ", Shape(tensor), " must be [", expected.cols,
                                         expected.rows > 0 ? absl::StrCat(", ", expected.rows) : "", "]"));
  if (source.matrix && !Multipliable(source.type, source.cols))
    return absl::UnimplementedError(absl::StrCat(
        "GGUF: tensor '", tensor.name, "': type ", std::string(Name(source.type)), " with rows of ", source.cols,
        " is not supported; F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K are, and others "
        "that ggml multiplies"));
  const bool plain =
      source.type == WeightType::kF32 || source.type == WeightType::kF16 || source.type == WeightType::kBF16;
  if (!source.matrix && !plain)
    return absl::UnimplementedError(absl::StrCat("GGUF: tensor '", tensor.name, "': a vector of type ",
                                                 std::string(Name(source.type)), "; F32, F16 and BF16 are supported"));
  return source;
}

void CountTypes(ModelDescription& model) {
  std::map<WeightType, WeightTypeCount> counts;
  for (const TensorSource& source : model.tensors) {
    WeightTypeCount& count = counts[source.type];
    count.type = source.type;
    count.tensors += 1;
    count.bytes += source.bytes;
    model.parameters += uint64_t{source.rows} * source.cols;
  }
  for (const auto& [type, count] : counts) model.weight_types.push_back(count);
  std::stable_sort(model.weight_types.begin(), model.weight_types.end(),
                   [](const auto& a, const auto& b) { return a.bytes > b.bytes; });
}

}  // namespace

absl::Status ResolveTensors(const Gguf& gguf, ModelDescription& model) {
  RETURN_IF_ERROR(ResolveVocabulary(gguf, model));
  std::unordered_map<std::string, Expected> by_name;
  for (Expected& expected : ExpectedTensors(model)) {
    if (expected.required && gguf.FindTensor(expected.name) == nullptr) return Bad(expected.name, "is missing");
    by_name.emplace(expected.name, std::move(expected));
  }
  for (const GgufTensor& tensor : gguf.tensors()) {
    const auto expected = by_name.find(tensor.name);
    if (expected == by_name.end())
      return absl::UnimplementedError(absl::StrCat("GGUF: tensor '", tensor.name, "': not a part of a ",
                                                   model.family_name, " model of ", model.layers,
                                                   " layers that is supported; ignoring it would change the replies"));
    ASSIGN_OR_RETURN(TensorSource source, Check(tensor, expected->second));
    model.tensors.push_back(std::move(source));
  }
  CountTypes(model);
  return absl::OkStatus();
}

bool ModelDescription::has_head() const {
  return std::any_of(tensors.begin(), tensors.end(), [](const TensorSource& t) { return t.part == Part::kHead; });
}

}  // namespace reprise
