// A parsed request to the tokens that the model continues, and to what its reply has to look like.
//
// Ownership: values. Threads: any; it may take long (templates, tokens, grammars), so it runs on the
//            request threads.
// Errors:    as RequestError, naming the field at fault.
// Design:    docs/http.md
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "server/request.h"
#include "server/response.h"
#include "server/text_codec.h"

namespace reprise {

// Text that is tokenised in one piece, at most: a tokenizer takes kEncodeBytesPerByte bytes for each (measured with
// BPE: 109), and prompts that fit have 3 to 5 bytes for each token. Beyond, tokens are counted in parts.
inline constexpr uint64_t kEncodeBytesPerByte = 112;
constexpr uint64_t EncodeBytesMax(uint32_t context_max) { return 16 * uint64_t{context_max} + (64 << 10); }

// Tokens of a text of any length, by parts of 64 KiB that end between words where there are any: right but for about
// one token for each part. Stops counting above `enough`.
uint64_t CountTokens(const TextCodec& codec, std::string_view text, uint64_t enough);

struct BuiltPrompt {
  std::vector<TokenId> tokens;
  ChatPrompt chat;                             // kText: the grammar alone
  std::optional<TruncationReport> truncation;  // when the request asked for it
};

// `prompt_text` and `prompt_tokens` of the request may be moved out. `context_max`: tokens of prompt and
// reply together: what is far too long is refused here, before it costs much, the rest by the engine.
MaybeError BuildPrompt(Endpoint endpoint, CompletionRequest& request, const TextCodec& codec, uint32_t context_max,
                       BuiltPrompt* out);

// The messages that truncation may drop, in the order in which it does: turns from the oldest on (a turn
// is a user's message and all that follows it up to the next one), then the rounds of tool calls in the
// last turn. The last message, the last turn's user and, with keep_system, system messages are in none.
// Indices of `messages`, ascending within a group.
std::vector<std::vector<size_t>> DroppableGroups(const std::vector<ChatMessage>& messages, bool keep_system);

}  // namespace reprise
