// For tests: a server over loopback with a fake engine behind it.
#pragma once

#include <gtest/gtest.h>
#include <spdlog/spdlog.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "server/fakes.h"
#include "server/json.h"
#include "server/raw_client.h"
#include "server/server.h"

namespace reprise {

// True once `condition` holds; false after some seconds.
template <class Condition>
bool Eventually(Condition condition) {
  for (int i = 0; i < 2000; ++i) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return false;
}

inline std::string CodeOf(const RawResponse& response) {
  const Json body = Json::parse(response.body, nullptr, /*allow_exceptions=*/false);
  if (!body.is_object() || !body.contains("error")) return "no error: " + response.body;
  return body["error"]["code"].get<std::string>();
}

// The `data:` lines of a stream; comments apart.
inline std::vector<std::string> DataOf(const std::string& stream) {
  std::vector<std::string> out;
  size_t at = 0;
  while (at < stream.size()) {
    const size_t end = stream.find("\n\n", at);
    if (end == std::string::npos) break;
    const std::string event = stream.substr(at, end - at);
    if (event.starts_with("data: ")) out.push_back(event.substr(6));
    at = end + 2;
  }
  return out;
}

class LiveServerTest : public ::testing::Test {
 protected:
  void SetUp() override { spdlog::set_level(spdlog::level::off); }
  void TearDown() override {
    if (server_) server_->Stop(0);
  }

  void Start(bool attach = true) {
    options_.port = 0;
    auto server = Server::Start(options_);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    if (!attach) return;
    server_->Attach(engine_, codec_, {"fake", "alias"});
    ASSERT_TRUE(Eventually([&] { return Ask("GET", "/ready").status == 200; }));
  }
  RawClient Connect(int receive_buffer = 0) { return RawClient(server_->port(), receive_buffer); }
  RawResponse Ask(const std::string& method, const std::string& path, const std::string& body = "") {
    RawClient client = Connect();
    client.Send(method + " " + path + " HTTP/1.1\r\nHost: x\r\nContent-Length: " + std::to_string(body.size()) +
                "\r\n\r\n" + body);
    return client.Read(method == "HEAD");
  }
  RawResponse Chat(const std::string& body) { return Ask("POST", "/v1/chat/completions", body); }
  RawResponse Complete(const std::string& body) { return Ask("POST", "/v1/completions", body); }
  void ExpectServing() {
    engine_.stay = FakeEngine::Phase::kNever;
    const RawResponse response = Complete(R"({"prompt":"still here"})");
    EXPECT_EQ(response.status, 200) << response.body;
    EXPECT_EQ(Json::parse(response.body)["choices"][0]["text"], "still here");
  }

  ServerOptions options_;
  FakeCodec codec_;
  FakeEngine engine_;
  std::unique_ptr<Server> server_;
};

}  // namespace reprise
