// What the server needs of the model's text side: tokens of a text, text of a token, a prompt of a
// conversation, the message in a reply. An interface, so that the server can be tested without a model.
//
// Ownership: the one made by MakeTextCodec uses tokenizer and template, which must outlive it and what
//            it made.
// Threads:   all methods from any thread at once; a ReplyReader from one.
// Errors:    Prompt: as ChatTemplate::Prompt; FailedPrecondition without a template, saying what to do.
//            CompileSchema: InvalidArgument, with what is wrong about the schema.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "base/ids.h"
#include "token/chat_reply.h"
#include "token/chat_template.h"
#include "token/grammar.h"
#include "token/tokenizer.h"

namespace reprise {

// See ChatReplyParser.
class ReplyReader {
 public:
  virtual ~ReplyReader() = default;
  virtual ChatDelta Append(std::string_view text) = 0;
  virtual ChatDelta Finish() = 0;
  virtual uint32_t tool_calls() const = 0;
};

class TextCodec {
 public:
  virtual ~TextCodec() = default;
  virtual std::vector<TokenId> Encode(std::string_view text, bool add_special, bool parse_special) const = 0;
  // The bytes of one token, control tokens rendered too; not always whole UTF-8.
  virtual std::string Piece(TokenId token) const = 0;
  virtual uint32_t vocab_size() const = 0;
  virtual absl::StatusOr<ChatPrompt> Prompt(const ChatRequest& request) const = 0;
  virtual absl::StatusOr<std::shared_ptr<const Grammar>> CompileSchema(std::string_view schema) const = 0;
  // Memory that the prompt's grammar takes; 0 without.
  virtual uint64_t GrammarBytes(const ChatPrompt& prompt) const = 0;
  // Of a reply to a prompt with this format. The same seed makes the same ids of tool calls.
  virtual std::unique_ptr<ReplyReader> ReadReply(std::shared_ptr<const ReplyFormat> format, uint64_t seed) const = 0;
};

// `chat_template` may be null: a base model.
std::unique_ptr<TextCodec> MakeTextCodec(const Tokenizer& tokenizer, const ChatTemplate* chat_template);

}  // namespace reprise
