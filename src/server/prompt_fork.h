// Where a prompt and the cache part, in the words of the request: at which message, in its text, in the list of tools
// or in what the template writes, and what that costs.
//
// A message is found by rendering the conversation a second time with marks in place of the texts, which shows what the
// template writes between them. What cannot be found is left out; nothing here fails a request.
//
// Ownership: values. Threads: any; it may take as long as the prompt did.
// Design:    docs/cache.md
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "engine/generation.h"
#include "server/json.h"
#include "server/request.h"
#include "server/text_codec.h"

namespace reprise {

enum class PromptPart : uint8_t {
  kText,      // of the message
  kTools,     // the list of tools, which templates write beside a message
  kTemplate,  // what the template writes around the message
};
std::string_view Name(PromptPart part);  // "text"

struct PromptPlace {
  size_t message = 0;  // index
  PromptPart part = PromptPart::kText;
  size_t offset = 0;                // kText: characters of the message's text before it
  std::optional<std::string> tool;  // kTools: the one that is written there
};

// What stands at byte `offset` of `text`, which the template made of the conversation.
std::optional<PromptPlace> FindPlace(const ChatRequest& chat, std::string_view text, size_t offset,
                                     const TextCodec& codec);

// What explain says of report.fork: {"at_token", "asked", "cached", "lost_tokens", "before", "after", "message",
// "old_text", "summary", "advice"}. null where the whole prompt is known. `chat`: null for other prompts, and where the
// prompt does not have all of its messages; then `text` is not read.
Json ForkOf(std::span<const TokenId> prompt, const PrefixReport& report, const ChatRequest* chat, std::string_view text,
            const TextCodec& codec);

}  // namespace reprise
