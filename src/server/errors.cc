#include "server/errors.h"

#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/json.h"

namespace reprise {
namespace {

RequestError Make(int status, std::string code, std::string param, std::string message) {
  RequestError error;
  error.http_status = status;
  error.code = std::move(code);
  error.param = std::move(param);
  error.message = std::move(message);
  return error;
}

std::string_view TypeOf(const RequestError& error) {
  if (error.http_status == 403) return "permission_error";
  if (error.code == "unauthorized") return "authentication_error";
  if (error.http_status == 404) return "not_found_error";
  if (error.http_status == 429) return "rate_limit_error";
  return error.http_status < 500 ? "invalid_request_error" : "server_error";
}

// A limit of 8388608 is written as an integer, one of 0.5 as it is.
Json Number(double value) {
  if (std::nearbyint(value) == value && std::abs(value) < 9e15) return static_cast<int64_t>(value);
  return value;
}

}  // namespace

RequestError InvalidJson(std::string message) { return Make(400, "invalid_json", "", std::move(message)); }

RequestError InvalidValue(std::string param, std::string message, std::optional<double> limit,
                          std::optional<double> got) {
  RequestError error = Make(400, "invalid_value", std::move(param), std::move(message));
  error.limit = limit;
  error.got = got;
  return error;
}

RequestError WrongType(std::string param, std::string_view got, std::string_view needed) {
  std::string message = absl::StrCat("`", param, "` is ", std::string(got), "; it must be ", std::string(needed));
  return InvalidValue(std::move(param), std::move(message));
}

RequestError MissingField(std::string param, std::string message) {
  return Make(400, "missing_field", std::move(param), std::move(message));
}

RequestError Unsupported(std::string param, std::string_view supported) {
  std::string message = absl::StrCat("`", param, "` is not supported: ", std::string(supported));
  return Make(400, "unsupported", std::move(param), std::move(message));
}

RequestError BodyTooLarge(std::string message, double limit, std::optional<double> got) {
  RequestError error = Make(413, "body_too_large", "", std::move(message));
  error.limit = limit;
  error.got = got;
  return error;
}

RequestError QueueFull(std::string message, double limit, uint32_t retry_after_s) {
  RequestError error = Make(429, "queue_full", "", std::move(message));
  error.limit = limit;
  error.retry_after_s = retry_after_s;
  return error;
}

RequestError ShuttingDown() {
  return Make(503, "shutting_down", "", "the server is shutting down and takes no new requests");
}

RequestError Loading() {
  RequestError error = Make(503, "loading", "", "the model is still being loaded; /ready turns to 200 when it is");
  error.retry_after_s = 1;
  return error;
}

RequestError Internal(std::string message) { return Make(500, "internal", "", std::move(message)); }

std::string ErrorBody(const RequestError& error) {
  Json body = {{"type", std::string(TypeOf(error))},
               {"code", error.code},
               {"param", error.param.empty() ? Json(nullptr) : Json(error.param)},
               {"message", error.message}};
  if (error.limit.has_value()) body["limit"] = Number(*error.limit);
  if (error.got.has_value()) body["got"] = Number(*error.got);
  return Dump(Json({{"error", std::move(body)}}));
}

}  // namespace reprise
