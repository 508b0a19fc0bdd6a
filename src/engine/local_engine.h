// Everything that one model needs to answer, made from a GGUF file: plan, weights, cache, forward pass,
// tokenizer, engine. What serve, bench and the tests run.
//
// The plan comes first and is pure: the same Footprint functions that the constructors take their memory
// by are added up, and what is left of --memory becomes KV slots (DESIGN 1.3).
//
// Ownership: owns all of it.
// Threads:   Load on one thread; then see EngineInterface.
// Errors:    those of ModelDescription, ModelWeights and Tokenizer; ResourceExhausted when the memory does
//            not hold the model and one sequence, with the sum, a line per component.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/ledger.h"
#include "engine/text_engine.h"
#include "env/worker_pool.h"
#include "kernel/isa.h"
#include "model/battery.h"
#include "model/description.h"
#include "model/forward.h"
#include "model/weights.h"
#include "tier/disk_tier.h"
#include "token/chat_template.h"
#include "token/tokenizer.h"

namespace reprise {

struct LocalEngineOptions {
  std::string model_path;
  std::vector<AdapterOptions> adapters;  // in the order in which requests use them that do not say
  uint64_t memory_bytes = 0;             // of the process; 0: DefaultMemoryBytes
  uint32_t context = 0;                  // 0: as trained, or what fits
  uint32_t threads = 0;                  // 0: the cores of this process
  ElementType kv_type = ElementType::kF16;
  std::optional<Isa> isa;  // absent: the best that this CPU has
  uint32_t sequences_max = 32;
  uint32_t step_rows_max = 512;
  uint32_t shared_rows_max = 256;
  uint32_t queue_requests_max = 256;
  uint64_t queue_tokens_max = 1'000'000;
  uint64_t other_bytes = 0;   // what the caller takes besides (the server's buffers)
  uint64_t shuffle_seed = 0;  // see KvCacheOptions
  std::string chat_template;  // text to use instead of the model's; empty: the model's
  // Beginnings of prompts that are everyone's, see KvCacheOptions.
  std::vector<std::vector<TokenId>> shared_prefixes;
  std::optional<uint32_t> tier_patience_ms;  // see KvCacheOptions
  DiskTierOptions disk;  // its directory is that of all models, each has one in it; empty: no disk tier
};

// The sum, line by line, and every limit with what set it.
struct MemoryPlan {
  uint64_t memory_bytes = 0;
  std::string memory_from;  // "--memory", "half of the machine", ...
  std::vector<Footprint> lines;
  uint32_t context = 0;
  std::string context_from;     // "--context", "the model", "the memory"
  std::vector<uint32_t> slots;  // [groups]
  uint64_t pool_tokens = 0;     // that the full group holds
  uint64_t disk_bytes = 0;      // cap of the disk tier; 0: none
  uint64_t total_bytes() const;
};

class LocalEngine {
 public:
  // Memory that no component counts: code, libraries, stacks, the allocator's slack. Measured in
  // bench/results.
  static constexpr uint64_t kRuntimeBytes = 96ull << 20;

  static absl::StatusOr<MemoryPlan> Plan(const ModelDescription& model, const LocalEngineOptions& options);

  using Progress = std::function<void(double fraction)>;
  static absl::StatusOr<std::unique_ptr<LocalEngine>> Load(const LocalEngineOptions& options, const Progress& progress);
  ~LocalEngine();

  TextEngine& engine() { return *engine_; }
  const Tokenizer& tokenizer() const { return *tokenizer_; }
  const ChatTemplate* chat_template() const { return chat_template_.get(); }  // null: a base model
  const ModelDescription& model() const { return *model_; }
  const MemoryPlan& plan() const { return plan_; }
  const Ledger& ledger() const { return *ledger_; }
  const BatteryReport& battery() const { return battery_; }
  Isa isa() const { return isa_; }
  // What became of the disk tier at the start.
  struct DiskStatus {
    std::string directory;  // of this model; empty: there is none
    std::string error;      // why there is none although it was asked for
    DiskTier opened;        // without the tier
  };
  const DiskStatus& disk() const { return disk_; }
  uint32_t threads() const { return pool_->threads(); }

 private:
  LocalEngine() = default;
  void WarmUp(KvCache& cache);
  void OpenDisk(const DiskTierOptions& options, const KvCacheOptions& cache, Ledger& ledger);

  MemoryPlan plan_;
  Isa isa_ = Isa::kPortable;
  BatteryReport battery_;
  std::unique_ptr<Ledger> ledger_;
  std::unique_ptr<WorkerPool> pool_;
  std::unique_ptr<ModelDescription> model_;
  std::unique_ptr<ModelWeights> weights_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<ChatTemplate> chat_template_;
  std::unique_ptr<ForwardPass> forward_;
  DiskStatus disk_;
  std::unique_ptr<Tier> tier_;
  std::unique_ptr<TextEngine> engine_;  // owns the cache; last in, first out
};

}  // namespace reprise
