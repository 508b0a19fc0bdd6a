// A chat's backend in this process: the engine that `serve` runs, without the server.
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <random>

#include "absl/strings/str_cat.h"
#include "cli/chat_backend.h"
#include "cli/commands.h"
#include "cli/model_open.h"
#include "token/chat_reply.h"

namespace reprise {
namespace {

constexpr std::chrono::milliseconds kStopPoll{20};

// Events from the engine's thread to this one.
class EventQueue {
 public:
  void Push(GenerationEvent event) {
    const std::lock_guard lock(mutex_);
    events_.push_back(std::move(event));
    arrived_.notify_one();
  }
  // The next event, or none within kStopPoll.
  std::optional<GenerationEvent> Pop() {
    std::unique_lock lock(mutex_);
    if (!arrived_.wait_for(lock, kStopPoll, [this] { return !events_.empty(); })) return std::nullopt;
    GenerationEvent event = std::move(events_.front());
    events_.pop_front();
    return event;
  }

 private:
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::deque<GenerationEvent> events_;
};

TurnStats StatsOf(const GenerationEvent& last) {
  const Timings& timings = last.timings;
  const bool computed = timings.computed_n > 0;  // else stopped before that: how much was reused is not known
  return {.prompt_tokens = computed ? timings.prompt_n : 0,
          .reused_tokens = computed ? timings.prompt_n - timings.computed_n : 0,
          .reply_tokens = timings.predicted_n,
          .first_token_ms = timings.first_token_ms,
          .decode_ms = timings.decode_ms,
          .end = last.finish == FinishReason::kStop     ? "stop"
                 : last.finish == FinishReason::kLength ? "length"
                                                        : "cancelled",
          .counted = computed};
}

class FileBackend final : public ChatBackend {
 public:
  FileBackend(std::unique_ptr<LocalEngine> local, std::string name)
      : local_(std::move(local)), name_(std::move(name)) {}

  absl::StatusOr<TurnStats> Reply(const std::vector<ChatTurn>& turns, const ChatSettings& settings,
                                  const OnReplyText& on_text, const std::atomic<bool>& stop) override {
    ChatRequest chat;
    for (const ChatTurn& turn : turns) chat.messages.push_back({.role = turn.role, .content = turn.content});
    absl::StatusOr<ChatPrompt> prompt = local_->chat_template()->Prompt(chat);
    if (!prompt.ok()) return prompt.status();
    GenerationRequest request;
    request.prompt = local_->tokenizer().Encode(prompt->text, /*add_special=*/true, /*parse_special=*/true);
    request.max_tokens = settings.max_tokens;
    request.sampling.temperature = static_cast<float>(settings.temperature.value_or(1));
    request.sampling.top_p = static_cast<float>(settings.top_p.value_or(1));
    request.sampling.seed = settings.seed.value_or(std::random_device{}());
    request.grammar = prompt->grammar;
    request.stop = prompt->stop;
    request.written_tokens = prompt->written_tokens;
    const uint64_t seed = request.sampling.seed;

    // The engine's events may outlast this call only in theory: Reply returns at the last one.
    const auto events = std::make_shared<EventQueue>();
    const EngineInterface::Submission submission = local_->engine().Submit(
        std::move(request), [events](GenerationEvent event) { events->Push(std::move(event)); });
    if (submission.error)
      return submission.error->code == "context_too_long" ? absl::OutOfRangeError(submission.error->message)
                                                          : absl::FailedPreconditionError(submission.error->message);
    ChatReplyParser parser(prompt->format, seed);
    const auto show = [&on_text](const ChatDelta& delta) {
      if (!delta.reasoning.empty()) on_text(delta.reasoning, true);
      if (!delta.content.empty()) on_text(delta.content, false);
    };
    for (bool cancelled = false;;) {
      if (stop && !std::exchange(cancelled, true)) local_->engine().Cancel(submission.id);
      const std::optional<GenerationEvent> event = events->Pop();
      if (!event) continue;
      show(parser.Append(event->text));
      if (!event->finish) continue;
      show(parser.Finish());
      if (event->error) return absl::InternalError(event->error->message);
      return StatsOf(*event);
    }
  }

  std::string name() const override {
    return absl::StrCat(name_, ", context ", local_->plan().context, " tokens, ", local_->threads(), " threads");
  }

 private:
  const std::unique_ptr<LocalEngine> local_;
  const std::string name_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ChatBackend>> MakeFileBackend(const LocalEngineOptions& options) {
  if (options.chat_template.empty() && !HasChatTemplate(options.model_path))
    return absl::FailedPreconditionError(
        absl::StrCat(options.model_path,
                     " has no chat template: it is a base model, which continues texts. Take its instruct or "
                     "chat variant, or give --chat-template FILE; `reprise serve` offers /v1/completions for it"));
  auto local = LoadWithProgress(options);
  if (!local.ok()) return local.status();
  return std::make_unique<FileBackend>(*std::move(local), ModelStem(options.model_path));
}

}  // namespace reprise
