#include "token/json_schema.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <regex>

#include "token/gbnf.h"
#include "token/grammar.h"
#include "token/grammar_machine.h"
#include "token/number_range.h"
#include "token/real_models.h"
#include "token/regex_gbnf.h"

namespace reprise {
namespace {

using ::testing::HasSubstr;

// A grammar by its text alone.
class Acceptor {
 public:
  explicit Acceptor(const std::string& gbnf) {
    auto rules = ParseGbnf(RealModelOf("smollm2").tokenizer(), gbnf);
    EXPECT_TRUE(rules.ok()) << rules.status() << "\n" << gbnf;
    machine_.emplace(std::make_shared<const GrammarRules>(*std::move(rules)));
  }
  bool Takes(std::string_view text) {
    const auto at = machine_->Token(machine_->start(), TokenId(-1), text);
    return !GrammarMachine::dead(at) && machine_->MayEnd(at);
  }

 private:
  std::optional<GrammarMachine> machine_;
};

std::string SchemaOrDie(std::string_view schema) {
  auto gbnf = JsonSchemaToGbnf(schema);
  EXPECT_TRUE(gbnf.ok()) << gbnf.status() << "\n" << schema;
  return gbnf.ok() ? *gbnf : "root ::= \"\"";
}
bool Takes(std::string_view schema, std::string_view text) { return Acceptor(SchemaOrDie(schema)).Takes(text); }

std::string Quoted(std::string_view value) {
  std::string text(1, '"');
  text += value;
  return text += '"';
}

std::string Decimal(int64_t thousandths) {
  const uint64_t magnitude = static_cast<uint64_t>(std::abs(thousandths));
  std::string text = thousandths < 0 ? "-" : "";
  text += std::to_string(magnitude / 1000);
  std::string fraction = std::to_string(1000 + magnitude % 1000).substr(1);
  fraction.erase(fraction.find_last_not_of('0') + 1);
  if (!fraction.empty()) text.append(1, '.').append(fraction);
  return text;
}

// Around random limits: what is taken is what lies within.
TEST(NumberRangeTest, TakesWhatLiesWithin) {
  std::mt19937 random(5);
  for (int round = 0; round < 400; ++round) {
    const int64_t span = round % 3 == 0 ? 3000 : round % 3 == 1 ? 60'000 : 2'000'000;
    const auto any = [&] { return static_cast<int64_t>(random() % (2 * span)) - span; };
    int64_t low = any(), high = any();
    if (low > high) std::swap(low, high);
    if (round % 5 == 0) low = low / 1000 * 1000, high = high / 1000 * 1000;
    const bool has_low = random() % 4 != 0, has_high = random() % 4 != 0 || !has_low;
    const bool low_exclusive = random() % 3 == 0, high_exclusive = random() % 3 == 0;
    std::optional<NumberBound> from, to;
    if (has_low) from = {Decimal(low), low_exclusive};
    if (has_high) to = {Decimal(high), high_exclusive};
    for (const bool integer : {false, true}) {
      const std::string rule = NumberRangeRule(from, to, integer);
      SCOPED_TRACE((from ? Decimal(low) : "") + (low_exclusive ? " < " : " <= ") + (high_exclusive ? "< " : "<= ") +
                   (to ? Decimal(high) : "") + (integer ? " integer: " : ": ") + rule);
      std::optional<Acceptor> acceptor;
      if (!rule.empty()) acceptor.emplace("root ::= " + rule);
      for (int n = 0; n < 60; ++n) {
        int64_t value = any();
        if (n % 4 == 0) value = low + static_cast<int64_t>(random() % 5) - 2;
        if (n % 4 == 1) value = high + static_cast<int64_t>(random() % 5) - 2;
        if (n % 4 == 2) value = value / 1000 * 1000;
        const bool inside = (!has_low || value > low || (value == low && !low_exclusive)) &&
                            (!has_high || value < high || (value == high && !high_exclusive)) &&
                            (!integer || value % 1000 == 0);
        ASSERT_EQ(acceptor && acceptor->Takes(Decimal(value)), inside) << Decimal(value);
      }
    }
  }
}

TEST(NumberRangeTest, WritesNumbersAsJsonDoes) {
  Acceptor range("root ::= " + NumberRangeRule(NumberBound{"-10.5"}, NumberBound{"1000"}, false));
  for (const char* good : {"0", "1", "-1", "-10.5", "1000", "999.999", "-0.25", "0.5", "1000.0", "10.50"})
    EXPECT_TRUE(range.Takes(good)) << good;
  for (const char* bad : {"01", "-", "", ".5", "1.", "+1", "1e3", "1000.1", "-10.51", "-11", "00", "1 "})
    EXPECT_FALSE(range.Takes(bad)) << bad;
  EXPECT_EQ(NumberRangeRule(NumberBound{"1.2"}, NumberBound{"1.8"}, true), "");
  EXPECT_EQ(NumberRangeRule(NumberBound{"2"}, NumberBound{"1"}, false), "");
  EXPECT_EQ(NumberRangeRule(NumberBound{"1e30"}, NumberBound{"1", true}, false), "");
}

// Against std::regex, on values made of the letters that the patterns speak of.
TEST(RegexTest, TakesWhatTheExpressionMatches) {
  const char* patterns[] = {
      "^[a-c]+$", "b", "^a|b$", "^(ab|c){2,3}$",     "a.c",   "^[^ab]*$",  "^\\d{1,2}-\\w?$", "^(?:a?b)*c$",
      "^$",       "",  "\\.a",  "^a{0,2}b{2,}c{1}$", "[-a]$", "^\\s*a\\S$"};
  std::mt19937 random(9);
  for (const char* pattern : patterns) {
    const auto rule = RegexToGbnf(pattern);
    ASSERT_TRUE(rule.ok()) << pattern << " " << rule.status();
    Acceptor acceptor("root ::= " + *rule + "\nreprise-char ::= [^\"\\\\\\x7F\\x00-\\x1F]\n");
    const std::regex reference(pattern);
    int matches = 0;
    for (int n = 0; n < 10'000; ++n) {
      std::string value;
      for (size_t i = random() % 7; i > 0; --i) value += "aabbcc11--._ "[random() % 13];
      const bool expected = std::regex_search(value, reference);
      matches += expected;
      ASSERT_EQ(acceptor.Takes(Quoted(value)), expected) << pattern << " on " << value;
    }
    EXPECT_GT(matches, 0) << pattern;
  }
}

TEST(RegexTest, EscapesWhatJsonEscapes) {
  Acceptor quotes("root ::= " + *RegexToGbnf(R"(^["\\\n]$)"));
  for (const char* good : {R"("\"")", R"("\\")", R"("\n")"}) EXPECT_TRUE(quotes.Takes(good)) << good;
  for (const char* bad : {R"(""")", R"("\")", "\"\n\"", R"("n")"}) EXPECT_FALSE(quotes.Takes(bad)) << bad;
  Acceptor wide("root ::= " + *RegexToGbnf("^[α-ω]é\\u00fc$"));
  EXPECT_TRUE(wide.Takes("\"βéü\""));
  EXPECT_FALSE(wide.Takes("\"béü\""));
}

TEST(RegexTest, WhatIsNotSupportedIsSaid) {
  for (const char* pattern :
       {"(?=a)b", "(a)\\1", "\\bword\\b", "a^b", "a$b", "(", "[a", "*", "a**", "\\p{L}", "[z-a]", "a)"}) {
    const auto rule = RegexToGbnf(pattern);
    EXPECT_EQ(rule.status().code(), absl::StatusCode::kInvalidArgument) << pattern;
    EXPECT_THAT(std::string(rule.status().message()), HasSubstr("pattern, character"));
  }
  EXPECT_FALSE(RegexToGbnf(std::string(1000, '(')).ok());
  EXPECT_FALSE(RegexToGbnf(std::string(5000, 'a')).ok());
  EXPECT_FALSE(RegexToGbnf("\xff").ok());
}

TEST(JsonSchemaTest, TakesWhatIsValid) {
  constexpr char kSchema[] = R"({"type": "object", "properties": {
      "name": {"type": "string", "pattern": "^[a-z]{2,5}$"}, "age": {"type": "integer", "minimum": 0, "maximum": 150},
      "share": {"type": ["number", "null"], "minimum": 0, "exclusiveMaximum": 1}, "kind": {"$ref": "#/$defs/kind"},
      "tags": {"type": "array", "items": {"type": "string", "maxLength": 3}, "minItems": 1, "maxItems": 2}},
      "required": ["name", "age", "kind"], "$defs": {"kind": {"enum": ["a", 7]}}})";
  Acceptor acceptor(SchemaOrDie(kSchema));
  for (const char* good :
       {R"({"name":"bob","age":9,"kind":7})", R"({"name": "bob", "age": 150, "kind": "a", "share": 0.5})",
        R"({"name":"bob","age":0,"kind":"a","share":null,"tags":["abc","\n"]})"})
    EXPECT_TRUE(acceptor.Takes(good)) << good;
  for (const char* bad :
       {R"({"name":"b","age":9,"kind":7})", R"({"name":"bob","age":151,"kind":7})", R"({"name":"bob","age":9})",
        R"({"name":"bob","age":9,"kind":"b"})", R"({"name":"bob","age":9,"kind":7,"share":1})",
        R"({"name":"bob","age":9,"kind":7,"tags":[]})", R"({"name":"bob","age":9,"kind":7,"tags":["abcd"]})",
        R"({"name":"bob","age":9,"kind":7,"x":1})"})
    EXPECT_FALSE(acceptor.Takes(bad)) << bad;
}

