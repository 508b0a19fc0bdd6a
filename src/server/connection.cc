#include "server/connection.h"

#include <poll.h>

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/asio/error.hpp>
#include <boost/asio/post.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace reprise {
namespace {

namespace asio = boost::asio;

constexpr uint32_t kLingerFactor = 5;  // a client that keeps sending lingers at most this many times longer

std::string_view Reason(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 204:
      return "No Content";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 409:
      return "Conflict";
    case 413:
      return "Content Too Large";
    case 415:
      return "Unsupported Media Type";
    case 422:
      return "Unprocessable Content";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 501:
      return "Not Implemented";
    case 503:
      return "Service Unavailable";
    default:
      return status < 500 ? "Error" : "Internal Server Error";
  }
}

std::string StatusLine(int status) {
  return absl::StrCat("HTTP/1.1 ", status, " ", std::string(Reason(status)), "\r\n");
}

}  // namespace

// The handler's side of one request. Cut loose from the connection when the reply is complete or the
// client is gone.
class Connection::Exchange : public HttpExchange {
 public:
  explicit Exchange(Connection* connection) : connection_(connection) {}

  void Reply(HttpResponse response) override {
    if (connection_ != nullptr) connection_->SendWhole(std::move(response));
  }
  void StartStream() override {
    if (connection_ != nullptr) connection_->SendStreamHead();
  }
  void Write(std::string_view bytes) override {
    if (connection_ != nullptr) connection_->SendStreamBytes(bytes);
  }
  void Finish() override {
    if (connection_ != nullptr) connection_->SendStreamEnd();
  }
  bool gone() const override { return gone_; }
  void OnGone(std::function<void()> callback) override { on_gone_ = std::move(callback); }
  void OnSilence(std::function<void()> callback) override { on_silence_ = std::move(callback); }

  void Silence() {
    if (on_silence_) on_silence_();
  }
  // The reply is complete. The callbacks go: they may hold what holds this exchange.
  void Release() {
    connection_ = nullptr;
    on_gone_ = nullptr;
    on_silence_ = nullptr;
  }
  void Gone() {
    gone_ = true;
    const std::function<void()> callback = std::move(on_gone_);
    Release();
    if (callback) callback();
  }

 private:
  Connection* connection_;  // null: cut loose
  bool gone_ = false;
  std::function<void()> on_gone_;
  std::function<void()> on_silence_;
};

Connection::Connection(asio::ip::tcp::socket socket, ConnectionHost& host)
    : socket_(std::move(socket)), host_(host), reader_(host.limits, host.budget) {}

Connection::~Connection() = default;

void Connection::Start() {
  boost::system::error_code ignored;  // without these two it is slower, not wrong
  socket_.set_option(asio::ip::tcp::no_delay(true), ignored);
  socket_.set_option(asio::socket_base::keep_alive(true), ignored);
  boost::system::error_code error;
  socket_.non_blocking(true, error);
  if (error) return Close();
  last_read_ = last_progress_ = Clock::now();
  Enter(State::kIdle);
  WaitReadable();
}

void Connection::Refuse(HttpResponse response) {
  Start();
  if (state_ == State::kClosed) return;
  Enter(State::kAnswering);
  close_after_ = true;
  SendWhole(std::move(response));
}

void Connection::Enter(State state) {
  state_ = state;
  entered_ = Clock::now();
}

void Connection::WaitReadable() {
  socket_.async_wait(asio::ip::tcp::socket::wait_read,
                     [self = shared_from_this()](const boost::system::error_code& error) { self->OnReadable(error); });
}

void Connection::OnReadable(const boost::system::error_code& error) {
  if (state_ == State::kClosed) return;
  if (error) return Close();
  boost::system::error_code read_error;
  const size_t bytes = socket_.read_some(asio::buffer(host_.scratch.data(), host_.scratch.size()), read_error);
  if (read_error == asio::error::would_block || read_error == asio::error::interrupted) return WaitReadable();
  if (read_error == asio::error::eof) return OnEof();
  if (read_error) return Close();
  last_read_ = Clock::now();
  OnBytes({host_.scratch.data(), bytes});
  if (state_ == State::kClosed) return;
  reading_paused_ = state_ == State::kAnswering && InIsFull();
  if (!reading_paused_) WaitReadable();
}

void Connection::ResumeReading() {
  if (std::exchange(reading_paused_, false)) WaitReadable();
}

