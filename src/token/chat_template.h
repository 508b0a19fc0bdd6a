// Conversations to prompts, by the model's own template through llama.cpp's Jinja engine.
//
// Ownership: owns the parsed template; the tokenizer must outlive it.
// Threads:   const methods from any thread at once.
// Errors:    InvalidArgument: the template refused the messages, with its words; FailedPrecondition: the
//            model has no template, with what to do.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "token/chat_reply.h"
#include "token/grammar.h"
#include "token/tokenizer.h"

namespace reprise {

struct ChatMessage {
  std::string role;                  // system, user, assistant, tool, ...
  std::string content;               // text
  std::string reasoning;             // assistant: what it thought
  std::vector<ToolCall> tool_calls;  // assistant
  std::string tool_call_id;          // tool: which call this answers
  std::string name;                  // tool: the function's name, where given
};

struct ChatTool {
  std::string name;
  std::string description;
  std::string parameters;  // JSON text of a JSON schema; empty: none
};

enum class ToolChoice : uint8_t { kAuto, kNone, kRequired };

struct ChatRequest {
  std::vector<ChatMessage> messages;
  std::vector<ChatTool> tools;
  ToolChoice tool_choice = ToolChoice::kAuto;  // one function by name: kRequired with that tool alone
  bool parallel_tool_calls = true;
  std::string json_schema;  // JSON text that the reply must follow; empty: free
  std::vector<std::pair<std::string, std::string>> template_kwargs;  // chat_template_kwargs: name, JSON text
};

// A conversation as the model reads it, and what its reply has to look like.
struct ChatPrompt {
  std::string text;  // to be encoded with parse_special and add_special (libllama then adds no second BOS)
  std::shared_ptr<const Grammar> grammar;     // null: free
  std::vector<std::string> stop;              // besides the caller's
  std::vector<TokenId> written_tokens;        // special tokens that the reply's text shows: its format needs them
  std::shared_ptr<const ReplyFormat> format;  // for ChatReplyParser
};

class ChatTemplate {
 public:
  // `override_text`: a template to use instead of the model's; empty: the model's.
  static absl::StatusOr<std::unique_ptr<ChatTemplate>> Load(const Tokenizer& tokenizer, std::string_view override_text);
  ~ChatTemplate();

  // Everything of a request. The text is byte for byte what llama.cpp's server makes of it.
  absl::StatusOr<ChatPrompt> Prompt(const ChatRequest& request) const;

 private:
  ChatTemplate();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace reprise
