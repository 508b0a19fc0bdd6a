// `prompt`: what a text completion continues.
//
// Ownership: values. Threads: any. Errors: as RequestError.
#pragma once

#include <string>
#include <vector>

#include "server/completion_fields.h"

namespace reprise {

// A string, an array of token ids below the vocabulary's size, or an array that holds one of these.
MaybeError ParsePrompt(const std::string& param, const Json& value, CompletionFields& fields);

// REQUIRES: `value` is an array.
MaybeError ReadTokens(const std::string& param, const Json& value, uint32_t vocab_size, std::vector<TokenId>* out);

}  // namespace reprise
