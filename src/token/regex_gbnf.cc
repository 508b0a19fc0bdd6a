#include "token/regex_gbnf.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "token/text_stream.h"

namespace reprise {
namespace {

constexpr size_t kPatternBytesMax = 4096;
constexpr uint32_t kNestingMax = 32;
constexpr uint32_t kCodePointMax = 0x10FFFF;

// Code points, in order and apart.
using Ranges = std::vector<std::pair<uint32_t, uint32_t>>;

Ranges Normal(Ranges ranges) {
  std::sort(ranges.begin(), ranges.end());
  Ranges normal;
  for (const auto& range : ranges) {
    if (!normal.empty() && range.first <= normal.back().second + 1) {
      normal.back().second = std::max(normal.back().second, range.second);
    } else {
      normal.push_back(range);
    }
  }
  return normal;
}

Ranges Complement(const Ranges& ranges) {
  Ranges rest;
  uint32_t next = 0;
  for (const auto& [low, high] : Normal(ranges)) {
    if (low > next) rest.emplace_back(next, low - 1);
    next = high + 1;
  }
  if (next <= kCodePointMax) rest.emplace_back(next, kCodePointMax);
  return rest;
}

bool Has(const Ranges& ranges, uint32_t c) {
  return std::any_of(ranges.begin(), ranges.end(), [c](const auto& r) { return r.first <= c && c <= r.second; });
}

const Ranges kDigits = {{'0', '9'}};
const Ranges kWords = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
const Ranges kSpaces = {{'\t', '\r'}, {' ', ' '}, {0xA0, 0xA0}};

// One character of the set as JSON text writes it within a string.
std::string AsJson(const Ranges& set) {
  std::string plain;
  // Those that need no backslash: no control character, quotation mark or backslash.
  const Ranges escaped = {{0, 0x1F}, {'"', '"'}, {'\\', '\\'}, {0x7F, 0x7F}, {0xD800, 0xDFFF}};
  Ranges outside = Complement(set);
  outside.insert(outside.end(), escaped.begin(), escaped.end());
  for (const auto& [low, high] : Complement(outside)) {
    absl::StrAppend(&plain, "\\U", absl::Hex(low, absl::kZeroPad8));
    if (high > low) absl::StrAppend(&plain, "-\\U", absl::Hex(high, absl::kZeroPad8));
  }
  std::vector<std::string> alternatives;
  if (!plain.empty()) alternatives.push_back(absl::StrCat("[", plain, "]"));
  constexpr std::pair<char, const char*> kEscapes[] = {{'"', R"("\\\"")"}, {'\\', R"("\\\\")"}, {'\n', R"("\\n")"},
                                                       {'\t', R"("\\t")"}, {'\r', R"("\\r")"},  {'\f', R"("\\f")"},
                                                       {'\b', R"("\\b")"}};
  for (const auto& [character, text] : kEscapes)
    if (Has(set, static_cast<uint32_t>(character))) alternatives.emplace_back(text);
  if (alternatives.empty()) return "[]";  // nothing matches
  std::string text;
  for (const std::string& alternative : alternatives) absl::StrAppend(&text, text.empty() ? "" : " | ", alternative);
  return alternatives.size() > 1 ? absl::StrCat("(", text, ")") : text;
}

class Translator {
 public:
  explicit Translator(std::string_view pattern) : pattern_(pattern) {}
  absl::StatusOr<std::string> Translate();

 private:
  bool Fail(std::string_view what) {
    if (error_.ok())
      error_ = absl::InvalidArgumentError(absl::StrCat("pattern, character ", at_ + 1, ": ", std::string(what)));
    return false;
  }
  bool end() const { return at_ >= pattern_.size(); }
  char peek(size_t ahead = 0) const { return at_ + ahead < pattern_.size() ? pattern_[at_ + ahead] : '\0'; }
  bool Alternatives(std::string& out, uint32_t depth);
  bool Sequence(std::string& out, uint32_t depth);
  bool Atom(std::string& out, uint32_t depth);
  bool Group(std::string& out, uint32_t depth);
  bool Quantifier(std::string& out);
  bool Brackets(Ranges& set);
  // After a backslash: a set, or one character.
  bool Escape(Ranges& set);
  std::optional<uint32_t> Hex(size_t digits);
  uint32_t CodePoint();
  bool ClassItem(Ranges& item);

