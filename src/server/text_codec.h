// What the server needs of the model's text side: tokens of a text, text of a token, a prompt of a
// conversation. An interface, so that the server can be tested without a model.
//
// Ownership: the one made by MakeTextCodec uses tokenizer and template, which must outlive it.
// Threads:   all methods from any thread at once.
// Errors:    RenderChat: as ChatTemplate::Render; FailedPrecondition without a template, saying what to do.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "base/ids.h"
#include "token/chat_template.h"
#include "token/tokenizer.h"

namespace reprise {

class TextCodec {
 public:
  virtual ~TextCodec() = default;
  virtual std::vector<TokenId> Encode(std::string_view text, bool add_special, bool parse_special) const = 0;
  // The bytes of one token, control tokens rendered too; not always whole UTF-8.
  virtual std::string Piece(TokenId token) const = 0;
  virtual uint32_t vocab_size() const = 0;
  virtual absl::StatusOr<std::string> RenderChat(const std::vector<ChatMessage>& messages) const = 0;
};

// `chat_template` may be null: a base model.
std::unique_ptr<TextCodec> MakeTextCodec(const Tokenizer& tokenizer, const ChatTemplate* chat_template);

}  // namespace reprise