TEST(JsonSchemaTest, AnyValueAndAnyObject) {
  for (const char* good : {"3", "\"x\"", "[1, {}]", "null", "{\"a\": [true]}"}) EXPECT_TRUE(Takes("{}", good)) << good;
  EXPECT_TRUE(Takes(R"({"type": "object"})", R"({"a": 1, "b": {"c": []}})"));
  EXPECT_FALSE(Takes(R"({"type": "object"})", "3"));
  EXPECT_TRUE(Takes(R"({"allOf": [{"$ref": "#/definitions/x"}], "definitions": {"x": {"type": "null"}}})", "null"));
}

// Beside properties there are no others: llama.cpp's rule for other names takes the given ones in disguise.
TEST(JsonSchemaTest, OtherPropertiesAreLeftOutOrNamedWell) {
  constexpr char kSchema[] =
      R"({"type": "object", "properties": {"ab": {"type": "integer"}, "x]-^": {}}, "additionalProperties": true})";
  EXPECT_TRUE(Takes(kSchema, R"({"ab": 1, "x]-^": 2})"));
  for (const char* bad : {R"({"\u0061b": "x"})", R"({"other": 1})", "{\"\\\": 1}"})
    EXPECT_FALSE(Takes(kSchema, bad)) << bad;
  const std::string tool = WithStrictPrimitives(
      "root ::= [\"] ( [a] ([b] char+ | [^\"b] char*) | [^\"a] char* )? [\"]\nchar ::= [^\"\\\\\\x7F\\x00-\\x1F]\n");
  Acceptor name(tool);
  EXPECT_TRUE(name.Takes("\"other\""));
  EXPECT_FALSE(name.Takes("\"ab\""));
  EXPECT_FALSE(name.Takes("\"\\\""));
  EXPECT_FALSE(name.Takes("\"\n\""));
}

