#include "model/weights.h"

#include <algorithm>

#include "base/carver.h"
#include "model/identity.h"
#include "model/model_file.h"
#include "model/status_macros.h"
#include "model/weight_loader.h"

namespace reprise {
namespace {

// RoPE factors live in the description; they are hashed, not kept.
bool IsKept(const TensorSource& tensor) { return tensor.part != Part::kRopeFactors; }

}  // namespace

struct ModelWeights::Layout {
  std::vector<std::span<std::byte>> packed;  // [tensors], matrices
  std::vector<std::span<float>> vectors;     // [tensors], the rest

  Layout(const ModelDescription& model, Carver& carver) {
    for (const TensorSource& tensor : model.tensors) {
      const bool matrix = IsKept(tensor) && tensor.matrix;
      const bool vector = IsKept(tensor) && !tensor.matrix;
      packed.push_back(carver.Array<std::byte>(matrix ? PackedBytes(tensor.type, tensor.rows, tensor.cols) : 0));
      vectors.push_back(carver.Array<float>(vector ? tensor.cols : 0));
    }
  }
};

std::vector<Footprint> ModelWeights::Footprints(const ModelDescription& model) {
  std::vector<Footprint> lines = {{"weights", Measure<Layout>(model)}};
  for (const AdapterDescription& adapter : model.adapters) lines.push_back(AdapterWeights::FootprintOf(adapter));
  return lines;
}

uint64_t ModelWeights::StagingBytes(const ModelDescription& model, uint32_t threads) {
  uint64_t most = LoadStagingBytes(model.tensors, threads);
  for (const AdapterDescription& adapter : model.adapters)
    most = std::max(most, LoadStagingBytes(adapter.tensors, threads));
  return most;
}

absl::StatusOr<std::unique_ptr<ModelWeights>> ModelWeights::Load(const ModelDescription& model, WorkerPool& pool,
                                                                 Ledger& ledger, const Progress& progress) {
  ASSIGN_OR_RETURN(const std::unique_ptr<ModelFile> file, ModelFile::Open(model.path));
  RETURN_IF_ERROR(file->CheckUnchanged(model.stamp));

  std::unique_ptr<ModelWeights> weights(new ModelWeights());
  weights->region_ = ledger.Take("weights", Measure<Layout>(model));
  const Layout layout = Carve<Layout>(weights->region_, model);
  ASSIGN_OR_RETURN(const std::vector<Digest> digests,
                   LoadTensors(model.tensors, *file, pool, ledger, layout.packed, layout.vectors, progress));
  RETURN_IF_ERROR(file->CheckUnchanged(model.stamp));

  weights->identity_ = model.identity;
  weights->identity_.model = ModelDigest(model, digests);
  weights->Assign(model, layout);
  for (const AdapterDescription& adapter : model.adapters) {
    ASSIGN_OR_RETURN(std::unique_ptr<AdapterWeights> loaded, AdapterWeights::Load(adapter, pool, ledger));
    weights->adapter_infos_.push_back(loaded->info());
    weights->adapters_.push_back(std::move(loaded));
  }
  return weights;
}

void ModelWeights::Assign(const ModelDescription& model, const Layout& layout) {
  layers_.resize(model.layers);
  for (size_t i = 0; i < model.tensors.size(); ++i) {
    const TensorSource& tensor = model.tensors[i];
    const PackedWeight matrix{tensor.type, tensor.rows, tensor.cols, layout.packed[i].data()};
    const std::span<const float> vector = layout.vectors[i];
    LayerWeights& layer = layers_[tensor.layer];
    switch (tensor.part) {
      case Part::kEmbedding:
        embedding_ = matrix;
        break;
      case Part::kHead:
        head_ = matrix;
        break;
      case Part::kHeadBias:
        head_bias_ = vector;
        break;
      case Part::kFinalNorm:
        final_norm_ = vector;
        break;
      case Part::kRopeFactors:
        break;
      case Part::kAttentionNorm:
        layer.attention_norm = vector;
        break;
      case Part::kQuery:
        layer.query = matrix;
        break;
      case Part::kKey:
        layer.key = matrix;
        break;
      case Part::kValue:
        layer.value = matrix;
        break;
      case Part::kOutput:
        layer.output = matrix;
        break;
      case Part::kQueryBias:
        layer.query_bias = vector;
        break;
      case Part::kKeyBias:
        layer.key_bias = vector;
        break;
      case Part::kValueBias:
        layer.value_bias = vector;
        break;
      case Part::kOutputBias:
        layer.output_bias = vector;
        break;
      case Part::kQueryNorm:
        layer.query_norm = vector;
        break;
      case Part::kKeyNorm:
        layer.key_norm = vector;
        break;
      case Part::kAttentionPostNorm:
        layer.attention_post_norm = vector;
        break;
      case Part::kFeedForwardNorm:
        layer.feed_forward_norm = vector;
        break;
      case Part::kGate:
        layer.gate = matrix;
        break;
      case Part::kUp:
        layer.up = matrix;
        break;
      case Part::kDown:
        layer.down = matrix;
        break;
      case Part::kGateBias:
        layer.gate_bias = vector;
        break;
      case Part::kUpBias:
        layer.up_bias = vector;
        break;
      case Part::kDownBias:
        layer.down_bias = vector;
        break;
      case Part::kFeedForwardPostNorm:
        layer.feed_forward_post_norm = vector;
        break;
    }
  }
  if (!model.has_head()) head_ = embedding_;
}

}  // namespace reprise
