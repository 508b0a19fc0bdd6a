#include "server/reply.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/request_log.h"
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
      started_(std::chrono::steady_clock::now()) {}

void Reply::Submit(GenerationRequest request, const std::shared_ptr<IoQueue>& queue) {
  prompt_tokens_ = static_cast<uint32_t>(request.prompt.size());
  const auto self = shared_from_this();
  // Events wait in the I/O thread's queue until this function has returned, so id_ is set before the first.
  EngineInterface::Submission submission = engine_.Submit(std::move(request), [self, queue](GenerationEvent event) {
    queue->Post([self, event = std::move(event)]() mutable { self->OnEvent(std::move(event)); });
  });
  if (submission.error.has_value()) {
    exchange_->Reply(ErrorResponse(*submission.error));
    return End(submission.error->code, Timings{.prompt_n = prompt_tokens_});
  }
  id_ = submission.id;
  exchange_->OnGone([self] { self->OnGone(); });
  if (options_.stream) exchange_->OnSilence([self] { self->OnSilence(); });
}

void Reply::OnEvent(GenerationEvent event) {
  if (ended_) return;
  if (!exchange_->gone()) {
    if (event.finish == FinishReason::kError) {
      Fail(event.error.value_or(Internal("the engine failed without a reason")));
    } else if (event.finish == FinishReason::kCancelled) {
      Fail(Cancelled());
    } else if (options_.stream) {
      Stream(event);
    } else {
      Collect(event);
    }
  }
  if (!event.finish.has_value()) return;
  std::string reason = exchange_->gone() ? "client_gone" : "cancelled";
  if (event.finish == FinishReason::kError) reason = event.error.has_value() ? event.error->code : "internal";
  if (event.finish == FinishReason::kStop || event.finish == FinishReason::kLength) {
    reason = std::string(FinishName(*event.finish));
  }
  End(reason, event.timings);
}

void Reply::Collect(GenerationEvent& event) {
  collected_.text += event.text;
  if (wants_tokens()) std::move(event.tokens.begin(), event.tokens.end(), std::back_inserter(collected_.tokens));
  if (!event.finish.has_value()) return;
  HttpResponse response;
  response.body = WholeReply(options_.head, collected_, *event.finish, event.timings, codec_);
  exchange_->Reply(std::move(response));
}

void Reply::Stream(GenerationEvent& event) {
  if (event.prefilled > 0 && !first_token_seen_) {
    prefilled_ = event.prefilled;
    const auto now = std::chrono::steady_clock::now();
    if (now - std::max(last_comment_, started_) >= kProgressInterval) {
      last_comment_ = now;
      Comment(absl::StrCat("prefill ", prefilled_, "/", prompt_tokens_));
    }
  }
  const bool has_part = !event.text.empty() || (wants_tokens() && !event.tokens.empty());
  if (!event.tokens.empty()) first_token_seen_ = true;
  std::string out;
  if (has_part) {
    BeginStream();
    const ReplyPart part{std::move(event.text), std::move(event.tokens), text_offset_};
    if (options_.head.logprobs.has_value()) text_offset_ += CountCharacters(codec_, part.tokens);
    out = SseData(PartChunk(options_.head, part, codec_));
  }
  if (event.finish.has_value()) {
    BeginStream();
    out += SseData(EndChunk(options_.head, *event.finish, event.timings));
    if (options_.head.include_usage) out += SseData(UsageChunk(options_.head, event.timings));
    out += kSseDone;
  }
  exchange_->Write(out);
  if (event.finish.has_value()) exchange_->Finish();
}

void Reply::BeginStream() {
  if (!stream_begun_) exchange_->StartStream();
  stream_begun_ = true;
  if (role_sent_ || options_.head.endpoint != Endpoint::kChat) return;
  role_sent_ = true;
  exchange_->Write(SseData(RoleChunk(options_.head)));
}

void Reply::Comment(std::string_view text) {
  BeginStream();
  exchange_->Write(SseComment(text));
}

void Reply::OnSilence() {
  if (ended_) return;
  if (first_token_seen_) return Comment("waiting");
  Comment(prefilled_ > 0 ? absl::StrCat("prefill ", prefilled_, "/", prompt_tokens_) : std::string("queued"));
}

void Reply::Fail(const RequestError& error) {
  if (!stream_begun_) return exchange_->Reply(ErrorResponse(error));
  exchange_->Write(SseData(ErrorBody(error)));
  exchange_->Finish();
}

void Reply::OnGone() {
  if (!ended_) engine_.Cancel(id_);  // its last event ends this reply
}

void Reply::End(std::string_view reason, const Timings& timings) {
  ended_ = true;
  const auto elapsed = std::chrono::steady_clock::now() - started_;
  LogRequest({.id = options_.head.id,
              .prompt_tokens = timings.prompt_n,
              .reused_tokens = timings.cached_pool,
              .computed_tokens = timings.computed_n,
              .generated_tokens = timings.predicted_n,
              .queue_ms = timings.queue_ms,
              .first_token_ms = timings.first_token_ms,
              .total_ms = std::chrono::duration<double, std::milli>(elapsed).count(),
              .reason = std::string(reason)});
  on_end_();
}

}  // namespace reprise
