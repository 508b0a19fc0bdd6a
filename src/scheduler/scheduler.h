// Continuous batching: which sequences run, and which of their tokens the next step computes. Running
// decodes come first, one row each; the rest of the step's token budget goes to slices of prompts, in
// the order of admission. A sequence is admitted when its worst case fits, and is never evicted.
//
// A prompt is computed once: a sequence that has not started looks again for a longer prefix before its
// first slice, and waits while another one is computing blocks that it needs.
//
// What a tier has of a prompt is brought while other sequences compute; a sequence whose fetch is going on has no
// slice.
//
// A step: Plan -> the executor runs batch() -> Commit or Drop every slice -> Append the sampled tokens.
//
// Ownership: owns the sequences and their cache handles; uses the cache, which must outlive it.
// Threads:   one, the engine's.
// Errors:    a full queue and a request that never fits are outcomes.
// Design:    DESIGN 10
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/ledger.h"
#include "cache/kv_cache.h"
#include "model/batch.h"

namespace reprise {

struct SchedulerOptions {
  uint32_t sequences_max = 0;    // running at once
  uint32_t step_rows_max = 0;    // token budget of a step
  uint32_t shared_rows_max = 0;  // of which slices may take this much while others decode: bounds their gap
  uint32_t context_max = 0;      // tokens of a sequence
  uint32_t queue_requests_max = 0;
  uint64_t queue_tokens_max = 0;        // prompt tokens of waiting sequences
  uint32_t queue_timeout_ms = 120'000;  // longer in the queue: refused; 0: never
};

struct SequenceRequest {
  SequenceId id;
  NamespaceDigests name_space;
  std::vector<TokenId> prompt;       // not empty
  std::vector<AdapterUse> adapters;  // of every slice; the namespace is theirs
  uint32_t tokens_max = 0;           // prompt + output, at most context_max
  bool cache_read = true;
  bool cache_write = true;
  // Its prompt is not to wait for another's beyond this: what would come later it computes itself.
  std::optional<std::chrono::steady_clock::time_point> deadline = std::nullopt;
  bool report = false;  // `info` has more of what was found before the first slice than the match
};

class Scheduler {
 public:
  using Clock = std::chrono::steady_clock;

  static Footprint FootprintOf(const SchedulerOptions& options);
  Scheduler(const SchedulerOptions& options, KvCache& cache, Ledger& ledger);

  // Queues the request. Limits of the queue are the engine's to check, before it gets here.
  void Enqueue(SequenceRequest request);

  // What a step does with one sequence, in the order of batch().slices.
  struct StepSlice {
    SequenceId id;
    uint32_t rows = 0;
    bool prompt = false;       // rows of the prompt, not a decode
    bool wants_token = false;  // logits of the last row come back
    bool first = false;        // the first slice of its sequence
  };
  // Sequences that would not fit an empty cache, found by Plan: removed from the queue.
  std::span<const SequenceId> refused() const { return refused_; }

  // Admits what fits and plans the next step. False: nothing to compute.
  bool Plan();
  Batch batch() const { return {batch_slices_}; }
  std::span<const StepSlice> step() const { return step_; }

  // The step took so long: how fast prompts are, and what fetches that are going on have not cost. Before Commit.
  void Computed(Clock::duration duration);
  // Something waits for a tier.
  bool fetching() const;

  // Slice `index` of the step was computed: its rows are appended and complete blocks sealed.
  void Commit(size_t index);

  // The token sampled for a sequence whose slice wanted one: it is computed by the next step.
  // REQUIRES: the sequence has not reached tokens_max.
  void Append(SequenceId id, TokenId token);

  // The sequence ended well: what it computed stays reusable, with its tail and its end as a checkpoint.
  void Finish(SequenceId id);
  // It was cancelled or failed, queued or running; what was committed before stays reusable. False: unknown.
  bool Drop(SequenceId id);

  struct SequenceInfo {
    uint32_t cached_tokens = 0;  // prompt tokens that were not computed
    uint32_t prompt_done = 0;    // prompt tokens in place
    Clock::time_point admitted;
    Clock::duration lookup{};        // time spent looking for the prefix
    Clock::duration load_exposed{};  // of its fetch: while nothing was computed
    std::optional<PrefixReport> report;
  };
  // REQUIRES: `id` is running.
  SequenceInfo info(SequenceId id) const;

  // The sequence that has waited longest.
  std::optional<SequenceId> first_waiting() const {
    return waiting_.empty() ? std::nullopt : std::optional(waiting_.front()->request.id);
  }
  uint32_t waiting() const { return static_cast<uint32_t>(waiting_.size()); }
  uint64_t waiting_tokens() const { return waiting_tokens_; }
  uint32_t running() const { return static_cast<uint32_t>(running_.size()); }
  bool idle() const { return waiting_.empty() && running_.empty(); }

  // Aborts unless every running sequence can finish and counts agree. For tests, after every step.
  void CheckIntegrity() const;

 private:
  struct Sequence {
    SequenceRequest request;      // prompt moved to `tokens`
    std::vector<TokenId> tokens;  // prompt and output; capacity tokens_max once admitted
    uint32_t prompt_tokens = 0;
    CacheSequence kv;
    bool started = false;
    bool asked_tier = false;
    Clock::duration overlapped{};  // of its fetch, with steps of others
    uint32_t cached_tokens = 0;
    Clock::time_point admitted;
    Clock::duration lookup{};
    std::optional<PrefixReport> report;

    uint32_t pending() const { return static_cast<uint32_t>(tokens.size()) - kv.length(); }
    bool prompt_done() const { return kv.length() >= prompt_tokens; }
  };

  void AdmitWaiting();
  void Report(Sequence& sequence);
  uint32_t Shareable(const Sequence& a, const Sequence& b) const;
  bool InTime(const Sequence& sequence, uint32_t rows) const;
  bool WaitsForLeader(const Sequence& follower) const;
  bool LooksAgain(Sequence& sequence);
  void AddSlice(Sequence& sequence, uint32_t rows);
  Sequence* FindRunning(SequenceId id) const;
  void RemoveRunning(const Sequence* sequence);

  const SchedulerOptions options_;
  KvCache& cache_;
  const Region region_;
  std::deque<std::unique_ptr<Sequence>> waiting_;   // in order of arrival
  std::vector<std::unique_ptr<Sequence>> running_;  // in order of admission
  uint64_t waiting_tokens_ = 0;
  double prompt_rows_ = 0, prompt_seconds_ = 0;  // computed of late; old steps fade
  std::vector<SequenceId> refused_;
  std::vector<StepSlice> step_;
  std::vector<BatchSlice> batch_slices_;
};

}  // namespace reprise
