#include "token/chat_template.h"

#include <mutex>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "chat.h"
#include "llama.h"
#include "token/library_log.h"

namespace reprise {

struct ChatTemplate::Impl {
  common_chat_templates_ptr templates;
  mutable std::mutex mutex;  // the engine keeps state in the parsed program
};

ChatTemplate::ChatTemplate() : impl_(std::make_unique<Impl>()) {}
ChatTemplate::~ChatTemplate() = default;

absl::StatusOr<std::unique_ptr<ChatTemplate>> ChatTemplate::Load(const Tokenizer& tokenizer,
                                                                 std::string_view override_text) {
  RouteLibraryLog();
  std::string text(override_text);
  if (text.empty()) {
    const char* own = llama_model_chat_template(tokenizer.model(), /*name=*/nullptr);
    if (own == nullptr) {
      return absl::FailedPreconditionError(
          "this model has no chat template (tokenizer.chat_template); it is likely a base model: use /v1/completions, "
          "or give a template with --chat-template");
    }
    text = own;
  }
  std::unique_ptr<ChatTemplate> result(new ChatTemplate);
  try {
    common_chat_template(text, "", "");  // for its message: the next call loses it
    result->impl_->templates = common_chat_templates_init(tokenizer.model(), std::string(override_text));
  } catch (const std::exception& error) {
    return absl::InvalidArgumentError(absl::StrCat("the chat template cannot be parsed: ", error.what()));
  }
  return result;
}

absl::StatusOr<std::string> ChatTemplate::Render(const std::vector<ChatMessage>& messages) const {
  common_chat_templates_inputs inputs;
  for (const ChatMessage& message : messages) {
    common_chat_msg& to = inputs.messages.emplace_back();
    to.role = message.role;
    to.content = message.content;
  }
  try {
    const std::lock_guard lock(impl_->mutex);
    return common_chat_templates_apply(impl_->templates.get(), inputs).prompt;
  } catch (const std::exception& error) {
    return absl::InvalidArgumentError(absl::StrCat("the chat template refused the messages: ", error.what()));
  }
}

}  // namespace reprise
