// A blocking HTTP/1.1 client for benchmarks: one request at a time, a connection for each.
//
// Ownership: values. Threads: one per object.
// Errors:    InvalidArgument: a URL that is not http://host[:port]; Unavailable: nobody answers there.
//            There is no deadline: benchmarks wait.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "absl/status/statusor.h"

namespace reprise {

class HttpClient {
 public:
  static absl::StatusOr<std::unique_ptr<HttpClient>> Connect(const std::string& url);
  ~HttpClient();

  // POSTs JSON and parses the JSON reply. A status other than 200 is an Internal error with the body.
  absl::StatusOr<nlohmann::json> Post(const std::string& path, const nlohmann::json& body);

 private:
  HttpClient();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace reprise
