#include "server/prompt_fields.h"

#include "absl/strings/str_cat.h"
#include "server/field_values.h"

namespace reprise {
namespace {

constexpr std::string_view kOnePrompt = "one prompt is, a string or an array of token ids; send a request for each";

}  // namespace

MaybeError ReadTokens(const std::string& param, const Json& value, uint32_t vocab_size, std::vector<TokenId>* out) {
  out->reserve(value.size());
  for (size_t i = 0; i < value.size(); ++i) {
    int64_t id = 0;
    const int64_t last = static_cast<int64_t>(vocab_size) - 1;
    // The name of the element is made only when it is needed: prompts have many thousands of them.
    if (ReadInteger(param, value[i], 0, last, &id).has_value()) {
      return ReadInteger(absl::StrCat(param, "[", i, "]"), value[i], 0, last, &id);
    }
    out->emplace_back(static_cast<int32_t>(id));
  }
  return std::nullopt;
}

MaybeError ParsePrompt(const std::string& param, const Json& value, CompletionFields& fields) {
  fields.prompt_given = true;
  if (value.is_string()) return ReadString(param, value, &fields.request.prompt_text);
  if (!value.is_array()) return WrongType(param, KindOf(value), "a string or an array of token ids");
  if (value.empty()) return InvalidValue(param, "`prompt` holds no tokens; at least one is needed", 1, 0);
  if (!value[0].is_string() && !value[0].is_array())
    return ReadTokens(param, value, fields.limits.vocab_size, &fields.request.prompt_tokens);
  if (value.size() > 1) return Unsupported(param, kOnePrompt);
  const std::string inner = absl::StrCat(param, "[0]");
  if (value[0].is_string()) return ReadString(inner, value[0], &fields.request.prompt_text);
  if (value[0].empty()) return InvalidValue(inner, "`prompt` holds no tokens; at least one is needed", 1, 0);
  return ReadTokens(inner, value[0], fields.limits.vocab_size, &fields.request.prompt_tokens);
}

}  // namespace reprise
