// One generation on its way to one client: the engine's events in, a whole reply or a stream out, a
// cancel when the client goes.
//
// Ownership: shared by the exchange's callbacks and the engine's sink; lives until both are done.
// Threads:   the I/O thread only, but for the sink that Submit makes.
// Errors:    before the first byte they are HTTP errors; in a stream, an error event that ends it.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "server/http_server.h"
#include "server/response.h"

namespace reprise {

struct ReplyOptions {
  ReplyHead head;
  bool stream = false;
};

class Reply : public std::enable_shared_from_this<Reply> {
 public:
  // `on_end` runs once, when the engine has nothing more to say.
  Reply(ReplyOptions options, std::shared_ptr<HttpExchange> exchange, EngineInterface& engine, const TextCodec& codec,
        std::function<void()> on_end);

  // Gives the request to the engine. Refused: the client is told, and on_end has run.
  void Submit(GenerationRequest request, const std::shared_ptr<IoQueue>& queue);

 private:
  void OnEvent(GenerationEvent event);
  void OnGone();
  void OnSilence();
  void Stream(GenerationEvent& event);
  void Collect(GenerationEvent& event);
  void Fail(const RequestError& error);
  void End(std::string_view reason, const Timings& timings);
  // Sends the head of the stream, and the role, before the first chunk or comment.
  void BeginStream();
  void Comment(std::string_view text);
  bool wants_tokens() const { return options_.head.logprobs.has_value() || options_.head.return_tokens; }

  const ReplyOptions options_;
  const std::shared_ptr<HttpExchange> exchange_;
  EngineInterface& engine_;
  const TextCodec& codec_;
  const std::function<void()> on_end_;
  const std::chrono::steady_clock::time_point started_;
  SequenceId id_;
  uint32_t prompt_tokens_ = 0;
  uint32_t prefilled_ = 0;
  std::chrono::steady_clock::time_point last_comment_;
  bool ended_ = false;
  bool stream_begun_ = false;
  bool role_sent_ = false;
  bool first_token_seen_ = false;
  ReplyPart collected_;       // of a reply that is not streamed
  uint64_t text_offset_ = 0;  // characters streamed
};

}  // namespace reprise
