#include "token/number_range.h"

#include <algorithm>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"

namespace reprise {
namespace {

constexpr size_t kWholeDigitsMax = 15;
constexpr size_t kFractionDigitsMax = 16;

// A magnitude: digits before the point without leading zeros ("0" at least), and after it without trailing ones.
struct Decimal {
  std::string whole = "0";
  std::string fraction;
  bool negative = false;
  bool zero() const { return whole == "0" && fraction.empty(); }
};

Decimal Read(std::string_view digits) {
  Decimal decimal;
  decimal.negative = digits.starts_with('-');
  if (decimal.negative) digits.remove_prefix(1);
  const size_t point = digits.find('.');
  decimal.whole = std::string(digits.substr(0, point));
  decimal.whole.erase(0, std::min(decimal.whole.find_first_not_of('0'), decimal.whole.size() - 1));
  if (point != std::string_view::npos) decimal.fraction = std::string(digits.substr(point + 1));
  decimal.fraction.erase(decimal.fraction.find_last_not_of('0') + 1);
  if (decimal.zero()) decimal.negative = false;
  return decimal;
}

int Compare(const std::string& a, const std::string& b) {
  if (a.size() != b.size()) return a.size() < b.size() ? -1 : 1;
  return a.compare(b);
}

std::string Digits(char from, char to) {
  return from == to ? absl::StrCat("\"", std::string(1, from), "\"")
                    : absl::StrCat("[", std::string(1, from), "-", std::string(1, to), "]");
}
std::string AnyDigits(size_t least, size_t most) {
  return most == 0 ? "" : absl::StrCat(" [0-9]{", least, ",", most, "}");
}
std::string Or(const std::vector<std::string>& alternatives) {
  std::string text;
  for (const std::string& alternative : alternatives) absl::StrAppend(&text, text.empty() ? "" : " | ", alternative);
  return alternatives.size() > 1 ? absl::StrCat("(", text, ")") : text;
}
std::string Literal(std::string_view text) { return text.empty() ? "" : absl::StrCat("\"", std::string(text), "\" "); }

// Digit strings of the length of both, from `low` to `high`; empty: none.
std::string SameLength(std::string_view low, std::string_view high) {
  if (low > high) return "";
  if (low.empty()) return "\"\"";
  if (low.find_first_not_of('0') == std::string_view::npos && high.find_first_not_of('9') == std::string_view::npos)
    return absl::StrCat("[0-9]{", low.size(), "}");
  const size_t rest = low.size() - 1;
  if (low[0] == high[0]) {
    const std::string more = SameLength(low.substr(1), high.substr(1));
    return rest == 0 ? Digits(low[0], low[0]) : absl::StrCat(Digits(low[0], low[0]), " ", more);
  }
  if (rest == 0) return Digits(low[0], high[0]);
  const std::string nines(rest, '9'), zeros(rest, '0');
  std::vector<std::string> alternatives = {
      absl::StrCat(Digits(low[0], low[0]), " ", SameLength(low.substr(1), nines)),
      absl::StrCat(Digits(high[0], high[0]), " ", SameLength(zeros, high.substr(1)))};
  if (low[0] + 1 < high[0])
    alternatives.push_back(absl::StrCat(Digits(low[0] + 1, high[0] - 1), AnyDigits(rest, rest)));
  return Or(alternatives);
}

// Whole numbers strictly between the two; `high` empty: without limit. Empty: none.
std::string Between(std::string low, const std::string& high) {
  // The next one after low.
  size_t at = low.size();
  while (at > 0 && low[at - 1] == '9') low[--at] = '0';
  if (at == 0) {
    low.insert(0, 1, '1');
  } else {
    ++low[at - 1];
  }
  std::string last = high.empty() ? std::string(kWholeDigitsMax, '9') : high;
  if (!high.empty()) {  // the one before high, which is not 0 if there is one
    if (last == "0") return "";
    at = last.size();
    while (last[at - 1] == '0') last[--at] = '9';
    --last[at - 1];
    if (last.size() > 1 && last[0] == '0') last.erase(0, 1);
  }
  std::vector<std::string> alternatives;
  for (size_t length = low.size(); length <= last.size(); ++length) {
    const std::string first = length == low.size() ? low : absl::StrCat("1", std::string(length - 1, '0'));
    const std::string end = length == last.size() ? last : std::string(length, '9');
    if (std::string part = SameLength(first, end); !part.empty()) alternatives.push_back(std::move(part));
  }
  return Or(alternatives);
}

// What may follow the point, given what `low` and `high` have after it (nullptr: no limit on that side); also nothing
// at all, the fraction 0, as a leading alternative. Empty: nothing fits.
class Fraction {
 public:
  Fraction(const std::string* low, bool low_exclusive, const std::string* high, bool high_exclusive)
      : low_exclusive_(low_exclusive), high_exclusive_(high_exclusive) {
    const bool zero_fits =
        (low == nullptr || (low->empty() && !low_exclusive)) && (high == nullptr || !high->empty() || !high_exclusive);
    const std::string digits = Tail(low, high, 0);
    if (!digits.empty()) text_ = absl::StrCat("\".\" ", digits);
    if (zero_fits) text_ = text_.empty() ? "\"\"" : absl::StrCat("(", text_, ")?");
    if (!zero_fits && !text_.empty()) text_ = absl::StrCat("(", text_, ")");
  }
  const std::string& text() const { return text_; }

