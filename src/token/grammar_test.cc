#include "token/grammar.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <random>

#include "llama.h"
#include "token/gbnf.h"
#include "token/real_models.h"
#include "token/text_stream.h"

namespace reprise {
namespace {

using ::testing::HasSubstr;

constexpr float kNegativeInfinity = -std::numeric_limits<float>::infinity();

std::shared_ptr<const Grammar> GbnfOrDie(const Tokenizer& tokenizer, std::string_view text,
                                         Grammar::Options options = {}) {
  auto grammar = Grammar::FromGbnf(tokenizer, text, std::move(options));
  EXPECT_TRUE(grammar.ok()) << grammar.status() << "\n" << text;
  return *std::move(grammar);
}

// Whether the grammar takes the text, token by token as the model would write it; `ends`: and may end there.
bool Takes(const Tokenizer& tokenizer, const std::shared_ptr<const Grammar>& grammar, std::string_view text,
           bool ends = true) {
  GrammarState state(grammar);
  for (const TokenId token : tokenizer.Encode(text, false, true)) {
    if (!state.Allows(token)) return false;
    state.Accept(token);
  }
  return !ends || state.MayEnd();
}

bool IsUtf8(const std::string& bytes) { return ToUtf8(bytes, nullptr) == bytes; }

// libllama's grammar sampler, the reference.
class Reference {
 public:
  Reference(const Tokenizer& tokenizer, const std::string& gbnf)
      : sampler_(llama_sampler_init_grammar(tokenizer.vocab(), gbnf.c_str(), "root")) {}
  ~Reference() { llama_sampler_free(sampler_); }
  std::vector<bool> Allowed(uint32_t vocab_size) {
    std::vector<llama_token_data> data;
    for (uint32_t i = 0; i < vocab_size; ++i) data.push_back({static_cast<llama_token>(i), 0, 0});
    llama_token_data_array array{data.data(), data.size(), -1, false};
    llama_sampler_apply(sampler_, &array);
    std::vector<bool> allowed(vocab_size);
    for (const auto& candidate : data) allowed[candidate.id] = candidate.logit == 0;
    return allowed;
  }
  void Accept(TokenId token) { llama_sampler_accept(sampler_, token.value()); }

 private:
  llama_sampler* sampler_;
};

const std::vector<std::string> kGrammars = {
    R"g(root ::= "yes" | "no" | "perhaps" ("!" | "?")*)g",
    R"g(root ::= (expr "=" ws term "\n")+
expr ::= term ([-+*/] term)*
term ::= ident | num | "(" ws expr ")" ws
ident ::= [a-z] [a-z0-9_]* ws
num ::= [0-9]+ ws
ws ::= [ \t\n]*)g",
    R"g(root ::= object
value ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws (string ":" ws value ("," ws string ":" ws value)*)? "}" ws
array ::= "[" ws (value ("," ws value)*)? "]" ws
string ::= "\"" ([^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}))* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [1-9] [0-9]{0,15})? ws
ws ::= | " " | "\n" [ \t]{0,20})g",
    R"g(root ::= [^\x00-\x7F]{3,5} | [あ-ん]+ "。" # comment)g",
    R"g(root ::= item{2,4} tail{0,3} | . "x"{3}
item ::= "a" | "ab" | "abc"
tail ::= [^a-f\n]{1,2})g",
};

