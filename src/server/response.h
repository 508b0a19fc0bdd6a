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
#include "server/request.h"
#include "server/text_codec.h"

namespace reprise {

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
};

// A part of a reply, or all of it.
struct ReplyPart {
  std::string text;
  std::vector<GeneratedToken> tokens;
  uint64_t text_offset = 0;  // characters of the reply before this part
};

// "stop" or "length". REQUIRES: one of these two.
std::string_view FinishName(FinishReason reason);

// Characters that the tokens' bytes begin.
uint64_t CountCharacters(const TextCodec& codec, std::span<const GeneratedToken> tokens);

// A reply that is not streamed.
std::string WholeReply(const ReplyHead& head, const ReplyPart& all, FinishReason reason, const Timings& timings,
                       const TextCodec& codec);

// Chunks of a streamed one, in this order: the role (kChat only), parts, the end, the usage (with
// include_usage only). The last of them carries timings and seed.
std::string RoleChunk(const ReplyHead& head);
std::string PartChunk(const ReplyHead& head, const ReplyPart& part, const TextCodec& codec);
std::string EndChunk(const ReplyHead& head, FinishReason reason, const Timings& timings);
std::string UsageChunk(const ReplyHead& head, const Timings& timings);

std::string ModelList(std::span<const std::string> names, int64_t created);
std::string TokenList(std::span<const TokenId> tokens);

}  // namespace reprise
