// One line per request in the log, never a word of its text unless that is asked for.
//
// Ownership: values. Threads: any; SetLogFormat before the first line. Errors: none.
// Design:    docs/http.md
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace reprise {

enum class LogFormat : uint8_t { kText, kJson };

// How lines of the log look from now on. kJson: every message of spdlog's default logger becomes a JSON
// object with `time`, `level` and `message`; a request's has its fields instead of a message.
// Call it after the default logger and its level are set.
void SetLogFormat(LogFormat format);

struct RequestLine {
  std::string id;
  std::string tenant = "default";
  std::string model;
  std::string endpoint;
  uint32_t prompt_tokens = 0;
  uint32_t reused_tokens = 0;
  uint32_t disk_tokens = 0;  // of them, read from the disk
  uint32_t computed_tokens = 0;
  std::string miss;  // why not more was reused (SCHEMA 4); empty: it did not come to that
  uint32_t generated_tokens = 0;
  double queue_ms = 0;
  double first_token_ms = 0;
  double total_ms = 0;
  int status = 200;                  // of HTTP; what goes wrong after the first byte is told by `reason` alone
  std::vector<uint64_t> prefix_ids;  // where an operator asked for them (ServerOptions::log_traces); JSON only
  std::string reason;                // stop, length, tool_calls, client_gone, cancelled, or an error's code
};

// To spdlog's default logger, at level info.
void LogRequest(const RequestLine& line);

// Only where an operator asked for it (ServerOptions::log_prompts).
void LogPrompt(std::string_view id, std::string_view prompt);

}  // namespace reprise
