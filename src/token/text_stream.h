// Turns a reply's tokens into text deltas: never splits a UTF-8 character, never lets out part of a
// stop string, and the sum of the deltas is the whole text.
//
// Ownership: values; the tokenizer must outlive it. Threads: one per object. Errors: none.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "token/tokenizer.h"

namespace reprise {

class TextStream {
 public:
  TextStream(const Tokenizer& tokenizer, std::vector<std::string> stop);

  // Appends a token's bytes and returns the text that may be shown now. After `stopped()` nothing
  // follows; text from the stop string on is never shown.
  std::string Append(TokenId token);
  // The reply ended without a stop string: what was held back. Bytes that never became a character
  // are replaced by U+FFFD.
  std::string Flush();
  bool stopped() const;

 private:
  const Tokenizer& tokenizer_;
  std::vector<std::string> stop_;
  std::string held_;
  bool stopped_ = false;
};

}  // namespace reprise
