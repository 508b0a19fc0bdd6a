#include "server/prompt_fields.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/field_values.h"

namespace reprise {
namespace {

constexpr std::string_view kOnePrompt = "one prompt is, a string or an array of token ids; send a request for each";

MaybeError ParseTokens(const std::string& param, const Json& value, CompletionFields& fields) {
  auto& tokens = fields.request.prompt_tokens;
  tokens.reserve(value.size());
  for (size_t i = 0; i < value.size(); ++i) {
    int64_t id = 0;
    const int64_t last = static_cast<int64_t>(fields.limits.vocab_size) - 1;
    // The name of the element is made only when it is needed: prompts have many thousands of them.
    if (ReadInteger(param, value[i], 0, last, &id).has_value()) {
      return ReadInteger(absl::StrCat(param, "[", i, "]"), value[i], 0, last, &id);
    }
    tokens.emplace_back(static_cast<int32_t>(id));
  }
  return std::nullopt;
}

// One part of a message's content: {"type": "text", "text": "..."}.
MaybeError ParsePart(const std::string& param, const Json& value, std::string* out) {
  static constexpr std::string_view kKnown[] = {"type", "text"};
  if (!value.is_object()) return WrongType(param, KindOf(value), "an object");
  if (!value.contains("type")) {
    return MissingField(absl::StrCat(param, ".type"), absl::StrCat("`", param, "` needs a `type`: \"text\""));
  }
  if (!value["type"].is_string()) return WrongType(absl::StrCat(param, ".type"), KindOf(value["type"]), "a string");
  if (value["type"] != "text") return Unsupported(absl::StrCat(param, ".type"), "only \"text\" is");
  if (!value.contains("text")) {
    return MissingField(absl::StrCat(param, ".text"), absl::StrCat("`", param, "` needs a `text`"));
  }
  for (const auto& [key, item] : value.items()) {
    if (std::find(std::begin(kKnown), std::end(kKnown), key) == std::end(kKnown))
      return UnknownField(param, key, kKnown);
  }
  return ReadString(absl::StrCat(param, ".text"), value["text"], out);
}

MaybeError ParseContent(const std::string& param, const Json& value, std::string* out) {
  if (value.is_string()) return ReadString(param, value, out);
  if (!value.is_array()) return WrongType(param, KindOf(value), "a string or an array of text parts");
  for (size_t i = 0; i < value.size(); ++i) {
    std::string text;
    if (auto error = ParsePart(absl::StrCat(param, "[", i, "]"), value[i], &text)) return error;
    if (i > 0) *out += '\n';
    *out += text;
  }
  return std::nullopt;
}

MaybeError ParseRole(const std::string& param, const Json& value, std::string* out) {
  static constexpr std::string_view kRoles[] = {"system", "developer", "user", "assistant", "tool"};
  std::string role;
  if (auto error = ReadString(param, value, &role)) return error;
  if (std::find(std::begin(kRoles), std::end(kRoles), role) == std::end(kRoles)) {
    return InvalidValue(param, absl::StrCat("`", param, "` must be system, developer, user, assistant or tool; got ",
                                            Dump(role.substr(0, 32))));
  }
  *out = role == "developer" ? "system" : role;  // one role under its old and its new name
  return std::nullopt;
}

// Fields that clients echo from earlier replies, empty when no tool was called.
MaybeError ParseOtherField(const std::string& parent, std::string_view key, const Json& value) {
  static constexpr std::string_view kKnown[] = {"role",         "content",          "name",  "tool_calls",
                                                "tool_call_id", "annotations",      "audio", "function_call",
                                                "refusal",      "reasoning_content"};
  const std::string param = absl::StrCat(parent, ".", std::string(key.substr(0, 64)));
  if (key == "name") return value.is_string() ? MaybeError() : WrongType(param, KindOf(value), "a string");
  if (std::find(std::begin(kKnown), std::end(kKnown), key) == std::end(kKnown)) {
    return UnknownField(parent, key, kKnown);
  }
  const bool empty =
      value.is_string() ? value.get_ref<const std::string&>().empty() : value.is_structured() && value.empty();
  if (!empty) return Unsupported(param, "only null or an empty value is");
  return std::nullopt;
}

MaybeError ParseMessage(const std::string& param, const Json& value, ChatMessage* out) {
  if (!value.is_object()) return WrongType(param, KindOf(value), "an object");
  for (const std::string_view needed : {"role", "content"}) {
    if (!value.contains(needed)) {
      const std::string name(needed);
      return MissingField(absl::StrCat(param, ".", name), absl::StrCat("`", param, "` needs a `", name, "`"));
    }
  }
  for (const auto& [key, item] : value.items()) {
    const std::string name = absl::StrCat(param, ".", key);
    MaybeError error;
    if (key == "role") {
      error = ParseRole(name, item, &out->role);
    } else if (key == "content") {
      // null: a reply that had no text, as clients echo it.
      if (!item.is_null() || value["role"] != "assistant") error = ParseContent(name, item, &out->content);
    } else if (!item.is_null()) {
      error = ParseOtherField(param, key, item);
    }
    if (error) return error;
  }
  return std::nullopt;
}

}  // namespace

MaybeError ParsePrompt(const std::string& param, const Json& value, CompletionFields& fields) {
  fields.prompt_given = true;
  if (value.is_string()) return ReadString(param, value, &fields.request.prompt_text);
  if (!value.is_array()) return WrongType(param, KindOf(value), "a string or an array of token ids");
  if (value.empty()) return InvalidValue(param, "`prompt` holds no tokens; at least one is needed", 1, 0);
  if (!value[0].is_string() && !value[0].is_array()) return ParseTokens(param, value, fields);
  if (value.size() > 1) return Unsupported(param, kOnePrompt);
  const std::string inner = absl::StrCat(param, "[0]");
  if (value[0].is_string()) return ReadString(inner, value[0], &fields.request.prompt_text);
  if (value[0].empty()) return InvalidValue(inner, "`prompt` holds no tokens; at least one is needed", 1, 0);
  return ParseTokens(inner, value[0], fields);
}

MaybeError ParseMessages(const std::string& param, const Json& value, CompletionFields& fields) {
  fields.prompt_given = true;
  if (!value.is_array()) return WrongType(param, KindOf(value), "an array of messages");
  if (value.empty()) return InvalidValue(param, "`messages` is empty; at least one message is needed", 1, 0);
  for (size_t i = 0; i < value.size(); ++i) {
    ChatMessage& message = fields.request.messages.emplace_back();
    if (auto error = ParseMessage(absl::StrCat(param, "[", i, "]"), value[i], &message)) return error;
  }
  return std::nullopt;
}

}  // namespace reprise
