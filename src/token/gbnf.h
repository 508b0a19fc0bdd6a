// GBNF (llama.cpp's notation for grammars) to rules that a GrammarMachine walks. Counted repetitions stay
// counters, so "x{0,1000000000}" costs no more than "x*".
//
// Ownership: values. Threads: any.
// Errors:    InvalidArgument with line and column; a grammar larger than the limits, deeper than
//            kNestingMax, or with left recursion is refused.
#pragma once

#include <bitset>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "token/tokenizer.h"

namespace reprise {

inline constexpr size_t kGrammarBytesMax = 4 << 20;
inline constexpr size_t kGrammarElementsMax = 1 << 18;

struct GrammarElement {
  enum class Kind : uint8_t {
    kEnd,       // of an alternative
    kChars,     // a character of classes[index]
    kToken,     // the token `index`
    kNotToken,  // any token but `index`
    kRule,      // rules[index]
    kRepeat,    // rules[index], min to max times
  };
  Kind kind = Kind::kEnd;
  uint32_t index = 0;
  uint32_t min = 0;
  uint32_t max = 0;
};
inline constexpr uint32_t kUnlimited = UINT32_MAX;

struct CharClass {
  bool negated = false;
  std::vector<std::pair<uint32_t, uint32_t>> ranges;  // code points, both ends included
  std::bitset<128> ascii;                             // the answer for those
  bool uniform_above = false;                         // one answer, `above`, for all code points from 128 on
  bool above = false;

  bool Has(uint32_t code_point) const;
  // Whether some code point from low to high is in it.
  bool HasAny(uint32_t low, uint32_t high) const;
};

struct GrammarRules {
  std::vector<GrammarElement> elements;      // alternatives, each closed by kEnd
  std::vector<std::vector<uint32_t>> rules;  // where their alternatives begin
  std::vector<CharClass> classes;
  uint32_t root = 0;
  bool has_tokens = false;  // kToken or kNotToken
};

absl::StatusOr<GrammarRules> ParseGbnf(const Tokenizer& tokenizer, std::string_view text);

}  // namespace reprise
