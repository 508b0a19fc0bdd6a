#include "server/http_server.h"

#include <sys/resource.h>

#include <algorithm>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <thread>
#include <unordered_map>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "server/connection.h"

namespace reprise {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

constexpr uint32_t kRefusedMax = 64;  // connections beyond the limit that are told so; the rest are just closed
constexpr std::chrono::milliseconds kIdleMin(250);  // a connection that makes room has waited this long at least
constexpr size_t kScratchBytes = 16 << 10;
constexpr rlim_t kOtherFiles = 256;  // model, tiers, log: files that are not connections

class AsioQueue : public IoQueue {
 public:
  void Post(std::function<void()> function) override { asio::post(context, std::move(function)); }
  asio::io_context context{1};
};

absl::StatusOr<tcp::endpoint> Resolve(asio::io_context& context, const std::string& host, uint16_t port) {
  error_code error;
  const auto address = asio::ip::make_address(host, error);
  if (!error) return tcp::endpoint(address, port);
  tcp::resolver resolver(context);
  const auto found = resolver.resolve(host, absl::StrCat(port), error);
  if (error || found.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("--host ", host, ": ", error.message(),
                                                   "; give an address of this machine, 127.0.0.1 for this machine "
                                                   "only, or 0.0.0.0 for all networks"));
  }
  return found.begin()->endpoint();
}

absl::Status ListenError(const std::string& host, uint16_t port, const error_code& error) {
  const std::string where = absl::StrCat(host, ":", port);
  if (error == asio::error::address_in_use) {
    return absl::AlreadyExistsError(absl::StrCat(where,
                                                 " is taken by another process: stop that one, or choose "
                                                 "another port with --port N (0 takes any free one)"));
  }
  if (error == asio::error::access_denied) {
    return absl::PermissionDeniedError(absl::StrCat("no permission to listen on ", where,
                                                    ": ports below 1024 need it; choose one above with --port N"));
  }
  return absl::InvalidArgumentError(absl::StrCat("cannot listen on ", where, ": ", error.message(),
                                                 "; --host must be an address of this machine, such as 127.0.0.1"));
}

// Many systems start a process with 1,024 descriptors, fewer than the connections served. Returns how many
// connections fit.
uint32_t RaiseFileLimit(uint32_t connections) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return connections;
  const rlim_t wanted = rlim_t{connections} + kRefusedMax + kOtherFiles;
  if (limit.rlim_cur < wanted) {
    limit.rlim_cur = std::min(wanted, limit.rlim_max);
    setrlimit(RLIMIT_NOFILE, &limit);  // a failure shows in the next line
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return connections;
  }
  if (limit.rlim_cur >= wanted) return connections;
  const rlim_t left = limit.rlim_cur > kRefusedMax + kOtherFiles ? limit.rlim_cur - kRefusedMax - kOtherFiles : 16;
  return static_cast<uint32_t>(std::min<rlim_t>(left, connections));
}

// Often enough that no timeout is late by more than a quarter.
std::chrono::milliseconds TickOf(const ServerLimits& limits) {
  const uint32_t shortest = std::min({limits.idle_ms, limits.header_ms, limits.body_stall_ms, limits.body_ms,
                                      limits.write_stall_ms, limits.linger_ms, limits.comment_ms});
  return std::chrono::milliseconds(std::clamp<uint32_t>(shortest / 4, 5, 500));
}

}  // namespace

HttpResponse JsonResponse(std::string body) {
  HttpResponse response;
  response.body = std::move(body);
  return response;
}

HttpResponse ErrorResponse(const RequestError& error) {
  HttpResponse response;
  response.status = error.http_status;
  response.body = ErrorBody(error);
  if (error.http_status == 401) response.headers.emplace_back("WWW-Authenticate", "Bearer realm=\"reprise\"");
  if (error.retry_after_s > 0) response.headers.emplace_back("Retry-After", absl::StrCat(error.retry_after_s));
  return response;
}

struct HttpServer::Impl {
  Impl(const ServerLimits& limits, HttpHandler& handler)
      : queue(std::make_shared<AsioQueue>()),
        acceptor(queue->context),
        timer(queue->context),
        work(queue->context.get_executor()),
        scratch(kScratchBytes),
        host{.limits = limits,
             .handler = handler,
             .budget = std::make_shared<BodyBudget>(std::max(limits.bodies_bytes_max, limits.body_bytes_max)),
             .scratch = scratch,
             .on_closed = [this](Connection& connection) { OnClosed(connection); }},
        connections_max(RaiseFileLimit(limits.connections_max)),
        tick(TickOf(limits)) {}

  absl::Status Listen(const std::string& address, uint16_t port);
  void Accept();
  void OnAccepted(const error_code& error, tcp::socket socket);
  void OnClosed(Connection& connection);
  void CloseLongestIdle();
  void Tick();
  void BeginStop(uint32_t grace_ms);
  void EndStop();
  std::vector<std::shared_ptr<Connection>> Open() const;

