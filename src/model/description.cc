#include "model/description.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "attention/attention.h"
#include "model/adapter.h"
#include "model/gguf.h"
#include "model/hyperparameters.h"
#include "model/identity.h"
#include "model/status_macros.h"
#include "model/tensor_list.h"

namespace reprise {
namespace {

// Per-dimension divisors of RoPE (llama 3): small, and a part of the position identity.
absl::Status ReadRopeFactors(const ByteSource& source, ModelDescription& model) {
  for (const TensorSource& tensor : model.tensors) {
    if (tensor.part != Part::kRopeFactors) continue;
    std::vector<std::byte> bytes(tensor.bytes);
    RETURN_IF_ERROR(source.Read(tensor.offset, bytes));
    model.rope_factors.resize(tensor.cols);
    DequantizeRow(tensor.type, bytes.data(), model.rope_factors);
    for (const float factor : model.rope_factors)
      if (!(factor > 0) || !std::isfinite(factor))
        return absl::InvalidArgumentError(
            absl::StrCat("GGUF: tensor '", tensor.name, "': ", factor, " is not a positive number"));
    for (RopeParameters& rope : model.ropes) rope.factors = model.rope_factors;
  }
  return absl::OkStatus();
}

// Full layers are one group, window layers another.
void PlanGroups(const ModelOptions& options, ModelDescription& model) {
  model.geometry.key_type = options.key_type;
  model.geometry.value_type = options.value_type;
  for (const bool windows : {false, true}) {
    LayerGroup group{.kind = windows ? GroupKind::kWindow : GroupKind::kFull,
                     .kv_heads = model.kv_heads,
                     .key_dim = model.head_dim,
                     .value_dim = model.head_dim};
    for (uint32_t l = 0; l < model.layers; ++l) {
      LayerPlan& plan = model.layer_plans[l];
      if ((plan.window > 0) != windows) continue;
      plan.group = GroupId(static_cast<uint32_t>(model.geometry.groups.size()));
      plan.index_in_group = static_cast<uint32_t>(group.layers.size());
      group.window = plan.window;
      group.layers.push_back(l);
    }
    if (!group.layers.empty()) model.geometry.groups.push_back(std::move(group));
  }
  model.geometry.block_tokens = DeriveBlockTokens(model.geometry);
}

absl::Status CheckAttention(const ModelDescription& model) {
  for (const LayerPlan& plan : model.layer_plans) {
    const AttentionShape shape{.query_heads = model.query_heads, .window = plan.window, .scale = model.attention_scale};
    RETURN_IF_ERROR(AttentionSupported(shape, LayerView(model.geometry, plan.group, {}, plan.index_in_group)));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<ModelDescription>> ModelDescription::Read(const std::string& path,
                                                                         const ModelOptions& options) {
  ASSIGN_OR_RETURN(const std::unique_ptr<ModelFile> file, ModelFile::Open(path));
  auto model = std::make_unique<ModelDescription>();
  model->path = path;
  model->stamp = file->stamp();
  model->file_bytes = file->size();
  RETURN_IF_ERROR(Describe(*file, options, *model));
  RETURN_IF_ERROR(file->CheckUnchanged(model->stamp));
  ASSIGN_OR_RETURN(model->adapters, ReadAdapters(options.adapters, *model));
  return model;
}

absl::Status Describe(const ByteSource& source, const ModelOptions& options, ModelDescription& model) {
  ASSIGN_OR_RETURN(const Gguf gguf, Gguf::Parse(source));
  RETURN_IF_ERROR(ResolveHyperparameters(gguf, model));
  RETURN_IF_ERROR(ResolveTensors(gguf, model));
  RETURN_IF_ERROR(ReadRopeFactors(source, model));
  PlanGroups(options, model);
  RETURN_IF_ERROR(CheckAttention(model));
  model.metadata_digest = MetadataDigest(gguf, model.family_name);
  model.identity.tokenizer = TokenizerDigest(gguf);
  model.identity.position = PositionText(model);
  model.identity.attention = AttentionText(model);
  model.identity.numerics = NumericsText(model);
  return absl::OkStatus();
}

}  // namespace reprise
