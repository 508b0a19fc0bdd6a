// LoRA adapters: small pairs of matrices beside a model's own, from GGUF files of their own (Hu et al., 2021;
// the format of llama.cpp's convert_lora_to_gguf.py). Read as hostile input, like models.
//
// Ownership: AdapterWeights owns its bytes, taken from the ledger, which must outlive it.
// Threads:   immutable after Load.
// Errors:    those of ModelDescription::Read, naming the file, and the tensor with its shape and the one it must
//            have. What would be left out silently (norms, activated adapters) is Unimplemented.
// Design:    docs/models.md, docs/format/identity_model.md
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/ledger.h"
#include "env/worker_pool.h"
#include "kernel/matmul.h"
#include "model/description.h"
#include "model/executor.h"

namespace reprise {

inline constexpr uint32_t kAdaptersMax = 64;       // of one model
inline constexpr uint32_t kAdapterRankMax = 1024;  // larger ones are as good as another model

// The file, checked against the model; no tensor data.
absl::StatusOr<AdapterDescription> ReadAdapter(const AdapterOptions& options, const ModelDescription& model);
// All of them; names are unique.
absl::StatusOr<std::vector<AdapterDescription>> ReadAdapters(const std::vector<AdapterOptions>& options,
                                                             const ModelDescription& model);
// From any bytes: alpha, rank_max and tensors. For tests and fuzzers.
absl::Status DescribeAdapter(const ByteSource& source, const ModelDescription& model, AdapterDescription& adapter);

// One pair, ready to multiply with.
struct AdapterPair {
  PackedWeight a;  // [rank, cols]
  PackedWeight b;  // [rows, rank]
  float strength = 1.0f;
};

class AdapterWeights {
 public:
  // "adapter NAME".
  static Footprint FootprintOf(const AdapterDescription& adapter);
  // REQUIRES: the ledger holds the footprint and ModelWeights::StagingBytes of the model it belongs to.
  static absl::StatusOr<std::unique_ptr<AdapterWeights>> Load(const AdapterDescription& adapter, WorkerPool& pool,
                                                              Ledger& ledger);

  const AdapterInfo& info() const { return info_; }
  // null: nothing is added beside this matrix.
  const AdapterPair* Find(Part part, uint32_t layer) const;

 private:
  struct Layout;
  AdapterWeights() = default;

  Region region_;
  AdapterInfo info_;
  std::vector<AdapterPair> pairs_;
  std::vector<int32_t> index_;  // [layers][kParts]: of pairs_, or -1
};

}  // namespace reprise
