// Conversations to prompts, by the model's own template through llama.cpp's Jinja engine.
//
// Ownership: owns the parsed template; the tokenizer must outlive it.
// Threads:   Render from any thread at once.
// Errors:    InvalidArgument: the template refused the messages, with its words; FailedPrecondition: the
//            model has no template, with what to do.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "token/tokenizer.h"

namespace reprise {

struct ChatMessage {
  std::string role;     // system, user, assistant, tool, ...
  std::string content;  // text
};

class ChatTemplate {
 public:
  // `override_text`: a template to use instead of the model's; empty: the model's.
  static absl::StatusOr<std::unique_ptr<ChatTemplate>> Load(const Tokenizer& tokenizer, std::string_view override_text);
  ~ChatTemplate();

  // The prompt, ending where the assistant's turn begins. To be encoded with parse_special and
  // add_special (libllama then does not add a second BOS).
  absl::StatusOr<std::string> Render(const std::vector<ChatMessage>& messages) const;

 private:
  ChatTemplate();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace reprise
