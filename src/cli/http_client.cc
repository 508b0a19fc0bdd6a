#include "cli/http_client.h"

#include <poll.h>

#include <array>
#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>
#include <nlohmann/json.hpp>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace reprise {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using boost::system::error_code;

namespace {

constexpr uint64_t kBodyBytesMax = 64ull << 20;
constexpr int kStopPollMs = 50;

// What a reply that is not 200 comes to.
absl::Status ErrorOf(const std::string& what, unsigned status, const std::string& body) {
  std::string message = body.substr(0, 2000);
  absl::StatusCode code = status == 401 ? absl::StatusCode::kUnauthenticated : absl::StatusCode::kInternal;
  const nlohmann::json parsed = nlohmann::json::parse(body, nullptr, false);
  if (parsed.is_object() && parsed.contains("error") && parsed["error"].is_object()) {
    const nlohmann::json& error = parsed["error"];
    if (error.contains("message") && error["message"].is_string()) message = error["message"].get<std::string>();
    // Ours, OpenAI's.
    for (const char* too_long : {"context_too_long", "context_length_exceeded"})
      if (error.contains("code") && error["code"] == too_long) code = absl::StatusCode::kOutOfRange;
  }
  return absl::Status(code, absl::StrCat(what, " gave ", status, ": ", message));
}

absl::StatusOr<nlohmann::json> Parsed(const std::string& path, const absl::StatusOr<std::string>& reply) {
  if (!reply.ok()) return reply.status();
  nlohmann::json parsed = nlohmann::json::parse(*reply, nullptr, false);
  if (parsed.is_discarded()) return absl::InternalError(absl::StrCat(path, ": the reply is not JSON"));
  return parsed;
}

}  // namespace

std::string ServerUrl(std::string url) {
  while (!url.empty() && url.back() == '/') url.pop_back();
  if (url.size() > 3 && url.compare(url.size() - 3, 3, "/v1") == 0) url.resize(url.size() - 3);
  return url;
}

struct HttpClient::Impl {
  std::string host;
  std::string port;
  std::string base;  // of every path
  std::string api_key;
  asio::io_context context;
  asio::ip::tcp::resolver::results_type endpoints;

  http::request<http::string_body> Request(http::verb verb, const std::string& path, std::string body) const {
    http::request<http::string_body> request(verb, base + path, 11);
    const bool v6 = host.find(':') != std::string::npos;
    request.set(http::field::host, absl::StrCat(v6 ? "[" : "", host, v6 ? "]" : "", port == "80" ? "" : ":" + port));
    request.set(http::field::user_agent, "reprise");
    if (!api_key.empty()) request.set(http::field::authorization, absl::StrCat("Bearer ", api_key));
    if (verb == http::verb::post) request.set(http::field::content_type, "application/json");
    request.body() = std::move(body);
    request.prepare_payload();
    return request;
  }

  absl::Status Open(asio::ip::tcp::socket& socket) {
    error_code error;
    asio::connect(socket, endpoints, error);
    if (error) return absl::UnavailableError(absl::StrCat("no answer from ", host, ":", port, ": ", error.message()));
    socket.set_option(asio::ip::tcp::no_delay(true), error);
    return absl::OkStatus();
  }

  absl::StatusOr<std::string> Exchange(const http::request<http::string_body>& request) {
    const std::string what = absl::StrCat(std::string(request.method_string()), " ", std::string(request.target()));
    // A connection for each request: peers close idle ones after seconds.
    asio::ip::tcp::socket socket(context);
    const absl::Status open = Open(socket);
    if (!open.ok()) return open;
    error_code error;
    boost::beast::flat_buffer buffer;
    http::write(socket, request, error);
    http::response_parser<http::string_body> parser;
    parser.body_limit(kBodyBytesMax);
    if (!error) http::read(socket, buffer, parser, error);
    if (error) return absl::UnavailableError(absl::StrCat(what, ": ", error.message()));
    if (parser.get().result_int() != 200) return ErrorOf(what, parser.get().result_int(), parser.get().body());
    return std::move(parser.get().body());
  }
};

HttpClient::HttpClient() : impl_(std::make_unique<Impl>()) {}
HttpClient::~HttpClient() = default;

