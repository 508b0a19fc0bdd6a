// The bytes of a body, through every parser of bodies. What must hold: no crash, and a request that is
// accepted is within its ranges.
#include <cstdint>
#include <set>
#include <string>
#include <string_view>

#include "base/check.h"
#include "engine/generation.h"
#include "server/field_values.h"
#include "server/request.h"

namespace reprise {
namespace {

void CheckError(const RequestError& error) {
  CHECK(error.http_status >= 400 && error.http_status < 500);
  CHECK(!error.code.empty() && !error.message.empty());
  CHECK_LT(error.message.size(), 4096u);
  Json back;
  CHECK(!ParseJson(ErrorBody(error), {}, &back).has_value());
}

// What goes on as JSON text is JSON: the token side reads it again.
void CheckIsObject(const std::string& json) {
  Json value;
  if (!json.empty()) CHECK(!ParseJson(json, {}, &value).has_value() && value.is_object());
}

void CheckRequest(Endpoint endpoint, const CompletionRequest& request, const RequestLimits& limits) {
  CHECK(request.sampling.temperature >= 0 && request.sampling.top_p > 0 && request.sampling.top_p <= 1);
  CHECK(request.sampling.min_p >= 0 && request.sampling.min_p <= 1);
  CHECK(request.max_tokens.value_or(1) > 0);
  CHECK_LE(request.stop.size(), kStopStringsMax);
  for (const std::string& stop : request.stop) CHECK(!stop.empty() && stop.size() <= kStopBytesMax);
  for (const TokenId token : request.prompt_tokens) {
    CHECK(token.value() >= 0 && static_cast<uint32_t>(token.value()) < limits.vocab_size);
  }
  CHECK(request.n >= 1 && request.n <= kChoicesMax);
  for (const float penalty : {request.sampling.frequency_penalty, request.sampling.presence_penalty}) {
    CHECK(penalty >= -2 && penalty <= 2);
  }
  CHECK(request.sampling.repeat_penalty > 0 && request.sampling.repeat_penalty <= 10);
  CHECK_LE(request.logit_bias.size(), kLogitBiasMax);
  std::set<TokenId> biased;
  for (const LogitBias& bias : request.logit_bias) {
    CHECK(bias.token.value() >= 0 && static_cast<uint32_t>(bias.token.value()) < limits.vocab_size);
    CHECK(bias.bias >= -100 && bias.bias <= 100 && biased.insert(bias.token).second);
  }
  CHECK_LE(request.json_schema.size(), kResponseSchemaBytesMax);
  CheckIsObject(request.json_schema);
  CHECK_LE(request.chat.tools.size(), kToolsMax);
  std::set<std::string> names;
  for (const ChatTool& tool : request.chat.tools) {
    CHECK(!tool.name.empty() && tool.name.size() <= kNameBytesMax && names.insert(tool.name).second);
    CHECK(tool.name.find_first_of("\"\\\n ") == std::string::npos);
    CheckIsObject(tool.parameters);
  }
  CHECK(request.chat.tool_choice != ToolChoice::kRequired || !request.chat.tools.empty());
  CHECK_LE(request.chat.template_kwargs.size(), kTemplateKwargsMax);
  CHECK(!request.echo || !request.logprobs.has_value());
  CHECK((endpoint == Endpoint::kChat) == !request.chat.messages.empty());
}

}  // namespace
}  // namespace reprise

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace reprise;
  const std::string_view body(reinterpret_cast<const char*>(data), size);
  const RequestLimits limits{.json = {.depth_max = 16, .values_max = 10'000}, .vocab_size = 1000};
  for (const Endpoint endpoint : {Endpoint::kText, Endpoint::kChat}) {
    CompletionRequest request;
    if (const auto error = ParseCompletion(endpoint, body, limits, &request)) {
      CheckError(*error);
    } else {
      CheckRequest(endpoint, request, limits);
    }
  }
  Endpoint endpoint = Endpoint::kText;
  CompletionRequest either;
  if (const auto error = ParseEitherCompletion(body, limits, &endpoint, &either)) {
    CheckError(*error);
  } else {
    CheckRequest(endpoint, either, limits);
  }
  if (const auto error = ParseEmpty(body, limits)) CheckError(*error);
  std::vector<TokenId> tokens;
  if (const auto error = ParseDetokenize(body, limits, &tokens)) CheckError(*error);
  TokenizeRequest tokenize;
  if (const auto error = ParseTokenize(body, limits, &tokenize)) CheckError(*error);
  return 0;
}
