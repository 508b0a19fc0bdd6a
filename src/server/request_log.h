// One line per request in the log, never a word of its text.
//
// Ownership: values. Threads: any. Errors: none.
#pragma once

#include <cstdint>
#include <string>

namespace reprise {

struct RequestLine {
  std::string id;
  uint32_t prompt_tokens = 0;
  uint32_t reused_tokens = 0;
  uint32_t computed_tokens = 0;
  uint32_t generated_tokens = 0;
  double queue_ms = 0;
  double first_token_ms = 0;
  double total_ms = 0;
  std::string reason;  // stop, length, client_gone, cancelled, or an error's code
};

// To spdlog's default logger, at level info.
void LogRequest(const RequestLine& line);

}  // namespace reprise
