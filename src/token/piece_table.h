// The bytes of every token in the order of their bytes, so that a grammar can be held against the whole
// vocabulary with one step for each prefix that tokens share.
//
// Ownership: values. Threads: const methods from any thread at once. Errors: none.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "base/ids.h"

namespace reprise {

class Tokenizer;

class PieceTable {
 public:
  // About 16 bytes and the piece for each token. Takes some 100 ms for 262,144 tokens.
  explicit PieceTable(const Tokenizer& tokenizer);

  uint32_t vocab_size() const { return static_cast<uint32_t>(begin_.size() - 1); }
  // Control tokens too; empty where a token has no text.
  std::string_view piece(TokenId token) const {
    const uint32_t id = static_cast<uint32_t>(token.value());
    return std::string_view(bytes_.data() + begin_[id], begin_[id + 1] - begin_[id]);
  }
  bool is_control(TokenId token) const { return control_[token.value()]; }
  bool is_end(TokenId token) const { return end_[token.value()]; }

  // Tokens with text, control tokens apart, by their bytes; `shared`: how many first bytes one has in common with the
  // one before, at most 255.
  struct Entry {
    TokenId token;
    uint8_t shared = 0;
  };
  const std::vector<Entry>& sorted() const { return sorted_; }

 private:
  std::vector<char> bytes_;
  std::vector<uint32_t> begin_;  // [vocab_size + 1], of each token in bytes_
  std::vector<bool> control_, end_;
  std::vector<Entry> sorted_;
};

}  // namespace reprise
