// The errors a client can meet, as values: made here, so that every message names the field, what was
// got and what would be right.
//
// Ownership: values. Threads: any. Errors: none.
// Design:    docs/http.md
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "engine/generation.h"

namespace reprise {

// What a function that checks a client's input returns: nothing, or the first thing that is wrong.
using MaybeError = std::optional<RequestError>;

RequestError InvalidJson(std::string message);
// 400 `invalid_value`: `message` says what was got and what is right; numbers go beside it for programs.
RequestError InvalidValue(std::string param, std::string message, std::optional<double> limit = std::nullopt,
                          std::optional<double> got = std::nullopt);
// "`temperature` is a string; a number is needed".
RequestError WrongType(std::string param, std::string_view got, std::string_view needed);
RequestError MissingField(std::string param, std::string message);
// 400 `unsupported`: `supported` says what is.
RequestError Unsupported(std::string param, std::string_view supported);
RequestError BodyTooLarge(std::string message, double limit, std::optional<double> got);
RequestError QueueFull(std::string message, double limit, uint32_t retry_after_s);
RequestError ShuttingDown();
RequestError Loading();
RequestError Internal(std::string message);

// SCHEMA 3: {"error": {"type", "code", "param", "message", "limit"?, "got"?}}.
std::string ErrorBody(const RequestError& error);

}  // namespace reprise
