// The bodies of replies, in OpenAI's shapes. Pure functions: what varies from run to run (id, time,
// seed) comes in.
//
// Ownership: values. Threads: any.
// Errors:    none; text that is not UTF-8 is written with U+FFFD.
// Design:    docs/http.md; golden files in response_test.cc
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/generation.h"
#include "server/json.h"
#include "server/request.h"
#include "server/text_codec.h"

namespace reprise {

// What truncation did to the prompt.
struct TruncationReport {
  uint32_t dropped_messages = 0;
  uint32_t dropped_tokens = 0;
  uint32_t prompt_tokens_before = 0;
};

// What every body of one reply says.
struct ReplyHead {
  Endpoint endpoint = Endpoint::kText;
  std::string id;  // "cmpl-...", "chatcmpl-..."
  std::string model;
  int64_t created = 0;  // seconds since 1970
  uint64_t seed = 0;
  bool include_usage = false;  // chunks say "usage": null, and one more at the end says it
  bool return_tokens = false;
  std::optional<uint32_t> logprobs;
  std::optional<TruncationReport> truncation;
};

// A part of one choice of a reply, or all of it.
struct ReplyPart {
  uint32_t choice = 0;
  std::string text;                       // kChat: the message's content
  std::string reasoning;                  // kChat
  std::vector<ToolCallDelta> tool_calls;  // kChat
  std::vector<GeneratedToken> tokens;
  uint64_t text_offset = 0;  // characters of the choice before this part
};

// Appends what `delta` adds to the message; tool calls of one index become one.
void Join(ChatDelta delta, ReplyPart& part);

// One choice of a reply that is not streamed.
struct WholeChoice {
  ReplyPart all;
  std::string_view finish;  // FinishName
};

// "stop", "length" or "tool_calls". REQUIRES: kStop or kLength.
std::string_view FinishName(FinishReason reason, bool called_tools);

// Of all choices together: the first one's, which has computed the prompt for the others, but with every
// token generated and the longest decoding.
Timings Together(std::span<const Timings> choices);

// Characters that the tokens' bytes begin.
uint64_t CountCharacters(const TextCodec& codec, std::span<const GeneratedToken> tokens);

// A reply that is not streamed. `receipt`: null unless the request asked for one.
std::string WholeReply(const ReplyHead& head, std::span<const WholeChoice> choices, const Timings& timings,
                       const TextCodec& codec, const Json& receipt = nullptr);

// Chunks of a streamed one, in this order for each choice: the role (kChat only), parts, the end; after
// the last choice the usage (with include_usage only). The last chunk of all carries timings, seed,
// truncation and receipt; `timings` of EndChunk is null for every other one.
std::string RoleChunk(const ReplyHead& head, uint32_t choice);
std::string PartChunk(const ReplyHead& head, const ReplyPart& part, const TextCodec& codec);
std::string EndChunk(const ReplyHead& head, uint32_t choice, std::string_view finish, const Timings* timings,
                     const Json& receipt = nullptr);
std::string UsageChunk(const ReplyHead& head, const Timings& timings, const Json& receipt = nullptr);

// What GET /v1/models says of a model.
struct ModelEntry {
  std::string name;
  int64_t created = 0;
  uint32_t context_max = 0;
  uint32_t vocab_size = 0;
};
std::string ModelBody(const ModelEntry& model);
std::string ModelList(std::span<const ModelEntry> models);
std::string TokenList(std::span<const TokenId> tokens);
std::string DetokenizedBody(std::span<const TokenId> tokens, const TextCodec& codec);

}  // namespace reprise
