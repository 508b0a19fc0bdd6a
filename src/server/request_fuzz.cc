// The bytes of a body, through every parser of bodies. What must hold: no crash, and a request that is
// accepted is within its ranges.
#include <cstdint>
#include <string_view>

#include "base/check.h"
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

void CheckRequest(Endpoint endpoint, const CompletionRequest& request, const RequestLimits& limits) {
  CHECK(request.sampling.temperature >= 0 && request.sampling.top_p > 0 && request.sampling.top_p <= 1);
  CHECK(request.sampling.min_p >= 0 && request.sampling.min_p <= 1);
  CHECK(request.max_tokens.value_or(1) > 0);
  CHECK_LE(request.stop.size(), kStopStringsMax);
  for (const std::string& stop : request.stop) CHECK(!stop.empty() && stop.size() <= kStopBytesMax);
  for (const TokenId token : request.prompt_tokens) {
    CHECK(token.value() >= 0 && static_cast<uint32_t>(token.value()) < limits.vocab_size);
  }
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
  TokenizeRequest tokenize;
  if (const auto error = ParseTokenize(body, limits, &tokenize)) CheckError(*error);
  return 0;
}
