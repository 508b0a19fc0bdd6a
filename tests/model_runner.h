// A model with K/V slots and nothing else: no cache, no scheduler. Tests drive it step by step.
//
// Ownership: owns everything. Threads: one.
#pragma once

#include <cstdint>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "env/worker_pool.h"
#include "model/forward.h"

namespace reprise {

struct RunnerOptions {
  ElementType kv_type = ElementType::kF16;
  Isa isa = BestIsa();
  uint32_t threads = 2;
  uint32_t context_max = 1024;
  uint32_t batch_rows_max = 256;
  uint32_t logits_rows_max = 256;
  uint32_t slices_max = 8;
  uint32_t sequences_max = 8;
  uint64_t slot_seed = 1;  // slots are handed out in a shuffled order
};

// A model file read once, for many runners.
class LoadedModel {
 public:
  LoadedModel(const std::string& path, ElementType kv_type, const std::vector<AdapterOptions>& adapters = {});

  const ModelDescription& description() const { return *description_; }
  const ModelWeights& weights() const { return *weights_; }

 private:
  std::unique_ptr<ModelDescription> description_;
  Ledger ledger_{UINT64_MAX};
  std::unique_ptr<ModelWeights> weights_;
};

class ModelRunner {
 public:
  // REQUIRES: options.kv_type is the model's.
  ModelRunner(const LoadedModel& model, const RunnerOptions& options);

  struct Part {
    uint32_t sequence;  // < sequences_max
    std::span<const TokenId> tokens;
    uint32_t logits_rows;
    std::span<const AdapterUse> adapters = {};
  };
  // One batch; sequences go on where they were. Logits: [rows, vocab], valid until the next Step.
  std::span<const float> Step(std::span<const Part> parts);
  // The whole of `tokens` for a new sequence in slices of `slice` tokens; logits from `first_wanted` on.
  std::vector<float> Feed(uint32_t sequence, std::span<const TokenId> tokens, uint32_t slice, uint32_t first_wanted,
                          std::span<const AdapterUse> adapters = {});

  void Restart(uint32_t sequence) { sequences_[sequence].length = 0; }
  uint32_t length(uint32_t sequence) const { return sequences_[sequence].length; }
  // The next step starts at this position: K and V before it stay as they are.
  void Rewind(uint32_t sequence, uint32_t length) { sequences_[sequence].length = length; }
  // Flips one bit of one K value of a computed position, in the first layer of `group`.
  void FlipKeyBit(uint32_t sequence, GroupId group, uint32_t position);
  // The bytes of a block.
  std::span<const std::byte> Slot(uint32_t sequence, GroupId group, uint32_t block) const;

  const ModelDescription& model() const { return model_.description(); }
  ForwardPass& forward() { return *forward_; }

 private:
  struct Sequence {
    uint32_t length = 0;
    std::vector<std::vector<SlotId>> slots;   // [groups][blocks]
    std::vector<std::vector<SlotId>> tables;  // the same, kNoSlot where a window does not reach
    std::vector<std::span<const SlotId>> views;
  };
  void HideWhatWindowsDoNotReach(Sequence& sequence);

  const LoadedModel& model_;
  const RunnerOptions options_;
  Ledger ledger_{UINT64_MAX};
  WorkerPool pool_;
  std::vector<Region> regions_;
  std::vector<KvGroupView> groups_;
  std::vector<Sequence> sequences_;
  std::unique_ptr<ForwardPass> forward_;
};

}  // namespace reprise
