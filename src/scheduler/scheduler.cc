#include "scheduler/scheduler.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace reprise {
namespace {

// What was in a tier, and why it did not come.
bool IsOfTier(MissReason reason) { return reason >= MissReason::kChecksumFailed; }

Scheduler::Clock::duration LoadExposed(const TierReport& tier, Scheduler::Clock::duration overlapped) {
  const auto load =
      std::chrono::duration_cast<Scheduler::Clock::duration>(std::chrono::duration<double, std::milli>(tier.load_ms));
  return load - std::min(load, overlapped);
}

}  // namespace

// The token arrays: waiting prompts, and running sequences at their longest.
Footprint Scheduler::FootprintOf(const SchedulerOptions& options) {
  const uint64_t tokens = options.queue_tokens_max + uint64_t{options.sequences_max} * options.context_max;
  return {"scheduler", tokens * sizeof(TokenId)};
}

Scheduler::Scheduler(const SchedulerOptions& options, KvCache& cache, Ledger& ledger)
    : options_(options), cache_(cache), region_(ledger.Account("scheduler", FootprintOf(options).bytes)) {
  CHECK_LE(options.sequences_max, options.step_rows_max);  // every running sequence may decode in one step
  running_.reserve(options.sequences_max);
  refused_.reserve(options.queue_requests_max);
  step_.reserve(options.sequences_max);
  batch_slices_.reserve(options.sequences_max);
}

void Scheduler::Enqueue(SequenceRequest request) {
  CHECK(!request.prompt.empty());
  CHECK_LE(request.prompt.size(), request.tokens_max);
  CHECK_LE(request.tokens_max, options_.context_max);
  auto sequence = std::make_unique<Sequence>();
  sequence->prompt_tokens = static_cast<uint32_t>(request.prompt.size());
  sequence->tokens = std::move(request.prompt);
  sequence->request = std::move(request);
  waiting_tokens_ += sequence->prompt_tokens;
  waiting_.push_back(std::move(sequence));
}

void Scheduler::AdmitWaiting() {
  refused_.clear();
  while (!waiting_.empty() && running_.size() < options_.sequences_max) {
    Sequence& sequence = *waiting_.front();
    const Clock::time_point start = Clock::now();
    const KvCache::Outcome outcome = cache_.Admit({.name_space = sequence.request.name_space,
                                                   .prompt = sequence.tokens,
                                                   .tokens_max = sequence.request.tokens_max,
                                                   .read = sequence.request.cache_read,
                                                   .write = sequence.request.cache_write},
                                                  sequence.kv);
    if (outcome == KvCache::Outcome::kWait) return;  // in order of arrival: a long request is not starved
    waiting_tokens_ -= sequence.prompt_tokens;
    if (outcome == KvCache::Outcome::kNever) {
      refused_.push_back(sequence.request.id);
    } else {
      sequence.admitted = Clock::now();
      sequence.lookup = sequence.admitted - start;
      sequence.tokens.reserve(sequence.request.tokens_max);
      running_.push_back(std::move(waiting_.front()));
    }
    waiting_.pop_front();
  }
}

// How much of their prompts two may share, were the tokens equal: all in one namespace, or what is everyone's.
uint32_t Scheduler::Shareable(const Sequence& a, const Sequence& b) const {
  const NamespaceDigests& mine = a.request.name_space;
  const NamespaceDigests& theirs = b.request.name_space;
  if (!mine.shared) return mine.id == theirs.id ? UINT32_MAX : 0;
  const uint32_t of_a = cache_.SharedTokens(mine, std::span(a.tokens).first(a.prompt_tokens));
  const uint32_t of_b = cache_.SharedTokens(theirs, std::span(b.tokens).first(b.prompt_tokens));
  if (mine.id == theirs.id && of_a == of_b) return UINT32_MAX;
  return mine.shared == theirs.shared ? std::min(of_a, of_b) : 0;
}

