// What a reply has to look like: tools and the choice among them, response_format, and what else the
// chat template takes.
//
// Schemas go on as JSON text: the token side compiles them.
//
// Ownership: values. Threads: any. Errors: as RequestError.
#pragma once

#include <string>

#include "server/completion_fields.h"

namespace reprise {

// [{"type": "function", "function": {"name", "description", "parameters", "strict"}}].
MaybeError ParseTools(const std::string& param, const Json& value, CompletionFields& fields);
// "none", "auto", "required" or {"type": "function", "function": {"name"}}.
MaybeError ParseToolChoice(const std::string& param, const Json& value, CompletionFields& fields);
MaybeError ParseParallelToolCalls(const std::string& param, const Json& value, CompletionFields& fields);
// {"type": "text" | "json_object" | "json_schema"}.
MaybeError ParseResponseFormat(const std::string& param, const Json& value, CompletionFields& fields);
MaybeError ParseTemplateKwargs(const std::string& param, const Json& value, CompletionFields& fields);

// After the last field: the choice among the tools that there are.
MaybeError SettleTools(CompletionFields& fields);

}  // namespace reprise
