// GBNF for the decimal numbers of a range.
//
// Ownership: values. Threads: any. Errors: none.
#pragma once

#include <optional>
#include <string>

namespace reprise {

struct NumberBound {
  std::string digits;  // decimal, no exponent: "-12.50"
  bool exclusive = false;
};

// Numbers without exponent, of at most 15 digits before the point and 16 after it, within the bounds.
// Empty: there are none. `integer`: no point.
std::string NumberRangeRule(const std::optional<NumberBound>& low, const std::optional<NumberBound>& high,
                            bool integer);

}  // namespace reprise