bool Connection::HungUp() {
  pollfd socket{.fd = socket_.native_handle(), .events = POLLRDHUP};
  return poll(&socket, 1, 0) > 0;
}

void Connection::OnBytes(std::string_view bytes) {
  // After the last reply nothing that comes is read; it is taken so that closing does not reset the connection.
  if (state_ == State::kLingering || (close_after_ && reply_complete_)) return;
  in_ += bytes;
  Read();
}

// FIN: the client has hung up, or has half-closed, which looks the same. Only what is complete already
// is still sent.
void Connection::OnEof() {
  eof_ = true;
  if (state_ == State::kAnswering && reply_complete_) {
    close_after_ = true;
    return;  // OnFlushed closes
  }
  Close();
}

void Connection::Read() {
  if (state_ == State::kAnswering || state_ == State::kLingering || state_ == State::kClosed || in_.empty()) return;
  const RequestReader::Progress progress = reader_.Feed(in_);
  const bool waits = progress == RequestReader::Progress::kContinue || progress == RequestReader::Progress::kMore;
  if (waits && state_ != State::kBody && reader_.in_body()) {
    if (const auto why = host_.handler.CheckHead(reader_.Head())) return SendError(*why);
  }
  switch (progress) {
    case RequestReader::Progress::kContinue:
      Enter(State::kBody);
      Send("HTTP/1.1 100 Continue\r\n\r\n");
      return Read();
    case RequestReader::Progress::kMore: {
      const State next = reader_.in_body() ? State::kBody : in_.empty() ? State::kIdle : State::kHeader;
      if (next != state_) Enter(next);
      return ResumeReading();
    }
    case RequestReader::Progress::kDone:
      return Handle();
    case RequestReader::Progress::kError:
      return SendError(reader_.error());
    case RequestReader::Progress::kNotHttp:
      return Close();
  }
}

void Connection::Handle() {
  HttpRequest request = reader_.Take();
  Enter(State::kAnswering);
  reply_complete_ = false;
  close_after_ = !reader_.keep_alive() || host_.draining;
  head_only_ = request.method == "HEAD";
  if (in_.empty()) in_ = std::string();  // gives its memory back
  exchange_ = std::make_shared<Exchange>(this);
  host_.handler.Handle(std::move(request), exchange_);
}

void Connection::SendError(const RequestError& error) {
  Enter(State::kAnswering);
  close_after_ = true;
  reply_complete_ = false;
  head_only_ = false;
  in_ = std::string();
  SendWhole(ErrorResponse(error));
}

void Connection::SendWhole(HttpResponse response) {
  CHECK(state_ == State::kAnswering && !reply_complete_);
  std::string bytes = StatusLine(response.status);
  if (response.status != 204) {  // which has no body, and may not have its length
    absl::StrAppend(&bytes, "Content-Type: ", response.content_type, "\r\nContent-Length: ", response.body.size(),
                    "\r\n");
  }
  bytes += host_.handler.CommonHeaders(reader_.origin());
  for (const auto& [name, value] : response.headers) absl::StrAppend(&bytes, name, ": ", value, "\r\n");
  close_after_ = close_after_ || host_.draining;
  // HTTP/1.0 closes unless both sides say otherwise.
  absl::StrAppend(&bytes,
                  close_after_       ? "Connection: close\r\n"
                  : reader_.http11() ? ""
                                     : "Connection: keep-alive\r\n",
                  "\r\n");
  if (!head_only_) bytes += response.body;
  reply_complete_ = true;
  if (exchange_) exchange_->Release();
  Send(std::move(bytes));
}

void Connection::SendStreamHead() {
  CHECK(state_ == State::kAnswering && !reply_complete_);
  chunked_ = reader_.http11();
  close_after_ = close_after_ || host_.draining || !chunked_;
  std::string bytes = StatusLine(200) + host_.handler.CommonHeaders(reader_.origin());
  absl::StrAppend(&bytes, "Content-Type: text/event-stream\r\nCache-Control: no-cache\r\nX-Accel-Buffering: no\r\n",
                  chunked_ ? "Transfer-Encoding: chunked\r\n" : "",
                  close_after_ ? "Connection: close\r\n\r\n" : "\r\n");
  Send(std::move(bytes));
}

