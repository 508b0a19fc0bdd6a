// What a caller asks of the engine and what comes back.
//
// Ownership: values. Threads: any.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/identity.h"
#include "base/ids.h"
#include "cache/prefix_report.h"
#include "model/batch.h"
#include "token/grammar.h"
#include "token/sampler.h"

namespace reprise {

// SCHEMA 3: the caller's fault (4xx) or ours (5xx), always with a code that programs can read.
struct RequestError {
  int http_status = 500;
  std::string code = "internal";  // a code of SCHEMA 3
  std::string param;              // the field, or empty
  std::string message;
  std::optional<double> limit;
  std::optional<double> got;
  uint32_t retry_after_s = 0;  // queue_full: when to come again
};

inline constexpr uint32_t kLogitBiasMax = 1024;

struct GenerationRequest {
  std::vector<TokenId> prompt;          // not empty
  std::string prompt_param = "prompt";  // the field that errors about the prompt name
  uint32_t max_tokens = 0;              // 0: up to the context
  SamplingParameters sampling;
  std::vector<LogitBias> logit_bias;       // at most kLogitBiasMax, each token once
  std::shared_ptr<const Grammar> grammar;  // that the reply follows; null: free
  std::vector<std::string> stop;
  std::vector<TokenId> written_tokens;  // special tokens that the text shows (ChatPrompt)
  // LoRA adapters that take part, in this order, each once; absent: all that are loaded, with their scales.
  std::optional<std::vector<AdapterUse>> adapters;
  bool ignore_eos = false;
  std::optional<uint32_t> logprobs;  // log-probabilities of chosen tokens, and of this many top ones
  bool cache_read = true;
  bool cache_write = true;
  bool receipt = false;  // `prefix` of the last event has more than the match
  Scope scope;
};

enum class FinishReason : uint8_t { kStop, kLength, kCancelled, kError };

struct GeneratedToken {
  TokenId token;
  float logprob = 0;              // when asked for
  std::vector<TokenLogprob> top;  // when asked for
};

// SCHEMA 3 `timings`, in milliseconds and tokens.
struct Timings {
  double queue_ms = 0, lookup_ms = 0, load_ms = 0, load_exposed_ms = 0;
  double prefill_ms = 0, first_token_ms = 0, decode_ms = 0;
  uint32_t prompt_n = 0, computed_n = 0, predicted_n = 0;
  uint32_t cached_pool = 0, cached_disk = 0;
  uint32_t cached() const { return cached_pool + cached_disk; }
};

// Text and tokens since the last event: a token comes with the last of its bytes that the text shows, so none that
// holds a byte of a stop string comes at all. The last event of a request has `finish`, and nothing follows.
struct GenerationEvent {
  std::string text;
  std::vector<GeneratedToken> tokens;
  uint32_t prefilled = 0;  // of prompt_n, while the prompt is computed (no text yet): for progress
  std::optional<FinishReason> finish;
  std::string stop_string;             // with kStop: the stop string that ended it, or empty
  std::optional<RequestError> error;   // with kError
  Timings timings;                     // with finish
  std::optional<PrefixReport> prefix;  // with finish, if it was admitted: what admission found
};

// Called on the engine thread; must not block. A request's events come in order.
using GenerationSink = std::function<void(GenerationEvent)>;

}  // namespace reprise
