// `prompt` and `messages`: what a completion continues.
#pragma once

#include <string>

#include "server/completion_fields.h"

namespace reprise {

// A string, an array of token ids below the vocabulary's size, or an array that holds one of these.
MaybeError ParsePrompt(const std::string& param, const Json& value, CompletionFields& fields);

// OpenAI's messages, text only. "developer" is "system"; text parts are joined by newlines.
MaybeError ParseMessages(const std::string& param, const Json& value, CompletionFields& fields);

}  // namespace reprise
