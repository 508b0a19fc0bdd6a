// The weights of a model and of its adapters in memory: matrices packed for kernel/matmul, vectors as
// floats. Read once, in parallel; while they are read they are hashed, so the model's identity costs no
// second pass.
//
// Ownership: owns the bytes, taken from the ledger, which must outlive it.
// Threads:   immutable after Load.
// Errors:    Load: FailedPrecondition if the file is not the one that was described, or changes
//            meanwhile; Unavailable if it cannot be read. Nothing is taken from the ledger then.
// Design:    docs/format/identity_model.md
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "base/identity.h"
#include "base/ledger.h"
#include "env/worker_pool.h"
#include "kernel/matmul.h"
#include "model/adapter.h"
#include "model/description.h"
#include "model/weight_loader.h"

namespace reprise {

// Optional parts are empty.
struct LayerWeights {
  PackedWeight query, key, value, output, gate, up, down;
  std::span<const float> attention_norm, attention_post_norm, feed_forward_norm, feed_forward_post_norm;  // [width]
  std::span<const float> query_norm, key_norm;                                                            // [head_dim]
  std::span<const float> query_bias, key_bias, value_bias, output_bias, gate_bias, up_bias, down_bias;
};

class ModelWeights {
 public:
  // What Load takes, and what it gives back at its end ("weights staging", per thread).
  static std::vector<Footprint> Footprints(const ModelDescription& model);
  static uint64_t StagingBytes(const ModelDescription& model, uint32_t threads);

  using Progress = LoadProgress;

  // REQUIRES: the ledger holds the footprints and the staging.
  static absl::StatusOr<std::unique_ptr<ModelWeights>> Load(const ModelDescription& model, WorkerPool& pool,
                                                            Ledger& ledger, const Progress& progress);

  // The model's identity, complete.
  const ComputationIdentity& identity() const { return identity_; }

  const PackedWeight& embedding() const { return embedding_; }
  const PackedWeight& head() const { return head_; }  // the embedding when the file has no other
  std::span<const float> head_bias() const { return head_bias_; }
  std::span<const float> final_norm() const { return final_norm_; }
  const LayerWeights& layer(uint32_t index) const { return layers_[index]; }

  // As in ModelDescription::adapters.
  const AdapterWeights& adapter(uint32_t index) const { return *adapters_[index]; }
  std::span<const AdapterInfo> adapter_infos() const { return adapter_infos_; }

 private:
  struct Layout;
  ModelWeights() = default;
  void Assign(const ModelDescription& model, const Layout& layout);

  Region region_;
  ComputationIdentity identity_;
  PackedWeight embedding_;
  PackedWeight head_;
  std::span<const float> head_bias_;
  std::span<const float> final_norm_;
  std::vector<LayerWeights> layers_;
  std::vector<std::unique_ptr<AdapterWeights>> adapters_;
  std::vector<AdapterInfo> adapter_infos_;
};

}  // namespace reprise