  const std::shared_ptr<AsioQueue> queue;
  tcp::acceptor acceptor;
  asio::steady_timer timer;
  asio::executor_work_guard<asio::io_context::executor_type> work;
  std::vector<char> scratch;
  ConnectionHost host;
  const uint32_t connections_max;
  const std::chrono::milliseconds tick;
  std::unordered_map<Connection*, std::shared_ptr<Connection>> connections;
  bool accepting = false;  // an accept is pending
  Connection::Clock::time_point stop_at;
  uint16_t port = 0;
  std::thread thread;
};

absl::Status HttpServer::Impl::Listen(const std::string& address, uint16_t wanted) {
  auto endpoint = Resolve(queue->context, address, wanted);
  if (!endpoint.ok()) return endpoint.status();
  error_code error;
  acceptor.open(endpoint->protocol(), error);
  if (!error) acceptor.set_option(asio::socket_base::reuse_address(true), error);
  if (!error) acceptor.bind(*endpoint, error);
  if (!error) acceptor.listen(asio::socket_base::max_listen_connections, error);
  if (!error) port = acceptor.local_endpoint(error).port();
  return error ? ListenError(address, wanted, error) : absl::OkStatus();
}

void HttpServer::Impl::Accept() {
  accepting = true;
  acceptor.async_accept([this](const error_code& error, tcp::socket socket) { OnAccepted(error, std::move(socket)); });
}

void HttpServer::Impl::OnAccepted(const error_code& error, tcp::socket socket) {
  accepting = false;
  if (host.draining) return;
  if (error) return;  // out of descriptors, most likely: Tick tries again
  if (connections.size() >= connections_max) CloseLongestIdle();
  if (connections.size() < connections_max + kRefusedMax) {
    const bool refused = connections.size() >= connections_max;
    const auto connection = std::make_shared<Connection>(std::move(socket), host);
    connections.emplace(connection.get(), connection);
    if (refused) {
      RequestError why =
          QueueFull(absl::StrCat("the server has ", connections_max, " connections already"), connections_max, 1);
      why.http_status = 503;
      connection->Refuse(ErrorResponse(why));
    } else {
      connection->Start();
    }
  }
  Accept();
}

// Makes room: a client that only holds a connection loses it to one that has something to ask.
void HttpServer::Impl::CloseLongestIdle() {
  Connection* longest = nullptr;
  auto since = Connection::Clock::now() - kIdleMin;
  for (const auto& [connection, owner] : connections) {
    const auto idle_since = connection->idle_since();
    if (!idle_since || *idle_since > since) continue;
    longest = connection;
    since = *idle_since;
  }
  if (longest != nullptr) longest->Close();
}

void HttpServer::Impl::OnClosed(Connection& connection) {
  connections.erase(&connection);
  if (host.draining && connections.empty()) EndStop();
}

std::vector<std::shared_ptr<Connection>> HttpServer::Impl::Open() const {
  std::vector<std::shared_ptr<Connection>> open;
  open.reserve(connections.size());
  for (const auto& [key, connection] : connections) open.push_back(connection);
  return open;
}

void HttpServer::Impl::Tick() {
  timer.expires_after(tick);
  timer.async_wait([this](const error_code& error) {
    if (error) return;
    const auto now = Connection::Clock::now();
    const bool late = host.draining && now >= stop_at;
    for (const auto& connection : Open()) late ? connection->Close() : connection->Tick(now);
    if (!host.draining && !accepting) Accept();
    const bool ended = host.draining && connections.empty();
    if (!ended) Tick();
  });
}

void HttpServer::Impl::BeginStop(uint32_t grace_ms) {
  error_code ignored;
  acceptor.close(ignored);
  host.draining = true;
  stop_at = Connection::Clock::now() + std::chrono::milliseconds(grace_ms);
  for (const auto& connection : Open()) connection->Drain();
  if (connections.empty()) EndStop();
}

void HttpServer::Impl::EndStop() {
  timer.cancel();
  work.reset();
}

HttpServer::HttpServer() = default;
HttpServer::~HttpServer() { Stop(0); }

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(const std::string& host, uint16_t port,
                                                              const ServerLimits& limits, HttpHandler& handler) {
  std::unique_ptr<HttpServer> server(new HttpServer);
  server->impl_ = std::make_unique<Impl>(limits, handler);
  Impl* const impl = server->impl_.get();
  if (absl::Status status = impl->Listen(host, port); !status.ok()) return status;
  impl->Accept();
  impl->Tick();
  impl->thread = std::thread([impl] { impl->queue->context.run(); });
  return server;
}

uint16_t HttpServer::port() const { return impl_->port; }
uint32_t HttpServer::connections_max() const { return impl_->connections_max; }
std::shared_ptr<IoQueue> HttpServer::queue() const { return impl_->queue; }

void HttpServer::Stop(uint32_t grace_ms) {
  if (!impl_->thread.joinable()) return;
  impl_->queue->Post([impl = impl_.get(), grace_ms] { impl->BeginStop(grace_ms); });
  impl_->thread.join();
}

}  // namespace reprise
