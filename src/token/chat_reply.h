// A model's reply text to a chat message: content, reasoning and tool calls, by the parser that belongs
// to the template (llama.cpp's), whole or as it streams in.
//
// Ownership: values; a ReplyFormat is immutable and shared. Threads: one per ChatReplyParser.
// Errors:    none: text that the format does not explain is content, and so is what follows 512 open brackets.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace reprise {

struct ToolCall {
  std::string id;
  std::string name;
  std::string arguments;  // JSON text
};

struct ToolCallDelta {
  uint32_t index = 0;  // of the reply's tool calls
  std::string id;      // with the first delta of a call
  std::string name;    // with the first delta of a call
  std::string arguments;
};

// What a piece of reply text adds. The sums over a reply are the whole message.
struct ChatDelta {
  std::string content;
  std::string reasoning;
  std::vector<ToolCallDelta> tool_calls;
  bool empty() const { return content.empty() && reasoning.empty() && tool_calls.empty(); }
};

// How a reply is to be read; made by ChatTemplate::Prompt.
struct ReplyFormat;

class ChatReplyParser {
 public:
  // `format` null: everything is content. `seed` makes the ids of tool calls ("call_..."): the same seed, the same ids.
  ChatReplyParser(std::shared_ptr<const ReplyFormat> format, uint64_t seed);
  ~ChatReplyParser();

  // The reply went on with `text` (whole UTF-8 characters). Of a reply with a format, up to a 64th is held back
  // until more comes, so that reading it piece by piece costs about 64 times reading it whole.
  ChatDelta Append(std::string_view text);
  // The reply has ended: what was held back.
  ChatDelta Finish();
  // Tool calls seen so far; finish_reason is "tool_calls" if there are any.
  uint32_t tool_calls() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace reprise