absl::StatusOr<std::unique_ptr<HttpClient>> HttpClient::Connect(const std::string& url, const std::string& api_key) {
  constexpr std::string_view kScheme = "http://";
  if (url.compare(0, 8, "https://") == 0)
    return absl::InvalidArgumentError(absl::StrCat("'", url, "': TLS is not supported; give an http:// URL"));
  std::string address = url.compare(0, kScheme.size(), kScheme) == 0 ? url.substr(kScheme.size()) : "";
  const size_t slash = std::min(address.find('/'), address.size());
  std::string base = address.substr(slash);
  while (!base.empty() && base.back() == '/') base.pop_back();
  address.resize(slash);
  if (address.empty())
    return absl::InvalidArgumentError(absl::StrCat("'", url, "' is not a URL like http://127.0.0.1:8080"));
  std::unique_ptr<HttpClient> client(new HttpClient());
  // [::1]:8080 has its port behind the bracket.
  const size_t bracket = address[0] == '[' ? std::min(address.find(']'), address.size()) : 0;
  const size_t colon = address.find(':', bracket);
  client->impl_->host = bracket > 0 ? address.substr(1, bracket - 1) : address.substr(0, colon);
  client->impl_->port = colon == std::string::npos ? "80" : address.substr(colon + 1);
  uint32_t port = 0;
  const bool closed = bracket == 0 || bracket < address.size();
  if (!closed || !absl::SimpleAtoi(client->impl_->port, &port) || port == 0 || port > 65535)
    return absl::InvalidArgumentError(absl::StrCat("'", url, "' is not a URL like http://127.0.0.1:8080"));
  client->impl_->base = base;
  client->impl_->api_key = api_key;
  error_code error;
  asio::ip::tcp::resolver resolver(client->impl_->context);
  client->impl_->endpoints = resolver.resolve(client->impl_->host, client->impl_->port, error);
  if (error) return absl::UnavailableError(absl::StrCat("cannot find ", url, ": ", error.message()));
  return client;
}

absl::StatusOr<std::string> HttpClient::Send(const std::string& method, const std::string& path,
                                             const std::string& body) {
  return impl_->Exchange(impl_->Request(method == "GET" ? http::verb::get : http::verb::post, path, body));
}

absl::StatusOr<nlohmann::json> HttpClient::Post(const std::string& path, const nlohmann::json& body) {
  return Parsed(path, Send("POST", path, body.dump()));
}

absl::StatusOr<nlohmann::json> HttpClient::Get(const std::string& path) { return Parsed(path, Send("GET", path, "")); }

absl::Status HttpClient::PostStream(const std::string& path, const nlohmann::json& body,
                                    const std::function<bool(std::string_view)>& on_bytes,
                                    const std::atomic<bool>& stop) {
  const auto request =
      impl_->Request(http::verb::post, path, body.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  asio::ip::tcp::socket socket(impl_->context);
  const absl::Status open = impl_->Open(socket);
  if (!open.ok()) return open;
  error_code error;
  http::write(socket, request, error);
  // From here on a read that would block gives would_block: then the wait is ours, and can be ended.
  if (!error) socket.non_blocking(true, error);
  boost::beast::flat_buffer buffer;
  http::response_parser<http::buffer_body> parser;
  parser.body_limit(boost::none);  // a stream ends when it ends
  std::array<char, 4096> bytes;
  std::string refusal;
  while (!error && !parser.is_done() && !stop) {
    parser.get().body().data = bytes.data();
    parser.get().body().size = bytes.size();
    http::read_some(socket, buffer, parser, error);
    if (error == http::error::need_buffer) error = {};
    const std::string_view read(bytes.data(), bytes.size() - parser.get().body().size);
    if (parser.is_header_done() && parser.get().result_int() != 200) {
      refusal.append(read.substr(0, kBodyBytesMax - std::min<size_t>(refusal.size(), kBodyBytesMax)));
    } else if (!read.empty() && !on_bytes(read)) {
      return absl::OkStatus();
    }
    if (error == asio::error::would_block) {
      error = {};
      pollfd waiting{.fd = socket.native_handle(), .events = POLLIN, .revents = 0};
      poll(&waiting, 1, kStopPollMs);  // a signal ends it early
    }
  }
  if (stop) return absl::OkStatus();
  const std::string what = absl::StrCat("POST ", impl_->base, path);
  if (error) return absl::UnavailableError(absl::StrCat(what, ": ", error.message()));
  if (parser.get().result_int() != 200) return ErrorOf(what, parser.get().result_int(), refusal);
  return absl::OkStatus();
}

}  // namespace reprise