// Whether so many rows of prompts are computed before what the sequence waits for is too late for it, as fast as they
// were of late.
bool Scheduler::InTime(const Sequence& sequence, uint32_t rows) const {
  if (!sequence.request.deadline) return true;
  const double left_s = std::chrono::duration<double>(*sequence.request.deadline - Clock::now()).count();
  return left_s > 0 && rows * prompt_seconds_ <= left_s * prompt_rows_;
}

// Another sequence, started and not done with its prompt, is about to seal at least one whole block more
// of this prompt than is in place.
bool Scheduler::WaitsForLeader(const Sequence& follower) const {
  if (!follower.request.cache_read) return false;
  const uint32_t block_tokens = cache_.geometry().block_tokens;
  const uint32_t have = follower.kv.length();
  for (const auto& leader : running_) {
    if (leader.get() == &follower || leader->prompt_done()) continue;
    if (!leader->kv.fetching() && (!leader->started || !leader->request.cache_write)) continue;
    const uint32_t limit = std::min({follower.prompt_tokens - 1, leader->prompt_tokens, Shareable(follower, *leader)});
    uint32_t common = 0;
    while (common < limit && follower.tokens[common] == leader->tokens[common]) ++common;
    const uint32_t shared = common / block_tokens * block_tokens;
    if (shared > have && leader->kv.length() < shared && InTime(follower, shared - leader->kv.length())) return true;
  }
  return false;
}

// What was found; if that was asked for, what the cache says of it now, but for what the sequence holds already and
// others cannot find any more.
void Scheduler::Report(Sequence& sequence) {
  const PrefixMatch held = sequence.kv.match();
  if (!sequence.request.report) {
    sequence.report = {.match = held, .tier = sequence.kv.tier(), .fork = held.tokens};
    return;
  }
  PrefixReport report = cache_.Explain(sequence.request.name_space, sequence.tokens);
  // What the tier has beyond was not brought, or not in time: it is no part of what was reused.
  if (!sequence.request.cache_read || report.match.tokens < held.tokens || report.tier.tokens > 0) report.match = held;
  if (report.fork < report.match.tokens) {
    report.fork = report.match.tokens;
    report.cached_token.reset();
    report.cached_beyond = 0;
  }
  if (report.match.tokens == held.tokens && IsOfTier(held.reason)) report.match.reason = held.reason;
  report.tier = sequence.kv.tier();
  sequence.report = report;
}

void Scheduler::AddSlice(Sequence& sequence, uint32_t rows) {
  const uint32_t first_position = sequence.kv.length();
  const bool wants_token = rows == sequence.pending();
  step_.push_back({.id = sequence.request.id,
                   .rows = rows,
                   .prompt = !sequence.prompt_done(),
                   .wants_token = wants_token,
                   .first = !sequence.started});
  sequence.started = true;
  sequence.kv.Prepare(rows);
  batch_slices_.push_back({.tokens = std::span(sequence.tokens).subspan(first_position, rows),
                           .first_position = first_position,
                           .tables = sequence.kv.tables(),
                           .logits_rows = wants_token ? 1u : 0u,
                           .adapters = sequence.request.adapters});
}

// The last look for a longer prefix, in the pool and then in a tier. False: it waits, for another one or for the tier.
bool Scheduler::LooksAgain(Sequence& sequence) {
  const Clock::time_point start = Clock::now();
  if (sequence.request.cache_read) sequence.kv.Rematch();
  const bool waits =
      WaitsForLeader(sequence) || (!std::exchange(sequence.asked_tier, true) && sequence.kv.BeginFetch());
  sequence.lookup += Clock::now() - start;
  return !waits;
}

bool Scheduler::Plan() {
  AdmitWaiting();
  step_.clear();
  batch_slices_.clear();
  uint32_t budget = options_.step_rows_max;
  for (const auto& sequence : running_) {
    if (!sequence->prompt_done()) continue;
    AddSlice(*sequence, 1);
    --budget;
  }
  if (!step_.empty()) budget = std::min(budget, options_.shared_rows_max);
  for (const auto& sequence : running_) {
    if (budget == 0) break;
    if (sequence->prompt_done()) continue;
    if (!sequence->started) {
      if (sequence->kv.fetching() || !LooksAgain(*sequence)) continue;
      sequence->cached_tokens = sequence->kv.length();
      Report(*sequence);
    }
    const uint32_t rows = std::min({budget, sequence->pending(), sequence->kv.rows_to_edge()});
    AddSlice(*sequence, rows);
    budget -= rows;
  }
  return !step_.empty();
}

