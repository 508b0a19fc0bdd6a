// HTTP/1.1 over sockets, without any knowledge of what is served: connections, limits and timeouts on
// one I/O thread, a handler for whole requests, replies that are whole or streamed.
//
// Ownership: owns its thread, its connections and the listening socket; the handler must outlive Stop.
// Threads:   Start, port, Stop: any thread. Handler and exchanges: the I/O thread only. IoQueue: any.
// Errors:    Start: InvalidArgument (host), AlreadyExists (port busy), PermissionDenied (port), each
//            saying what to do. What goes wrong with a client stays with that client.
// Design:    docs/http.md, docs/decisions/0005-http-library.md
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "server/errors.h"
#include "server/server_limits.h"

namespace reprise {

// Bytes of bodies in memory, all connections together. A charge is given back when it is destroyed.
class BodyBudget {
 public:
  explicit BodyBudget(uint64_t bytes_max) : bytes_max_(bytes_max) {}
  class Charge {
   public:
    Charge() = default;
    Charge(Charge&& other) noexcept { *this = std::move(other); }
    Charge& operator=(Charge&& other) noexcept {
      std::swap(budget_, other.budget_);
      std::swap(bytes_, other.bytes_);
      return *this;
    }
    ~Charge() {
      if (budget_ != nullptr) budget_->used_ -= bytes_;
    }
    // As BodyBudget::Raise, where something is charged already.
    bool RaiseTo(uint64_t bytes) { return budget_ == nullptr || BodyBudget::Raise(budget_, bytes, *this); }

   private:
    friend class BodyBudget;
    std::shared_ptr<BodyBudget> budget_;
    uint64_t bytes_ = 0;
  };
  // Raises `charge` to `bytes`; false, and nothing charged, when that is too much.
  static bool Raise(const std::shared_ptr<BodyBudget>& budget, uint64_t bytes, Charge& charge) {
    const uint64_t more = bytes > charge.bytes_ ? bytes - charge.bytes_ : 0;
    if (budget->used_.fetch_add(more) + more > budget->bytes_max_) {
      budget->used_ -= more;
      return false;
    }
    charge.budget_ = budget;
    charge.bytes_ += more;
    return true;
  }
  uint64_t used_bytes() const { return used_; }
  uint64_t bytes_max() const { return bytes_max_; }

 private:
  const uint64_t bytes_max_;
  std::atomic<uint64_t> used_ = 0;
};

struct HttpRequest {
  std::string method;
  std::string path;  // without the query
  std::string body;
  // Headers; "" without.
  std::string host;
  std::string authorization;
  std::string origin;         // of the page whose script asks
  std::string cors_headers;   // Access-Control-Request-Headers
  BodyBudget::Charge charge;  // for `body`
};

struct HttpResponse {
  int status = 200;
  std::string body;
  std::vector<std::pair<std::string, std::string>> headers;  // besides length and type
  std::string content_type = "application/json";
};

HttpResponse JsonResponse(std::string body);
HttpResponse ErrorResponse(const RequestError& error);

// One request and its reply: Reply once, or StartStream, Write any number of times, Finish. After the
// client has gone, all of them do nothing.
class HttpExchange {
 public:
  virtual ~HttpExchange() = default;
  virtual void Reply(HttpResponse response) = 0;
  virtual void StartStream() = 0;  // 200, text/event-stream
  virtual void Write(std::string_view bytes) = 0;
  virtual void Finish() = 0;
  virtual bool gone() const = 0;
  // Called at most once, on the I/O thread, when the client hangs up, stops reading, or the server closes
  // the connection before the reply is complete.
  virtual void OnGone(std::function<void()> callback) = 0;
  // Called when the client was sent nothing for `comment_ms`, again and again.
  virtual void OnSilence(std::function<void()> callback) = 0;
};

class HttpHandler {
 public:
  virtual ~HttpHandler() = default;
  // Must not block. The exchange may be kept and answered later.
  virtual void Handle(HttpRequest request, std::shared_ptr<HttpExchange> exchange) = 0;
  // The same, when the header is complete and the body still on its way: an error is sent at once, and the
  // connection closed. `head` has no body.
  virtual MaybeError CheckHead(const HttpRequest& head) const = 0;
  // Lines ("Name: value\r\n") that every reply has to a request with this Origin header, errors of HTTP too.
  virtual std::string CommonHeaders(std::string_view origin) const = 0;
};

// Runs functions on the I/O thread, in order. May outlive the server: then it drops them.
class IoQueue {
 public:
  virtual ~IoQueue() = default;
  virtual void Post(std::function<void()> function) = 0;
};

class HttpServer {
 public:
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(const std::string& host, uint16_t port,
                                                           const ServerLimits& limits, HttpHandler& handler);
  ~HttpServer();  // Stop(0)

  uint16_t port() const;
  uint32_t connections_max() const;  // the limit, or what the process may have of file descriptors
  std::shared_ptr<IoQueue> queue() const;

  // Stops listening, closes idle connections, gives the others `grace_ms` to take what is left to send,
  // closes them and joins the I/O thread. The second call is a no-op.
  void Stop(uint32_t grace_ms);

 private:
  HttpServer();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace reprise
