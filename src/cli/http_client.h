// A blocking HTTP/1.1 client: one request at a time, a connection for each.
//
// Ownership: values. Threads: one per object.
// Errors:    InvalidArgument: a URL that is not http://host[:port][/path]; Unavailable: nobody answers there.
//            There is no deadline: benchmarks and people wait; PostStream can be stopped.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace reprise {

// The URL without a slash or a /v1 at its end, which settings of OpenAI's clients have.
std::string ServerUrl(std::string url);

class HttpClient {
 public:
  // A path in the URL goes before those of the requests. `api_key`: sent as bearer token unless empty.
  static absl::StatusOr<std::unique_ptr<HttpClient>> Connect(const std::string& url, const std::string& api_key = "");
  ~HttpClient();

  // Post and Get parse the reply's JSON. A status other than 200 is an error: what the server says in
  // {"error": {"message": ...}}, else the body. Unauthenticated: 401; OutOfRange: longer than the context;
  // else Internal.
  // The body as it is, and the reply's; "" is no body.
  absl::StatusOr<std::string> Send(const std::string& method, const std::string& path, const std::string& body);
  absl::StatusOr<nlohmann::json> Post(const std::string& path, const nlohmann::json& body);
  absl::StatusOr<nlohmann::json> Get(const std::string& path);

  // POSTs JSON and hands the reply's bytes over as they come. Hangs up when `on_bytes` returns false, or
  // within 50 ms of `stop` turning true; both are OK.
  absl::Status PostStream(const std::string& path, const nlohmann::json& body,
                          const std::function<bool(std::string_view)>& on_bytes, const std::atomic<bool>& stop);

 private:
  HttpClient();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace reprise
