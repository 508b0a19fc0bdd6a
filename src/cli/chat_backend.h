// Who answers in `reprise chat`: a model in this process, or a server somewhere.
//
// Ownership: as made. Threads: one; Stop from a signal handler is an atomic that the caller owns.
// Errors:    of Reply: those of the template, the engine or the server, in words for a person. The
//            conversation is unharmed and may go on. OutOfRange: it has become longer than the context.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/local_engine.h"

namespace reprise {

struct ChatTurn {
  std::string role;  // system, user, assistant
  std::string content;
  friend bool operator==(const ChatTurn&, const ChatTurn&) = default;
};

struct ChatSettings {
  std::optional<double> temperature;
  std::optional<double> top_p;
  std::optional<uint64_t> seed;
  uint32_t max_tokens = 0;  // 0: up to the context
};

// What a reply cost.
struct TurnStats {
  uint32_t prompt_tokens = 0;
  uint32_t reused_tokens = 0;
  uint32_t reply_tokens = 0;
  double first_token_ms = 0;  // as seen here
  double decode_ms = 0;       // from the first token to the last
  std::string end;            // "stop", "length", "cancelled"
  bool counted = false;       // the numbers are the server's, not absent
};

// Whole characters of a reply. `thought`: reasoning, which is shown but not a part of the reply.
using OnReplyText = std::function<void(std::string_view text, bool thought)>;

class ChatBackend {
 public:
  virtual ~ChatBackend() = default;
  // Streams the reply to `turns` through `on_text`; ends soon after `stop` turns true, with the text so
  // far and end "cancelled".
  virtual absl::StatusOr<TurnStats> Reply(const std::vector<ChatTurn>& turns, const ChatSettings& settings,
                                          const OnReplyText& on_text, const std::atomic<bool>& stop) = 0;
  virtual std::string name() const = 0;  // "smollm2-135m at http://..." for the first line
};

// Loads the model, with progress on stderr. FailedPrecondition: a base model, with what to do.
absl::StatusOr<std::unique_ptr<ChatBackend>> MakeFileBackend(const LocalEngineOptions& options);

// Any OpenAI-compatible server; `url` with or without /v1. Asks it for its models when `model` is empty.
absl::StatusOr<std::unique_ptr<ChatBackend>> MakeUrlBackend(const std::string& url, std::string model,
                                                            const std::string& api_key);

}  // namespace reprise
