// Turns a reply's tokens into text deltas: never splits a UTF-8 character, never lets out part of a
// stop string, and the sum of the deltas is the whole text. Where the tokens divide the text makes no
// difference: the reply ends at the first byte that completes a stop string, and where several end there
// with the longest of them.
//
// Ownership: values; the tokenizer must outlive it. Threads: one per object. Errors: none.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "token/tokenizer.h"

namespace reprise {

class TextStream {
 public:
  // REQUIRES: no stop string is empty.
  TextStream(const Tokenizer& tokenizer, std::vector<std::string> stop);

  // Appends a token's bytes and returns the text that may be shown now. After `stopped()` nothing
  // follows; text from the stop string on is never shown.
  std::string Append(TokenId token);
  // The same for bytes.
  std::string AppendBytes(std::string_view bytes);
  // The reply ended without a stop string: what was held back. Bytes that never became a character
  // are replaced by U+FFFD.
  std::string Flush();
  bool stopped() const { return stopped_; }
  // The stop string that ended the reply, or empty.
  const std::string& stop_string() const { return stop_string_; }
  // Bytes appended, and how many of them, from the first on, have been shown.
  uint64_t taken() const { return taken_; }
  uint64_t shown() const { return shown_; }

 private:
  const Tokenizer& tokenizer_;
  std::vector<std::string> stop_;
  std::string held_;  // bytes not shown yet
  std::string stop_string_;
  uint64_t taken_ = 0;
  uint64_t shown_ = 0;
  bool stopped_ = false;
};

// `bytes` as UTF-8: each longest run of bytes that begins a character and does not complete it becomes
// one U+FFFD. `incomplete`: how many bytes at the end begin a character that more bytes may complete;
// nullptr: those are replaced as well.
std::string ToUtf8(std::string_view bytes, size_t* incomplete);

}  // namespace reprise