// Random walks: in every state both allow the same tokens. Control tokens apart (ours count only where they are
// named) and bytes that are no UTF-8 (libllama decodes them loosely).
TEST(GrammarTest, AllowsWhatLibllamaAllows) {
  for (const char* family : {"smollm2", "gemma3"}) {
    const Tokenizer& tokenizer = RealModelOf(family).tokenizer();
    for (size_t g = 0; g < kGrammars.size(); ++g) {
      SCOPED_TRACE(std::string(family) + " " + std::to_string(g));
      const auto grammar = GbnfOrDie(tokenizer, kGrammars[g]);
      for (uint32_t seed = 0; seed < (tokenizer.vocab_size() > 100'000 ? 1 : 3); ++seed) {  // libllama's takes its time
        std::mt19937 random(seed);
        GrammarState state(grammar);
        Reference reference(tokenizer, kGrammars[g]);
        for (uint32_t step = 0; step < 12; ++step) {
          std::vector<float> logits(tokenizer.vocab_size());
          state.Mask(logits);
          const std::vector<bool> expected = reference.Allowed(tokenizer.vocab_size());
          std::vector<TokenId> allowed;
          for (uint32_t id = 0; id < tokenizer.vocab_size(); ++id) {
            const TokenId token(static_cast<int32_t>(id));
            const bool ours = logits[id] == 0;
            if (ours) allowed.push_back(token);
            ASSERT_TRUE(ours || logits[id] == kNegativeInfinity);
            if (id % 97 == 0) {
              ASSERT_EQ(state.Allows(token), ours) << id;
            }  // the mask is the single answers
            const std::string piece = tokenizer.Piece(token, false);
            if (!tokenizer.IsEndOfGeneration(token) && (piece.empty() || !IsUtf8(piece))) continue;
            ASSERT_EQ(ours, expected[id]) << "step " << step << " token " << id << " " << piece;
          }
          std::erase_if(allowed,
                        [&](TokenId token) { return tokenizer.IsEndOfGeneration(token) || !expected[token.value()]; });
          if (allowed.empty()) break;
          const TokenId next = allowed[random() % allowed.size()];
          state.Accept(next);
          reference.Accept(next);
        }
      }
    }
  }
}

TEST(GrammarTest, CountsWithoutUnrolling) {
  const Tokenizer& tokenizer = RealModelOf("smollm2").tokenizer();
  const auto grammar = GbnfOrDie(tokenizer, R"(root ::= "a"{2,1000000000} "b"{3} | ("c" "d"?){0,2} "e"+)");
  EXPECT_TRUE(Takes(tokenizer, grammar, std::string(3000, 'a') + "bbb"));
  EXPECT_FALSE(Takes(tokenizer, grammar, "abbb"));
  EXPECT_FALSE(Takes(tokenizer, grammar, "aabbbb"));
  EXPECT_TRUE(Takes(tokenizer, grammar, "cdce"));
  EXPECT_TRUE(Takes(tokenizer, grammar, "eee"));
  EXPECT_FALSE(Takes(tokenizer, grammar, "cdcdcde"));
  EXPECT_TRUE(Takes(tokenizer, grammar, "aab", /*ends=*/false));
  EXPECT_FALSE(Takes(tokenizer, grammar, "aab"));
}

TEST(GrammarTest, EndsWhereItMay) {
  const Tokenizer& tokenizer = RealModelOf("smollm2").tokenizer();
  const TokenId end(llama_vocab_eos(tokenizer.vocab()));
  GrammarState state(GbnfOrDie(tokenizer, R"(root ::= "a" "b"?)"));
  const auto token = [&](const char* text) { return tokenizer.Encode(text, false, true).at(0); };
  EXPECT_FALSE(state.Allows(end));
  state.Accept(token("a"));
  EXPECT_TRUE(state.Allows(end));
  EXPECT_TRUE(state.MayEnd());
  EXPECT_FALSE(state.MustEnd());
  state.Accept(token("b"));
  EXPECT_TRUE(state.MustEnd());
  EXPECT_FALSE(state.Allows(token("b")));
}

TEST(GrammarTest, ErrorsNameThePlace) {
  const Tokenizer& tokenizer = RealModelOf("smollm2").tokenizer();
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"root ::= foo", "rule \"foo\" is not defined"},
      {"foo ::= \"a\"", "\"root\" is not defined"},
      {"root ::= \"a\n", "unexpected end"},
      {"root ::= \"a\"\nb ::= [a", "line 2"},
      {"root ::= (\"a\"", "expected )"},
      {"root ::= *", "nothing to repeat"},
      {"root ::= \"a\"{3,2}", "more at least"},
      {"root ::= \"a\"{99999999999}", "too large"},
      {"root ::= \"\\q\"", "unknown escape"},
      {"root ::= root \"a\" | \"b\"", "left recursion"},
      {"root ::= a? b root\na ::= \"a\"\nb ::= \"b\"?", "left recursion"},
      {"root ::= (\"a\"?){1000}", "may be empty"},
      {"root ::= <[99999999]>", "no such token"},
      {"root ::= <this is text>", "not one token"},
      {"root ::= " + std::string(1000, '(') + "\"a\"" + std::string(1000, ')'), "nested too deeply"},
      {"root ::= \"" + std::string(kGrammarElementsMax + 1, 'a') + "\"", "too large"},
      {std::string(kGrammarBytesMax + 1, '#'), "bytes, more than"},
      {"", "\"root\" is not defined"},
  };
  for (const auto& [text, what] : cases) {
    const auto grammar = Grammar::FromGbnf(tokenizer, text, {});
    EXPECT_EQ(grammar.status().code(), absl::StatusCode::kInvalidArgument) << text.substr(0, 100);
    EXPECT_THAT(std::string(grammar.status().message()), HasSubstr(what));
  }
}

