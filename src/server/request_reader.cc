#include "server/request_reader.h"

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/beast/core/string.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <charconv>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace reprise {
namespace {

namespace http = boost::beast::http;
using boost::beast::iequals;
using Parser = http::request_parser<http::string_body>;

constexpr size_t kMethodBytesMax = 20;
constexpr std::string_view kHeaderEnd = "\r\n\r\n";
// "0", two line ends: every chunked body ends with as many bytes at least, and Beast's parser asserts that
// it has them when it sees the last chunk's line for the second time.
constexpr size_t kLastChunkBytes = 5;

RequestError HttpError(int status, std::string message, std::optional<double> limit = std::nullopt) {
  RequestError error = InvalidValue("", std::move(message), limit);
  error.http_status = status;
  return error;
}

enum class Look { kHttp, kPartly, kNot };

// Does `in` start with a request line of HTTP/1? Seen before the parser sees it: garbage (a TLS hello,
// a port scan) is let go at its first byte, and never answered.
Look LookAt(std::string_view in) {
  const size_t line_end = in.find('\n');
  std::string_view line = in.substr(0, line_end);
  const size_t space = line.find(' ');
  const std::string_view method = line.substr(0, space);
  if (method.size() > kMethodBytesMax || (method.empty() && !line.empty())) return Look::kNot;
  if (!std::all_of(method.begin(), method.end(), [](char c) { return c >= 'A' && c <= 'Z'; })) return Look::kNot;
  if (line_end == std::string_view::npos) return Look::kPartly;
  if (line.ends_with('\r')) line.remove_suffix(1);
  return line.ends_with(" HTTP/1.1") || line.ends_with(" HTTP/1.0") ? Look::kHttp : Look::kNot;
}

}  // namespace

struct RequestReader::Impl {
  Impl(const ServerLimits& limits, std::shared_ptr<BodyBudget> budget) : limits(limits), budget(std::move(budget)) {}

  Progress Fail(RequestError why) {
    error = std::move(why);
    return Progress::kError;
  }
  Progress HeaderTooLarge() {
    return Fail(HttpError(431, absl::StrCat("the header is larger than ", limits.header_bytes_max, " bytes"),
                          limits.header_bytes_max));
  }
  Progress FailParse(const boost::system::error_code& why);
  // What the header says about the body, before a byte of it is read. nullopt: go on.
  std::optional<Progress> CheckHeader();
  // One call of the parser. False: `*progress` says why not.
  bool Put(std::string& in, Progress* progress);

  const ServerLimits limits;
  const std::shared_ptr<BodyBudget> budget;
  std::optional<Parser> parser;  // while a request is being read: an idle connection has none
  BodyBudget::Charge charge;
  RequestError error;
  bool keep_alive = false;
  bool http11 = true;
  std::string origin;
};

RequestReader::RequestReader(const ServerLimits& limits, std::shared_ptr<BodyBudget> budget)
    : impl_(std::make_unique<Impl>(limits, std::move(budget))) {}
RequestReader::~RequestReader() = default;

RequestReader::Progress RequestReader::Impl::FailParse(const boost::system::error_code& why) {
  origin = std::string(parser->get()[http::field::origin]);  // a declared length too large fails inside the header
  if (why == http::error::header_limit) return HeaderTooLarge();
  if (why == http::error::body_limit) {
    // The field itself: the parser tells what it read only when the header is done, and this ends it before.
    const auto declared = parser->get()[http::field::content_length];
    uint64_t length = 0;
    const bool is_declared =
        std::from_chars(declared.data(), declared.data() + declared.size(), length).ec == std::errc();
    const double got = static_cast<double>(is_declared ? length : parser->get().body().size());
    return Fail(BodyTooLarge(absl::StrCat("the body is larger than ", limits.body_bytes_max, " bytes"),
                             static_cast<double>(limits.body_bytes_max), got));
  }
  return Fail(HttpError(400, absl::StrCat("the request is not well-formed HTTP: ", why.message())));
}

std::optional<RequestReader::Progress> RequestReader::Impl::CheckHeader() {
  const auto& header = parser->get();
  origin = std::string(header[http::field::origin]);
  // A body framed in two ways is read differently by every proxy on the way.
  if (header.count(http::field::transfer_encoding) > 0 && header.count(http::field::content_length) > 0) {
    return Fail(HttpError(400, "the request has Transfer-Encoding and Content-Length; only one may frame the body"));
  }
  if (header.count(http::field::transfer_encoding) > 0 && !iequals(header[http::field::transfer_encoding], "chunked")) {
    return Fail(HttpError(501, "the only Transfer-Encoding supported is chunked"));
  }
  const auto encoding = header[http::field::content_encoding];
  if (!encoding.empty() && !iequals(encoding, "identity")) {
    RequestError unsupported = Unsupported("Content-Encoding", "only identity is; send the JSON as it is");
    unsupported.http_status = 415;
    return Fail(std::move(unsupported));
  }
  if (!parser->is_done() && iequals(header[http::field::expect], "100-continue") && header.version() == 11) {
    return Progress::kContinue;
  }
  return std::nullopt;
}

bool RequestReader::Impl::Put(std::string& in, Progress* progress) {
  boost::system::error_code why;
  const size_t used = parser->put(boost::asio::const_buffer(in.data(), in.size()), why);
  in.erase(0, used);
  if (why == http::error::need_more) {
    // In a header the parser counts; a chunk's size line or a trailer could go on for ever.
    *progress = parser->is_header_done() && in.size() > limits.header_bytes_max
                    ? Fail(HttpError(400, "a chunk's header or trailer is too long", limits.header_bytes_max))
                    : Progress::kMore;
    return false;
  }
  if (why) {
    *progress = FailParse(why);
    return false;
  }
  if (!BodyBudget::Raise(budget, parser->get().body().size(), charge)) {
    *progress = Fail(QueueFull("too many large requests are being received; come again in a second",
                               static_cast<double>(limits.bodies_bytes_max), 1));
    return false;
  }
  return true;
}

RequestReader::Progress RequestReader::Feed(std::string& in) {
  Impl& impl = *impl_;
  if (!impl.parser.has_value()) {
    // RFC 9112 2.2: empty lines before a request are ignored.
    in.erase(0, std::min(in.find_first_not_of("\r\n"), in.size()));
    if (in.empty()) return Progress::kMore;
    const Look look = LookAt(in);
    if (look == Look::kNot) return Progress::kNotHttp;
    if (look == Look::kPartly && in.size() <= impl.limits.header_bytes_max) return Progress::kMore;
    impl.parser.emplace();
    impl.origin.clear();
    impl.parser->header_limit(impl.limits.header_bytes_max);
    impl.parser->body_limit(impl.limits.body_bytes_max);
  }
  Progress progress = Progress::kMore;
  if (!impl.parser->is_header_done()) {
    // The parser gets a header whole: fed in pieces it counts otherwise, and lets some that are too large pass.
    const size_t end = in.find(kHeaderEnd);
    const size_t bytes = end == std::string::npos ? in.size() : end + kHeaderEnd.size();
    if (bytes > impl.limits.header_bytes_max) return impl.HeaderTooLarge();
    if (end == std::string::npos) return Progress::kMore;
    if (!impl.Put(in, &progress)) return progress;
    if (!impl.parser->is_header_done()) return Progress::kMore;
    if (const auto verdict = impl.CheckHeader()) return *verdict;
  }
  while (!impl.parser->is_done()) {
    if (in.size() < (impl.parser->chunked() ? kLastChunkBytes : 1)) return Progress::kMore;
    if (!impl.Put(in, &progress)) return progress;
  }
  return Progress::kDone;
}

HttpRequest RequestReader::Head() const {
  CHECK(in_body());
  const auto& message = impl_->parser->get();
  HttpRequest request;
  request.method = std::string(message.method_string());
  const std::string target(message.target());
  request.path = target.substr(0, target.find('?'));
  request.host = std::string(message[http::field::host]);
  request.authorization = std::string(message[http::field::authorization]);
  request.origin = impl_->origin;
  request.cors_headers = std::string(message[http::field::access_control_request_headers]);
  return request;
}

HttpRequest RequestReader::Take() {
  Impl& impl = *impl_;
  CHECK(impl.parser.has_value() && impl.parser->is_done());
  HttpRequest request = Head();
  auto& message = impl.parser->get();
  request.body = std::move(message.body());
  request.charge = std::move(impl.charge);
  impl.keep_alive = message.keep_alive();
  impl.http11 = message.version() >= 11;
  impl.parser.reset();
  return request;
}

bool RequestReader::in_body() const { return impl_->parser.has_value() && impl_->parser->is_header_done(); }

RequestReader::Progress RequestReader::TimedOut(const std::string& in) {
  if (!impl_->parser.has_value() && LookAt(in) != Look::kHttp) return Progress::kNotHttp;
  return impl_->Fail(
      HttpError(408, in_body() ? "the body did not arrive in time" : "the header did not arrive in time"));
}

bool RequestReader::keep_alive() const { return impl_->keep_alive; }
bool RequestReader::http11() const { return impl_->http11; }
const std::string& RequestReader::origin() const { return impl_->origin; }
const RequestError& RequestReader::error() const { return impl_->error; }

}  // namespace reprise
