// JSON from strangers: bounded in depth and in the number of values before anything is built, strict
// (RFC 8259, UTF-8, no duplicate keys), and without exceptions.
//
// Ownership: values. Threads: any.
// Errors:    `invalid_json` with the place; `body_too_large` for more values than allowed.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "server/errors.h"

namespace reprise {

// Keeps the order of the keys: replies read as they are written.
using Json = nlohmann::ordered_json;

struct JsonLimits {
  uint32_t depth_max = 64;
  uint64_t values_max = 1 << 18;  // of every kind, containers included
};

MaybeError ParseJson(std::string_view text, const JsonLimits& limits, Json* out);

// Never throws: what is not UTF-8 becomes U+FFFD.
std::string Dump(const Json& value);

// "a string", "an object", ...: for messages.
std::string_view KindOf(const Json& value);

}  // namespace reprise
