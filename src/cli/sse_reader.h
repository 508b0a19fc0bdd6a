// Server-sent events out of a stream of bytes that may be divided anywhere: lines that end in CR, LF or
// both, comments, events of several data lines (the WHATWG rules, as far as OpenAI's streams use them).
//
// Ownership: values. Threads: one.
// Errors:    InvalidArgument: an event larger than kEventBytesMax.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace reprise {

class SseReader {
 public:
  static constexpr size_t kEventBytesMax = 4 << 20;

  // The data of every event that `bytes` completes, in order.
  absl::StatusOr<std::vector<std::string>> Append(std::string_view bytes);

 private:
  void Line(std::vector<std::string>& events);

  std::string line_;
  std::string data_;
  bool has_data_ = false;
  bool after_return_ = false;  // a line feed now belongs to the line that has ended
};

}  // namespace reprise
