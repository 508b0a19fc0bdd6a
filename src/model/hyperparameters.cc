#include "model/hyperparameters.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "model/status_macros.h"

namespace reprise {
namespace {

constexpr uint64_t kLayersMax = 512;
constexpr uint64_t kWidthMax = 1 << 17;
constexpr uint64_t kHeadsMax = 1024;
constexpr uint64_t kHeadDimMax = 1024;
constexpr uint64_t kFeedForwardMax = 1 << 20;
constexpr uint64_t kContextMax = 1 << 28;
constexpr float kFloatMax = std::numeric_limits<float>::max();

constexpr std::array<std::pair<std::string_view, Family>, 4> kFamilies = {
    {{"llama", Family::kLlama}, {"qwen2", Family::kQwen2}, {"qwen3", Family::kQwen3}, {"gemma3", Family::kGemma3}}};

absl::Status Bad(std::string_view key, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat("GGUF: metadata '", std::string(key), "': ", what));
}
absl::Status Unsupported(std::string_view key, const std::string& what) {
  return absl::UnimplementedError(absl::StrCat("GGUF: metadata '", std::string(key), "': ", what));
}

class Resolver {
 public:
  Resolver(const Gguf& gguf, ModelDescription& model) : gguf_(gguf), model_(model) {}

  absl::Status Resolve() {
    RETURN_IF_ERROR(ResolveFamily());
    RETURN_IF_ERROR(RefuseWhatChangesTheFormulas());
    RETURN_IF_ERROR(ResolveDimensions());
    RETURN_IF_ERROR(ResolveScales());
    RETURN_IF_ERROR(ResolveWindows());
    return ResolveRope();
  }

 private:
  std::string Key(std::string_view name) const { return absl::StrCat(model_.family_name, ".", std::string(name)); }

  absl::Status ResolveFamily() {
    ASSIGN_OR_RETURN(const std::optional<std::string> family, gguf_.Text("general.architecture"));
    if (!family) return Bad("general.architecture", "is missing");
    const auto known =
        std::find_if(kFamilies.begin(), kFamilies.end(), [&](const auto& f) { return f.first == *family; });
    if (known == kFamilies.end())
      return Unsupported(
          "general.architecture",
          absl::StrCat("'", *family, "' is not supported; llama (with mistral), qwen2, qwen3 and gemma3 are"));
    model_.family = known->second;
    model_.family_name = *family;

    ASSIGN_OR_RETURN(const std::optional<std::string> name, gguf_.Text("general.name"));
    model_.name = name && !name->empty() ? *name : std::filesystem::path(model_.path).stem().string();
    ASSIGN_OR_RETURN(const std::optional<std::string> type, gguf_.Text("general.type"));
    if (type && *type != "model") return Unsupported("general.type", absl::StrCat("'", *type, "' is not a model"));
    ASSIGN_OR_RETURN(const auto parts, gguf_.Integer("split.count", 0, 1 << 16));
    if (parts && *parts > 1)
      return Unsupported("split.count",
                         absl::StrCat("a model in ", *parts, " files; join them with llama-gguf-split --merge"));
    return absl::OkStatus();
  }

  // Metadata that ask for another computation than the ones written here.
  absl::Status RefuseWhatChangesTheFormulas() {
    for (const char* name : {"expert_count", "attention.key_length_swa", "attention.value_length_swa",
                             "rope.dimension_count_swa", "nextn_predict_layers"}) {
      ASSIGN_OR_RETURN(const auto value, gguf_.Integer(Key(name), 0, UINT32_MAX));
      if (value && *value != 0) return Unsupported(Key(name), absl::StrCat(*value, "; only 0 or absent is supported"));
    }
    for (const char* name :
         {"attn_logit_softcapping", "attention.max_alibi_bias", "attention.clamp_kqv", "attention.temperature_scale",
          "attention.scale", "logit_scale", "residual_scale", "embedding_scale"}) {
      ASSIGN_OR_RETURN(const auto value, gguf_.Float(Key(name), -kFloatMax, kFloatMax));
      if (value && *value != 0) return Unsupported(Key(name), absl::StrCat(*value, "; only 0 or absent is supported"));
    }
    const GgufValue* causal = gguf_.Find(Key("attention.causal"));
    if (causal != nullptr && !causal->numbers.empty() && causal->numbers[0] == 0)
      return Unsupported(causal->key, "attention in both directions is not supported");
    return absl::OkStatus();
  }

