#include "server/request.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "server/completion_fields.h"
#include "server/field_values.h"
#include "server/prompt_fields.h"

namespace reprise {
namespace {

MaybeError ParseObject(std::string_view body, const RequestLimits& limits, Json* out) {
  if (auto error = ParseJson(body, limits.json, out)) return error;
  if (!out->is_object()) {
    return InvalidJson(absl::StrCat("the body is ", std::string(KindOf(*out)), "; it must be an object"));
  }
  return std::nullopt;
}

MaybeError ParseFields(Endpoint endpoint, const Json& json, const RequestLimits& limits, CompletionRequest* out) {
  CompletionFields fields{.limits = limits, .request = *out};
  for (const auto& [key, value] : json.items()) {
    const FieldParser parse = FindField(endpoint, key);
    if (parse == nullptr) return UnknownField("", key, KnownFields(endpoint));
    if (value.is_null()) continue;
    if (auto error = parse(key, value, fields)) return error;
  }
  return SettleFields(endpoint, fields);
}

}  // namespace

MaybeError ParseCompletion(Endpoint endpoint, std::string_view body, const RequestLimits& limits,
                           CompletionRequest* out) {
  Json json;
  if (auto error = ParseObject(body, limits, &json)) return error;
  return ParseFields(endpoint, json, limits, out);
}

MaybeError ParseEitherCompletion(std::string_view body, const RequestLimits& limits, Endpoint* endpoint,
                                 CompletionRequest* out) {
  Json json;
  if (auto error = ParseObject(body, limits, &json)) return error;
  *endpoint = json.contains("messages") ? Endpoint::kChat : Endpoint::kText;
  if (*endpoint == Endpoint::kText && !json.contains("prompt")) {
    return MissingField("messages", "`messages` or `prompt` is needed: the body of a completion");
  }
  return ParseFields(*endpoint, json, limits, out);
}

MaybeError ParseEmpty(std::string_view body, const RequestLimits& limits) {
  if (body.empty()) return std::nullopt;
  Json json;
  if (auto error = ParseObject(body, limits, &json)) return error;
  if (json.empty()) return std::nullopt;
  return UnknownField("", json.begin().key(), {});
}

MaybeError ParseTokenize(std::string_view body, const RequestLimits& limits, TokenizeRequest* out) {
  static constexpr std::string_view kKnown[] = {"content", "text", "add_special", "parse_special", "model"};
  Json json;
  if (auto error = ParseObject(body, limits, &json)) return error;
  bool text_given = false;
  for (const auto& [key, value] : json.items()) {
    MaybeError error;
    if (key == "content" || key == "text") {
      if (text_given) return InvalidValue(key, "`content` and `text` are two names of one field; give one");
      text_given = true;
      error = ReadString(key, value, &out->text);
    } else if (key == "add_special") {
      error = ReadBool(key, value, &out->add_special);
    } else if (key == "parse_special") {
      error = ReadBool(key, value, &out->parse_special);
    } else if (key != "model") {
      error = UnknownField("", key, kKnown);
    }
    if (error) return error;
  }
  if (!text_given) return MissingField("content", "`content` is needed: the text to tokenise");
  return std::nullopt;
}

MaybeError ParseDetokenize(std::string_view body, const RequestLimits& limits, std::vector<TokenId>* out) {
  static constexpr std::string_view kKnown[] = {"tokens", "model"};
  Json json;
  if (auto error = ParseObject(body, limits, &json)) return error;
  bool tokens_given = false;
  for (const auto& [key, value] : json.items()) {
    if (key == "model") continue;
    if (key != "tokens") return UnknownField("", key, kKnown);
    if (!value.is_array()) return WrongType(key, KindOf(value), "an array of token ids");
    tokens_given = true;
    if (auto error = ReadTokens(key, value, limits.vocab_size, out)) return error;
  }
  if (!tokens_given) return MissingField("tokens", "`tokens` is needed: an array of token ids");
  return std::nullopt;
}

}  // namespace reprise