  const std::string_view pattern_;
  size_t at_ = 0;
  absl::Status error_;
};

uint32_t Translator::CodePoint() {
  const unsigned char lead = static_cast<unsigned char>(pattern_[at_]);
  const size_t size = lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;  // the pattern is UTF-8
  uint32_t value = size == 1 ? lead : lead & ((1u << (7 - size)) - 1);
  for (size_t i = 1; i < size; ++i) value = value << 6 | (static_cast<unsigned char>(peek(i)) & 0x3F);
  at_ += size;
  return value;
}

std::optional<uint32_t> Translator::Hex(size_t digits) {
  uint32_t value = 0;
  for (size_t i = 0; i < digits; ++i, ++at_) {
    const char c = peek();
    const bool digit = c >= '0' && c <= '9', letter = (c | 32) >= 'a' && (c | 32) <= 'f';
    if (!digit && !letter) {
      Fail("expected hexadecimal digits");
      return std::nullopt;
    }
    value = value * 16 + static_cast<uint32_t>(digit ? c - '0' : (c | 32) - 'a' + 10);
  }
  return value;
}

bool Translator::Escape(Ranges& set) {
  const char c = peek();
  ++at_;
  const auto one = [&](uint32_t code_point) {
    set = {{code_point, code_point}};
    return true;
  };
  switch (c) {
    case 'd':
      set = kDigits;
      return true;
    case 'D':
      set = Complement(kDigits);
      return true;
    case 'w':
      set = kWords;
      return true;
    case 'W':
      set = Complement(kWords);
      return true;
    case 's':
      set = kSpaces;
      return true;
    case 'S':
      set = Complement(kSpaces);
      return true;
    case 't':
      return one('\t');
    case 'n':
      return one('\n');
    case 'r':
      return one('\r');
    case 'f':
      return one('\f');
    case 'v':
      return one('\v');
    case 'x':
    case 'u': {
      const auto value = Hex(c == 'x' ? 2 : 4);
      return value && one(*value);
    }
    default:
      break;
  }
  if ((c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '\0' || (c & 0x80) != 0) {
    --at_;
    return Fail(absl::StrCat("\\", std::string(1, c), " is not supported"));
  }
  return one(static_cast<unsigned char>(c));
}

// One character between brackets, or a class such as \d.
bool Translator::ClassItem(Ranges& item) {
  if (peek() == '\\') {
    ++at_;
    return Escape(item);
  }
  const uint32_t c = CodePoint();
  item = {{c, c}};
  return true;
}

bool Translator::Brackets(Ranges& set) {
  ++at_;
  const bool negated = peek() == '^';
  if (negated) ++at_;
  while (!end() && peek() != ']') {
    Ranges item;
    if (!ClassItem(item)) return false;
    const bool single = item.size() == 1 && item[0].first == item[0].second;
    if (single && peek() == '-' && peek(1) != ']' && peek(1) != '\0') {
      ++at_;
      Ranges last;
      if (!ClassItem(last)) return false;
      if (last.size() != 1 || last[0].first != last[0].second || last[0].first < item[0].first)
        return Fail("a range of characters that runs backwards");
      item[0].second = last[0].second;
    }
    set.insert(set.end(), item.begin(), item.end());
  }
  if (end()) return Fail("expected ]");
  ++at_;
  set = negated ? Complement(set) : Normal(set);
  return true;
}

bool Translator::Group(std::string& out, uint32_t depth) {
  if (depth >= kNestingMax) return Fail("nested too deeply");
  ++at_;
  if (peek() == '?') {
    if (peek(1) == ':') {
      at_ += 2;
    } else if (peek(1) == '<' && peek(2) != '=' && peek(2) != '!' &&
               pattern_.find('>', at_) != std::string_view::npos) {
      at_ = pattern_.find('>', at_) + 1;  // a name
    } else {
      return Fail("looking around is not supported");
    }
  }
  std::string inner;
  if (!Alternatives(inner, depth + 1)) return false;
  if (peek() != ')') return Fail("expected )");
  ++at_;
  absl::StrAppend(&out, "(", inner, ")");
  return true;
}

bool Translator::Atom(std::string& out, uint32_t depth) {
  Ranges set;
  const char c = peek();
  if (c == '(') return Group(out, depth);
  if (c == '*' || c == '+' || c == '?') return Fail("nothing to repeat");
  if (c == '^' || c == '$') return Fail("an anchor that is not at an end of the pattern");
  if (c == '[') {
    if (!Brackets(set)) return false;
  } else if (c == '.') {
    ++at_;
    set = Complement({{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}});
  } else if (c == '\\') {
    ++at_;
    if (!Escape(set)) return false;
  } else {
    const uint32_t code_point = CodePoint();
    set = {{code_point, code_point}};
  }
  out += AsJson(set);
  return true;
}

bool Translator::Quantifier(std::string& out) {
  const char c = peek();
  if (c == '*' || c == '+' || c == '?') {
    out += c;
    ++at_;
  } else {
    if (c != '{') return true;
    const size_t close = pattern_.find('}', at_);
    const std::string_view count = pattern_.substr(at_ + 1, close == std::string_view::npos ? 0 : close - at_ - 1);
    const bool digits = !count.empty() && count[0] >= '0' && count[0] <= '9' &&
                        count.find_first_not_of("0123456789,") == std::string_view::npos &&
                        std::count(count.begin(), count.end(), ',') <= 1;
    if (!digits) return Fail("a { that is no count");
    absl::StrAppend(&out, "{", std::string(count), "}");
    at_ = close + 1;
  }
  if (peek() == '?') ++at_;  // as few as possible: the same strings
  if (peek() == '*' || peek() == '+' || peek() == '{') return Fail("a repetition of a repetition");
  return true;
}

bool Translator::Sequence(std::string& out, uint32_t depth) {
  const bool top = depth == 0;
  const bool from_start = top && peek() == '^';
  if (from_start) ++at_;
  if (top && !from_start) out += "reprise-char* ";
  bool any = false, to_end = false;
  while (!end() && peek() != '|' && peek() != ')') {
    if (top && peek() == '$' && (at_ + 1 == pattern_.size() || peek(1) == '|')) {
      ++at_;
      to_end = true;
      break;
    }
    if (!Atom(out, depth) || !Quantifier(out)) return false;
    out += ' ';
    any = true;
  }
  if (top && !to_end) out += "reprise-char* ";
  if (!any) out += "\"\"";
  return true;
}

bool Translator::Alternatives(std::string& out, uint32_t depth) {
  while (true) {
    if (!Sequence(out, depth)) return false;
    if (peek() != '|') return true;
    ++at_;
    out += " | ";
  }
}

absl::StatusOr<std::string> Translator::Translate() {
  if (pattern_.size() > kPatternBytesMax)
    return absl::InvalidArgumentError(absl::StrCat("pattern: longer than ", kPatternBytesMax, " bytes"));
  if (ToUtf8(pattern_, nullptr) != pattern_) return absl::InvalidArgumentError("pattern: not UTF-8");
  std::string out;
  if (Alternatives(out, 0) && !end()) Fail("unexpected )");
  if (!error_.ok()) return error_;
  return absl::StrCat(R"("\"" ()", out, R"() "\"")");
}

}  // namespace

absl::StatusOr<std::string> RegexToGbnf(std::string_view pattern) { return Translator(pattern).Translate(); }

}  // namespace reprise