  // A number, or an array of one equal number per layer.
  absl::StatusOr<std::optional<uint64_t>> PerLayer(std::string_view name, uint64_t max) const {
    const GgufValue* value = gguf_.Find(Key(name));
    if (value == nullptr || value->type != GgufType::kArray) return gguf_.Integer(Key(name), 1, max);
    if (value->numbers.empty() || value->count != model_.layers)
      return Bad(value->key, absl::StrCat(value->count, " values for ", model_.layers, " layers"));
    for (const double number : value->numbers)
      if (number != value->numbers[0]) return Unsupported(value->key, "layers of different sizes are not supported");
    const double number = value->numbers[0];
    if (!(number >= 1 && number <= static_cast<double>(max)))
      return Bad(value->key, absl::StrCat(number, " is outside 1 to ", max));
    return static_cast<uint64_t>(number);
  }

  absl::Status ResolveDimensions() {
    ASSIGN_OR_RETURN(const uint64_t layers, gguf_.RequiredInteger(Key("block_count"), 1, kLayersMax));
    ASSIGN_OR_RETURN(const uint64_t context, gguf_.RequiredInteger(Key("context_length"), 1, kContextMax));
    ASSIGN_OR_RETURN(const uint64_t width, gguf_.RequiredInteger(Key("embedding_length"), 1, kWidthMax));
    model_.layers = static_cast<uint32_t>(layers);
    model_.context_trained = static_cast<uint32_t>(context);
    model_.width = static_cast<uint32_t>(width);
    ASSIGN_OR_RETURN(const auto feed_forward, PerLayer("feed_forward_length", kFeedForwardMax));
    ASSIGN_OR_RETURN(const auto heads, PerLayer("attention.head_count", kHeadsMax));
    ASSIGN_OR_RETURN(const auto kv_heads, PerLayer("attention.head_count_kv", kHeadsMax));
    if (!feed_forward) return Bad(Key("feed_forward_length"), "is missing");
    if (!heads) return Bad(Key("attention.head_count"), "is missing");
    model_.feed_forward = static_cast<uint32_t>(*feed_forward);
    model_.query_heads = static_cast<uint32_t>(*heads);
    model_.kv_heads = static_cast<uint32_t>(kv_heads.value_or(*heads));
    if (model_.query_heads % model_.kv_heads != 0)
      return Bad(Key("attention.head_count_kv"),
                 absl::StrCat(model_.query_heads, " query heads are not a multiple of ", model_.kv_heads));

    ASSIGN_OR_RETURN(const auto key_dim, gguf_.Integer(Key("attention.key_length"), 1, kHeadDimMax));
    ASSIGN_OR_RETURN(const auto value_dim, gguf_.Integer(Key("attention.value_length"), 1, kHeadDimMax));
    const uint64_t usual_dim = width / *heads;
    if (!key_dim && (usual_dim < 1 || usual_dim > kHeadDimMax || width % *heads != 0))
      return Bad(Key("attention.head_count"), absl::StrCat(*heads, " heads do not divide the width ", width));
    model_.head_dim = static_cast<uint32_t>(key_dim.value_or(usual_dim));
    if (value_dim.value_or(usual_dim) != model_.head_dim)
      return Unsupported(Key("attention.value_length"),
                         absl::StrCat(value_dim.value_or(usual_dim), " is not the key length ", model_.head_dim,
                                      "; only equal ones are supported"));
    return absl::OkStatus();
  }

  absl::Status ResolveScales() {
    ASSIGN_OR_RETURN(model_.norm_epsilon, gguf_.RequiredFloat(Key("attention.layer_norm_rms_epsilon"), 0.0f, 1.0f));
    model_.attention_scale = 1.0f / std::sqrt(static_cast<float>(model_.head_dim));
    if (model_.family != Family::kGemma3) return absl::OkStatus();

    ASSIGN_OR_RETURN(const auto soft_cap, gguf_.Float(Key("final_logit_softcapping"), 0.0f, 1e6f));
    model_.logit_soft_cap = soft_cap.value_or(0.0f);
    model_.embedding_scale = std::sqrt(static_cast<float>(model_.width));
    model_.gelu = true;
    // The 27B model alone scales by the width of a head's share of the residual stream; files do not
    // say so, its 62 layers do.
    constexpr uint32_t kLayersOf27B = 62;
    if (model_.layers == kLayersOf27B)
      model_.attention_scale = 1.0f / std::sqrt(static_cast<float>(model_.width / model_.query_heads));
    return absl::OkStatus();
  }

