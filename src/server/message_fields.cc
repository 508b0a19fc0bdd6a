#include "server/message_fields.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/field_values.h"

namespace reprise {
namespace {

constexpr uint64_t kIdBytesMax = 256;  // of a tool call

// One part of a message's content: {"type": "text", "text": "..."}, or a refusal of an earlier reply.
MaybeError ParsePart(const std::string& param, const Json& value, bool assistant, std::string* out) {
  // Other servers' marks for their caches change nothing here.
  static constexpr std::string_view kKnown[] = {"type", "text", "refusal", "cache_control"};
  if (!value.is_object()) return WrongType(param, KindOf(value), "an object");
  if (!value.contains("type")) {
    return MissingField(absl::StrCat(param, ".type"), absl::StrCat("`", param, "` needs a `type`: \"text\""));
  }
  const Json& type = value["type"];
  if (!type.is_string()) return WrongType(absl::StrCat(param, ".type"), KindOf(type), "a string");
  const bool refusal = assistant && type == "refusal";
  if (type != "text" && !refusal) return Unsupported(absl::StrCat(param, ".type"), "only \"text\" is");
  const std::string text = refusal ? "refusal" : "text";
  if (!value.contains(text)) {
    return MissingField(absl::StrCat(param, ".", text), absl::StrCat("`", param, "` needs a `", text, "`"));
  }
  for (const auto& [key, item] : value.items()) {
    if (std::find(std::begin(kKnown), std::end(kKnown), key) == std::end(kKnown))
      return UnknownField(param, key, kKnown);
  }
  return ReadString(absl::StrCat(param, ".", text), value[text], out);
}

MaybeError ParseContent(const std::string& param, const Json& value, bool assistant, std::string* out) {
  if (value.is_string()) return ReadString(param, value, out);
  if (!value.is_array()) return WrongType(param, KindOf(value), "a string or an array of text parts");
  for (size_t i = 0; i < value.size(); ++i) {
    std::string text;
    if (auto error = ParsePart(absl::StrCat(param, "[", i, "]"), value[i], assistant, &text)) return error;
    if (i > 0) *out += '\n';
    *out += text;
  }
  return std::nullopt;
}

MaybeError ParseRole(const std::string& param, const Json& value, std::string* out) {
  static constexpr std::string_view kRoles[] = {"system", "developer", "user", "assistant", "tool"};
  std::string role;
  if (auto error = ReadString(param, value, &role)) return error;
  if (role == "function") return Unsupported(param, "answer `tool_calls` with the role tool and a `tool_call_id`");
  if (std::find(std::begin(kRoles), std::end(kRoles), role) == std::end(kRoles)) {
    return InvalidValue(param, absl::StrCat("`", param, "` must be system, developer, user, assistant or tool; got ",
                                            Dump(role.substr(0, 32))));
  }
  *out = role == "developer" ? "system" : role;  // one role under its old and its new name
  return std::nullopt;
}

MaybeError ParseCalledFunction(const std::string& param, const Json& value, ToolCall* out) {
  static constexpr std::string_view kKnown[] = {"name", "arguments"};
  if (!value.is_object()) return WrongType(param, KindOf(value), "an object");
  if (!value.contains("name")) {
    return MissingField(absl::StrCat(param, ".name"), absl::StrCat("`", param, "` needs a `name`"));
  }
  out->arguments = "{}";
  for (const auto& [key, item] : value.items()) {
    const std::string name = absl::StrCat(param, ".", key);
    MaybeError error;
    if (key == "name") {
      error = ReadName(name, item, &out->name);
    } else if (key != "arguments") {
      error = UnknownField(param, key, kKnown);
    } else if (item.is_object()) {
      out->arguments = Dump(item);
    } else if (!IsEmpty(item)) {  // some clients send "" for a function without parameters
      error = ReadString(name, item, &out->arguments);
    }
    if (error) return error;
  }
  return std::nullopt;
}

// {"id": "call_...", "type": "function", "function": {"name": "...", "arguments": "{...}"}}.
MaybeError ParseToolCall(const std::string& param, const Json& value, ToolCall* out) {
  // `index` is of the chunks that a client has put together.
  static constexpr std::string_view kKnown[] = {"id", "type", "function", "index"};
  if (!value.is_object()) return WrongType(param, KindOf(value), "an object");
  if (!value.contains("function")) {
    return MissingField(absl::StrCat(param, ".function"), absl::StrCat("`", param, "` needs a `function`"));
  }
  for (const auto& [key, item] : value.items()) {
    const std::string name = absl::StrCat(param, ".", key);
    MaybeError error;
    if (key == "function") {
      error = ParseCalledFunction(name, item, out);
    } else if (key == "id" && !item.is_null()) {
      error = ReadBoundedString(name, item, 0, kIdBytesMax, &out->id);
    } else if (key == "type" && !item.is_null() && item != "function") {
      error = Unsupported(name, "only \"function\" is");
    } else if (std::find(std::begin(kKnown), std::end(kKnown), key) == std::end(kKnown)) {
      error = UnknownField(param, key, kKnown);
    }
    if (error) return error;
  }
  return std::nullopt;
}

MaybeError ParseToolCalls(const std::string& param, const Json& value, std::vector<ToolCall>* out) {
  if (!value.is_array()) return WrongType(param, KindOf(value), "an array of tool calls");
  if (value.size() > kToolsMax) {
    return InvalidValue(param, absl::StrCat("`", param, "` has ", value.size(), " calls; at most ", kToolsMax),
                        kToolsMax, static_cast<double>(value.size()));
  }
  for (size_t i = 0; i < value.size(); ++i) {
    if (auto error = ParseToolCall(absl::StrCat(param, "[", i, "]"), value[i], &out->emplace_back())) return error;
  }
  return std::nullopt;
}

// Every field but role and content; not null.
MaybeError ParseOtherField(const std::string& parent, std::string_view key, const Json& value, ChatMessage* out) {
  static constexpr std::string_view kKnown[] = {
      "role",      "content", "name",        "tool_calls", "tool_call_id",  "reasoning_content",
      "reasoning", "refusal", "annotations", "audio",      "function_call", "cache_control"};
  const std::string param = absl::StrCat(parent, ".", std::string(key.substr(0, 64)));
  const bool assistant = out->role == "assistant";
  if (key == "name") return ReadString(param, value, &out->name);
  if (key == "cache_control") return std::nullopt;
  if (key == "tool_calls" && assistant) return ParseToolCalls(param, value, &out->tool_calls);
  if (key == "tool_call_id" && out->role == "tool")
    return ReadBoundedString(param, value, 0, kIdBytesMax, &out->tool_call_id);
  if ((key == "reasoning_content" || key == "reasoning") && assistant) return ReadString(param, value, &out->reasoning);
  if (key == "refusal" && assistant && out->content.empty()) return ReadString(param, value, &out->content);
  if (std::find(std::begin(kKnown), std::end(kKnown), key) == std::end(kKnown)) {
    return UnknownField(parent, key, kKnown);
  }
  if (IsEmpty(value)) return std::nullopt;
  if (key == "tool_calls" || key.starts_with("reasoning") || (key == "refusal" && !assistant)) {
    return Unsupported(param, "only messages of the assistant have it");
  }
  if (key == "tool_call_id") return Unsupported(param, "only messages of the role tool have it");
  if (key == "function_call") return Unsupported(param, "use `tool_calls`");
  return Unsupported(param, "only null or an empty value is");
}

MaybeError ParseMessage(const std::string& param, const Json& value, ChatMessage* out) {
  if (!value.is_object()) return WrongType(param, KindOf(value), "an object");
  if (!value.contains("role")) {
    return MissingField(absl::StrCat(param, ".role"), absl::StrCat("`", param, "` needs a `role`"));
  }
  if (auto error = ParseRole(absl::StrCat(param, ".role"), value["role"], &out->role)) return error;
  const bool assistant = out->role == "assistant";
  const auto given = [&value](std::string_view key) {
    return value.contains(key) && !IsEmpty(value[std::string(key)]);
  };
  const Json* const content = value.contains("content") ? &value["content"] : nullptr;
  if (content == nullptr && !(assistant && (given("tool_calls") || given("refusal") || given("reasoning_content")))) {
    return MissingField(absl::StrCat(param, ".content"), absl::StrCat("`", param, "` needs a `content`"));
  }
  // null: a reply that had no text, or a tool that returned nothing, as clients echo it.
  const bool may_be_null = assistant || out->role == "tool";
  if (content != nullptr && !(may_be_null && content->is_null())) {
    if (auto error = ParseContent(absl::StrCat(param, ".content"), *content, assistant, &out->content)) return error;
  }
  for (const auto& [key, item] : value.items()) {
    if (key == "role" || key == "content" || item.is_null()) continue;
    if (auto error = ParseOtherField(param, key, item, out)) return error;
  }
  return std::nullopt;
}

}  // namespace

MaybeError ParseMessages(const std::string& param, const Json& value, CompletionFields& fields) {
  fields.prompt_given = true;
  if (!value.is_array()) return WrongType(param, KindOf(value), "an array of messages");
  if (value.empty()) return InvalidValue(param, "`messages` is empty; at least one message is needed", 1, 0);
  for (size_t i = 0; i < value.size(); ++i) {
    ChatMessage& message = fields.request.chat.messages.emplace_back();
    if (auto error = ParseMessage(absl::StrCat(param, "[", i, "]"), value[i], &message)) return error;
  }
  return std::nullopt;
}

}  // namespace reprise
