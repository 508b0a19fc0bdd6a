// The fields of a completion request, one row each.
//
// Ownership: constant tables. Threads: any.
// Design:    docs/http.md lists the same rows for people; a test holds the two together.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "server/request.h"

namespace reprise {

// What the parser of one field sees: the request so far, and what is settled after the last field.
struct CompletionFields {
  const RequestLimits& limits;
  CompletionRequest& request;
  std::optional<uint32_t> max_completion_tokens;
  std::optional<bool> chat_logprobs;
  std::optional<int64_t> top_logprobs;
  std::string one_tool;  // tool_choice names this one
  bool prompt_given = false;
};

using FieldParser = MaybeError (*)(const std::string& param, const Json& value, CompletionFields& fields);

// Parses one field that is not null. nullptr: no such field at this endpoint.
FieldParser FindField(Endpoint endpoint, std::string_view name);

// What depends on more than one field, after the last of them.
MaybeError SettleFields(Endpoint endpoint, CompletionFields& fields);

// Every name that FindField knows.
std::span<const std::string_view> KnownFields(Endpoint endpoint);

}  // namespace reprise
