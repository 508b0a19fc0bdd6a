// For tests: a client that sends exactly the bytes it is told to, over a blocking socket, and waits at
// most a few seconds for anything.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <cctype>
#include <cstdlib>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/check.h"

namespace reprise {

struct RawResponse {
  int status = 0;
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;                            // chunks joined
  bool complete = false;                       // ended as its framing says
};

class RawClient {
 public:
  explicit RawClient(uint16_t port, int receive_buffer = 0) {
    fd_ = socket(AF_INET, SOCK_STREAM, 0);
    CHECK_GE(fd_, 0);
    if (receive_buffer > 0) setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof(receive_buffer));
    const timeval patience{.tv_sec = 5, .tv_usec = 0};
    setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    setsockopt(fd_, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connected_ = connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
  }
  RawClient(RawClient&& other) noexcept
      : fd_(std::exchange(other.fd_, -1)), connected_(other.connected_), in_(std::move(other.in_)) {}
  ~RawClient() { Close(); }

  bool connected() const { return connected_; }
  void Close() {
    if (fd_ >= 0) close(fd_);
    fd_ = -1;
  }
  void HalfClose() { shutdown(fd_, SHUT_WR); }

  // False: the server has closed.
  bool Send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t sent = send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) return false;
      bytes.remove_prefix(sent);
    }
    return true;
  }
  bool Get(const std::string& path) { return Send("GET " + path + " HTTP/1.1\r\nHost: x\r\n\r\n"); }
  bool Post(const std::string& path, const std::string& body, const std::string& headers = "") {
    return Send("POST " + path + " HTTP/1.1\r\nHost: x\r\n" + headers +
                "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body);
  }

  // Reads until `text` has arrived; everything read so far. Shorter than asked: closed or timed out.
  bool ReadUntil(std::string_view text) {
    while (in_.find(text) == std::string::npos) {
      if (!More()) return false;
    }
    return true;
  }
  bool ClosedByServer() {
    while (More()) {
    }
    return closed_;
  }
  const std::string& buffered() const { return in_; }

  RawResponse Read(bool head_only = false) {
    RawResponse response;
    if (!ReadUntil("\r\n\r\n")) return response;
    const size_t end = in_.find("\r\n\r\n");
    ParseHead(in_.substr(0, end + 2), response);
    in_.erase(0, end + 4);
    if (response.status == 100) return response;
    if (head_only || response.status == 204) {
      response.complete = true;
    } else if (response.headers.contains("transfer-encoding")) {
      response.complete = ReadChunks(response);
    } else if (response.headers.contains("content-length")) {
      const size_t length = std::stoul(response.headers["content-length"]);
      while (in_.size() < length && More()) {
      }
      response.complete = in_.size() >= length;
      response.body = in_.substr(0, length);
      in_.erase(0, length);
    } else {
      response.complete = ClosedByServer();
      response.body = std::exchange(in_, "");
    }
    return response;
  }

 private:
  bool More() {
    char buffer[16384];
    const ssize_t got = recv(fd_, buffer, sizeof(buffer), 0);
    if (got == 0 || (got < 0 && errno == ECONNRESET)) closed_ = true;
    if (got <= 0) return false;
    in_.append(buffer, got);
    return true;
  }
  static void ParseHead(const std::string& head, RawResponse& response) {
    response.status = std::atoi(head.substr(head.find(' ') + 1, 3).c_str());
    size_t at = head.find("\r\n") + 2;
    while (at < head.size()) {
      const size_t end = head.find("\r\n", at);
      const std::string line = head.substr(at, end - at);
      const size_t colon = line.find(':');
      std::string name = line.substr(0, colon);
      for (char& c : name) c = static_cast<char>(std::tolower(c));
      response.headers[name] = line.substr(colon + 2);
      at = end + 2;
    }
  }
  bool ReadChunks(RawResponse& response) {
    while (true) {
      if (!ReadUntil("\r\n")) return false;
      const size_t line_end = in_.find("\r\n");
      const size_t size = std::stoul(in_.substr(0, line_end), nullptr, 16);
      while (in_.size() < line_end + 2 + size + 2) {
        if (!More()) return false;
      }
      response.body += in_.substr(line_end + 2, size);
      in_.erase(0, line_end + 2 + size + 2);
      if (size == 0) return true;
    }
  }

  int fd_ = -1;
  bool connected_ = false;
  bool closed_ = false;
  std::string in_;
};

}  // namespace reprise
