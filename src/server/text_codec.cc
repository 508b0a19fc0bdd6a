#include "server/text_codec.h"

#include "absl/status/status.h"

namespace reprise {
namespace {

class ModelTextCodec : public TextCodec {
 public:
  ModelTextCodec(const Tokenizer& tokenizer, const ChatTemplate* chat_template)
      : tokenizer_(tokenizer), chat_template_(chat_template) {}

  std::vector<TokenId> Encode(std::string_view text, bool add_special, bool parse_special) const override {
    return tokenizer_.Encode(text, add_special, parse_special);
  }
  std::string Piece(TokenId token) const override { return tokenizer_.Piece(token, /*special=*/true); }
  uint32_t vocab_size() const override { return tokenizer_.vocab_size(); }
  absl::StatusOr<std::string> RenderChat(const std::vector<ChatMessage>& messages) const override {
    if (chat_template_ == nullptr) {
      return absl::FailedPreconditionError(
          "this model has no chat template (a base model): use /v1/completions, or start the server with "
          "--chat-template FILE");
    }
    return chat_template_->Render(messages);
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
