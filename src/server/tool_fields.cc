#include "server/tool_fields.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/field_values.h"

namespace reprise {
namespace {

constexpr std::string_view kAnyObject = R"({"type":"object"})";

// A member that must be there and be an object; nullptr: `*error` says why not.
const Json* ObjectIn(const std::string& param, const Json& value, const std::string& member, MaybeError* error) {
  const std::string name = absl::StrCat(param, ".", member);
  if (!value.contains(member) || value[member].is_null()) {
    *error = MissingField(name, absl::StrCat("`", param, "` needs `", member, "`, an object"));
    return nullptr;
  }
  if (!value[member].is_object()) {
    *error = WrongType(name, KindOf(value[member]), "an object");
    return nullptr;
  }
  return &value[member];
}

MaybeError ParseFunction(const std::string& param, const Json& value, ChatTool* out) {
  static constexpr std::string_view kKnown[] = {"name", "description", "parameters", "strict"};
  if (!value.contains("name")) {
    return MissingField(absl::StrCat(param, ".name"), absl::StrCat("`", param, "` needs a `name`"));
  }
  for (const auto& [key, item] : value.items()) {
    const std::string name = absl::StrCat(param, ".", key);
    MaybeError error;
    if (key == "name") {
      error = ReadName(name, item, &out->name);
    } else if (item.is_null()) {
      continue;
    } else if (key == "description") {
      error = ReadString(name, item, &out->description);
    } else if (key == "parameters") {
      if (!item.is_object()) return WrongType(name, KindOf(item), "an object, a JSON schema");
      out->parameters = Dump(item);
    } else if (key == "strict") {  // the grammar always is
      bool strict = false;
      error = ReadBool(name, item, &strict);
    } else {
      error = UnknownField(param, key, kKnown);
    }
    if (error) return error;
  }
  return std::nullopt;
}

MaybeError ParseTool(const std::string& param, const Json& value, ChatTool* out) {
  static constexpr std::string_view kKnown[] = {"type", "function", "cache_control"};
  if (!value.is_object()) return WrongType(param, KindOf(value), "an object");
  if (value.contains("type") && value["type"] != "function") {
    return Unsupported(absl::StrCat(param, ".type"), "only \"function\" is");
  }
  MaybeError error;
  const Json* const function = ObjectIn(param, value, "function", &error);
  if (function == nullptr) return error;
  for (const auto& [key, item] : value.items()) {
    if (std::find(std::begin(kKnown), std::end(kKnown), key) == std::end(kKnown))
      return UnknownField(param, key, kKnown);
  }
  return ParseFunction(absl::StrCat(param, ".function"), *function, out);
}

MaybeError ReadSchema(const std::string& param, const Json& value, std::string* out) {
  if (!value.is_object()) return WrongType(param, KindOf(value), "an object, a JSON schema");
  std::string text = Dump(value);
  if (text.size() > kResponseSchemaBytesMax) {
    return InvalidValue(
        param, absl::StrCat("`", param, "` has ", text.size(), " bytes of JSON; at most ", kResponseSchemaBytesMax),
        kResponseSchemaBytesMax, static_cast<double>(text.size()));
  }
  *out = std::move(text);
  return std::nullopt;
}

// {"name", "description", "schema", "strict"}.
MaybeError ParseNamedSchema(const std::string& param, const Json& value, std::string* out) {
  static constexpr std::string_view kKnown[] = {"name", "description", "schema", "strict"};
  MaybeError error;
  const Json* const schema = ObjectIn(param, value, "schema", &error);
  if (schema == nullptr) return error;
  for (const auto& [key, item] : value.items()) {
    const std::string name = absl::StrCat(param, ".", key);
    std::string ignored;
    bool strict = false;
    if (item.is_null()) continue;
    if (key == "name") {
      error = ReadName(name, item, &ignored);
    } else if (key == "description") {
      error = ReadString(name, item, &ignored);
    } else if (key == "strict") {  // the grammar always is
      error = ReadBool(name, item, &strict);
    } else if (key != "schema") {
      error = UnknownField(param, key, kKnown);
    }
    if (error) return error;
  }
  return ReadSchema(absl::StrCat(param, ".schema"), *schema, out);
}

}  // namespace

MaybeError ParseTools(const std::string& param, const Json& value, CompletionFields& fields) {
  if (!value.is_array()) return WrongType(param, KindOf(value), "an array of tools");
  if (value.size() > kToolsMax) {
    return InvalidValue(param, absl::StrCat("`", param, "` has ", value.size(), " tools; at most ", kToolsMax),
                        kToolsMax, static_cast<double>(value.size()));
  }
  auto& tools = fields.request.chat.tools;
  uint64_t bytes = 0;
  for (size_t i = 0; i < value.size(); ++i) {
    const std::string name = absl::StrCat(param, "[", i, "]");
    ChatTool tool;
    if (auto error = ParseTool(name, value[i], &tool)) return error;
    if (std::any_of(tools.begin(), tools.end(), [&](const ChatTool& other) { return other.name == tool.name; })) {
      return InvalidValue(absl::StrCat(name, ".function.name"),
                          absl::StrCat("two tools have the name `", tool.name, "`"));
    }
    bytes += tool.name.size() + tool.description.size() + tool.parameters.size();
    tools.push_back(std::move(tool));
  }
  if (bytes > kToolsBytesMax) {
    return InvalidValue(param,
                        absl::StrCat("`", param, "` have ", bytes,
                                     " bytes of names, descriptions and schemas; at most ", kToolsBytesMax),
                        kToolsBytesMax, static_cast<double>(bytes));
  }
  return std::nullopt;
}

MaybeError ParseToolChoice(const std::string& param, const Json& value, CompletionFields& fields) {
  ToolChoice& choice = fields.request.chat.tool_choice;
  if (value.is_string()) {
    if (value == "none") {
      choice = ToolChoice::kNone;
    } else if (value == "auto") {
      choice = ToolChoice::kAuto;
    } else if (value == "required") {
      choice = ToolChoice::kRequired;
    } else {
      return InvalidValue(
          param, absl::StrCat("`", param, "` must be none, auto, required or an object that names a function; got ",
                              Dump(value.get_ref<const std::string&>().substr(0, 32))));
    }
    return std::nullopt;
  }
  if (!value.is_object()) return WrongType(param, KindOf(value), "a string or an object");
  if (!value.contains("type") || value["type"] != "function") {
    return Unsupported(absl::StrCat(param, ".type"), "only \"function\" is");
  }
  MaybeError error;
  const Json* const function = ObjectIn(param, value, "function", &error);
  if (function == nullptr) return error;
  const std::string name = absl::StrCat(param, ".function.name");
  if (!function->contains("name")) return MissingField(name, absl::StrCat("`", name, "` is needed"));
  choice = ToolChoice::kRequired;
  return ReadName(name, (*function)["name"], &fields.one_tool);
}

MaybeError ParseParallelToolCalls(const std::string& param, const Json& value, CompletionFields& fields) {
  return ReadBool(param, value, &fields.request.chat.parallel_tool_calls);
}

MaybeError ParseResponseFormat(const std::string& param, const Json& value, CompletionFields& fields) {
  static constexpr std::string_view kKnown[] = {"type", "json_schema", "schema"};
  if (!value.is_object()) return WrongType(param, KindOf(value), "an object");
  const std::string type_param = absl::StrCat(param, ".type");
  if (!value.contains("type")) return MissingField(type_param, absl::StrCat("`", type_param, "` is needed"));
  for (const auto& [key, item] : value.items()) {
    if (std::find(std::begin(kKnown), std::end(kKnown), key) == std::end(kKnown))
      return UnknownField(param, key, kKnown);
  }
  const Json& type = value["type"];
  std::string& schema = fields.request.json_schema;
  const auto given = [&value](const char* key) { return value.contains(key) && !value[key].is_null(); };
  const bool bare = given("schema") && !given("json_schema");  // llama-server's form
  if (type == "json_object" || (type == "json_schema" && bare)) {
    if (given("schema")) return ReadSchema(absl::StrCat(param, ".schema"), value["schema"], &schema);
    schema = kAnyObject;
    return std::nullopt;
  }
  if (type == "json_schema") {
    MaybeError error;
    const Json* const named = ObjectIn(param, value, "json_schema", &error);
    return named == nullptr ? error : ParseNamedSchema(absl::StrCat(param, ".json_schema"), *named, &schema);
  }
  if (type == "text") return std::nullopt;
  return Unsupported(type_param, "\"text\", \"json_object\" and \"json_schema\" are");
}

MaybeError ParseTemplateKwargs(const std::string& param, const Json& value, CompletionFields& fields) {
  if (!value.is_object()) return WrongType(param, KindOf(value), "an object");
  if (value.size() > kTemplateKwargsMax) {
    return InvalidValue(param,
                        absl::StrCat("`", param, "` has ", value.size(), " members; at most ", kTemplateKwargsMax),
                        kTemplateKwargsMax, static_cast<double>(value.size()));
  }
  uint64_t bytes = 0;
  for (const auto& [key, item] : value.items()) {
    std::string text = Dump(item);
    bytes += key.size() + text.size();
    fields.request.chat.template_kwargs.emplace_back(key, std::move(text));
  }
  if (bytes > kTemplateKwargsBytesMax) {
    return InvalidValue(param, absl::StrCat("`", param, "` has ", bytes, " bytes; at most ", kTemplateKwargsBytesMax),
                        kTemplateKwargsBytesMax, static_cast<double>(bytes));
  }
  return std::nullopt;
}

MaybeError SettleTools(CompletionFields& fields) {
  ChatRequest& chat = fields.request.chat;
  if (!fields.one_tool.empty()) {
    const auto named = std::find_if(chat.tools.begin(), chat.tools.end(),
                                    [&](const ChatTool& tool) { return tool.name == fields.one_tool; });
    if (named == chat.tools.end()) {
      return InvalidValue("tool_choice",
                          absl::StrCat("`tool_choice` names `", fields.one_tool, "`, which is not in `tools`"));
    }
    ChatTool only = std::move(*named);
    chat.tools.clear();
    chat.tools.push_back(std::move(only));
  }
  if (chat.tool_choice == ToolChoice::kRequired && !fields.request.json_schema.empty()) {
    return InvalidValue("tool_choice",
                        "`tool_choice` asks for a call and `response_format` for JSON; a reply cannot be both");
  }
  if (chat.tool_choice == ToolChoice::kRequired && chat.tools.empty()) {
    return InvalidValue("tool_choice", "`tool_choice` is \"required\", which needs `tools`");
  }
  return std::nullopt;
}

}  // namespace reprise
