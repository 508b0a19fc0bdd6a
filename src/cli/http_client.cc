#include "cli/http_client.h"

#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"

namespace reprise {

namespace asio = boost::asio;
namespace http = boost::beast::http;

struct HttpClient::Impl {
  std::string host;
  std::string port;
  asio::io_context context;
  asio::ip::tcp::resolver::results_type endpoints;
};

HttpClient::HttpClient() : impl_(std::make_unique<Impl>()) {}
HttpClient::~HttpClient() = default;

absl::StatusOr<std::unique_ptr<HttpClient>> HttpClient::Connect(const std::string& url) {
  constexpr std::string_view kScheme = "http://";
  std::string address = url.compare(0, kScheme.size(), kScheme) == 0 ? url.substr(kScheme.size()) : "";
  address = address.substr(0, address.find('/'));
  if (address.empty())
    return absl::InvalidArgumentError(absl::StrCat("'", url, "' is not a URL like http://127.0.0.1:8080"));
  std::unique_ptr<HttpClient> client(new HttpClient());
  const size_t colon = address.rfind(':');
  client->impl_->host = address.substr(0, colon);
  client->impl_->port = colon == std::string::npos ? "80" : address.substr(colon + 1);
  boost::system::error_code error;
  asio::ip::tcp::resolver resolver(client->impl_->context);
  client->impl_->endpoints = resolver.resolve(client->impl_->host, client->impl_->port, error);
  if (error) return absl::UnavailableError(absl::StrCat("cannot find ", url, ": ", error.message()));
  return client;
}

absl::StatusOr<nlohmann::json> HttpClient::Post(const std::string& path, const nlohmann::json& body) {
  http::request<http::string_body> request(http::verb::post, path, 11);
  request.set(http::field::host, impl_->host);
  request.set(http::field::content_type, "application/json");
  request.body() = body.dump();
  request.prepare_payload();
  // A connection for each request: peers close idle ones after seconds.
  boost::system::error_code error;
  asio::ip::tcp::socket socket(impl_->context);
  boost::beast::flat_buffer buffer;
  asio::connect(socket, impl_->endpoints, error);
  if (error)
    return absl::UnavailableError(
        absl::StrCat("no answer from ", impl_->host, ":", impl_->port, ": ", error.message()));
  socket.set_option(asio::ip::tcp::no_delay(true), error);
  http::write(socket, request, error);
  http::response_parser<http::string_body> parser;
  parser.body_limit(64ull << 20);
  if (!error) http::read(socket, buffer, parser, error);
  if (error) return absl::UnavailableError(absl::StrCat("POST ", path, ": ", error.message()));
  if (parser.get().result_int() != 200)
    return absl::InternalError(
        absl::StrCat("POST ", path, " gave ", parser.get().result_int(), ": ", parser.get().body()));
  nlohmann::json reply = nlohmann::json::parse(parser.get().body(), nullptr, false);
  if (reply.is_discarded()) return absl::InternalError(absl::StrCat("POST ", path, ": the reply is not JSON"));
  return reply;
}

}  // namespace reprise
