// Server-sent events, as OpenAI's clients read them.
//
// Ownership: values. Threads: any. Errors: none.
#pragma once

#include <string>
#include <string_view>

namespace reprise {

inline constexpr std::string_view kSseDone = "data: [DONE]\n\n";

// REQUIRES: no line breaks in `data` (JSON as Dump writes it has none).
inline std::string SseData(std::string_view data) {
  std::string event = "data: ";
  event += data;
  event += "\n\n";
  return event;
}

// Readers skip it; proxies and people see that the stream lives.
inline std::string SseComment(std::string_view text) {
  std::string line = ": ";
  line += text;
  line += "\n\n";
  return line;
}

}  // namespace reprise
