// Bytes of a connection to HTTP requests, one after the other. The one file that meets Boost.Beast
// (its parser) is this one's source; no sockets here, so it is tested and fuzzed with bytes alone.
//
// Ownership: owns what it has read of the request. Threads: one per object.
// Errors:    a RequestError to send before closing; or kNotHttp: close without a word.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "server/errors.h"
#include "server/http_server.h"

namespace reprise {

class RequestReader {
 public:
  RequestReader(const ServerLimits& limits, std::shared_ptr<BodyBudget> budget);
  ~RequestReader();

  enum class Progress {
    kMore,      // feed more
    kContinue,  // the client waits for "100 Continue" before it sends the body; then feed more
    kDone,      // Take()
    kError,     // send error(), then close: what follows cannot be told apart
    kNotHttp,
  };
  // Takes what it can from the front of `in`. What is left there belongs to the next request, or to
  // a header that is not complete. After kDone: Take() before more. After kError and kNotHttp: no more.
  Progress Feed(std::string& in);

  // The request without its body. REQUIRES: in_body(), or kDone.
  HttpRequest Head() const;
  // The request that was read. REQUIRES: kDone. Then the reader is ready for the next one.
  HttpRequest Take();

  bool in_body() const;  // the header is complete, the body not
  // What to do when the client is too slow; `in` is what Feed left: kError (408) or kNotHttp.
  Progress TimedOut(const std::string& in);

  // Of the last request that Take returned, if nothing else is said.
  bool keep_alive() const;            // as RFC 9112 derives it from version and Connection
  bool http11() const;                // replies may be chunked
  const std::string& origin() const;  // of the request last seen, once its header is complete; "" without
  const RequestError& error() const;  // REQUIRES: kError

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace reprise
