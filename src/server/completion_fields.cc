#include "server/completion_fields.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "engine/generation.h"
#include "server/field_values.h"
#include "server/message_fields.h"
#include "server/prompt_fields.h"
#include "server/tool_fields.h"

namespace reprise {
namespace {

constexpr int64_t kCountMax = std::numeric_limits<int32_t>::max();
constexpr double kTemperatureMin = 1e-6;  // below, logits divided by it leave the range of a float
constexpr double kTemperatureMax = 100;
constexpr double kPenaltyMax = 2;
constexpr double kRepeatPenaltyMin =
    0.01;  // logits are multiplied or divided by it, also at the end of a float's range
constexpr double kRepeatPenaltyMax = 10;
constexpr double kLogitBiasLimit = 100;
constexpr uint64_t kAdapterNameBytesMax = 255;  // of a file

MaybeError ParseModel(const std::string& param, const Json& value, CompletionFields& fields) {
  return ReadBoundedString(param, value, 1, 512, &fields.request.model);
}

// Not value == -1: the largest integer of 64 bits is equal to that.
bool IsMinusOne(const Json& value) {
  return value.is_number_integer() && !value.is_number_unsigned() && value.get<int64_t>() == -1;
}

MaybeError ReadTokensMax(const std::string& param, const Json& value, std::optional<uint32_t>* out) {
  if (IsMinusOne(value)) return std::nullopt;  // llama-server's "no limit"
  int64_t count = 0;
  if (auto error = ReadInteger(param, value, 1, kCountMax, &count)) return error;
  *out = static_cast<uint32_t>(count);
  return std::nullopt;
}

MaybeError ParseMaxTokens(const std::string& param, const Json& value, CompletionFields& fields) {
  return ReadTokensMax(param, value, &fields.request.max_tokens);
}

MaybeError ParseMaxCompletionTokens(const std::string& param, const Json& value, CompletionFields& fields) {
  return ReadTokensMax(param, value, &fields.max_completion_tokens);
}

MaybeError ParseTemperature(const std::string& param, const Json& value, CompletionFields& fields) {
  double number = 0;
  if (auto error = ReadNumber(param, value, 0, kTemperatureMax, &number)) return error;
  if (number > 0 && number < kTemperatureMin) {
    return InvalidValue(param,
                        absl::StrCat("`", param, "` must be 0 (greedy) or from ", kTemperatureMin, " to ",
                                     kTemperatureMax, "; got ", Dump(value)),
                        kTemperatureMin, number);
  }
  fields.request.sampling.temperature = static_cast<float>(number);
  return std::nullopt;
}

MaybeError ParseTopP(const std::string& param, const Json& value, CompletionFields& fields) {
  double number = 0;
  if (auto error = ReadNumber(param, value, 0, 1, &number)) return error;
  if (static_cast<float>(number) <= 0) {
    return InvalidValue(param, absl::StrCat("`", param, "` must be above 0 and at most 1; got ", Dump(value)), 0,
                        number);
  }
  fields.request.sampling.top_p = static_cast<float>(number);
  return std::nullopt;
}

MaybeError ParseTopK(const std::string& param, const Json& value, CompletionFields& fields) {
  if (IsMinusOne(value)) return std::nullopt;  // vLLM's "off"
  int64_t count = 0;
  if (auto error = ReadInteger(param, value, 0, kCountMax, &count)) return error;
  fields.request.sampling.top_k = static_cast<uint32_t>(count);
  return std::nullopt;
}

MaybeError ParseMinP(const std::string& param, const Json& value, CompletionFields& fields) {
  double number = 0;
  if (auto error = ReadNumber(param, value, 0, 1, &number)) return error;
  fields.request.sampling.min_p = static_cast<float>(number);
  return std::nullopt;
}

MaybeError ParseSeed(const std::string& param, const Json& value, CompletionFields& fields) {
  return ReadBits(param, value, &fields.request.seed.emplace());
}

MaybeError ParseStop(const std::string& param, const Json& value, CompletionFields& fields) {
  auto& stop = fields.request.stop;
  if (value.is_string()) return ReadBoundedString(param, value, 1, kStopBytesMax, &stop.emplace_back());
  if (!value.is_array()) return WrongType(param, KindOf(value), "a string or an array of strings");
  if (value.size() > kStopStringsMax) {
    return InvalidValue(param, absl::StrCat("`", param, "` has ", value.size(), " strings; at most ", kStopStringsMax),
                        kStopStringsMax, static_cast<double>(value.size()));
  }
  for (size_t i = 0; i < value.size(); ++i) {
    const std::string name = absl::StrCat(param, "[", i, "]");
    if (auto error = ReadBoundedString(name, value[i], 1, kStopBytesMax, &stop.emplace_back())) return error;
  }
  return std::nullopt;
}

MaybeError ParseStream(const std::string& param, const Json& value, CompletionFields& fields) {
  return ReadBool(param, value, &fields.request.stream);
}

MaybeError ParseStreamOptions(const std::string& param, const Json& value, CompletionFields& fields) {
  static constexpr std::string_view kKnown[] = {"include_usage", "include_obfuscation"};
  if (!value.is_object()) return WrongType(param, KindOf(value), "an object");
  for (const auto& [key, item] : value.items()) {
    const std::string name = absl::StrCat(param, ".", key);
    if (item.is_null()) continue;
    if (key == "include_usage") {
      if (auto error = ReadBool(name, item, &fields.request.include_usage)) return error;
    } else if (key == "include_obfuscation") {
      if (item != false) return Unsupported(name, "only false is");
    } else {
      return UnknownField(param, key, kKnown);
    }
  }
  return std::nullopt;
}

MaybeError ParseTextLogprobs(const std::string& param, const Json& value, CompletionFields& fields) {
  if (value == false) return std::nullopt;  // as the chat's
  int64_t count = 0;
  if (auto error = ReadInteger(param, value, 0, kTopLogprobsMax, &count)) return error;
  fields.request.logprobs = static_cast<uint32_t>(count);
  return std::nullopt;
}

MaybeError ParseChatLogprobs(const std::string& param, const Json& value, CompletionFields& fields) {
  return ReadBool(param, value, &fields.chat_logprobs.emplace());
}

MaybeError ParseTopLogprobs(const std::string& param, const Json& value, CompletionFields& fields) {
  return ReadInteger(param, value, 0, kTopLogprobsMax, &fields.top_logprobs.emplace());
}

MaybeError ParseIgnoreEos(const std::string& param, const Json& value, CompletionFields& fields) {
  return ReadBool(param, value, &fields.request.ignore_eos);
}

MaybeError ParseReturnTokens(const std::string& param, const Json& value, CompletionFields& fields) {
  return ReadBool(param, value, &fields.request.return_tokens);
}

MaybeError ParseN(const std::string& param, const Json& value, CompletionFields& fields) {
  int64_t count = 0;
  if (auto error = ReadInteger(param, value, 1, kChoicesMax, &count)) return error;
  fields.request.n = static_cast<uint32_t>(count);
  return std::nullopt;
}

MaybeError ReadFloat(const std::string& param, const Json& value, double min, double max, float* out) {
  double number = 0;
  if (auto error = ReadNumber(param, value, min, max, &number)) return error;
  *out = static_cast<float>(number);
  return std::nullopt;
}

MaybeError ParseFrequencyPenalty(const std::string& param, const Json& value, CompletionFields& fields) {
  return ReadFloat(param, value, -kPenaltyMax, kPenaltyMax, &fields.request.sampling.frequency_penalty);
}

MaybeError ParsePresencePenalty(const std::string& param, const Json& value, CompletionFields& fields) {
  return ReadFloat(param, value, -kPenaltyMax, kPenaltyMax, &fields.request.sampling.presence_penalty);
}

MaybeError ParseRepeatPenalty(const std::string& param, const Json& value, CompletionFields& fields) {
  return ReadFloat(param, value, kRepeatPenaltyMin, kRepeatPenaltyMax, &fields.request.sampling.repeat_penalty);
}

// The id that a key of logit_bias spells; nullopt: it is none.
std::optional<int32_t> TokenOf(std::string_view key, uint32_t vocab_size) {
  uint32_t id = 0;
  const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
  const bool canonical = key.size() == 1 || !key.starts_with('0');  // "5" and "05" would be one token twice
  if (error != std::errc() || end != key.data() + key.size() || !canonical || id >= vocab_size) return std::nullopt;
  return static_cast<int32_t>(id);
}

MaybeError ParseLogitBias(const std::string& param, const Json& value, CompletionFields& fields) {
  if (value.is_array() && value.empty()) return std::nullopt;
  if (!value.is_object()) return WrongType(param, KindOf(value), "an object, from token ids to numbers");
  if (value.size() > kLogitBiasMax) {
    return InvalidValue(param, absl::StrCat("`", param, "` has ", value.size(), " tokens; at most ", kLogitBiasMax),
                        kLogitBiasMax, static_cast<double>(value.size()));
  }
  for (const auto& [key, item] : value.items()) {
    const std::string name = absl::StrCat(param, ".", key.substr(0, 64));
    const std::optional<int32_t> id = TokenOf(key, fields.limits.vocab_size);
    if (!id.has_value()) {
      return InvalidValue(name, absl::StrCat("the keys of `", param, "` are token ids from \"0\" to \"",
                                             fields.limits.vocab_size - 1, "\"; got ", Dump(key.substr(0, 64))));
    }
    double bias = 0;
    if (auto error = ReadNumber(name, item, -kLogitBiasLimit, kLogitBiasLimit, &bias)) return error;
    if (bias != 0) fields.request.logit_bias.push_back({TokenId(*id), static_cast<float>(bias)});
  }
  return std::nullopt;
}

// One of `lora`: {"name": ..., "scale": ...}.
MaybeError ReadAdapterUse(const std::string& param, const Json& value, std::span<const AdapterInfo> loaded,
                          AdapterUse* out) {
  static constexpr std::string_view kKnown[] = {"name", "scale"};
  if (!value.is_object())
    return WrongType(param, KindOf(value), "an object such as {\"name\": \"stem\", \"scale\": 1}");
  std::string name;
  std::optional<double> scale;
  for (const auto& [key, item] : value.items()) {
    const std::string field = absl::StrCat(param, ".", key);
    MaybeError error;
    if (key == "name") {
      error = ReadBoundedString(field, item, 1, kAdapterNameBytesMax, &name);
    } else if (key == "scale") {
      if (!item.is_null()) error = ReadNumber(field, item, -kAdapterScaleLimit, kAdapterScaleLimit, &scale.emplace());
    } else {
      error = UnknownField(param, key, kKnown);
    }
    if (error) return error;
  }
  if (name.empty()) return MissingField(absl::StrCat(param, ".name"), absl::StrCat("`", param, ".name` is needed"));
  const auto adapter =
      std::find_if(loaded.begin(), loaded.end(), [&name](const AdapterInfo& info) { return info.name == name; });
  if (adapter == loaded.end()) {
    std::string names;
    for (const AdapterInfo& info : loaded) absl::StrAppend(&names, names.empty() ? "" : ", ", info.name);
    return InvalidValue(absl::StrCat(param, ".name"),
                        absl::StrCat("`", param, ".name`: no adapter is called ", Dump(name),
                                     "; loaded: ", names.empty() ? "none" : names));
  }
  out->adapter = static_cast<uint32_t>(adapter - loaded.begin());
  out->scale = scale ? static_cast<float>(*scale) : adapter->scale;
  return std::nullopt;
}

MaybeError ParseLora(const std::string& param, const Json& value, CompletionFields& fields) {
  if (!value.is_array()) return WrongType(param, KindOf(value), "an array of {\"name\": ..., \"scale\": ...}");
  if (value.size() > kAdapterUsesMax) {
    return InvalidValue(param,
                        absl::StrCat("`", param, "` names ", value.size(), " adapters; at most ", kAdapterUsesMax),
                        kAdapterUsesMax, static_cast<double>(value.size()));
  }
  std::vector<AdapterUse>& uses = fields.request.adapters.emplace();
  for (size_t i = 0; i < value.size(); ++i) {
    AdapterUse use;
    const std::string name = absl::StrCat(param, "[", i, "]");
    if (auto error = ReadAdapterUse(name, value[i], fields.limits.adapters, &use)) return error;
    if (std::any_of(uses.begin(), uses.end(),
                    [&use](const AdapterUse& other) { return other.adapter == use.adapter; })) {
      return InvalidValue(
          absl::StrCat(name, ".name"),
          absl::StrCat("`", param, "` names one adapter twice: ", Dump(fields.limits.adapters[use.adapter].name)));
    }
    uses.push_back(use);
  }
  return std::nullopt;
}

MaybeError ParseEcho(const std::string& param, const Json& value, CompletionFields& fields) {
  return ReadBool(param, value, &fields.request.echo);
}

MaybeError ParseTruncation(const std::string& param, const Json& value, CompletionFields& fields) {
  static constexpr std::string_view kKnown[] = {"type", "keep_system"};
  if (value == "disabled") return std::nullopt;  // the default of OpenAI's Responses
  if (!value.is_object()) return WrongType(param, KindOf(value), "an object such as {\"type\": \"middle\"}");
  const std::string type = absl::StrCat(param, ".type");
  if (!value.contains("type")) return MissingField(type, absl::StrCat("`", type, "` is needed: \"middle\""));
  if (value["type"] != "middle") return Unsupported(type, "only \"middle\" is");
  Truncation& truncation = fields.request.truncation.emplace();
  for (const auto& [key, item] : value.items()) {
    if (key == "type" || (key == "keep_system" && item.is_null())) continue;
    if (key != "keep_system") return UnknownField(param, key, kKnown);
    if (auto error = ReadBool(absl::StrCat(param, ".", key), item, &truncation.keep_system)) return error;
  }
  return std::nullopt;
}

MaybeError ParseCache(const std::string& param, const Json& value, CompletionFields& fields) {
  static constexpr std::string_view kKnown[] = {"read", "write", "salt", "receipt"};
  if (!value.is_object()) return WrongType(param, KindOf(value), "an object");
  for (const auto& [key, item] : value.items()) {
    const std::string name = absl::StrCat(param, ".", key);
    MaybeError error;
    if (item.is_null()) continue;
    if (key == "read") {
      error = ReadBool(name, item, &fields.request.cache_read);
    } else if (key == "write") {
      error = ReadBool(name, item, &fields.request.cache_write);
    } else if (key == "salt") {
      error = ReadBoundedString(name, item, 0, kSaltBytesMax, &fields.request.salt.emplace());
    } else if (key == "receipt") {
      error = ReadBool(name, item, &fields.request.receipt);
    } else {
      error = UnknownField(param, key, kKnown);
    }
    if (error) return error;
  }
  return std::nullopt;
}

// Cannot change the reply.
MaybeError Ignore(const std::string&, const Json&, CompletionFields&) { return std::nullopt; }

// Accepted with the value that changes nothing.
MaybeError OnlyOne(const std::string& param, const Json& value, CompletionFields&) {
  if (!value.is_number()) return WrongType(param, KindOf(value), "a number");
  if (value != 1) return Unsupported(param, "only 1 is");
  return std::nullopt;
}
MaybeError OnlyEmpty(const std::string& param, const Json& value, CompletionFields&) {
  if (!IsEmpty(value)) return Unsupported(param, "only null or an empty value is");
  return std::nullopt;
}
MaybeError OnlyNull(const std::string& param, const Json&, CompletionFields&) {
  return Unsupported(param, "only null is");
}
MaybeError OnlyTextModality(const std::string& param, const Json& value, CompletionFields&) {
  if (value.is_array() && value.size() == 1 && value[0] == "text") return std::nullopt;
  return Unsupported(param, "only [\"text\"] is");
}
// Fields of other servers, and old ones of OpenAI's, under the name they have here.
struct OtherName {
  std::string_view name;
  std::string_view here;
};
constexpr std::string_view kSchemaHere =
    "`response_format` is: {\"type\": \"json_schema\", \"json_schema\": {\"schema\": {...}}}";
constexpr std::string_view kTemplateHere = "what a model's template knows goes into `chat_template_kwargs`";
constexpr OtherName kOtherNames[] = {
    {"functions", "`tools` is: [{\"type\": \"function\", \"function\": {...}}]"},
    {"function_call", "`tool_choice` is"},
    {"json_schema", kSchemaHere},
    {"guided_json", kSchemaHere},
    {"grammar", "a JSON schema is, in `response_format`"},
    {"n_predict", "`max_tokens` is"},
    {"num_predict", "`max_tokens` is"},
    {"repetition_penalty", "`repeat_penalty` is"},
    {"cache_prompt", "`cache`: {\"read\": false} is"},
    {"n_ctx", "`--context` of the server is"},
    {"num_ctx", "`--context` of the server is"},
    {"options", "its fields go into the body itself"},
    {"extra_body", "its fields go into the body itself"},
    {"reasoning_effort", kTemplateHere},
    {"enable_thinking", kTemplateHere},
};
MaybeError OtherwiseNamed(const std::string& param, const Json& value, CompletionFields&) {
  if (IsEmpty(value)) return std::nullopt;
  // What these change nothing with: no function to call, the cache as it is.
  if (param == "function_call" && (value == "none" || value == "auto")) return std::nullopt;
  if (param == "cache_prompt" && value == true) return std::nullopt;
  const auto* const other =
      std::find_if(std::begin(kOtherNames), std::end(kOtherNames), [&](const OtherName& o) { return o.name == param; });
  CHECK(other != std::end(kOtherNames));
  return Unsupported(param, other->here);
}

struct Row {
  std::string_view name;
  FieldParser text;  // null: not a field of /v1/completions
  FieldParser chat;  // null: not a field of /v1/chat/completions
};

constexpr Row kRows[] = {
    // Honoured.
    {"model", ParseModel, ParseModel},
    {"prompt", ParsePrompt, nullptr},
    {"messages", nullptr, ParseMessages},
    {"max_tokens", ParseMaxTokens, ParseMaxTokens},
    {"max_completion_tokens", ParseMaxCompletionTokens, ParseMaxCompletionTokens},
    {"temperature", ParseTemperature, ParseTemperature},
    {"top_p", ParseTopP, ParseTopP},
    {"top_k", ParseTopK, ParseTopK},
    {"min_p", ParseMinP, ParseMinP},
    {"seed", ParseSeed, ParseSeed},
    {"stop", ParseStop, ParseStop},
    {"stream", ParseStream, ParseStream},
    {"stream_options", ParseStreamOptions, ParseStreamOptions},
    {"logprobs", ParseTextLogprobs, ParseChatLogprobs},
    {"top_logprobs", nullptr, ParseTopLogprobs},
    {"ignore_eos", ParseIgnoreEos, ParseIgnoreEos},
    {"return_tokens", ParseReturnTokens, nullptr},
    {"n", ParseN, ParseN},
    {"frequency_penalty", ParseFrequencyPenalty, ParseFrequencyPenalty},
    {"presence_penalty", ParsePresencePenalty, ParsePresencePenalty},
    {"repeat_penalty", ParseRepeatPenalty, ParseRepeatPenalty},
    {"logit_bias", ParseLogitBias, ParseLogitBias},
    {"lora", ParseLora, ParseLora},
    {"response_format", ParseResponseFormat, ParseResponseFormat},
    {"tools", nullptr, ParseTools},
    {"tool_choice", nullptr, ParseToolChoice},
    {"parallel_tool_calls", nullptr, ParseParallelToolCalls},
    {"chat_template_kwargs", nullptr, ParseTemplateKwargs},
    {"echo", ParseEcho, nullptr},
    {"truncation", ParseTruncation, ParseTruncation},
    {"cache", ParseCache, ParseCache},
    // Ignored.
    {"user", Ignore, Ignore},
    {"metadata", Ignore, Ignore},
    {"store", Ignore, Ignore},
    {"service_tier", Ignore, Ignore},
    {"safety_identifier", nullptr, Ignore},
    {"prompt_cache_key", nullptr, Ignore},
    {"prompt_cache_retention", nullptr, Ignore},
    // Accepted with the value that changes nothing.
    {"best_of", OnlyOne, nullptr},
    {"suffix", OnlyEmpty, nullptr},
    {"modalities", nullptr, OnlyTextModality},
    {"audio", nullptr, OnlyNull},
    {"prediction", nullptr, OnlyNull},
    {"verbosity", nullptr, OnlyNull},
    {"web_search_options", nullptr, OnlyNull},
    // Named otherwise here.
    {"functions", nullptr, OtherwiseNamed},
    {"function_call", nullptr, OtherwiseNamed},
    {"json_schema", OtherwiseNamed, OtherwiseNamed},
    {"guided_json", OtherwiseNamed, OtherwiseNamed},
    {"grammar", OtherwiseNamed, OtherwiseNamed},
    {"n_predict", OtherwiseNamed, OtherwiseNamed},
    {"num_predict", OtherwiseNamed, OtherwiseNamed},
    {"repetition_penalty", OtherwiseNamed, OtherwiseNamed},
    {"cache_prompt", OtherwiseNamed, OtherwiseNamed},
    {"n_ctx", OtherwiseNamed, OtherwiseNamed},
    {"num_ctx", OtherwiseNamed, OtherwiseNamed},
    {"options", OtherwiseNamed, OtherwiseNamed},
    {"extra_body", OtherwiseNamed, OtherwiseNamed},
    {"reasoning_effort", nullptr, OtherwiseNamed},
    {"enable_thinking", nullptr, OtherwiseNamed},
};

std::vector<std::string_view> Names(FieldParser Row::*column) {
  std::vector<std::string_view> names;
  for (const Row& row : kRows) {
    if (row.*column != nullptr) names.push_back(row.name);
  }
  return names;
}

}  // namespace

FieldParser FindField(Endpoint endpoint, std::string_view name) {
  for (const Row& row : kRows) {
    if (row.name == name) return endpoint == Endpoint::kChat ? row.chat : row.text;
  }
  return nullptr;
}

MaybeError SettleFields(Endpoint endpoint, CompletionFields& fields) {
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
    request.max_tokens = fields.max_completion_tokens;
  }
  if (fields.chat_logprobs.value_or(false)) {
    request.logprobs = static_cast<uint32_t>(fields.top_logprobs.value_or(0));
  } else if (fields.top_logprobs.value_or(0) > 0) {
    return InvalidValue("top_logprobs", "`top_logprobs` needs `logprobs`: true");
  }
  if (request.echo && request.logprobs.has_value()) {
    return Unsupported("echo", "with `logprobs` only false is; those of a prompt are not computed");
  }
  return SettleTools(fields);
}

std::span<const std::string_view> KnownFields(Endpoint endpoint) {
  static const std::vector<std::string_view> text = Names(&Row::text);
  static const std::vector<std::string_view> chat = Names(&Row::chat);
  return endpoint == Endpoint::kChat ? chat : text;
}

}  // namespace reprise