void Scheduler::Computed(Clock::duration duration) {
  constexpr double kKept = 0.95;
  uint32_t rows = 0;
  for (const StepSlice& slice : step_) rows += slice.prompt ? slice.rows : 0;
  if (rows > 0) {
    prompt_rows_ = prompt_rows_ * kKept + rows;
    prompt_seconds_ = prompt_seconds_ * kKept + std::chrono::duration<double>(duration).count();
  }
  for (const auto& sequence : running_)
    if (sequence->kv.fetching()) sequence->overlapped += duration;
}

bool Scheduler::fetching() const {
  return std::any_of(running_.begin(), running_.end(), [](const auto& sequence) { return sequence->kv.fetching(); });
}

void Scheduler::Commit(size_t index) {
  CHECK_LT(index, step_.size());
  Sequence* sequence = FindRunning(step_[index].id);
  CHECK(sequence != nullptr);
  sequence->kv.Commit(batch_slices_[index].tokens);
  if (step_[index].prompt && sequence->prompt_done()) sequence->kv.MarkCheckpoint();
}

void Scheduler::Append(SequenceId id, TokenId token) {
  Sequence* sequence = FindRunning(id);
  CHECK(sequence != nullptr);
  CHECK_EQ(sequence->pending(), 0u);
  CHECK_LT(sequence->tokens.size(), sequence->request.tokens_max);
  sequence->tokens.push_back(token);
}

void Scheduler::Finish(SequenceId id) {
  Sequence* sequence = FindRunning(id);
  CHECK(sequence != nullptr);
  sequence->kv.Finish();
  RemoveRunning(sequence);
}

bool Scheduler::Drop(SequenceId id) {
  if (const Sequence* sequence = FindRunning(id)) {
    RemoveRunning(sequence);
    return true;
  }
  const auto at = std::find_if(waiting_.begin(), waiting_.end(), [id](const auto& s) { return s->request.id == id; });
  if (at == waiting_.end()) return false;
  waiting_tokens_ -= (*at)->prompt_tokens;
  waiting_.erase(at);
  return true;
}

Scheduler::SequenceInfo Scheduler::info(SequenceId id) const {
  const Sequence* sequence = FindRunning(id);
  CHECK(sequence != nullptr);
  return {.cached_tokens = sequence->cached_tokens,
          .prompt_done = std::min(sequence->kv.length(), sequence->prompt_tokens),
          .admitted = sequence->admitted,
          .lookup = sequence->lookup,
          .load_exposed = LoadExposed(sequence->kv.tier(), sequence->overlapped),
          .report = sequence->report};
}

Scheduler::Sequence* Scheduler::FindRunning(SequenceId id) const {
  for (const auto& sequence : running_)
    if (sequence->request.id == id) return sequence.get();
  return nullptr;
}

void Scheduler::RemoveRunning(const Sequence* sequence) {
  std::erase_if(running_, [sequence](const auto& s) { return s.get() == sequence; });
}

void Scheduler::CheckIntegrity() const {
  CHECK_LE(running_.size(), options_.sequences_max);
  uint64_t tokens = 0;
  for (const auto& sequence : waiting_) {
    CHECK(!sequence->kv);
    tokens += sequence->prompt_tokens;
  }
  CHECK_EQ(tokens, waiting_tokens_);
  for (const auto& sequence : running_) {
    CHECK(static_cast<bool>(sequence->kv));
    CHECK_LE(sequence->tokens.size(), sequence->request.tokens_max);
    CHECK_LE(sequence->kv.length(), sequence->tokens.size());
  }
  cache_.CheckIntegrity();
}

}  // namespace reprise
