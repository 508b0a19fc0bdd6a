#include "token/gbnf.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace reprise {
namespace {

using Kind = GrammarElement::Kind;

constexpr uint32_t kNestingMax = 128;
// A repetition of something that may be empty is unrolled by the machine.
constexpr uint32_t kEmptyRepeatMax = 256;
constexpr uint32_t kCodePointMax = 0x10FFFF;

bool IsWord(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-'; }

void Finish(CharClass& chars) {
  for (uint32_t c = 0; c < 128; ++c) {
    const bool inside = std::any_of(chars.ranges.begin(), chars.ranges.end(),
                                    [c](const auto& range) { return range.first <= c && c <= range.second; });
    chars.ascii[c] = inside != chars.negated;
  }
  const bool none_above =
      std::all_of(chars.ranges.begin(), chars.ranges.end(), [](const auto& range) { return range.second < 128; });
  const bool all_above = std::any_of(chars.ranges.begin(), chars.ranges.end(), [](const auto& range) {
    return range.first <= 128 && range.second >= kCodePointMax;
  });
  chars.uniform_above = none_above || all_above;
  chars.above = all_above != chars.negated;
}

// A recursive descent over the text. Errors are kept in `error_`, the first one; after it nothing is read.
class Parser {
 public:
  Parser(const Tokenizer& tokenizer, std::string_view text) : tokenizer_(tokenizer), text_(text) {}
  absl::StatusOr<GrammarRules> Parse();

 private:
  bool Fail(std::string_view what);
  bool failed() const { return !error_.ok(); }
  char peek(size_t ahead = 0) const { return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0'; }
  void SkipSpace(bool newlines);
  bool Rule();
  bool Alternatives(uint32_t rule, uint32_t depth);
  bool Sequence(std::vector<GrammarElement>& out, uint32_t depth);
  bool Item(std::vector<GrammarElement>& out, size_t& last, uint32_t depth);
  bool Literal(std::vector<GrammarElement>& out);
  bool Brackets(std::vector<GrammarElement>& out);
  bool Token(std::vector<GrammarElement>& out);
  bool Group(std::vector<GrammarElement>& out, uint32_t depth);
  bool Times(uint32_t& min, uint32_t& max);
  bool Repeat(std::vector<GrammarElement>& out, size_t last, uint32_t min, uint32_t max);
  std::optional<uint32_t> Number();
  std::optional<uint32_t> Character();
  std::optional<uint32_t> Hex(size_t digits);
  std::optional<uint32_t> Utf8();
  void AddClass(std::vector<GrammarElement>& out, CharClass chars);
  uint32_t NamedRule(std::string_view name);
  uint32_t NewRule();
  bool CheckDefined();
  bool CheckRecursion();

  const Tokenizer& tokenizer_;
  const std::string_view text_;
  size_t at_ = 0;
  absl::Status error_;
  GrammarRules result_;
  std::map<std::string, uint32_t, std::less<>> names_;
  std::map<uint32_t, uint32_t> single_;  // classes of one character, by it
  size_t elements_ = 0;                  // in all rules
};

bool Parser::Fail(std::string_view what) {
  if (failed()) return false;
  const std::string_view before = text_.substr(0, std::min(at_, text_.size()));
  const size_t line = std::count(before.begin(), before.end(), '\n') + 1;
  const size_t column = before.size() - (before.rfind('\n') == std::string_view::npos ? 0 : before.rfind('\n') + 1) + 1;
  error_ =
      absl::InvalidArgumentError(absl::StrCat("grammar, line ", line, ", column ", column, ": ", std::string(what)));
  return false;
}

void Parser::SkipSpace(bool newlines) {
  while (at_ < text_.size()) {
    const char c = peek();
    if (c == '#') {
      while (at_ < text_.size() && peek() != '\n' && peek() != '\r') ++at_;
    } else if (c == ' ' || c == '\t' || (newlines && (c == '\n' || c == '\r'))) {
      ++at_;
    } else {
      return;
    }
  }
}

uint32_t Parser::NewRule() {
  result_.rules.emplace_back();
  return static_cast<uint32_t>(result_.rules.size() - 1);
}

uint32_t Parser::NamedRule(std::string_view name) {
  const auto at = names_.find(name);
  if (at != names_.end()) return at->second;
  const uint32_t rule = NewRule();
  names_.emplace(name, rule);
  return rule;
}

std::optional<uint32_t> Parser::Hex(size_t digits) {
  uint32_t value = 0;
  const std::string_view text = text_.substr(std::min(at_, text_.size()), digits);
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, 16);
  if (error != std::errc() || end != text.data() + digits || value > kCodePointMax) {
    Fail(absl::StrCat("expected ", digits, " hexadecimal digits of a character"));
    return std::nullopt;
  }
  at_ += digits;
  return value;
}

std::optional<uint32_t> Parser::Utf8() {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(peek(i)); };
  const unsigned char lead = byte(0);
  const size_t size = lead < 0x80 ? 1 : lead < 0xC2 ? 0 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : lead < 0xF5 ? 4 : 0;
  uint32_t value = size == 1 ? lead : lead & ((1u << (7 - size)) - 1);
  for (size_t i = 1; i < size; ++i) {
    if (byte(i) >> 6 != 2) value = kCodePointMax + 1;
    value = value << 6 | (byte(i) & 0x3F);
  }
  if (size == 0 || value > kCodePointMax) {
    Fail("not UTF-8");
    return std::nullopt;
  }
  at_ += size;
  return value;
}

std::optional<uint32_t> Parser::Character() {
  if (at_ >= text_.size()) {
    Fail("unexpected end");
    return std::nullopt;
  }
  if (peek() != '\\') return Utf8();
  const char escape = peek(1);
  at_ += 2;
  switch (escape) {
    case 'x':
      return Hex(2);
    case 'u':
      return Hex(4);
    case 'U':
      return Hex(8);
    case 't':
      return '\t';
    case 'r':
      return '\r';
    case 'n':
      return '\n';
    case '\\':
    case '"':
    case '[':
    case ']':
    case '-':
      return escape;
    default:
      Fail("unknown escape");
      return std::nullopt;
  }
}

void Parser::AddClass(std::vector<GrammarElement>& out, CharClass chars) {
  const bool single = !chars.negated && chars.ranges.size() == 1 && chars.ranges[0].first == chars.ranges[0].second;
  uint32_t index = static_cast<uint32_t>(result_.classes.size());
  if (single) index = single_.try_emplace(chars.ranges[0].first, index).first->second;
  if (index == result_.classes.size()) {
    Finish(chars);
    result_.classes.push_back(std::move(chars));
  }
  out.push_back({.kind = Kind::kChars, .index = index});
}

bool Parser::Literal(std::vector<GrammarElement>& out) {
  ++at_;
  while (peek() != '"') {
    const auto character = Character();
    if (!character) return false;
    AddClass(out, {.ranges = {{*character, *character}}});
  }
  ++at_;
  return true;
}

bool Parser::Brackets(std::vector<GrammarElement>& out) {
  CharClass chars;
  ++at_;
  if (peek() == '^') {
    chars.negated = true;
    ++at_;
  }
  while (peek() != ']') {
    const auto low = Character();
    if (!low) return false;
    auto high = low;
    if (peek() == '-' && peek(1) != ']') {
      ++at_;
      high = Character();
      if (!high) return false;
    }
    if (*low <= *high) chars.ranges.emplace_back(*low, *high);
  }
  ++at_;
  AddClass(out, std::move(chars));
  return true;
}

bool Parser::Token(std::vector<GrammarElement>& out) {
  GrammarElement element{.kind = Kind::kToken};
  if (peek() == '!') {
    element.kind = Kind::kNotToken;
    ++at_;
  }
  const size_t close = text_.find('>', at_);
  if (peek() != '<' || close == std::string_view::npos) return Fail("expected a token, <[ID]> or <TEXT>");
  if (peek(1) == '[') {
    at_ += 2;
    const auto id = Number();
    if (!id) return false;
    if (*id >= tokenizer_.vocab_size()) return Fail("no such token");
    if (peek() != ']' || peek(1) != '>') return Fail("expected ]>");
    element.index = *id;
  } else {
    const auto ids = tokenizer_.Encode(text_.substr(at_, close + 1 - at_), false, true);
    if (ids.size() != 1) return Fail("is not one token of this model");
    element.index = static_cast<uint32_t>(ids[0].value());
  }
  at_ = close + 1;
  result_.has_tokens = true;
  out.push_back(element);
  return true;
}

bool Parser::Group(std::vector<GrammarElement>& out, uint32_t depth) {
  if (depth >= kNestingMax) return Fail("nested too deeply");
  ++at_;
  SkipSpace(true);
  const uint32_t rule = NewRule();
  if (!Alternatives(rule, depth + 1)) return false;
  if (peek() != ')') return Fail("expected )");
  ++at_;
  out.push_back({.kind = Kind::kRule, .index = rule});
  return true;
}

std::optional<uint32_t> Parser::Number() {
  uint32_t value = 0;
  const char* begin = text_.data() + at_;
  const auto [end, error] = std::from_chars(begin, text_.data() + text_.size(), value);
  if (error != std::errc()) {
    Fail(error == std::errc::result_out_of_range ? "the number is too large" : "expected a number");
    return std::nullopt;
  }
  at_ += end - begin;
  return value;
}

// {m}, {m,} or {m,n}.
bool Parser::Times(uint32_t& min, uint32_t& max) {
  ++at_;
  SkipSpace(false);
  const auto low = Number();
  if (!low) return false;
  min = max = *low;
  SkipSpace(false);
  if (peek() == ',') {
    ++at_;
    SkipSpace(false);
    max = kUnlimited;
    if (peek() != '}') {
      const auto high = Number();
      if (!high) return false;
      max = *high;
      SkipSpace(false);
    }
  }
  if (peek() != '}') return Fail("expected }");
  if (min > max) return Fail("more at least than at most");
  ++at_;
  return true;
}

// The item from `last` on becomes a repetition.
bool Parser::Repeat(std::vector<GrammarElement>& out, size_t last, uint32_t min, uint32_t max) {
  if (last >= out.size()) return Fail("nothing to repeat");
  uint32_t rule = out[last].index;
  if (out.size() - last != 1 || out[last].kind != Kind::kRule) {
    rule = NewRule();
    result_.rules[rule] = {static_cast<uint32_t>(result_.elements.size())};
    result_.elements.insert(result_.elements.end(), out.begin() + last, out.end());
    result_.elements.push_back({});
  }
  out.resize(last);
  if (max > 0) out.push_back({.kind = Kind::kRepeat, .index = rule, .min = min, .max = max});
  return true;
}

// One symbol or one repetition sign; `last` is where the latest symbol begins.
bool Parser::Item(std::vector<GrammarElement>& out, size_t& last, uint32_t depth) {
  const char c = peek();
  const size_t begin = out.size();
  uint32_t min = 0, max = kUnlimited;
  if (c == '*' || c == '+' || c == '?') {
    ++at_;
    return Repeat(out, last, c == '+' ? 1 : 0, c == '?' ? 1 : kUnlimited);
  }
  if (c == '{') return Times(min, max) && Repeat(out, last, min, max);
  last = begin;
  if (c == '"') return Literal(out);
  if (c == '[') return Brackets(out);
  if (c == '(') return Group(out, depth);
  if (c == '<' || c == '!') return Token(out);
  if (c == '.') {
    ++at_;
    AddClass(out, {.negated = true});
    return true;
  }
  const size_t from = at_;
  while (IsWord(peek())) ++at_;
  out.push_back({.kind = Kind::kRule, .index = NamedRule(text_.substr(from, at_ - from))});
  return true;
}

bool Parser::Sequence(std::vector<GrammarElement>& out, uint32_t depth) {
  size_t last = 0;
  while (at_ < text_.size()) {
    const char c = peek();
    if (!IsWord(c) && std::string_view("\"[(<!.*+?{").find(c) == std::string_view::npos) return true;
    if (!Item(out, last, depth)) return false;
    if (elements_ + out.size() + result_.elements.size() > kGrammarElementsMax) return Fail("the grammar is too large");
    SkipSpace(depth > 0);
  }
  return true;
}

bool Parser::Alternatives(uint32_t rule, uint32_t depth) {
  std::vector<std::vector<GrammarElement>> alternatives;
  const size_t before = elements_;
  while (true) {
    if (!Sequence(alternatives.emplace_back(), depth)) return false;
    elements_ += alternatives.back().size();
    if (peek() != '|') break;
    ++at_;
    SkipSpace(true);
  }
  elements_ = before;
  std::vector<uint32_t> starts;
  for (const auto& alternative : alternatives) {
    starts.push_back(static_cast<uint32_t>(result_.elements.size()));
    result_.elements.insert(result_.elements.end(), alternative.begin(), alternative.end());
    result_.elements.push_back({});
  }
  result_.rules[rule] = std::move(starts);
  return true;
}

bool Parser::Rule() {
  const size_t from = at_;
  while (IsWord(peek())) ++at_;
  if (at_ == from) return Fail("expected the name of a rule");
  const uint32_t rule = NamedRule(text_.substr(from, at_ - from));
  SkipSpace(false);
  if (text_.substr(at_, 3) != "::=") return Fail("expected ::=");
  at_ += 3;
  SkipSpace(true);
  if (!Alternatives(rule, 0)) return false;
  if (at_ < text_.size() && peek() != '\n' && peek() != '\r') return Fail("unexpected character");
  SkipSpace(true);
  return true;
}

bool Parser::CheckDefined() {
  for (const auto& [name, rule] : names_)
    if (result_.rules[rule].empty()) return Fail(absl::StrCat("rule \"", name, "\" is not defined"));
  const auto root = names_.find("root");
  if (root == names_.end()) return Fail("rule \"root\" is not defined");
  result_.root = root->second;
  return true;
}

// Left recursion would let the machine's stacks grow without reading anything.
bool Parser::CheckRecursion() {
  const auto& elements = result_.elements;
  std::vector<bool> empty(result_.rules.size());  // may be empty
  const auto passes = [&](const GrammarElement& e) {
    return (e.kind == Kind::kRule && empty[e.index]) || (e.kind == Kind::kRepeat && (e.min == 0 || empty[e.index]));
  };
  const auto refers = [](const GrammarElement& e) { return e.kind == Kind::kRule || e.kind == Kind::kRepeat; };
  for (bool changed = true; changed;) {
    changed = false;
    for (size_t rule = 0; rule < empty.size(); ++rule) {
      for (uint32_t at : result_.rules[rule]) {
        while (passes(elements[at])) ++at;
        if (empty[rule] || elements[at].kind != Kind::kEnd) continue;
        empty[rule] = changed = true;
      }
    }
  }
  for (const GrammarElement& e : elements)
    if (e.kind == Kind::kRepeat && empty[e.index] && e.max != kUnlimited && e.max > kEmptyRepeatMax)
      return Fail(absl::StrCat("what is repeated up to ", e.max, " times may be empty"));

  std::vector<std::vector<uint32_t>> first(result_.rules.size());  // rules that a rule may begin with
  for (size_t rule = 0; rule < first.size(); ++rule) {
    for (uint32_t at : result_.rules[rule]) {
      for (; refers(elements[at]); ++at) {
        first[rule].push_back(elements[at].index);
        if (!passes(elements[at])) break;
      }
    }
  }
  enum : uint8_t { kNew, kOpen, kDone };
  std::vector<uint8_t> mark(first.size(), kNew);
  for (uint32_t start = 0; start < first.size(); ++start) {
    if (mark[start] != kNew) continue;
    std::vector<std::pair<uint32_t, size_t>> path = {{start, 0}};  // rule, next of first[rule]
    mark[start] = kOpen;
    while (!path.empty()) {
      auto& [rule, next] = path.back();
      if (next == first[rule].size()) {
        mark[rule] = kDone;
        path.pop_back();
        continue;
      }
      const uint32_t to = first[rule][next++];
      if (mark[to] == kOpen) return Fail("a rule refers to itself before it reads anything (left recursion)");
      if (mark[to] != kNew) continue;
      mark[to] = kOpen;
      path.emplace_back(to, 0);
    }
  }
  return true;
}

absl::StatusOr<GrammarRules> Parser::Parse() {
  if (text_.size() > kGrammarBytesMax)
    return absl::InvalidArgumentError(
        absl::StrCat("the grammar has ", text_.size(), " bytes, more than ", kGrammarBytesMax));
  SkipSpace(true);
  while (!failed() && at_ < text_.size()) Rule();
  if (!failed() && CheckDefined()) CheckRecursion();
  if (failed()) return error_;
  return std::move(result_);
}

}  // namespace

bool CharClass::Has(uint32_t code_point) const {
  if (code_point < 128) return ascii[code_point];
  if (uniform_above) return above;
  for (const auto& [low, high] : ranges)
    if (low <= code_point && code_point <= high) return !negated;
  return negated;
}

bool CharClass::HasAny(uint32_t low, uint32_t high) const {
  if (uniform_above && low >= 128) return above;
  if (!negated)
    return std::any_of(ranges.begin(), ranges.end(),
                       [&](const auto& range) { return range.first <= high && low <= range.second; });
  // The first code point that no range covers.
  bool moved = true;
  while (moved && low <= high) {
    moved = false;
    for (const auto& range : ranges) {
      if (range.first > low || low > range.second) continue;
      low = range.second + 1;
      moved = true;
    }
  }
  return low <= high;
}

absl::StatusOr<GrammarRules> ParseGbnf(const Tokenizer& tokenizer, std::string_view text) {
  return Parser(tokenizer, text).Parse();
}

}  // namespace reprise
