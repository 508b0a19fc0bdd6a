#include "server/request.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "server/completion_fields.h"
#include "server/field_values.h"

namespace reprise {
namespace {

MaybeError ParseObject(std::string_view body, const RequestLimits& limits, Json* out) {
  if (auto error = ParseJson(body, limits.json, out)) return error;
  if (!out->is_object()) {
    return InvalidJson(absl::StrCat("the body is ", std::string(KindOf(*out)), "; it must be an object"));
  }
  return std::nullopt;
}

// What depends on more than one field.
MaybeError Settle(Endpoint endpoint, CompletionFields& fields) {
  CompletionRequest& request = fields.request;
  if (!fields.prompt_given) {
    return endpoint == Endpoint::kChat
               ? MissingField("messages", "`messages` is needed: an array of {\"role\": ..., \"content\": ...}")
               : MissingField("prompt", "`prompt` is needed: a string or an array of token ids");
  }
  if (fields.max_completion_tokens.has_value()) {
    if (request.max_tokens.has_value() && *request.max_tokens != *fields.max_completion_tokens) {
      return InvalidValue("max_completion_tokens",
                          absl::StrCat("`max_tokens` is ", *request.max_tokens, " and `max_completion_tokens` is ",
                                       *fields.max_completion_tokens, "; they are two names of one limit"),
                          *request.max_tokens, static_cast<double>(*fields.max_completion_tokens));
    }
    request.max_tokens = static_cast<uint32_t>(*fields.max_completion_tokens);
  }
  if (fields.chat_logprobs.value_or(false)) {
    request.logprobs = static_cast<uint32_t>(fields.top_logprobs.value_or(0));
  } else if (fields.top_logprobs.value_or(0) > 0) {
    return InvalidValue("top_logprobs", "`top_logprobs` needs `logprobs`: true");
  }
  return std::nullopt;
}

}  // namespace

MaybeError ParseCompletion(Endpoint endpoint, std::string_view body, const RequestLimits& limits,
                           CompletionRequest* out) {
  Json json;
  if (auto error = ParseObject(body, limits, &json)) return error;
  CompletionFields fields{.limits = limits, .request = *out};
  for (const auto& [key, value] : json.items()) {
    const FieldParser parse = FindField(endpoint, key);
    if (parse == nullptr) return UnknownField("", key, KnownFields(endpoint));
    if (value.is_null()) continue;
    if (auto error = parse(key, value, fields)) return error;
  }
  return Settle(endpoint, fields);
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

}  // namespace reprise
