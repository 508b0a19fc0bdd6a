// `messages`: the conversation that a chat completion continues. Text only; tool calls and reasoning of
// earlier replies come back in the fields in which they were sent.
//
// Ownership: values. Threads: any. Errors: as RequestError.
#pragma once

#include <string>

#include "server/completion_fields.h"

namespace reprise {

// "developer" is "system"; text parts are joined by newlines.
MaybeError ParseMessages(const std::string& param, const Json& value, CompletionFields& fields);

}  // namespace reprise