  absl::Status ResolveWindows() {
    model_.layer_plans.resize(model_.layers);
    if (model_.family != Family::kLlama && model_.family != Family::kGemma3) return absl::OkStatus();
    ASSIGN_OR_RETURN(const auto window, gguf_.Integer(Key("attention.sliding_window"), 0, kContextMax));
    if (!window || *window == 0) return absl::OkStatus();

    // llama (mistral): all layers slide. gemma3: by an array, or all but every n-th.
    const std::string pattern_key = Key("attention.sliding_window_pattern");
    const GgufValue* array = gguf_.Find(pattern_key);
    if (array != nullptr && array->type == GgufType::kArray) {
      if (array->count != model_.layers || array->numbers.empty())
        return Bad(pattern_key, absl::StrCat(array->count, " values for ", model_.layers, " layers"));
      for (uint32_t l = 0; l < model_.layers; ++l)
        if (array->numbers[l] != 0) model_.layer_plans[l].window = static_cast<uint32_t>(*window);
      return absl::OkStatus();
    }
    ASSIGN_OR_RETURN(const auto period, gguf_.Integer(pattern_key, 0, kLayersMax));
    const uint64_t every = period.value_or(model_.family == Family::kGemma3 ? 6 : 0);
    for (uint32_t l = 0; l < model_.layers; ++l)
      if (every == 0 || l % every != every - 1) model_.layer_plans[l].window = static_cast<uint32_t>(*window);
    return absl::OkStatus();
  }

  absl::Status ResolveRope() {
    RopeParameters rope;
    rope.type = model_.family == Family::kLlama ? RopeType::kNormal : RopeType::kNeox;
    ASSIGN_OR_RETURN(const auto dims, gguf_.Integer(Key("rope.dimension_count"), 2, model_.head_dim));
    rope.dims = static_cast<uint32_t>(dims.value_or(model_.head_dim));
    if (rope.dims % 2 != 0 || (model_.family != Family::kGemma3 && rope.dims != model_.head_dim))
      return Unsupported(Key("rope.dimension_count"),
                         absl::StrCat(rope.dims, "; only the head size, ", model_.head_dim, ", is supported"));
    ASSIGN_OR_RETURN(const auto base, gguf_.Float(Key("rope.freq_base"), 1.0f, 1e12f));
    rope.base = base.value_or(10000.0f);
    RETURN_IF_ERROR(ResolveScaling(rope));
    model_.ropes.push_back(rope);

    const auto slides = [](const LayerPlan& plan) { return plan.window > 0; };
    const bool windows = std::any_of(model_.layer_plans.begin(), model_.layer_plans.end(), slides);
    if (model_.family != Family::kGemma3 || !windows) return absl::OkStatus();
    ASSIGN_OR_RETURN(const auto window_base, gguf_.Float(Key("rope.freq_base_swa"), 1.0f, 1e12f));
    rope.base = window_base.value_or(10000.0f);
    rope.scale = 1.0f;
    model_.ropes.push_back(rope);
    for (LayerPlan& plan : model_.layer_plans) plan.rope = plan.window > 0 ? 1 : 0;
    return absl::OkStatus();
  }

  absl::Status ResolveScaling(RopeParameters& rope) {
    const std::string type_key = Key("rope.scaling.type");
    ASSIGN_OR_RETURN(const auto type_text, gguf_.Text(type_key));
    const std::string type = type_text.value_or("linear");
    if (type != "none" && type != "linear" && type != "yarn")
      return Unsupported(type_key, absl::StrCat("'", type, "'; none, linear and yarn are supported"));
    ASSIGN_OR_RETURN(auto factor, gguf_.Float(Key("rope.scaling.factor"), 0.0f, 1e6f));
    if (!factor) {
      ASSIGN_OR_RETURN(factor, gguf_.Float(Key("rope.scale_linear"), 0.0f, 1e6f));
    }
    ASSIGN_OR_RETURN(const auto attention_factor, gguf_.Float(Key("rope.scaling.attn_factor"), 0.0f, 1e6f));
    ASSIGN_OR_RETURN(const auto original, gguf_.Integer(Key("rope.scaling.original_context_length"), 0, kContextMax));
    rope.attn_factor = attention_factor.value_or(1.0f);
    if (type != "none" && factor && *factor != 0) rope.scale = 1.0f / *factor;
    if (type != "yarn") return absl::OkStatus();

    rope.ext_factor = 1.0f;
    rope.original_context = static_cast<uint32_t>(original.value_or(0) != 0 ? *original : model_.context_trained);
    // RopeTable multiplies by 1 + 0.1 ln(factor); below a factor of 1 nothing is to be multiplied.
    const float stretch = 1.0f / rope.scale;
    if (stretch < 1.0f) rope.attn_factor /= 1.0f + 0.1f * std::log(stretch);
    return absl::OkStatus();
  }

  const Gguf& gguf_;
  ModelDescription& model_;
};

}  // namespace

std::string_view Name(Family family) {
  for (const auto& [name, value] : kFamilies)
    if (value == family) return name;
  return "unknown";
}

absl::Status ResolveHyperparameters(const Gguf& gguf, ModelDescription& model) {
  return Resolver(gguf, model).Resolve();
}

}  // namespace reprise
