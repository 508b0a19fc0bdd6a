// CHECK: a programmer error aborts, in every build, with file, line and what was seen. Operating
// errors are absl::Status; capacity is an ordinary outcome (docs/hacking.md).
#pragma once

#include <sstream>
#include <string>

namespace reprise {

// Prints "file:line: CHECK failed: message" to stderr and aborts.
[[noreturn]] void CheckFailed(const char* file, int line, const std::string& message);

template <class A, class B>
[[noreturn]] void CheckOpFailed(const char* file, int line, const char* expression, const A& a, const B& b) {
  std::ostringstream out;
  out << expression << " (" << a << " vs. " << b << ")";
  CheckFailed(file, line, out.str());
}

}  // namespace reprise

#define CHECK(condition) \
  (__builtin_expect(static_cast<bool>(condition), 1) ? (void)0 : ::reprise::CheckFailed(__FILE__, __LINE__, #condition))

#define REPRISE_CHECK_OP(a, op, b)                                                       \
  do {                                                                                   \
    const auto& check_a = (a);                                                           \
    const auto& check_b = (b);                                                           \
    if (__builtin_expect(!(check_a op check_b), 0))                                      \
      ::reprise::CheckOpFailed(__FILE__, __LINE__, #a " " #op " " #b, check_a, check_b); \
  } while (false)

#define CHECK_EQ(a, b) REPRISE_CHECK_OP(a, ==, b)
#define CHECK_NE(a, b) REPRISE_CHECK_OP(a, !=, b)
#define CHECK_LT(a, b) REPRISE_CHECK_OP(a, <, b)
#define CHECK_LE(a, b) REPRISE_CHECK_OP(a, <=, b)
#define CHECK_GT(a, b) REPRISE_CHECK_OP(a, >, b)
#define CHECK_GE(a, b) REPRISE_CHECK_OP(a, >=, b)
