// Grammars that a reply must follow: GBNF, llama.cpp's notation, or a JSON schema turned into it by
// llama.cpp's converter.
//
// A Grammar is compiled once per request and shared; every choice of a reply walks it with a
// GrammarState of its own.
//
// Ownership: Grammar is immutable and shared; the tokenizer must outlive both.
// Threads:   Grammar from any thread; one thread per GrammarState.
// Errors:    InvalidArgument: a schema or grammar that cannot be compiled, with the place.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "base/ids.h"
#include "token/tokenizer.h"

namespace reprise {

// What wakes a lazy grammar: until one of them is seen, the reply is free.
struct GrammarTrigger {
  enum class Kind : uint8_t { kToken, kWord, kPattern, kPatternFull };
  Kind kind = Kind::kWord;
  std::string value;  // text or regular expression
  TokenId token;      // kToken
};

class Grammar {
 public:
  struct Options {
    bool lazy = false;                     // free until a trigger; then the grammar starts at the trigger
    std::vector<GrammarTrigger> triggers;  // of a lazy grammar
    std::string begun;                     // not lazy: what the prompt ends with and the grammar begins with
    // Control tokens that count as their text (ChatPrompt); others are allowed only where the grammar names them.
    std::vector<TokenId> written_tokens;
  };
  static absl::StatusOr<std::shared_ptr<const Grammar>> FromGbnf(const Tokenizer& tokenizer, std::string_view gbnf,
                                                                 Options options);
  // `schema`: JSON text of a JSON schema; "{}" is any JSON value, {"type": "object"} any object.
  static absl::StatusOr<std::shared_ptr<const Grammar>> FromJsonSchema(const Tokenizer& tokenizer,
                                                                       std::string_view schema);
  ~Grammar();

  // Memory it takes; its states, which share it, have their own.
  uint64_t bytes() const;

 private:
  friend class GrammarState;
  Grammar();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

class GrammarState {
 public:
  explicit GrammarState(std::shared_ptr<const Grammar> grammar);
  GrammarState(GrammarState&&) noexcept;
  ~GrammarState();

  // Whether the reply may go on with `token`; microseconds. An end-of-generation token may come where the grammar may
  // end.
  bool Allows(TokenId token);
  // Sets the logits of tokens that may not come to -infinity. logits: [vocab_size]. Tokens at -infinity cost next to
  // nothing; the rest one step for each prefix that may still come.
  void Mask(std::span<float> logits);
  // The reply goes on with `token`. REQUIRES: Allows(token).
  void Accept(TokenId token);
  // The reply may end here; nothing but its end may come.
  bool MayEnd() const;
  bool MustEnd() const;

 private:
  friend class Grammar;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace reprise
