#include "server/completion_fields.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/field_values.h"
#include "server/prompt_fields.h"

namespace reprise {
namespace {

constexpr int64_t kCountMax = std::numeric_limits<int32_t>::max();
constexpr double kTemperatureMin = 1e-6;  // below, logits divided by it leave the range of a float
constexpr double kTemperatureMax = 100;

MaybeError ParseModel(const std::string& param, const Json& value, CompletionFields& fields) {
  return ReadBoundedString(param, value, 1, 512, &fields.request.model);
}

MaybeError ParseMaxTokens(const std::string& param, const Json& value, CompletionFields& fields) {
  int64_t count = 0;
  if (auto error = ReadInteger(param, value, 1, kCountMax, &count)) return error;
  fields.request.max_tokens = static_cast<uint32_t>(count);
  return std::nullopt;
}

MaybeError ParseMaxCompletionTokens(const std::string& param, const Json& value, CompletionFields& fields) {
  int64_t count = 0;
  if (auto error = ReadInteger(param, value, 1, kCountMax, &count)) return error;
  fields.max_completion_tokens = count;
  return std::nullopt;
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

MaybeError ParseN(const std::string& param, const Json& value, CompletionFields&) {
  int64_t count = 0;
  if (auto error = ReadInteger(param, value, 1, 16, &count)) return error;
  if (count != 1) return Unsupported(param, "only 1 is; send the request once for each choice");
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
      bool receipt = false;
      error = ReadBool(name, item, &receipt);
      if (receipt) error = Unsupported(name, "only false is; `timings.cached` tells the tokens reused");
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
MaybeError OnlyZero(const std::string& param, const Json& value, CompletionFields&) {
  if (!value.is_number()) return WrongType(param, KindOf(value), "a number");
  if (value != 0) return Unsupported(param, "only 0 is");
  return std::nullopt;
}
MaybeError OnlyOne(const std::string& param, const Json& value, CompletionFields&) {
  if (!value.is_number()) return WrongType(param, KindOf(value), "a number");
  if (value != 1) return Unsupported(param, "only 1 is");
  return std::nullopt;
}
MaybeError OnlyEmpty(const std::string& param, const Json& value, CompletionFields&) {
  const bool empty =
      value.is_string() ? value.get_ref<const std::string&>().empty() : value.is_structured() && value.empty();
  if (!empty) return Unsupported(param, "only null or an empty value is");
  return std::nullopt;
}
MaybeError OnlyFalse(const std::string& param, const Json& value, CompletionFields&) {
  if (!value.is_boolean()) return WrongType(param, KindOf(value), "true or false");
  if (value != false) return Unsupported(param, "only false is");
  return std::nullopt;
}
MaybeError OnlyNull(const std::string& param, const Json&, CompletionFields&) {
  return Unsupported(param, "only null is");
}
MaybeError OnlyTextFormat(const std::string& param, const Json& value, CompletionFields&) {
  if (!value.is_object()) return WrongType(param, KindOf(value), "an object");
  if (value.size() == 1 && value.contains("type") && value["type"] == "text") return std::nullopt;
  return Unsupported(param, "only {\"type\": \"text\"} is");
}
MaybeError OnlyTextModality(const std::string& param, const Json& value, CompletionFields&) {
  if (value.is_array() && value.size() == 1 && value[0] == "text") return std::nullopt;
  return Unsupported(param, "only [\"text\"] is");
}
// There are no tools: "none" and "auto" both mean that none is called.
MaybeError OnlyNoTool(const std::string& param, const Json& value, CompletionFields&) {
  if (value == "none" || value == "auto") return std::nullopt;
  return Unsupported(param, "only \"none\" and \"auto\" are");
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
    {"cache", ParseCache, ParseCache},
    // Ignored.
    {"user", Ignore, Ignore},
    {"metadata", Ignore, Ignore},
    {"store", Ignore, Ignore},
    {"service_tier", Ignore, Ignore},
    {"safety_identifier", nullptr, Ignore},
    {"prompt_cache_key", nullptr, Ignore},
    {"prompt_cache_retention", nullptr, Ignore},
    {"parallel_tool_calls", nullptr, Ignore},  // without tools
    // Accepted with the value that changes nothing.
    {"frequency_penalty", OnlyZero, OnlyZero},
    {"presence_penalty", OnlyZero, OnlyZero},
    {"repeat_penalty", OnlyOne, OnlyOne},
    {"logit_bias", OnlyEmpty, OnlyEmpty},
    {"best_of", OnlyOne, nullptr},
    {"echo", OnlyFalse, nullptr},
    {"suffix", OnlyEmpty, nullptr},
    {"response_format", OnlyTextFormat, OnlyTextFormat},
    {"tools", nullptr, OnlyEmpty},
    {"tool_choice", nullptr, OnlyNoTool},
    {"functions", nullptr, OnlyEmpty},
    {"function_call", nullptr, OnlyNoTool},
    {"modalities", nullptr, OnlyTextModality},
    {"audio", nullptr, OnlyNull},
    {"prediction", nullptr, OnlyNull},
    {"reasoning_effort", nullptr, OnlyNull},
    {"verbosity", nullptr, OnlyNull},
    {"web_search_options", nullptr, OnlyNull},
    {"truncation", OnlyNull, OnlyNull},
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

std::span<const std::string_view> KnownFields(Endpoint endpoint) {
  static const std::vector<std::string_view> text = Names(&Row::text);
  static const std::vector<std::string_view> chat = Names(&Row::chat);
  return endpoint == Endpoint::kChat ? chat : text;
}

}  // namespace reprise
