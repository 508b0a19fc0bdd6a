// The body of a request: JSON text in, a typed request or the first thing that is wrong out. Pure
// functions, the ones that the fuzzer drives.
//
// Every field of OpenAI's API is known: honoured, ignored because it cannot change the reply, or
// accepted only with the value that changes nothing and refused by name with any other, as are fields
// of other servers that have another name here. The rest is `unknown_field`. null means "not given", as
// OpenAI's clients send it.
//
// Ownership: values. Threads: any. Errors: as RequestError, never thrown.
// Design:    docs/http.md
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/engine.h"
#include "server/errors.h"
#include "server/json.h"
#include "token/chat_template.h"
#include "token/sampler.h"

namespace reprise {

struct RequestLimits {
  JsonLimits json;
  uint32_t vocab_size = 0;                     // token ids of a prompt are below
  std::span<const AdapterInfo> adapters = {};  // that `lora` may name
};

inline constexpr uint32_t kStopStringsMax = 16;
inline constexpr uint32_t kStopBytesMax = 256;
inline constexpr uint32_t kTopLogprobsMax = 20;
inline constexpr uint32_t kSaltBytesMax = 256;
inline constexpr uint32_t kChoicesMax = 16;
inline constexpr uint32_t kToolsMax = 128;
inline constexpr uint64_t kToolsBytesMax = 256 << 10;          // names, descriptions and parameters of all tools
inline constexpr uint64_t kResponseSchemaBytesMax = 64 << 10;  // of response_format, as JSON text
inline constexpr uint32_t kTemplateKwargsMax = 32;
inline constexpr uint64_t kTemplateKwargsBytesMax = 16 << 10;

enum class Endpoint : uint8_t { kText, kChat };  // /v1/completions, /v1/chat/completions

// What to do with a prompt that is too long: {"type": "middle"}.
struct Truncation {
  bool keep_system = true;
};

struct CompletionRequest {
  std::string model;  // empty: not given, the server's own
  // kText: one of the two.
  std::string prompt_text;
  std::vector<TokenId> prompt_tokens;
  ChatRequest chat;  // kChat; but for its json_schema

  std::string json_schema;  // that the reply follows, as JSON text; empty: free
  std::optional<Truncation> truncation;
  uint32_t n = 1;
  std::optional<uint32_t> max_tokens;  // absent: up to the context
  SamplingParameters sampling;         // without the seed
  std::optional<uint64_t> seed;        // absent: random
  std::vector<LogitBias> logit_bias;
  std::vector<std::string> stop;
  std::optional<uint32_t> logprobs;                 // the chosen token's, and this many most likely ones
  std::optional<std::vector<AdapterUse>> adapters;  // absent: those of the start
  bool ignore_eos = false;
  bool stream = false;
  bool include_usage = false;
  bool echo = false;           // kText: the reply starts with the prompt
  bool return_tokens = false;  // kText: choices[0].tokens
  bool cache_read = true;
  bool cache_write = true;
  bool receipt = false;  // the reply has one
  std::optional<std::string> salt;
};

// `*out` is fresh; it is complete only without an error.
MaybeError ParseCompletion(Endpoint endpoint, std::string_view body, const RequestLimits& limits,
                           CompletionRequest* out);

// The same of a body that may be of either endpoint: one with `messages` is a chat's.
MaybeError ParseEitherCompletion(std::string_view body, const RequestLimits& limits, Endpoint* endpoint,
                                 CompletionRequest* out);

// A body that says nothing: empty or {}.
MaybeError ParseEmpty(std::string_view body, const RequestLimits& limits);

struct TokenizeRequest {
  std::string text;
  bool add_special = false;
  bool parse_special = true;
};
MaybeError ParseTokenize(std::string_view body, const RequestLimits& limits, TokenizeRequest* out);

MaybeError ParseDetokenize(std::string_view body, const RequestLimits& limits, std::vector<TokenId>* out);

}  // namespace reprise
