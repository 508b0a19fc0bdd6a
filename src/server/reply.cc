#include "server/reply.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/sse.h"

namespace reprise {
namespace {

constexpr auto kProgressInterval = std::chrono::seconds(1);  // between two comments about prefill

// The drain's deadline, or an operator, ended it; a client that left is not there to read this.
RequestError Cancelled() {
  RequestError error = ShuttingDown();
  error.message = "the request was cancelled because the server is shutting down";
  return error;
}

}  // namespace

Reply::Reply(ReplyOptions options, std::shared_ptr<HttpExchange> exchange, EngineInterface& engine,
             const TextCodec& codec, std::function<void()> on_end)
    : options_(std::move(options)),
      exchange_(std::move(exchange)),
      engine_(engine),
      codec_(codec),
      on_end_(std::move(on_end)),
      started_(std::chrono::steady_clock::now()),
      choices_(options_.n),
      timings_(options_.n) {
  for (uint32_t i = 0; i < options_.n; ++i) {
    choices_[i].all.choice = i;
    choices_[i].all.text = options_.echo;
    if (options_.head.endpoint == Endpoint::kChat) {
      choices_[i].reader = codec_.ReadReply(options_.format, options_.id_seed + i);
    }
  }
}

void Reply::Submit(GenerationRequest request, const std::shared_ptr<IoQueue>& queue) {
  prompt_tokens_ = static_cast<uint32_t>(request.prompt.size());
  timings_[0].prompt_n = prompt_tokens_;
  if (options_.receipt && HasRoomFor(request.prompt.size() * sizeof(TokenId))) prompt_ = request.prompt;
  const auto self = shared_from_this();
  for (uint32_t i = 0; i < options_.n && !failed_; ++i) {
    GenerationRequest copy = i + 1 == options_.n ? std::move(request) : request;
    copy.sampling.seed = options_.head.seed + i;
    // Events wait in the I/O thread's queue until this function has returned, so ids are set before the first.
    EngineInterface::Submission submission = engine_.Submit(std::move(copy), [self, queue, i](GenerationEvent event) {
      queue->Post([self, i, event = std::move(event)]() mutable { self->OnEvent(i, std::move(event)); });
    });
    if (submission.error.has_value()) {
      choices_[i].ended = true;
      Fail(*submission.error);
      break;
    }
    choices_[i].id = submission.id;
    ++live_;
  }
  if (failed_) {
    if (live_ == 0) End();
    return;
  }
  exchange_->OnGone([self] { self->OnGone(); });
  if (options_.stream) exchange_->OnSilence([self] { self->OnSilence(); });
}

void Reply::OnEvent(uint32_t index, GenerationEvent event) {
  Choice& choice = choices_[index];
  if (choice.ended) return;
  if (speaking()) {
    if (event.finish == FinishReason::kError) {
      choice.ended = true;
      Fail(event.error.value_or(Internal("the engine failed without a reason")));
    } else if (event.finish == FinishReason::kCancelled) {
      choice.ended = true;
      Fail(Cancelled());
      reason_ = "cancelled";
    }
  }
  if (event.finish.has_value()) {
    timings_[index] = event.timings;
    if (index == 0) prefix_ = event.prefix;
    choice.ended = true;
    --live_;
  }
  if (speaking()) options_.stream ? Stream(choice, event) : Collect(choice, event);
  if (live_ == 0) End();
}

ReplyPart Reply::PartOf(Choice& choice, GenerationEvent& event) {
  ReplyPart part;
  part.choice = choice.all.choice;
  if (wants_tokens()) part.tokens = std::move(event.tokens);
  const bool good = event.finish == FinishReason::kStop || event.finish == FinishReason::kLength;
  if (choice.reader == nullptr) {
    part.text = std::move(event.text);
  } else {
    choice.unread += event.text;
    const bool read = options_.stream || good;
    if (read && !choice.unread.empty()) Join(choice.reader->Append(std::exchange(choice.unread, {})), part);
    if (good) Join(choice.reader->Finish(), part);
  }
  if (!good) return part;
  // A call that a stop string cut short is not one to be carried out.
  const bool called = choice.reader != nullptr && choice.reader->tool_calls() > 0 && event.stop_string.empty();
  choice.finish = FinishName(*event.finish, called);
  return part;
}

bool Reply::Keep(const GenerationEvent& event) {
  kept_bytes_ += event.text.size();
  if (wants_tokens()) {
    kept_bytes_ += event.tokens.size() * sizeof(GeneratedToken);
    for (const GeneratedToken& token : event.tokens) {
      kept_bytes_ += token.top.capacity() * sizeof(TokenLogprob);
      kept_logprobs_ += 1 + token.top.size();
    }
  }
  if (options_.head.logprobs.has_value() && kept_logprobs_ > kLogprobsMax) {
    Fail(InvalidValue("logprobs",
                      absl::StrCat("the reply has more than ", kLogprobsMax,
                                   " log-probabilities: ask for fewer, lower max_tokens, or stream it"),
                      static_cast<double>(kLogprobsMax), static_cast<double>(kept_logprobs_)));
  } else {
    HasRoomFor(0);
  }
  return !failed_;
}

bool Reply::HasRoomFor(uint64_t more) {
  kept_bytes_ += more;
  if (BodyBudget::Raise(options_.collected, kept_bytes_, kept_)) return true;
  Fail(QueueFull("too many long replies are being collected: stream them, or come again in a second",
                 static_cast<double>(options_.collected->bytes_max()), 1));
  return false;
}

void Reply::Collect(Choice& choice, GenerationEvent& event) {
  if (!Keep(event)) return;
  ReplyPart part = PartOf(choice, event);
  std::move(part.tokens.begin(), part.tokens.end(), std::back_inserter(choice.all.tokens));
  Join({.content = std::move(part.text),
        .reasoning = std::move(part.reasoning),
        .tool_calls = std::move(part.tool_calls)},
       choice.all);
  if (live_ == 0) SendWhole();
}

void Reply::SendWhole() {
  std::vector<WholeChoice> whole;
  for (Choice& choice : choices_) whole.push_back({std::move(choice.all), choice.finish});
  HttpResponse response;
  response.body = WholeReply(options_.head, whole, Together(timings_), codec_, Receipt());
  exchange_->Reply(std::move(response));
}

void Reply::ReportPrefill(uint32_t prefilled) {
  prefilled_ = std::max(prefilled_, prefilled);
  const auto now = std::chrono::steady_clock::now();
  if (now - std::max(last_comment_, started_) < kProgressInterval) return;
  last_comment_ = now;
  Comment(absl::StrCat("prefill ", prefilled_, "/", prompt_tokens_));
}

void Reply::Stream(Choice& choice, GenerationEvent& event) {
  if (event.prefilled > 0 && !first_token_seen_) ReportPrefill(event.prefilled);
  if (!event.tokens.empty()) first_token_seen_ = true;
  ReplyPart part = PartOf(choice, event);
  std::string out;
  const bool says = !part.text.empty() || !part.reasoning.empty() || !part.tool_calls.empty() || !part.tokens.empty();
  if (says || event.finish.has_value()) BeginStream();
  if (says) {
    part.text_offset = choice.text_offset;
    if (options_.head.logprobs.has_value()) choice.text_offset += CountCharacters(codec_, part.tokens);
    out = SseData(PartChunk(options_.head, part, codec_));
  }
  if (event.finish.has_value()) {
    const Timings timings = Together(timings_);
    const bool last_chunk = live_ == 0 && !options_.head.include_usage;
    out += SseData(EndChunk(options_.head, choice.all.choice, choice.finish, last_chunk ? &timings : nullptr,
                            last_chunk ? Receipt() : Json()));
    if (live_ == 0) {
      if (options_.head.include_usage) out += SseData(UsageChunk(options_.head, timings, Receipt()));
      out += kSseDone;
    }
  }
  exchange_->Write(out);
  if (live_ == 0) exchange_->Finish();
}

Json Reply::Receipt() const {
  if (!options_.receipt || !prefix_) return nullptr;
  return ReceiptOf(*options_.receipt, prompt_, *prefix_, codec_);
}

void Reply::BeginStream() {
  if (stream_begun_) return;
  stream_begun_ = true;
  exchange_->StartStream();
  std::string out;
  for (uint32_t i = 0; i < options_.n; ++i) {
    if (options_.head.endpoint == Endpoint::kChat) out += SseData(RoleChunk(options_.head, i));
    if (!options_.echo.empty()) {
      out += SseData(PartChunk(options_.head, {.choice = i, .text = options_.echo}, codec_));
    }
  }
  exchange_->Write(out);
}

void Reply::Comment(std::string_view text) {
  BeginStream();
  exchange_->Write(SseComment(text));
}

void Reply::OnSilence() {
  if (!speaking() || live_ == 0) return;
  if (first_token_seen_) return Comment("waiting");
  Comment(prefilled_ > 0 ? absl::StrCat("prefill ", prefilled_, "/", prompt_tokens_) : std::string("queued"));
}

void Reply::Fail(const RequestError& error) {
  failed_ = true;
  reason_ = error.code;
  CancelAll();
  if (!stream_begun_) {
    status_ = error.http_status;
    return exchange_->Reply(ErrorResponse(error));
  }
  exchange_->Write(SseData(ErrorBody(error)));
  exchange_->Finish();
}

void Reply::CancelAll() {
  for (const Choice& choice : choices_) {
    if (!choice.ended && choice.id != SequenceId()) engine_.Cancel(choice.id);
  }
}

void Reply::OnGone() {
  if (failed_) return;
  reason_ = "client_gone";
  CancelAll();  // their last events end this reply
}

void Reply::End() {
  if (reason_.empty()) reason_ = std::string(choices_[0].finish);
  const Timings timings = Together(timings_);
  RequestLine line = options_.line;
  line.prompt_tokens = timings.prompt_n;
  line.reused_tokens = timings.cached();
  line.disk_tokens = timings.cached_disk;
  line.computed_tokens = timings.computed_n;
  if (prefix_) line.miss = std::string(Name(prefix_->match.reason));
  line.generated_tokens = timings.predicted_n;
  line.queue_ms = timings.queue_ms;
  line.first_token_ms = timings.first_token_ms;
  line.total_ms =
      std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - options_.received).count();
  line.status = status_;
  line.reason = reason_;
  LogRequest(line);
  Count(line.total_ms);
  on_end_();
}

void Reply::Count(double total_ms) {
  if (prefix_) options_.counters->AddMiss(prefix_->match.reason);
  RequestCounters& requests = *options_.requests;
  ++requests.by_status[status_];
  requests.whole.Add(total_ms / 1e3);
  for (const Timings& choice : timings_) {
    options_.counters->AddTokens(choice);
    if (choice.predicted_n > 1) requests.per_token.Add(choice.decode_ms / 1e3 / (choice.predicted_n - 1));
  }
  if (timings_[0].predicted_n > 0) requests.first_token.Add(timings_[0].first_token_ms / 1e3);
}

}  // namespace reprise
