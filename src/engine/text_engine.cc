#include "engine/text_engine.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "model/identity.h"

namespace reprise {
namespace {

// Draws that the grammar may refuse before all of the vocabulary is held against it.
constexpr uint32_t kAttemptsMax = 8;

bool Penalizes(const SamplingParameters& sampling) {
  return sampling.repeat_penalty != 1 || sampling.frequency_penalty != 0 || sampling.presence_penalty != 0;
}

double Milliseconds(std::chrono::steady_clock::duration duration) {
  return std::chrono::duration<double, std::milli>(duration).count();
}

}  // namespace

std::vector<Footprint> TextEngine::Footprints(const SchedulerOptions& options, uint32_t vocab_size) {
  return {Scheduler::FootprintOf(options), {"sampler", Sampler::Footprint(vocab_size)}};
}

TextEngine::TextEngine(const SchedulerOptions& options, std::unique_ptr<KvCache> cache, Executor& executor,
                       const Tokenizer& tokenizer, Ledger& ledger)
    : options_(options),
      self_(std::make_shared<Self>()),
      cache_(std::move(cache)),
      identity_{.computation = cache_->identity(), .geometry = *cache_->Namespace({}).tag(NamespaceTag::kGeometry)},
      executor_(executor),
      tokenizer_(tokenizer),
      scheduler_(options, *cache_, ledger),
      sampler_memory_(ledger.Take("sampler", Sampler::Footprint(executor.vocab_size()))),
      sampler_(executor.vocab_size(), sampler_memory_.bytes()) {
  CHECK_LE(options.step_rows_max, executor.batch_rows_max());
  CHECK_LE(options.sequences_max, executor.slices_max());
  CHECK_LE(options.sequences_max, executor.logits_rows_max());
  for (uint32_t token = 0; token < tokenizer.vocab_size(); ++token)
    if (tokenizer.IsEndOfGeneration(TokenId(static_cast<int32_t>(token))))
      end_tokens_.push_back(TokenId(static_cast<int32_t>(token)));
  cache_stats_ = cache_->stats();
  if (cache_->tier() != nullptr)
    cache_->tier()->SetWake([this] {
      {
        const std::lock_guard lock(mutex_);
        tier_news_ = true;
      }
      wake_.notify_one();
    });
  self_->engine = this;
  thread_ = std::thread([this] { Loop(); });
}

TextEngine::~TextEngine() {
  {
    const std::lock_guard lock(self_->mutex);
    self_->engine = nullptr;
  }
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_one();
  thread_.join();
  if (cache_->tier() != nullptr) cache_->tier()->SetWake(nullptr);
}

std::optional<RequestError> TextEngine::CheckBias(const GenerationRequest& request) const {
  const auto bad = [](std::string message, double limit, double got) {
    return RequestError{.http_status = 400,
                        .code = "invalid_value",
                        .param = "logit_bias",
                        .message = std::move(message),
                        .limit = limit,
                        .got = got};
  };
  if (request.logit_bias.size() > kLogitBiasMax)
    return bad(absl::StrCat("at most ", kLogitBiasMax, " tokens may have a bias"), kLogitBiasMax,
               static_cast<double>(request.logit_bias.size()));
  for (const LogitBias& bias : request.logit_bias)
    if (bias.token.value() < 0 || static_cast<uint32_t>(bias.token.value()) >= executor_.vocab_size())
      return bad(absl::StrCat("token ", bias.token.value(), " is not in the vocabulary"), executor_.vocab_size() - 1.0,
                 bias.token.value());
  return std::nullopt;
}

std::optional<RequestError> TextEngine::CheckAdapters(const GenerationRequest& request) const {
  const auto bad = [](std::string message, double limit, double got) {
    return RequestError{.http_status = 400,
                        .code = "invalid_value",
                        .param = "lora",
                        .message = std::move(message),
                        .limit = limit,
                        .got = got};
  };
  if (!request.adapters) return std::nullopt;
  const std::span<const AdapterInfo> loaded = executor_.adapters();
  if (request.adapters->size() > kAdapterUsesMax)
    return bad(absl::StrCat("at most ", kAdapterUsesMax, " adapters may take part in one request"), kAdapterUsesMax,
               static_cast<double>(request.adapters->size()));
  std::vector<bool> seen(loaded.size());
  for (const AdapterUse& use : *request.adapters) {
    if (use.adapter >= loaded.size())
      return bad(absl::StrCat("there is no adapter ", use.adapter), static_cast<double>(loaded.size()), use.adapter);
    const std::string& name = loaded[use.adapter].name;
    if (seen[use.adapter]) return bad(absl::StrCat("adapter '", name, "' is named twice"), 1, 2);
    seen[use.adapter] = true;
    if (!(std::fabs(use.scale) <= kAdapterScaleLimit))
      return bad(absl::StrCat("the scale of adapter '", name, "' must be from ", -kAdapterScaleLimit, " to ",
                              kAdapterScaleLimit),
                 kAdapterScaleLimit, use.scale);
  }
  return std::nullopt;
}

NamespaceDigests TextEngine::NamespaceOf(const Scope& scope, std::span<const AdapterUse> adapters) const {
  return cache_->Namespace(scope, AdaptersIdentity(executor_.adapters(), adapters));
}

std::optional<RequestError> TextEngine::CheckRequest(const GenerationRequest& request) const {
  const auto bad = [&](std::string code, std::string message, double limit, double got) {
    return RequestError{.http_status = 400,
                        .code = std::move(code),
                        .param = request.prompt_param,
                        .message = std::move(message),
                        .limit = limit,
                        .got = got};
  };
  if (request.prompt.empty()) return bad("invalid_value", "the prompt has no tokens", 1, 0);
  for (TokenId token : request.prompt)
    if (token.value() < 0 || static_cast<uint32_t>(token.value()) >= executor_.vocab_size())
      return bad("invalid_value", absl::StrCat("token ", token.value(), " is not in the vocabulary"),
                 executor_.vocab_size() - 1.0, token.value());
  if (auto error = CheckBias(request)) return error;
  if (auto error = CheckAdapters(request)) return error;
  const uint64_t tokens = request.prompt.size() + std::max<uint64_t>(request.max_tokens, 1);
  if (tokens > options_.context_max)
    return bad(
        "context_too_long",
        absl::StrCat("prompt (", request.prompt.size(), " tokens) and reply (",
                     std::max<uint32_t>(request.max_tokens, 1), ") need ", tokens, " of a context of ",
                     options_.context_max, "; shorten the prompt, lower max_tokens, or start with a larger --context"),
        options_.context_max, static_cast<double>(tokens));
  return std::nullopt;
}

EngineInterface::Submission TextEngine::Submit(GenerationRequest request, GenerationSink sink) {
  if (auto error = CheckRequest(request)) return {.error = std::move(error)};
  auto pending = std::make_unique<Request>(std::move(request), std::move(sink), tokenizer_);
  pending->submitted = Clock::now();
  pending->prompt_n = static_cast<uint32_t>(pending->generation.prompt.size());
  const uint32_t max_tokens = pending->generation.max_tokens;
  pending->tokens_max = max_tokens == 0 ? options_.context_max : pending->prompt_n + max_tokens;
  if (Penalizes(pending->generation.sampling))
    pending->seen = SeenTokens(pending->generation.prompt, pending->tokens_max - pending->prompt_n);

  SequenceId id;
  {
    const std::lock_guard lock(mutex_);
    if (stop_ || draining_)
      return {.error =
                  RequestError{.http_status = 503, .code = "shutting_down", .message = "the server is shutting down"}};
    if (queued_requests_ >= options_.queue_requests_max ||
        queued_tokens_ + pending->prompt_n > options_.queue_tokens_max) {
      const bool requests = queued_requests_ >= options_.queue_requests_max;
      return {.error = RequestError{
                  .http_status = 429,
                  .code = "queue_full",
                  .message = requests ? "too many requests are waiting" : "too many prompt tokens are waiting",
                  .limit = requests ? double(options_.queue_requests_max) : double(options_.queue_tokens_max),
                  .got = requests ? double(queued_requests_) : double(queued_tokens_ + pending->prompt_n),
                  .retry_after_s = RetryAfter(queued_tokens_ + pending->prompt_n)}};
    }
    id = SequenceId(next_id_++);
    ++queued_requests_;
    queued_tokens_ += pending->prompt_n;
    ++live_requests_;
    commands_.push_back({.id = id, .request = std::move(pending)});
  }
  wake_.notify_one();
  return {.id = id};
}

void TextEngine::Cancel(SequenceId id) {
  {
    const std::lock_guard lock(mutex_);
    commands_.push_back({.id = id});
  }
  wake_.notify_one();
}

bool TextEngine::Post(std::function<void()> task) {
  {
    const std::lock_guard lock(mutex_);
    if (stop_) return false;
    tasks_.push_back(std::move(task));
  }
  wake_.notify_one();
  return true;
}

// When so many prompt tokens will have been computed, by the speed of late.
uint32_t TextEngine::RetryAfter(uint64_t tokens) const {
  constexpr double kMin = 1, kMax = 60;
  if (prefill_rows_ == 0) return static_cast<uint32_t>(kMin);
  const double seconds = static_cast<double>(tokens) * prefill_seconds_ / prefill_rows_;
  return static_cast<uint32_t>(std::clamp(std::ceil(seconds), kMin, kMax));
}

EngineInterface::Stats TextEngine::stats() const {
  const std::lock_guard lock(mutex_);
  Stats stats = stats_;
  stats.queued_requests = queued_requests_;
  stats.queued_tokens = queued_tokens_;
  return stats;
}

void TextEngine::Drain(uint32_t deadline_ms) {
  std::unique_lock lock(mutex_);
  draining_ = true;
  save_until_ = Clock::now() + std::chrono::milliseconds(deadline_ms);
  ended_.wait_for(lock, std::chrono::milliseconds(deadline_ms), [&] { return live_requests_ == 0; });
  stop_ = true;
  wake_.notify_one();
  ended_.wait(lock, [&] { return stopped_; });
}

// ---------------------------------------------------------------- the engine thread

void TextEngine::Loop() {
  while (TakeCommands()) {
    RunTask();
    ExpireWaiting();
    Step();
    if (scheduler_.idle()) PollTier();  // the last request's end
    Publish();
  }
  while (RunTask()) {  // each was promised an answer
  }
  while (!requests_.empty()) End(requests_.begin()->first, {.finish = FinishReason::kCancelled});
  Publish();
  SaveToTier();
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  ended_.notify_all();
}

// Waits while there is nothing to do. Commands that arrive are carried out; false: stop.
bool TextEngine::TakeCommands() {
  std::vector<Command> commands;
  {
    std::unique_lock lock(mutex_);
    const auto ready = [&] {
      return stop_ || tier_news_ || !commands_.empty() || !tasks_.empty() || (!scheduler_.idle() && !waits_for_tier_);
    };
    if (waits_for_tier_)
      wake_.wait_for(lock, kTierDeadlines, ready);
    else
      wake_.wait(lock, ready);
    tier_news_ = false;
    commands.swap(commands_);
    if (stop_) {
      lock.unlock();
      for (Command& command : commands)
        if (command.request) requests_.emplace(command.id, std::move(command.request));
      return false;
    }
  }
  for (Command& command : commands) {
    if (command.request) {
      Begin(command.id, std::move(command.request));
    } else if (requests_.contains(command.id)) {
      End(command.id, {.finish = FinishReason::kCancelled});
    }
  }
  return true;
}

// One task, so that many of them do not make a pause between two steps. False: there is none.
bool TextEngine::RunTask() {
  std::function<void()> task;
  {
    const std::lock_guard lock(mutex_);
    if (tasks_.empty()) return false;
    task = std::move(tasks_.front());
    tasks_.pop_front();
  }
  task();
  return true;
}

void TextEngine::Begin(SequenceId id, std::unique_ptr<Request> request) {
  std::vector<AdapterUse> uses = AdaptersOf(adapters(), request->generation.adapters);
  scheduler_.Enqueue({.id = id,
                      .name_space = NamespaceOf(request->generation.scope, uses),
                      .prompt = std::move(request->generation.prompt),
                      .adapters = std::move(uses),
                      .tokens_max = request->tokens_max,
                      .cache_read = request->generation.cache_read,
                      .cache_write = request->generation.cache_write,
                      .report = request->generation.receipt});
  requests_.emplace(id, std::move(request));
  requests_changed_ = true;
}

// The queue is in order of arrival: the first has waited longest.
void TextEngine::ExpireWaiting() {
  if (options_.queue_timeout_ms == 0) return;
  while (const std::optional<SequenceId> id = scheduler_.first_waiting()) {
    const double waited_ms = Milliseconds(Clock::now() - requests_.at(*id)->submitted);
    if (waited_ms < options_.queue_timeout_ms) return;
    uint32_t retry_after_s = 0;
    {
      const std::lock_guard lock(mutex_);
      retry_after_s = RetryAfter(queued_tokens_);
    }
    Fail(*id, {.http_status = 429,
               .code = "queue_full",
               .message = absl::StrCat("waited ", static_cast<uint64_t>(waited_ms / 1000),
                                       " s in the queue; the server has more requests than it can serve"),
               .limit = options_.queue_timeout_ms / 1000.0,
               .got = waited_ms / 1000,
               .retry_after_s = retry_after_s});
  }
}

void TextEngine::MeasurePrefill(Clock::duration duration) {
  constexpr double kKept = 0.95;
  uint32_t rows = 0, decodes = 0;
  double positions = 0;
  for (size_t i = 0; i < scheduler_.step().size(); ++i) {
    const Scheduler::StepSlice& slice = scheduler_.step()[i];
    if (!slice.prompt) {
      ++decodes;
      continue;
    }
    rows += slice.rows;
    positions += slice.rows * (scheduler_.batch().slices[i].first_position + (slice.rows - 1) / 2.0);
  }
  decoding_ = decodes > 0;
  scheduler_.Computed(duration);
  if (rows == 0) return;
  if (decodes == 0) cache_->ObservePrefill(rows, positions, Milliseconds(duration) / 1000);
  const std::lock_guard lock(mutex_);
  prefill_rows_ = prefill_rows_ * kKept + rows;
  prefill_seconds_ = prefill_seconds_ * kKept + Milliseconds(duration) / 1000;
}

void TextEngine::Step() {
  cache_->SetTime(static_cast<uint64_t>(Milliseconds(Clock::now().time_since_epoch())));
  PollTier();
  const bool work = scheduler_.Plan();
  waits_for_tier_ = !work && scheduler_.fetching();
  for (SequenceId id : scheduler_.refused()) {
    const Request& request = *requests_.at(id);
    Fail(id,
         {.http_status = 400,
          .code = "never_fits",
          .param = request.generation.prompt_param,
          .message = absl::StrCat("prompt and reply may need ", request.tokens_max,
                                  " tokens, more than the KV pool holds; lower max_tokens or start with more --memory"),
          .got = double(request.tokens_max)});
  }
  if (!work) {
    decoding_ = false;
    return;
  }
  const auto step = scheduler_.step();
  for (const Scheduler::StepSlice& slice : step)
    if (slice.first) requests_.at(slice.id)->first_slice = Clock::now();

  const Clock::time_point start = Clock::now();
  const absl::StatusOr<std::span<const float>> logits = executor_.Run(scheduler_.batch());
  ++steps_;
  MeasurePrefill(Clock::now() - start);
  if (!logits.ok()) {
    for (const Scheduler::StepSlice& slice : step)
      Fail(slice.id, {.message = absl::StrCat("the model could not run: ", std::string(logits.status().message()))});
    return;
  }
  // Commit all before any sequence ends: a step's slices are views of the running sequences.
  for (size_t i = 0; i < step.size(); ++i)
    if (executor_.finite()[i]) scheduler_.Commit(i);
  size_t row = 0;
  for (size_t i = 0; i < step.size(); ++i) {
    const std::span<const float> slice_logits =
        step[i].wants_token ? logits->subspan(row++ * executor_.vocab_size(), executor_.vocab_size())
                            : std::span<const float>();
    if (!executor_.finite()[i]) {
      Fail(step[i].id, {.message = "the model computed a value that is not a number; nothing of this step was kept"});
    } else if (step[i].wants_token) {
      Sample(step[i].id, slice_logits);
    } else {
      Progress(step[i]);
    }
  }
  if (check_every_step_) scheduler_.CheckIntegrity();
}

void TextEngine::Progress(const Scheduler::StepSlice& slice) {
  requests_.at(slice.id)->sink({.prefilled = scheduler_.info(slice.id).prompt_done});
}

// The next token; nothing: the grammar allows none.
std::optional<TokenId> TextEngine::Draw(Request& request, std::span<const float> logits) {
  const GenerationRequest& generation = request.generation;
  const uint32_t position = request.prompt_n + request.predicted_n;
  sampler_.Begin(
      logits, generation.sampling,
      {.seen = request.seen.tokens(),
       .bias = generation.logit_bias,
       .banned = generation.ignore_eos ? std::span<const TokenId>(end_tokens_) : std::span<const TokenId>()});
  if (!request.grammar) return sampler_.Draw(position, 0);
  for (uint32_t attempt = 0; attempt < kAttemptsMax; ++attempt) {
    const std::optional<TokenId> token = sampler_.Draw(position, attempt);
    if (!token) break;
    if (request.grammar->Allows(*token)) return token;
    sampler_.Reject(*token);
  }
  if (!sampler_.Restrict([&](std::span<float> left) { request.grammar->Mask(left); })) return std::nullopt;
  // A mask whose work ran out in the middle has let through what the grammar will not take any more.
  const std::optional<TokenId> token = sampler_.Draw(position, kAttemptsMax);
  return token && request.grammar->Allows(*token) ? token : std::nullopt;
}

std::string TextEngine::TextOf(Request& request, TokenId token) {
  const std::vector<TokenId>& written = request.generation.written_tokens;
  if (std::find(written.begin(), written.end(), token) == written.end()) return request.text.Append(token);
  return request.text.AppendBytes(tokenizer_.Piece(token, /*special=*/true));
}

// Moves what the text shows to the end of `tokens`; those of a stop string are never named.
void TextEngine::NameShown(Request& request, std::vector<GeneratedToken>& tokens) {
  auto end = request.unnamed.begin();
  for (; end != request.unnamed.end() && end->end <= request.text.shown(); ++end)
    tokens.push_back(std::move(end->token));
  request.unnamed.erase(request.unnamed.begin(), end);
}

void TextEngine::TakeFirstTimings(SequenceId id, Request& request) {
  request.first_token = Clock::now();
  const Scheduler::SequenceInfo info = scheduler_.info(id);
  Timings& timings = request.timings;
  timings.queue_ms = Milliseconds(info.admitted - request.submitted);
  timings.lookup_ms = Milliseconds(info.lookup);
  timings.prefill_ms = Milliseconds(request.first_token - request.first_slice);
  timings.first_token_ms = Milliseconds(request.first_token - request.submitted);
  timings.prompt_n = request.prompt_n;
  if (info.report) {
    timings.cached_disk = info.report->tier.tokens;
    timings.load_ms = info.report->tier.load_ms;
    timings.load_exposed_ms = Milliseconds(info.load_exposed);
  }
  timings.cached_pool = info.cached_tokens - timings.cached_disk;
  timings.computed_n = request.prompt_n - info.cached_tokens;
  request.prefix = info.report;
}

// No token may come: the reply is complete if the grammar may end here, and cannot be completed otherwise.
void TextEngine::EndByGrammar(SequenceId id) {
  Request& request = *requests_.at(id);
  if (!request.grammar->MayEnd()) {
    Fail(id, {.message = "the grammar allows no token of this model's vocabulary here, or is too ambiguous"});
    return;
  }
  scheduler_.Finish(id);
  GenerationEvent event{.text = request.text.Flush(), .finish = FinishReason::kStop};
  NameShown(request, event.tokens);
  End(id, std::move(event));
}

// Draws the next token of a sequence and decides whether it goes on.
void TextEngine::Sample(SequenceId id, std::span<const float> logits) {
  Request& request = *requests_.at(id);
  const GenerationRequest& generation = request.generation;
  const uint32_t position = request.prompt_n + request.predicted_n;
  const std::optional<TokenId> drawn = Draw(request, logits);
  if (!drawn) {
    EndByGrammar(id);
    return;
  }
  const TokenId token = *drawn;
  GenerationEvent event;
  GeneratedToken generated{.token = token};
  if (generation.logprobs)
    generated.logprob = sampler_.Logprobs(logits, token, *generation.logprobs, generated.top).logprob;

  if (request.predicted_n++ == 0) TakeFirstTimings(id, request);
  ++tokens_generated_;

  const bool end_of_generation = !generation.ignore_eos && tokenizer_.IsEndOfGeneration(token);
  if (!end_of_generation) event.text = TextOf(request, token);
  if (Penalizes(generation.sampling)) request.seen.Add(token);
  if (request.grammar) request.grammar->Accept(token);
  request.unnamed.push_back({std::move(generated), request.text.taken()});
  if (end_of_generation || request.text.stopped() || (request.grammar && request.grammar->MustEnd())) {
    event.finish = FinishReason::kStop;
  } else if (position + 1 >= request.tokens_max) {
    event.finish = FinishReason::kLength;
  }
  if (!event.finish) {
    NameShown(request, event.tokens);
    scheduler_.Append(id, token);
    request.sink(std::move(event));
    return;
  }
  if (request.text.stopped()) {
    event.stop_string = request.text.stop_string();
  } else {
    event.text += request.text.Flush();
  }
  NameShown(request, event.tokens);
  scheduler_.Finish(id);
  End(id, std::move(event));
}

void TextEngine::Fail(SequenceId id, RequestError error) {
  End(id, {.finish = FinishReason::kError, .error = std::move(error)});
}

// Sends the last event and forgets the request.
void TextEngine::End(SequenceId id, GenerationEvent event) {
  scheduler_.Drop(id);
  const auto at = requests_.find(id);
  CHECK(at != requests_.end());
  const std::unique_ptr<Request> request = std::move(at->second);
  requests_.erase(at);
  requests_changed_ = true;
  request->timings.prompt_n = request->prompt_n;
  request->timings.predicted_n = request->predicted_n;
  if (request->predicted_n > 0) request->timings.decode_ms = Milliseconds(Clock::now() - request->first_token);
  event.timings = request->timings;
  event.prefix = request->prefix;
  request->sink(std::move(event));
  {
    const std::lock_guard lock(mutex_);
    --live_requests_;
  }
  ended_.notify_all();
}

// Shows counters to other threads. The cache's allocate, so they are taken when a request came or went.
void TextEngine::Publish() {
  std::optional<KvCache::Stats> cache;
  if (std::exchange(requests_changed_, false)) cache = cache_->stats();
  const std::lock_guard lock(mutex_);
  stats_.running = scheduler_.running();
  stats_.steps = steps_;
  stats_.tokens_generated = tokens_generated_;
  if (cache) {
    stats_.tokens_reused = cache->tokens_reused;
    stats_.tokens_computed = cache->tokens_computed;
    cache_stats_ = *std::move(cache);
  }
  queued_requests_ = scheduler_.waiting();
  queued_tokens_ = scheduler_.waiting_tokens();
  for (const Command& command : commands_) {
    if (!command.request) continue;
    ++queued_requests_;
    queued_tokens_ += command.request->prompt_n;
  }
}

}  // namespace reprise
