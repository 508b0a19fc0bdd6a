// The engine: one thread that owns cache and scheduler, runs the executor step by step, draws tokens and
// sends them out as text.
//
// Ownership: owns cache, scheduler and sampler; executor and tokenizer must outlive it.
// Threads:   public methods from any thread. Sinks are called on the engine thread.
// Errors:    see EngineInterface. An executor that fails ends the running requests with `internal`.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "cache/kv_cache.h"
#include "engine/engine.h"
#include "model/executor.h"
#include "scheduler/scheduler.h"
#include "token/text_stream.h"
#include "token/tokenizer.h"

namespace reprise {

class TextEngine : public EngineInterface {
 public:
  // The sampler's share and the scheduler's; the cache has its own lines.
  static std::vector<Footprint> Footprints(const SchedulerOptions& options, uint32_t vocab_size);

  // The cache was made for this executor's geometry. Starts the thread.
  TextEngine(const SchedulerOptions& options, std::unique_ptr<KvCache> cache, Executor& executor,
             const Tokenizer& tokenizer, Ledger& ledger);
  // Cancels what is left and joins.
  ~TextEngine() override;

  Submission Submit(GenerationRequest request, GenerationSink sink) override;
  void Cancel(SequenceId id) override;
  Stats stats() const override;
  uint32_t context_max() const override { return options_.context_max; }
  std::span<const AdapterInfo> adapters() const override { return executor_.adapters(); }
  void Drain(uint32_t deadline_ms) override;

  const Identity& identity() const override { return identity_; }
  bool Explain(ExplainRequest request, std::function<void(PrefixReport)> done) override;
  bool Purge(std::string tenant, std::function<void(Purged)> done) override;
  KvCache::Stats cache_stats() const override;
  std::optional<TierStats> tier_stats() const override;
  // Checks every invariant after every step from now on. For tests.
  void CheckEveryStep() { check_every_step_ = true; }

 private:
  using Clock = std::chrono::steady_clock;

  // A token of the reply whose bytes are not all shown yet: it may turn out to be part of a stop string.
  struct UnnamedToken {
    GeneratedToken token;
    uint64_t end;  // of its bytes, in those that the text has taken
  };
  // A request from submission to its last event; on the engine thread only, once taken from the queue.
  struct Request {
    Request(GenerationRequest r, GenerationSink s, const Tokenizer& tokenizer)
        : generation(std::move(r)), sink(std::move(s)), text(tokenizer, generation.stop) {
      if (generation.grammar != nullptr) grammar.emplace(generation.grammar);
    }
    GenerationRequest generation;
    GenerationSink sink;
    TextStream text;
    std::vector<UnnamedToken> unnamed;
    std::optional<GrammarState> grammar;
    SeenTokens seen;  // with a penalty
    uint32_t prompt_n = 0;
    uint32_t tokens_max = 0;
    uint32_t predicted_n = 0;
    Timings timings;
    Clock::time_point submitted;
    Clock::time_point first_slice;
    Clock::time_point first_token;
    std::optional<PrefixReport> prefix;  // once admitted
  };
  struct Command {
    SequenceId id;
    std::unique_ptr<Request> request;  // null: cancel
  };

  // How often a tier's deadlines are looked at while nothing else is to be done.
  static constexpr std::chrono::milliseconds kTierDeadlines{2};

  // For what may call after the engine's end.
  struct Self {
    std::mutex mutex;
    TextEngine* engine;  // null: it has ended; guarded by mutex
  };

  std::optional<RequestError> CheckRequest(const GenerationRequest& request) const;
  std::optional<RequestError> CheckBias(const GenerationRequest& request) const;
  std::optional<RequestError> CheckAdapters(const GenerationRequest& request) const;
  NamespaceDigests NamespaceOf(const Scope& scope, std::span<const AdapterUse> adapters) const;
  bool Post(std::function<void()> task);
  void Loop();
  bool TakeCommands();  // false: stop
  bool RunTask();
  void Begin(SequenceId id, std::unique_ptr<Request> request);
  void Step();
  void Progress(const Scheduler::StepSlice& slice);
  void ExpireWaiting();
  void PollTier();
  void SaveToTier();
  void MeasurePrefill(Clock::duration duration);
  uint32_t RetryAfter(uint64_t tokens) const;  // REQUIRES: mutex_ is held
  void Sample(SequenceId id, std::span<const float> logits);
  std::optional<TokenId> Draw(Request& request, std::span<const float> logits);
  std::string TextOf(Request& request, TokenId token);
  static void NameShown(Request& request, std::vector<GeneratedToken>& tokens);
  void TakeFirstTimings(SequenceId id, Request& request);
  void EndByGrammar(SequenceId id);
  void Fail(SequenceId id, RequestError error);
  void End(SequenceId id, GenerationEvent event);
  void Publish();

  const SchedulerOptions options_;
  const std::shared_ptr<Self> self_;
  std::unique_ptr<KvCache> cache_;
  const Identity identity_;
  Executor& executor_;
  const Tokenizer& tokenizer_;
  Scheduler scheduler_;
  const Region sampler_memory_;
  Sampler sampler_;
  std::unordered_map<SequenceId, std::unique_ptr<Request>> requests_;
  std::vector<TokenId> end_tokens_;  // banned while ignore_eos
  std::atomic<bool> check_every_step_ = false;
  bool requests_changed_ = false;  // since the last Publish; engine thread
  bool waits_for_tier_ = false;    // nothing can be computed until it gave an answer; engine thread
  bool decoding_ = false;          // in the last step; engine thread

  mutable std::mutex mutex_;
  std::condition_variable wake_;             // commands arrived, or stop
  std::condition_variable ended_;            // a request ended, or the thread
  std::vector<Command> commands_;            // guarded by mutex_
  std::deque<std::function<void()>> tasks_;  // between two steps, one at a time; guarded by mutex_
  uint32_t queued_requests_ = 0;             // submitted, not running yet; guarded by mutex_
  uint64_t queued_tokens_ = 0;               // guarded by mutex_
  uint32_t live_requests_ = 0;               // submitted, not ended; guarded by mutex_
  bool draining_ = false;                    // guarded by mutex_
  bool tier_news_ = false;                   // something was read, or there is room to store; guarded by mutex_
  Clock::time_point save_until_{};  // when ending: what is not in the tier by then is lost to it; guarded by mutex_
  bool stop_ = false;               // guarded by mutex_
  bool stopped_ = false;            // the thread's work is done; guarded by mutex_
  uint64_t next_id_ = 1;            // guarded by mutex_
  // Prompt rows of late steps and the time those took, each step counting for less with every one that follows.
  double prefill_rows_ = 0;        // guarded by mutex_
  double prefill_seconds_ = 0;     // guarded by mutex_
  Stats stats_;                    // guarded by mutex_
  KvCache::Stats cache_stats_;     // guarded by mutex_
  uint64_t steps_ = 0;             // engine thread
  uint64_t tokens_generated_ = 0;  // engine thread
  std::thread thread_;
};

}  // namespace reprise
