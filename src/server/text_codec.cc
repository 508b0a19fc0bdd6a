#include "server/text_codec.h"

#include <utility>

#include "absl/status/status.h"

namespace reprise {
namespace {

class ModelReplyReader : public ReplyReader {
 public:
  ModelReplyReader(std::shared_ptr<const ReplyFormat> format, uint64_t seed) : parser_(std::move(format), seed) {}
  ChatDelta Append(std::string_view text) override { return parser_.Append(text); }
  ChatDelta Finish() override { return parser_.Finish(); }
  uint32_t tool_calls() const override { return parser_.tool_calls(); }

 private:
  ChatReplyParser parser_;
};

class ModelTextCodec : public TextCodec {
 public:
  ModelTextCodec(const Tokenizer& tokenizer, const ChatTemplate* chat_template)
      : tokenizer_(tokenizer), chat_template_(chat_template) {}

  std::vector<TokenId> Encode(std::string_view text, bool add_special, bool parse_special) const override {
    return tokenizer_.Encode(text, add_special, parse_special);
  }
  std::string Piece(TokenId token) const override { return tokenizer_.Piece(token, /*special=*/true); }
  uint32_t vocab_size() const override { return tokenizer_.vocab_size(); }
  absl::StatusOr<ChatPrompt> Prompt(const ChatRequest& request) const override {
    if (chat_template_ == nullptr) {
      return absl::FailedPreconditionError(
          "this model has no chat template (a base model): use /v1/completions, or start the server with "
          "--chat-template FILE");
    }
    return chat_template_->Prompt(request);
  }
  absl::StatusOr<std::shared_ptr<const Grammar>> CompileSchema(std::string_view schema) const override {
    return Grammar::FromJsonSchema(tokenizer_, schema);
  }
  uint64_t GrammarBytes(const ChatPrompt& prompt) const override {
    return prompt.grammar == nullptr ? 0 : prompt.grammar->bytes();
  }
  std::unique_ptr<ReplyReader> ReadReply(std::shared_ptr<const ReplyFormat> format, uint64_t seed) const override {
    return std::make_unique<ModelReplyReader>(std::move(format), seed);
  }

 private:
  const Tokenizer& tokenizer_;
  const ChatTemplate* chat_template_;  // null: a base model
};

}  // namespace

std::unique_ptr<TextCodec> MakeTextCodec(const Tokenizer& tokenizer, const ChatTemplate* chat_template) {
  return std::make_unique<ModelTextCodec>(tokenizer, chat_template);
}

}  // namespace reprise