// Grammars that would take exponential time or memory are refused or stop allowing, quickly: here with every kind of
// mask, which walks the whole vocabulary.
TEST(GrammarTest, AmbiguityIsBounded) {
  const Tokenizer& tokenizer = RealModelOf("gemma3").tokenizer();
  std::string counters = "root ::= ";
  for (int i = 0; i < 2000; ++i)
    counters += (i > 0 ? " | [^\"]{0," : "[^\"]{0,") + std::to_string(1000 + i) + "} \"x\"";
  const std::string grammars[] = {
      "root ::= (((\"a\"?){200}){200}){200} \"b\"",
      "root ::= (\"a\" | \"a\" \"a\" | \"a\" \"a\" \"a\"){1,200}{1,200} \"b\"",
      "root ::= a a a a a a a a\na ::= (\"a\"* \"a\"*)* (\"a\"* | \"a\"* \"a\")*",
      "root ::= \"\" | [^q] root [^q] | [^z] root [^z]",
      counters,
      "root ::= \"a\" (([\\x80-\\uFFFF]?){100}){100}",
  };
  const TokenId a = tokenizer.Encode("a", false, true).back();
  int walked = 0;
  bool ran_out = false;
  for (const std::string& text : grammars) {
    const auto grammar = Grammar::FromGbnf(tokenizer, text, {});
    if (!grammar.ok()) continue;
    GrammarState state(*grammar);
    std::vector<float> logits(tokenizer.vocab_size());
    for (int i = 0; i < 3 && state.Allows(a); ++i) {
      state.Accept(a);
      std::fill(logits.begin(), logits.end(), 0.0f);
      state.Mask(logits);
      ++walked;
      // A walk that ran out leaves tokens that may not come any more: whoever draws from them asks again.
      const auto left = std::find(logits.rbegin(), logits.rend(), 0.0f);
      if (left == logits.rend()) continue;
      const TokenId token(static_cast<int32_t>(logits.rend() - left) - 1);
      if (!state.Allows(token)) {
        ran_out = true;
      } else {
        state.Accept(token);
      }
    }
  }
  EXPECT_GE(walked, 3);
  EXPECT_TRUE(ran_out);
}

