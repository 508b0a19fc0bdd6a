// One reply on its way to one client: the events of its generations in, a whole reply or a stream out, a
// cancel when the client goes. With `n` choices there are as many generations; when one of them fails,
// all do.
//
// Ownership: shared by the exchange's callbacks and the engine's sinks; lives until both are done.
// Threads:   the I/O thread only, but for the sinks that Submit makes.
// Errors:    before the first byte they are HTTP errors; in a stream, an error event that ends it.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "server/cache_stats.h"
#include "server/http_server.h"
#include "server/metrics.h"
#include "server/receipt.h"
#include "server/request_log.h"
#include "server/response.h"

namespace reprise {

// Log-probabilities in one reply that is not streamed, chosen and likeliest tokens together: written in one go, at up
// to kLogprobBytes each.
inline constexpr uint64_t kLogprobsMax = 1 << 15;
inline constexpr uint64_t kLogprobBytes = 512;

struct ReplyOptions {
  ReplyHead head;
  bool stream = false;
  uint32_t n = 1;
  std::string echo;                                // kText: what every choice starts with
  std::shared_ptr<const ReplyFormat> format;       // kChat: how messages are read
  uint64_t id_seed = 0;                            // of the ids of tool calls, different for each choice
  std::chrono::steady_clock::time_point received;  // of the request
  RequestLine line;                                // what is known of the log's line before the end
  std::shared_ptr<BodyBudget> collected;           // what is kept of replies that are not streamed
  std::vector<BodyBudget::Charge> charges;         // for what lives as long as the reply
  std::optional<ReceiptFacts> receipt;             // absent: not asked for
  std::shared_ptr<PrefixCounters> counters;
  std::shared_ptr<RequestCounters> requests;
};

class Reply : public std::enable_shared_from_this<Reply> {
 public:
  // `on_end` runs once, when the engine has nothing more to say.
  Reply(ReplyOptions options, std::shared_ptr<HttpExchange> exchange, EngineInterface& engine, const TextCodec& codec,
        std::function<void()> on_end);

  // Gives the request to the engine, `n` times: choice i draws with the seed plus i. Refused: the client is
  // told, and on_end runs when what had been taken has ended.
  void Submit(GenerationRequest request, const std::shared_ptr<IoQueue>& queue);

 private:
  struct Choice {
    SequenceId id;
    std::unique_ptr<ReplyReader> reader;  // kChat
    ReplyPart all;                        // of a reply that is not streamed
    std::string unread;                   // kChat: all of its text so far, for the reader
    uint64_t text_offset = 0;             // characters streamed
    std::string_view finish;              // FinishName, once it is there
    bool ended = false;
  };

  void OnEvent(uint32_t index, GenerationEvent event);
  void OnGone();
  void OnSilence();
  // What the event adds to the choice; not streamed, a message is read when all of it is there.
  ReplyPart PartOf(Choice& choice, GenerationEvent& event);
  void Stream(Choice& choice, GenerationEvent& event);
  void Collect(Choice& choice, GenerationEvent& event);
  // Counts what `event` adds to what is kept; false, and the reply has failed: too much.
  bool Keep(const GenerationEvent& event);
  // Whether kept_bytes_ and so many more may be kept; else the reply has failed.
  bool HasRoomFor(uint64_t more);
  void ReportPrefill(uint32_t prefilled);
  void SendWhole();
  // Tells the client, and cancels what still runs.
  void Fail(const RequestError& error);
  void CancelAll();
  void End();
  void Count(double total_ms);
  // What the reply says of the first choice's prompt; null: nothing.
  Json Receipt() const;
  // Sends the head of the stream, the roles and the echo, before the first chunk or comment.
  void BeginStream();
  void Comment(std::string_view text);
  bool wants_tokens() const { return options_.head.logprobs.has_value() || options_.head.return_tokens; }
  // The client is there and no choice has failed.
  bool speaking() const { return !failed_ && !exchange_->gone(); }

  const ReplyOptions options_;
  const std::shared_ptr<HttpExchange> exchange_;
  EngineInterface& engine_;
  const TextCodec& codec_;
  const std::function<void()> on_end_;
  const std::chrono::steady_clock::time_point started_;
  std::vector<Choice> choices_;
  std::vector<Timings> timings_;        // [choices_]
  std::optional<PrefixReport> prefix_;  // of the first choice, when it has ended
  std::vector<TokenId> prompt_;         // with a receipt alone
  uint32_t live_ = 0;                   // choices that the engine has not ended
  uint32_t prompt_tokens_ = 0;
  uint32_t prefilled_ = 0;
  std::chrono::steady_clock::time_point last_comment_;
  uint64_t kept_bytes_ = 0;
  uint64_t kept_logprobs_ = 0;
  BodyBudget::Charge kept_;
  bool failed_ = false;
  int status_ = 200;
  std::string reason_;  // of the end
  bool stream_begun_ = false;
  bool first_token_seen_ = false;
};

}  // namespace reprise
