// One client's connection: reads requests, hands them over one at a time, writes replies, and notices
// within one turn of the event loop when the client goes away, whatever is going on.
//
// The socket is waited on for reading also while a reply is made: that is how a client that vanishes is
// seen. Bytes that arrive meanwhile are the next request's and wait in `in_`; when that is full, reading
// pauses, and every tick asks the system whether the client has hung up.
//
// Ownership: kept alive by its pending socket operations and by the host's list.
// Threads:   the I/O thread only.
// Errors:    none leave it: a broken connection closes and tells its exchange.
#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "server/http_server.h"
#include "server/request_reader.h"

namespace reprise {

class Connection;

// What connections share.
struct ConnectionHost {
  const ServerLimits limits;
  HttpHandler& handler;
  const std::shared_ptr<BodyBudget> budget;
  const std::span<char> scratch;  // one read's bytes, used within one call
  bool draining = false;          // replies say "Connection: close"
  std::function<void(Connection&)> on_closed;
};

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  using Clock = std::chrono::steady_clock;

  Connection(boost::asio::ip::tcp::socket socket, ConnectionHost& host);
  ~Connection();

  void Start();
  // Sends `response` to a client that is one too many, and closes.
  void Refuse(HttpResponse response);
  // Timeouts and silence; called several times within the shortest of them.
  void Tick(Clock::time_point now);
  // Closes now if nothing is being answered, else after the reply.
  void Drain();
  // Now; the exchange is told.
  void Close();
  // Since when it waits for a request of which nothing has come yet; absent: it does not.
  std::optional<Clock::time_point> idle_since() const;

 private:
  class Exchange;
  enum class State { kIdle, kHeader, kBody, kAnswering, kLingering, kClosed };

  void WaitReadable();
  void OnReadable(const boost::system::error_code& error);
  void OnBytes(std::string_view bytes);
  void OnEof();
  bool InIsFull() const { return in_.size() > host_.limits.header_bytes_max; }
  void ResumeReading();
  bool HungUp();
  // Feeds the reader until it needs more bytes or a request is being answered.
  void Read();
  void Handle();
  void Enter(State state);

  // For the exchange.
  void SendWhole(HttpResponse response);
  void SendStreamHead();
  void SendStreamBytes(std::string_view bytes);
  void SendStreamEnd();

  void SendError(const RequestError& error);
  void Send(std::string bytes);
  // Gives the system what it takes, waits until it takes more.
  void Flush();
  void OnFlushed();
  uint64_t unsent_bytes() const { return out_.size() - sent_; }

  boost::asio::ip::tcp::socket socket_;
  ConnectionHost& host_;
  RequestReader reader_;
  std::string in_;   // read, not yet consumed
  std::string out_;  // to be sent, from sent_ on
  size_t sent_ = 0;
  bool reading_paused_ = false;  // nothing waits for the socket to be readable
  bool write_pending_ = false;   // something waits for it to be writable
  State state_ = State::kIdle;
  bool reply_complete_ = false;  // all of the reply is in out_ or further
  bool close_after_ = false;
  bool eof_ = false;
  bool head_only_ = false;     // a HEAD request
  bool chunked_ = false;       // the stream's framing
  Clock::time_point entered_;  // this state
  Clock::time_point last_read_;
  Clock::time_point last_progress_;  // of sending: bytes taken by the client, or new ones given
  std::shared_ptr<Exchange> exchange_;
};

}  // namespace reprise