// What JSON parsers refuse although the notation has it.
TEST(JsonSchemaTest, HalfSurrogatesAndHugeExponentsAreLeftOut) {
  EXPECT_TRUE(Takes(R"({"type": "string"})", R"("\u00e9")"));
  EXPECT_FALSE(Takes(R"({"type": "string"})", R"("\ud83d")"));
  EXPECT_TRUE(Takes(R"({"type": "number"})", "-1.5e12"));
  EXPECT_FALSE(Takes(R"({"type": "number"})", "1e999"));
}

TEST(JsonSchemaTest, ErrorsNameThePlace) {
  const std::string deep = [] {
    std::string text;
    for (int i = 0; i < 100; ++i) text += R"({"type": "array", "items": )";
    return text + "{}" + std::string(100, '}');
  }();
  std::string wide = R"({"type": "object", "properties": {)", chain = R"({"$ref": "#/$defs/a0", "$defs": {)";
  for (int i = 0; i < 2000; ++i) {
    const std::string n = std::to_string(i);
    wide += (i > 0 ? ",\"p" : "\"p") + n + "\": {}";
    chain += (i > 0 ? ",\"a" : "\"a") + n + R"(": {"$ref": "#/$defs/a)" + std::to_string(i + 1) + "\"}";
  }
  std::string again = wide + R"(}, "required": ["p0")";  // counts once
  for (int i = 0; i < 2000; ++i) again += R"(, "p0")";
  again += "]}";
  wide += "}}";
  chain += "}}";
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "not JSON"},
      {"[]", "#: must be an object"},
      {"{\"type\": ", "not JSON"},
      {R"({"type": "object", "properties": {"a": {"type": "strin"}}})", "#/properties/a: there is no type \"strin\""},
      {R"({"type": "array", "items": {"type": "number", "multipleOf": 3}})", "#/items: \"multipleOf\""},
      {R"({"type": "array", "maxItems": 1e99})", "\"maxItems\" must be a whole number"},
      {R"({"type": "array", "maxItems": -1})", "\"maxItems\" must be a whole number"},
      {R"({"type": "array", "minItems": 3, "maxItems": 2})", "above"},
      {R"({"type": "object", "properties": {}, "required": ["x"]})", "\"x\" is required"},
      {R"j({"type": "string", "pattern": "(?=a)"})j", "#: pattern, character"},
      {R"({"type": "integer", "minimum": 2, "maximum": 1})", "no number"},
      {R"({"type": "integer", "minimum": "2"})", "must be a number"},
      {R"({"$ref": "http://example.com/schema"})", "$ref"},
      {R"({"$ref": "#/$defs/none"})", "$defs"},
      {R"({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}})", "left recursion"},
      {R"({"anyOf": []})", "must not be empty"},
      {R"({"anyOf": [{"type": "null"}], "type": "object", "properties": {"a": {}}})", "beside \"anyOf\""},
      {R"({"enum": []})", "enum"},
      {deep, "levels"},
      {R"({"type": "object", "properties": {")" + std::string(100'000, '!') + R"(": {}}})", "bytes of names"},
      {R"({"$ref": "#/)" + std::string(100'000, '!') + R"("})", "bytes of names"},
      {wide, "optional properties"},
      {again, "optional properties"},
      {R"({"type": ["array", "null", "array"], "items": {}})", "names one twice"},
      {R"({"properties": {"a": {"$ref": "#/properties/a/examples/0"}}})", "must lead to"},
      {chain, "references"},
      {Quoted(std::string(kSchemaBytesMax, 'a')), "bytes"},
  };
  for (const auto& [schema, what] : cases) {
    const auto grammar = Grammar::FromJsonSchema(RealModelOf("smollm2").tokenizer(), schema);
    EXPECT_EQ(grammar.status().code(), absl::StatusCode::kInvalidArgument) << schema.substr(0, 200);
    EXPECT_THAT(std::string(grammar.status().message()), HasSubstr(what));
  }
}

TEST(JsonSchemaTest, TheWholeDocumentMayRecur) {
  const char* tree = R"({"type": "object", "properties": {"v": {"type": "integer"}, "next": {"anyOf":
      [{"$ref": "#"}, {"type": "null"}]}}, "required": ["v", "next"]})";
  EXPECT_TRUE(Takes(tree, R"({"v": 1, "next": {"v": 2, "next": null}})"));
  EXPECT_FALSE(Takes(tree, R"({"v": 1, "next": {"v": "x", "next": null}})"));
}

TEST(JsonSchemaTest, SchemasOfARequestCostTogether) {
  std::string schema = R"({"type": "object", "properties": {)";
  for (int i = 0; i < 300; ++i) schema += (i > 0 ? ",\"p" : "\"p") + std::to_string(i) + "\": {}";
  schema += "}}";
  SchemaCost cost;
  EXPECT_TRUE(CheckSchemaSize(schema, "a", cost).ok());
  EXPECT_TRUE(CheckSchemaSize(schema, "b", cost).ok());
  EXPECT_THAT(std::string(CheckSchemaSize(schema, "c", cost).message()), HasSubstr("optional properties"));
}

TEST(JsonSchemaTest, HugeCountsCostNothing) {
  const std::string schema =
      R"({"type": "array", "items": {"type": "string", "maxLength": 1000000000}, "maxItems": 1000000000})";
  const std::string gbnf = SchemaOrDie(schema);
  EXPECT_LT(gbnf.size(), 2000u);
  EXPECT_TRUE(Acceptor(gbnf).Takes("[\"" + std::string(5000, 'a') + "\"]"));
}

}  // namespace
}  // namespace reprise
