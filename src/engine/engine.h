// The step loop: submit, run, sample, stream, cancel. The one thread that owns cache and scheduler
// lives here; everything else talks to it through bounded queues.
//
// Ownership: owns cache and scheduler; uses the executor and the tokenizer, which must outlive it.
// Threads:   all public methods from any thread; sinks are called on the engine thread.
// Errors:    Submit refuses with a RequestError (queue_full, never_fits, context_too_long,
//            shutting_down); later errors arrive as the last event. Nothing throws.
// Design:    DESIGN 3, 10
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/ledger.h"
#include "cache/kv_cache.h"
#include "engine/generation.h"
#include "model/executor.h"
#include "tier/tier.h"

namespace reprise {

// The adapters that take part, in order: what was asked for, or all that are loaded with the scales of the start.
inline std::vector<AdapterUse> AdaptersOf(std::span<const AdapterInfo> loaded,
                                          const std::optional<std::vector<AdapterUse>>& asked) {
  std::vector<AdapterUse> uses;
  if (asked) {
    uses = *asked;
  } else {
    for (uint32_t i = 0; i < loaded.size(); ++i) uses.push_back({i, loaded[i].scale});
  }
  std::erase_if(uses, [](const AdapterUse& use) { return use.scale == 0; });
  return uses;
}

// What a server needs of an engine; tests put a fake here.
class EngineInterface {
 public:
  virtual ~EngineInterface() = default;

  // Queues the request; `sink` gets its events until one has `finish`. On an error the sink is dropped.
  struct Submission {
    SequenceId id;
    std::optional<RequestError> error;
  };
  virtual Submission Submit(GenerationRequest request, GenerationSink sink) = 0;

  // Ends a request within one step, with FinishReason::kCancelled; no-op if it ended already.
  virtual void Cancel(SequenceId id) = 0;

  struct Stats {
    uint32_t queued_requests = 0;
    uint64_t queued_tokens = 0;
    uint32_t running = 0;
    uint64_t steps = 0;
    uint64_t tokens_reused = 0;
    uint64_t tokens_computed = 0;
    uint64_t tokens_generated = 0;
  };
  virtual Stats stats() const = 0;
  virtual uint32_t context_max() const = 0;
  // What requests may name: constant.
  virtual std::span<const AdapterInfo> adapters() const { return {}; }

  // What decides whether state is the same computation, for receipts: constant.
  struct Identity {
    ComputationIdentity computation;
    Digest geometry;  // of the namespace's field
  };
  virtual const Identity& identity() const = 0;

  // What the cache has of a prompt now, without running it. `done` is called once, on the engine thread,
  // between two steps. False: shutting down, and `done` is dropped. REQUIRES: adapters that Submit would take.
  struct ExplainRequest {
    std::vector<TokenId> prompt;  // not empty
    Scope scope;
    std::optional<std::vector<AdapterUse>> adapters;  // as GenerationRequest::adapters
    ReportView view = ReportView::kOwner;
  };
  virtual bool Explain(ExplainRequest request, std::function<void(PrefixReport)> done) = 0;
  // Forgets everything of a tenant, in memory and in the tier; `done` is called once, on any thread, when that lasts.
  struct Purged {
    KvCache::Purged memory;
    std::optional<absl::StatusOr<TierErased>> tier;  // absent without one
  };
  virtual bool Purge(std::string tenant, std::function<void(Purged)> done) = 0;
  virtual KvCache::Stats cache_stats() const = 0;
  virtual std::optional<TierStats> tier_stats() const { return std::nullopt; }

  // Stops taking requests, lets running ones finish until `deadline_ms`, then cancels them.
  virtual void Drain(uint32_t deadline_ms) = 0;
};

}  // namespace reprise