 private:
  // At least one digit, those from `at` on; nullptr: that limit is out of sight.
  std::string Tail(const std::string* low, const std::string* high, size_t at) {
    if (at == kFractionDigitsMax) return "";
    const size_t left = kFractionDigitsMax - at;
    if (low == nullptr && high == nullptr) return absl::StrCat("[0-9]{1,", left, "}");
    const auto digit = [at](const std::string* limit) {
      return limit != nullptr && at < limit->size() ? (*limit)[at] : '0';
    };
    const char from = low == nullptr ? '0' : digit(low), to = high == nullptr ? '9' : digit(high);
    if (from > to) return "";
    std::vector<std::string> alternatives;
    const auto add = [&](char first, char last, const std::string* next_low, const std::string* next_high) {
      std::string after = Tail(next_low, next_high, at + 1);
      const bool may_stop = MayStop(next_low, next_high, at + 1);
      if (after.empty() && !may_stop) return;
      std::string text = Digits(first, last);
      if (!after.empty()) absl::StrAppend(&text, " (", after, may_stop ? ")?" : ")");
      alternatives.push_back(std::move(text));
    };
    const bool low_here = low != nullptr, high_here = high != nullptr;
    if (low_here && high_here && from == to) {
      add(from, to, low, high);
    } else {
      if (low_here) add(from, from, low, nullptr);
      if (high_here) add(to, to, nullptr, high);
      const char first = low_here ? from + 1 : from, last = high_here ? to - 1 : to;
      if (first <= last) add(first, last, nullptr, nullptr);
    }
    // Beyond the limits' digits only zeros differ not at all: a run of them is enough.
    return Or(alternatives);
  }
  // The digits so far equal the limits that are still in sight: may the number end?
  bool MayStop(const std::string* low, const std::string* high, size_t at) const {
    const bool low_ok = low == nullptr || (at >= low->size() && !low_exclusive_);
    const bool high_ok = high == nullptr || at < high->size() || !high_exclusive_;
    return low_ok && high_ok;
  }

  const bool low_exclusive_, high_exclusive_;
  std::string text_;
};

// Magnitudes from low to high.
struct Range {
  Decimal low;
  bool low_exclusive = false;
  std::optional<Decimal> high;
  bool high_exclusive = false;
};

std::string Magnitudes(const Range& range, bool integer) {
  if (range.low.whole.size() > kWholeDigitsMax) return "";
  const bool limited = range.high && range.high->whole.size() <= kWholeDigitsMax;
  const std::string* low_fraction = &range.low.fraction;
  const std::string* high_fraction = limited ? &range.high->fraction : nullptr;
  const auto fraction = [&](const std::string* low, const std::string* high) {
    if (!integer) return Fraction(low, range.low_exclusive, high, range.high_exclusive).text();
    const bool fits = (low == nullptr || (low->empty() && !range.low_exclusive)) &&
                      (high == nullptr || !high->empty() || !range.high_exclusive);
    return std::string(fits ? "\"\"" : "");
  };
  std::vector<std::string> alternatives;
  const auto add = [&](const std::string& whole, const std::string& tail) {
    if (!whole.empty() && !tail.empty()) alternatives.push_back(absl::StrCat(whole, " ", tail));
  };
  const int order = limited ? Compare(range.low.whole, range.high->whole) : -1;
  if (order > 0) return "";
  if (order == 0) {
    if (*low_fraction > *high_fraction) return "";
    add(Literal(range.low.whole), fraction(low_fraction, high_fraction));
  } else {
    add(Literal(range.low.whole), fraction(low_fraction, nullptr));
    add(Between(range.low.whole, limited ? range.high->whole : ""), fraction(nullptr, nullptr));
    if (limited) add(Literal(range.high->whole), fraction(nullptr, high_fraction));
  }
  return alternatives.empty() ? "" : Or(alternatives);
}

}  // namespace

std::string NumberRangeRule(const std::optional<NumberBound>& low, const std::optional<NumberBound>& high,
                            bool integer) {
  const Decimal least = low ? Read(low->digits) : Decimal{};
  const Decimal most = high ? Read(high->digits) : Decimal{};
  std::vector<std::string> alternatives;
  const auto add = [&](std::string_view sign, const Range& range) {
    const std::string text = Magnitudes(range, integer);
    if (!text.empty()) alternatives.push_back(absl::StrCat(std::string(sign), text));
  };
  // Below zero, magnitudes run the other way.
  if (!low || least.negative) {
    Range range{.low = {}, .low_exclusive = true};  // "-0" is left out
    if (high && most.negative) {
      range.low = most;
      range.low_exclusive = high->exclusive;
    } else if (high && most.zero() && high->exclusive) {
      range.low_exclusive = true;
    }
    if (low) {
      range.high = least;
      range.high_exclusive = low->exclusive;
    }
    add("\"-\" ", range);
  }
  if (!high || !most.negative) {
    Range range;
    if (low && !least.negative) {
      range.low = least;
      range.low_exclusive = low->exclusive;
    }
    if (high) {
      range.high = most;
      range.high_exclusive = high->exclusive;
    }
    add("", range);
  }
  return alternatives.empty() ? "" : Or(alternatives);
}

}  // namespace reprise
