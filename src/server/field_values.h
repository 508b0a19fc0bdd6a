// Reads one JSON value as one type within its range. `param` is the field's full name, as errors say it.
//
// Ownership: values. Threads: any.
// Errors:    `invalid_value` with the kind or the limit and what was got; `*out` is then unchanged.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "server/errors.h"
#include "server/json.h"

namespace reprise {

MaybeError ReadBool(const std::string& param, const Json& value, bool* out);
// 16.0 is an integer too: JSON has one kind of number, and some clients write all of them with a fraction.
MaybeError ReadInteger(const std::string& param, const Json& value, int64_t min, int64_t max, int64_t* out);
MaybeError ReadNumber(const std::string& param, const Json& value, double min, double max, double* out);
MaybeError ReadString(const std::string& param, const Json& value, std::string* out);
// Between bytes_min and bytes_max bytes of UTF-8.
MaybeError ReadBoundedString(const std::string& param, const Json& value, uint64_t bytes_min, uint64_t bytes_max,
                             std::string* out);
// A name that goes into prompts and grammars: 1 to kNameBytesMax letters, digits and any of `_ . : / -`.
inline constexpr uint64_t kNameBytesMax = 128;
MaybeError ReadName(const std::string& param, const Json& value, std::string* out);
// Any integer of 64 bits, signed or not, by its bits.
MaybeError ReadBits(const std::string& param, const Json& value, uint64_t* out);

// Whether `value` is null, "", [] or {}.
bool IsEmpty(const Json& value);

// `unknown_field`, naming the one of `known` that takes the fewest edits. `parent`: the object that has
// the field, "" for the body itself.
RequestError UnknownField(const std::string& parent, std::string_view key, std::span<const std::string_view> known);

}  // namespace reprise
