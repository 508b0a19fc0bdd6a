// The forward pass of the llama, qwen2, qwen3 and gemma3 families on CPU: plain functions on views,
// in the order of the formulas. The value of one token's row depends on the tokens of its sequence up
// to it, and on nothing else: not on slices, batch mates, threads, slots or instruction set (DESIGN 9).
//
// Ownership: owns its scratch; uses description, weights, K/V slots and pool, which must outlive it.
// Threads:   one thread calls Run.
// Errors:    none at run time; what is not supported is refused by ModelDescription::Read.
// Design:    docs/models.md
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "attention/attention.h"
#include "base/kv_view.h"
#include "base/ledger.h"
#include "kernel/isa.h"
#include "model/executor.h"
#include "model/weights.h"

namespace reprise {

struct ForwardOptions {
  uint32_t context_max = 0;      // positions
  uint32_t batch_rows_max = 0;   // tokens of one batch
  uint32_t logits_rows_max = 0;  // rows of logits of one batch
  uint32_t slices_max = 0;       // sequences of one batch
  uint32_t threads = 1;          // of the pool that Run will use
};

class ForwardPass final : public Executor {
 public:
  static std::vector<Footprint> Footprints(const ModelDescription& model, const ForwardOptions& options);

  // `groups`: [groups of the geometry], the slots that block tables refer to.
  // REQUIRES: compute.pool->threads() == options.threads; the ledger holds the footprints.
  ForwardPass(const ModelDescription& model, const ModelWeights& weights, const ForwardOptions& options,
              std::span<const KvGroupView> groups, const Compute& compute, Ledger& ledger);
  ~ForwardPass() override;

  const Geometry& geometry() const override { return model_.geometry; }
  uint32_t vocab_size() const override { return model_.vocab_size; }
  uint32_t context_max() const override { return options_.context_max; }
  uint32_t batch_rows_max() const override { return options_.batch_rows_max; }
  uint32_t logits_rows_max() const override { return options_.logits_rows_max; }
  uint32_t slices_max() const override { return options_.slices_max; }
  std::span<const AdapterInfo> adapters() const override { return weights_.adapter_infos(); }

  absl::StatusOr<std::span<const float>> Run(const Batch& batch) override;
  std::span<const uint8_t> finite() const override;

 private:
  struct Layout;
  // Consecutive rows of the residual stream that use the same adapters.
  struct AdapterRun {
    uint32_t first_row = 0;
    uint32_t rows = 0;
    std::span<const AdapterUse> uses;
  };

  void Plan(const Batch& batch);
  void Embed(const Batch& batch);
  void Attention(const Batch& batch, uint32_t layer);
  void KeepWantedRows(const Batch& batch);
  void FeedForward(uint32_t layer);
  void Head();
  void PlanAdapters(const Batch& batch, std::span<const AttentionSlice> slices);
  // What adapters add to products of x that were computed; parts[i] is the matrix of products[i].
  void AddAdapters(uint32_t layer, std::span<const Part> parts, const float* x, uint32_t x_stride,
                   std::span<const Product> products);
  void AddAdapter(const AdapterWeights& adapter, float scale, uint32_t layer, std::span<const Part> parts,
                  const float* x, uint32_t x_stride, std::span<const Product> products, const AdapterRun& run);
  // x += y, after the norm that gemma3 puts in between.
  void AddResidual(std::span<const float> post_norm, float* y);
  void JudgeKv();
  void JudgeResidual();

  const ModelDescription& model_;
  const ModelWeights& weights_;
  const ForwardOptions options_;
  const Compute compute_;
  std::vector<KvLayerView> kv_;  // [layers]
  Region region_;
  std::unique_ptr<Layout> layout_;

  // Of the batch being computed.
  uint32_t slices_ = 0;
  uint32_t rows_ = 0;         // of the residual stream: all tokens, in the end the wanted ones
  uint32_t rows_wanted_ = 0;  // whose logits are wanted
  uint32_t runs_ = 0;         // of layout_->runs
};

}  // namespace reprise
