#include "base/bytes.h"

#include <array>
#include <cmath>
#include <cstdio>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace reprise {

std::string HumanBytes(uint64_t bytes) {
  static constexpr std::array<const char*, 5> kUnits = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  const int decimals = unit == 0 || value >= 100 || value == std::floor(value) ? 0 : value >= 10 ? 1 : 2;
  char text[32];
  std::snprintf(text, sizeof(text), "%.*f %s", decimals, value, kUnits[unit]);
  return text;
}

absl::StatusOr<uint64_t> ParseBytes(std::string_view text) {
  struct Unit {
    std::string_view name;
    double bytes;
  };
  static constexpr std::array<Unit, 8> kUnits = {{{"kb", 1e3},
                                                  {"mb", 1e6},
                                                  {"gb", 1e9},
                                                  {"kib", 1024.0},
                                                  {"mib", 1048576.0},
                                                  {"gib", 1073741824.0},
                                                  {"b", 1},
                                                  {"", 1}}};
  const std::string lower = absl::AsciiStrToLower(std::string(text));
  const size_t digits = std::min(lower.find_first_not_of("0123456789."), lower.size());
  std::string_view suffix = std::string_view(lower).substr(digits);
  while (!suffix.empty() && suffix.front() == ' ') suffix.remove_prefix(1);
  double number = 0;
  for (const Unit& unit : kUnits) {
    if (suffix != unit.name || !absl::SimpleAtod(lower.substr(0, digits), &number)) continue;
    const double bytes = number * unit.bytes;
    if (bytes < 0 || bytes >= 9.0e18) break;
    return static_cast<uint64_t>(bytes);
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "'", std::string(text), "' is not a size; write a number and one of B KB MB GB KiB MiB GiB, as in 6GiB"));
}

}  // namespace reprise
