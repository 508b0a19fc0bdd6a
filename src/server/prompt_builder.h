// A parsed request to the tokens that the model continues, and to what its reply has to look like.
//
// Ownership: values. Threads: any; it may take long (templates, tokens, grammars), so it runs on the
//            request threads.
// Errors:    as RequestError, naming the field at fault.
// Design:    docs/http.md
#pragma once

#include <optional>
#include <vector>

#include "server/request.h"
#include "server/response.h"
#include "server/text_codec.h"

namespace reprise {

struct BuiltPrompt {
  std::vector<TokenId> tokens;
  ChatPrompt chat;                             // kText: the grammar alone
  std::optional<TruncationReport> truncation;  // when the request asked for it
};

// `prompt_text` and `prompt_tokens` of the request may be moved out. `context_max`: tokens of prompt and
// reply together; only truncation needs it, the engine checks it.
MaybeError BuildPrompt(Endpoint endpoint, CompletionRequest& request, const TextCodec& codec, uint32_t context_max,
                       BuiltPrompt* out);

// The messages that truncation may drop, in the order in which it does: turns from the oldest on (a turn
// is a user's message and all that follows it up to the next one), then the rounds of tool calls in the
// last turn. The last message, the last turn's user and, with keep_system, system messages are in none.
// Indices of `messages`, ascending within a group.
std::vector<std::vector<size_t>> DroppableGroups(const std::vector<ChatMessage>& messages, bool keep_system);

}  // namespace reprise
