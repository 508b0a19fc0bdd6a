#include "model/weights.h"

#include <algorithm>

#include "base/check.h"
#include "base/hash.h"
#include "model/identity.h"
#include "model/model_file.h"
#include "model/status_macros.h"

namespace reprise {
namespace {

constexpr uint32_t kPackedRows = 16;  // of one group; chunks begin at a multiple of it

// RoPE factors live in the description; they are hashed, not kept.
bool IsKept(const TensorSource& tensor) { return tensor.part != Part::kRopeFactors; }

uint64_t ChunkBytesMax(const ModelDescription& model) {
  uint64_t most = 0;
  for (const TensorSource& tensor : model.tensors)
    most = std::max(most, tensor.bytes / tensor.rows * std::min(tensor.rows, ChunkRows(tensor)));
  return RoundUp(most, 64);
}

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
  return {{"weights", Measure<Layout>(model)}};
}

uint64_t ModelWeights::StagingBytes(const ModelDescription& model, uint32_t threads) {
  return threads * ChunkBytesMax(model);
}

// Reads, hashes and packs chunks of tensors, a wave of them at a time.
class WeightLoader {
 public:
  WeightLoader(const ModelDescription& model, const ModelFile& file, WorkerPool& pool, Ledger& ledger,
               const ModelWeights::Layout& layout)
      : model_(model),
        file_(file),
        pool_(pool),
        layout_(layout),
        chunk_bytes_(ChunkBytesMax(model)),
        staging_(ledger.Take("weights staging", ModelWeights::StagingBytes(model, pool.threads()))),
        hashers_(pool.threads()),
        errors_(pool.threads()) {
    for (uint32_t t = 0; t < model.tensors.size(); ++t)
      for (uint32_t row = 0; row < model.tensors[t].rows; row += ChunkRows(model.tensors[t]))
        chunks_.push_back({t, row});
    digests_.resize(chunks_.size());
  }

  absl::Status Run(const ModelWeights::Progress& progress) {
    constexpr size_t kProgressSteps = 100;
    const size_t wave = std::max<size_t>(chunks_.size() / kProgressSteps, pool_.threads() * 4);
    for (size_t done = 0; done < chunks_.size(); done += wave) {
      const size_t count = std::min(wave, chunks_.size() - done);
      pool_.Run(static_cast<uint32_t>(count), [&](uint32_t piece, uint32_t worker) {
        if (errors_[worker].ok()) errors_[worker] = LoadChunk(done + piece, worker);
      });
      for (const absl::Status& error : errors_) RETURN_IF_ERROR(error);
      if (progress) progress(static_cast<double>(done + count) / static_cast<double>(chunks_.size()));
    }
    return absl::OkStatus();
  }

  std::vector<Digest> TensorDigests() {
    std::vector<Digest> out(model_.tensors.size());
    Sha256& sha = hashers_[0];
    for (size_t i = 0; i < chunks_.size(); ++i) {
      sha.Update(std::as_bytes(std::span(digests_[i].bytes)));
      if (i + 1 == chunks_.size() || chunks_[i + 1].tensor != chunks_[i].tensor) out[chunks_[i].tensor] = sha.Finish();
    }
    return out;
  }

 private:
  struct Chunk {
    uint32_t tensor;
    uint32_t first_row;
  };

  absl::Status LoadChunk(size_t index, uint32_t worker) {
    const Chunk& chunk = chunks_[index];
    const TensorSource& tensor = model_.tensors[chunk.tensor];
    const uint32_t rows = std::min(ChunkRows(tensor), tensor.rows - chunk.first_row);
    const uint64_t row_bytes = tensor.bytes / tensor.rows;
    const std::span<std::byte> bytes = staging_.bytes().subspan(worker * chunk_bytes_, rows * row_bytes);
    RETURN_IF_ERROR(file_.Read(tensor.offset + chunk.first_row * row_bytes, bytes));
    hashers_[worker].Update(bytes);
    digests_[index] = hashers_[worker].Finish();
    if (!IsKept(tensor)) return absl::OkStatus();
    if (!tensor.matrix) {
      DequantizeRow(tensor.type, bytes.data(), layout_.vectors[chunk.tensor]);
      return absl::OkStatus();
    }
    const PackedWeight weight{tensor.type, tensor.rows, tensor.cols, layout_.packed[chunk.tensor].data()};
    PackGroups(weight, bytes.data(), chunk.first_row / kPackedRows,
               static_cast<uint32_t>(CeilDiv(chunk.first_row + rows, kPackedRows)));
    return absl::OkStatus();
  }

  const ModelDescription& model_;
  const ModelFile& file_;
  WorkerPool& pool_;
  const ModelWeights::Layout& layout_;
  const uint64_t chunk_bytes_;
  Region staging_;
  std::vector<Chunk> chunks_;
  std::vector<Digest> digests_;       // [chunks]
  std::vector<Sha256> hashers_;       // [threads]
  std::vector<absl::Status> errors_;  // [threads]
};

absl::StatusOr<std::unique_ptr<ModelWeights>> ModelWeights::Load(const ModelDescription& model, WorkerPool& pool,
                                                                 Ledger& ledger, const Progress& progress) {
  ASSIGN_OR_RETURN(const std::unique_ptr<ModelFile> file, ModelFile::Open(model.path));
  RETURN_IF_ERROR(file->CheckUnchanged(model.stamp));

  std::unique_ptr<ModelWeights> weights(new ModelWeights());
  weights->region_ = ledger.Take("weights", Measure<Layout>(model));
  const Layout layout = Carve<Layout>(weights->region_, model);
  std::vector<Digest> digests;
  {
    WeightLoader loader(model, *file, pool, ledger, layout);
    RETURN_IF_ERROR(loader.Run(progress));
    digests = loader.TensorDigests();
  }
  RETURN_IF_ERROR(file->CheckUnchanged(model.stamp));

  weights->identity_ = model.identity;
  weights->identity_.model = ModelDigest(model, digests);
  weights->Assign(model, layout);
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
