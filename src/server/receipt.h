// The receipt: what of a prompt was reused, under which identity, and why not more (SCHEMA 4). Pure functions.
//
// Ownership: values; the identity is the engine's. Threads: any. Errors: none.
// Safe:      the report has only what the asker may know, so a receipt does.
// Design:    docs/cache.md; golden text in receipt_test.cc
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/engine.h"
#include "server/json.h"
#include "server/text_codec.h"

namespace reprise {

// What a receipt says that the cache does not know.
struct ReceiptFacts {
  std::string id;  // "pcr_..."
  const EngineInterface::Identity* identity = nullptr;
  Json adapters = Json::array();  // that take part: {"name", "revision", "scale"}
  std::string tenant;
  uint64_t epoch = 0;
  std::optional<Digest> system_prompt;  // absent: the prompt has no system message
  bool cache_read = true;
};

// Of the texts of all system messages, one after the other; nullopt: there is none.
std::optional<Digest> SystemPromptDigest(std::span<const ChatMessage> messages);

// The receipt's JSON object. REQUIRES: facts.identity is set, report.fork <= prompt.size(),
// report.tier.tokens <= report.match.tokens.
Json ReceiptOf(const ReceiptFacts& facts, std::span<const TokenId> prompt, const PrefixReport& report,
               const TextCodec& codec);

// "1234 \" the\"": a token and its text, where the text is not UTF-8 with U+FFFD.
std::string TokenInWords(TokenId token, const TextCodec& codec);

}  // namespace reprise
