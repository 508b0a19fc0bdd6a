// Regular expressions of JSON schemas ("pattern") to GBNF for JSON strings whose value matches.
//
// Ownership: none. Threads: any.
// Errors:    InvalidArgument naming what is not supported: back references, looking around, word borders,
//            anchors anywhere but at the ends.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace reprise {

// The body of a rule that takes the string with its quotes. As the schemas say, a pattern without ^ and $ may match
// anywhere in the value.
absl::StatusOr<std::string> RegexToGbnf(std::string_view pattern);

}  // namespace reprise