TEST(GrammarTest, ManyAlternativesAreNotAmbiguity) {
  const Tokenizer& tokenizer = RealModelOf("smollm2").tokenizer();
  std::string text = "root ::= ";
  for (int i = 0; i < 10'000; ++i) text += (i > 0 ? " | \"item" : "\"item") + std::to_string(i) + "\"";
  const auto grammar = GbnfOrDie(tokenizer, text);
  EXPECT_TRUE(Takes(tokenizer, grammar, "item9999"));
  EXPECT_FALSE(Takes(tokenizer, grammar, "item10000"));
}

TEST(GrammarTest, ControlTokensCountOnlyWhereNamed) {
  const Tokenizer& tokenizer = RealModelOf("smollm2").tokenizer();
  const TokenId start = tokenizer.Encode("<|im_start|>", false, true).at(0);
  const char* any = "root ::= .*";
  EXPECT_FALSE(GrammarState(GbnfOrDie(tokenizer, any)).Allows(start));
  EXPECT_TRUE(GrammarState(GbnfOrDie(tokenizer, any, {.written_tokens = {start}})).Allows(start));
  GrammarState named(GbnfOrDie(tokenizer, "root ::= <|im_start|> \"a\""));
  EXPECT_TRUE(named.Allows(start));
  EXPECT_FALSE(named.Allows(tokenizer.Encode("a", false, true).at(0)));
  std::vector<float> logits(tokenizer.vocab_size());
  named.Mask(logits);
  EXPECT_EQ(std::count(logits.begin(), logits.end(), 0.0f), 1);
}

TEST(GrammarTest, BegunTextIsNotTheModels) {
  const Tokenizer& tokenizer = RealModelOf("smollm2").tokenizer();
  const char* text = R"(root ::= "<|im_start|>assistant\n" "yes")";
  const auto grammar = GbnfOrDie(tokenizer, text, {.begun = "<|im_start|>assistant\n"});
  EXPECT_TRUE(Takes(tokenizer, grammar, "yes"));
  EXPECT_FALSE(Takes(tokenizer, GbnfOrDie(tokenizer, text), "yes"));
  EXPECT_FALSE(Grammar::FromGbnf(tokenizer, text, {.begun = "something else"}).ok());
}

TEST(GrammarTest, ALazyGrammarSleepsUntilItsTrigger) {
  const Tokenizer& tokenizer = RealModelOf("smollm2").tokenizer();
  const char* text = R"(root ::= "<call>" [0-9]+ "</call>")";
  using Kind = GrammarTrigger::Kind;
  for (const GrammarTrigger& trigger :
       {GrammarTrigger{Kind::kWord, "<call>", {}}, GrammarTrigger{Kind::kPattern, "x?(<call>)", {}},
        GrammarTrigger{Kind::kPatternFull, "[\\s\\S]*(<call>)", {}}}) {
    const auto grammar = GbnfOrDie(tokenizer, text, {.lazy = true, .triggers = {trigger}});
    EXPECT_TRUE(Takes(tokenizer, grammar, "Any < call > text"));
    EXPECT_TRUE(Takes(tokenizer, grammar, "Well: <call>12</call>"));
    EXPECT_FALSE(Takes(tokenizer, grammar, "Well: <call>twelve</call>"));
    EXPECT_FALSE(Takes(tokenizer, grammar, "<call>12", /*ends=*/true));
  }
  EXPECT_FALSE(Grammar::FromGbnf(tokenizer, text, {.lazy = true}).ok());
  // A token that holds the trigger and something that may not follow it.
  const TokenId the = tokenizer.Encode(" the", false, true).at(0);
  const auto narrow = GbnfOrDie(tokenizer, R"(root ::= "t" "x")", {.lazy = true, .triggers = {{Kind::kWord, "t", {}}}});
  EXPECT_FALSE(GrammarState(narrow).Allows(the));
  std::vector<float> logits(tokenizer.vocab_size());
  GrammarState(narrow).Mask(logits);
  EXPECT_EQ(logits[the.value()], kNegativeInfinity);
  EXPECT_EQ(logits[tokenizer.Encode(" a", false, true).at(0).value()], 0);
  // As a token.
  const TokenId start = tokenizer.Encode("<|im_start|>", false, true).at(0);
  const auto by_token =
      GbnfOrDie(tokenizer, R"(root ::= <|im_start|> "a")", {.lazy = true, .triggers = {{Kind::kToken, "", start}}});
  EXPECT_TRUE(Takes(tokenizer, by_token, "free <|im_start|>a"));
  EXPECT_FALSE(Takes(tokenizer, by_token, "free <|im_start|>b"));
}

// The tables are trimmed on the way, and the answers stay.
TEST(GrammarTest, LongRepliesStayRight) {
  const Tokenizer& tokenizer = RealModelOf("smollm2").tokenizer();
  const auto grammar = GbnfOrDie(tokenizer, R"(root ::= "a"{0,200000} ("b" | "c" root "c"))");
  const TokenId a = tokenizer.Encode("a", false, true).at(0), b = tokenizer.Encode("b", false, true).at(0);
  GrammarState state(grammar);
  for (int i = 0; i < 150000; ++i) {
    ASSERT_TRUE(state.Allows(a)) << i;
    state.Accept(a);
  }
  EXPECT_FALSE(state.MayEnd());
  state.Accept(b);
  EXPECT_TRUE(state.MustEnd());
}

}  // namespace
}  // namespace reprise