void Connection::SendStreamBytes(std::string_view bytes) {
  if (bytes.empty()) return;  // an empty chunk would end the stream
  const std::string text(bytes);
  Send(chunked_ ? absl::StrCat(absl::Hex(bytes.size()), "\r\n", text, "\r\n") : text);
  if (unsent_bytes() > host_.limits.stream_buffer_bytes) Close();
}

void Connection::SendStreamEnd() {
  reply_complete_ = true;
  exchange_->Release();
  Send(chunked_ ? "0\r\n\r\n" : "");
}

void Connection::Send(std::string bytes) {
  if (state_ == State::kClosed) return;
  if (unsent_bytes() == 0) last_progress_ = Clock::now();
  if (out_.empty()) {
    out_ = std::move(bytes);
  } else {
    out_ += bytes;
  }
  if (!write_pending_) Flush();
}

void Connection::Flush() {
  while (unsent_bytes() > 0) {
    boost::system::error_code error;
    sent_ += socket_.write_some(asio::buffer(out_.data() + sent_, unsent_bytes()), error);
    if (error == asio::error::would_block) {
      if (sent_ > out_.size() / 2) out_.erase(0, std::exchange(sent_, 0));  // moves no byte more than twice
      write_pending_ = true;
      return socket_.async_wait(asio::ip::tcp::socket::wait_write,
                                [self = shared_from_this()](const boost::system::error_code& wait_error) {
                                  self->write_pending_ = false;
                                  if (self->state_ == State::kClosed) return;
                                  wait_error ? self->Close() : self->Flush();
                                });
    }
    if (error) return Close();
    last_progress_ = Clock::now();
  }
  out_ = std::string();
  sent_ = 0;
  if (state_ != State::kAnswering || !reply_complete_) return;
  // Through the queue, so that neither handlers nor a thousand pipelined requests nest.
  asio::post(socket_.get_executor(), [self = shared_from_this()] { self->OnFlushed(); });
}

void Connection::OnFlushed() {
  if (state_ != State::kAnswering || !reply_complete_) return;
  exchange_.reset();
  if (eof_) return Close();
  if (close_after_ || host_.draining) {
    // The client may still be sending: closing now would reset the connection and lose the reply.
    boost::system::error_code ignored;
    socket_.shutdown(asio::ip::tcp::socket::shutdown_send, ignored);
    Enter(State::kLingering);
    return ResumeReading();
  }
  Enter(State::kIdle);
  if (!InIsFull()) ResumeReading();
  Read();
}

void Connection::Tick(Clock::time_point now) {
  const ServerLimits& limits = host_.limits;
  const auto over = [now](Clock::time_point since, uint64_t ms) { return now - since > std::chrono::milliseconds(ms); };
  if (state_ == State::kClosed) return;
  if (reading_paused_ && HungUp()) return OnEof();
  if (unsent_bytes() > 0 && over(last_progress_, limits.write_stall_ms)) return Close();
  const bool slow =
      (state_ == State::kHeader && over(entered_, limits.header_ms)) ||
      (state_ == State::kBody && (over(last_read_, limits.body_stall_ms) || over(entered_, limits.body_ms)));
  if (slow) return reader_.TimedOut(in_) == RequestReader::Progress::kError ? SendError(reader_.error()) : Close();
  if (state_ == State::kIdle && over(entered_, limits.idle_ms)) return Close();
  if (state_ == State::kLingering &&
      (over(std::max(last_read_, entered_), limits.linger_ms) || over(entered_, limits.linger_ms * kLingerFactor))) {
    return Close();
  }
  if (state_ == State::kAnswering && !reply_complete_ && exchange_ && over(last_progress_, limits.comment_ms) &&
      over(entered_, limits.comment_ms)) {
    const auto exchange = exchange_;  // the callback may end it
    exchange->Silence();
  }
}

std::optional<Connection::Clock::time_point> Connection::idle_since() const {
  if (state_ != State::kIdle) return std::nullopt;
  return entered_;
}

void Connection::Drain() {
  if (state_ == State::kIdle || state_ == State::kHeader) return Close();
  close_after_ = close_after_ || state_ == State::kAnswering;
}

void Connection::Close() {
  if (state_ == State::kClosed) return;
  const auto self = shared_from_this();
  state_ = State::kClosed;
  boost::system::error_code ignored;
  socket_.close(ignored);
  in_ = std::string();
  out_ = std::string();
  if (const auto exchange = std::exchange(exchange_, nullptr)) exchange->Gone();
  host_.on_closed(*this);
}

}  // namespace reprise
