// Clients that vanish, stall, flood or speak nonsense: a typed error or a closed connection each, and
// the next request is served.
#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <thread>

#include "server/live_server.h"

namespace reprise {
namespace {

using namespace std::chrono_literals;
using Phase = FakeEngine::Phase;

uint64_t ResidentBytes() {
  std::ifstream file("/proc/self/statm");
  uint64_t size = 0, resident = 0;
  file >> size >> resident;
  return resident * 4096;
}

class HostileClientTest : public LiveServerTest {};

TEST_F(HostileClientTest, AVanishedClientIsCancelledInEveryPhase) {
  Start();
  int cancelled = 0;
  for (const Phase phase : {Phase::kQueued, Phase::kPrefill, Phase::kDecoding}) {
    for (const bool stream : {false, true}) {
      for (const bool half : {false, true}) {
        engine_.stay = phase;
        RawClient client = Connect();
        client.Post("/v1/completions", Dump(Json({{"prompt", "abc"}, {"stream", stream}})));
        ASSERT_TRUE(Eventually([&] { return engine_.live() == 1; }));
        std::this_thread::sleep_for(3ms);
        EXPECT_EQ(engine_.live(), 1u) << "a client that waits is not cancelled";
        half ? client.HalfClose() : client.Close();
        EXPECT_TRUE(Eventually([&] { return engine_.live() == 0; })) << static_cast<int>(phase) << stream << half;
        EXPECT_EQ(engine_.cancelled(), ++cancelled);
      }
    }
  }
  ExpectServing();
}

TEST_F(HostileClientTest, AVanishedClientIsSeenBehindPipelinedBytes) {
  Start();
  engine_.stay = Phase::kDecoding;
  RawClient client = Connect();
  client.Post("/v1/completions", R"({"prompt":"abc"})");
  ASSERT_TRUE(Eventually([&] { return engine_.live() == 1; }));
  for (int i = 0; i < 100; ++i) client.Get("/health?" + std::string(1000, 'x'));
  client.Close();
  EXPECT_TRUE(Eventually([&] { return engine_.live() == 0; }));
  ExpectServing();
}

TEST_F(HostileClientTest, AReaderThatStopsReadingIsCancelled) {
  Start();
  engine_.repeat_text = 20'000;
  engine_.step_us = 10'000;
  RawClient keen = Connect();  // the control: more text than may wait, but read
  keen.Post("/v1/completions", R"({"prompt":"abc","stream":true,"max_tokens":20})");
  EXPECT_TRUE(keen.Read().complete);
  EXPECT_EQ(engine_.cancelled(), 0);

  engine_.step_us = 200;
  engine_.stay = Phase::kDecoding;
  RawClient reader = Connect(4096);
  reader.Post("/v1/completions", R"({"prompt":"abc","stream":true})");
  EXPECT_TRUE(Eventually([&] { return engine_.cancelled() == 1; }));
  EXPECT_TRUE(Eventually([&] { return engine_.live() == 0; }));
  engine_.repeat_text = 1;
  ExpectServing();
}

TEST_F(HostileClientTest, AStalledReaderOfAWholeReplyIsClosed) {
  options_.limits.write_stall_ms = 50;
  Start();
  engine_.repeat_text = 3'000'000;
  RawClient reader = Connect(4096);
  reader.Post("/v1/completions", R"({"prompt":"abc","max_tokens":4})");
  ASSERT_TRUE(reader.ReadUntil("HTTP/1.1 200"));
  std::this_thread::sleep_for(300ms);
  EXPECT_FALSE(reader.Read().complete);
  engine_.repeat_text = 1;
  ExpectServing();
}

TEST_F(HostileClientTest, KeepAliveAndPipeliningAnswerInOrder) {
  Start();
  RawClient client = Connect();
  for (int i = 0; i < 3; ++i) {
    client.Post("/v1/completions", R"({"prompt":"one"})");
    EXPECT_EQ(Json::parse(client.Read().body)["choices"][0]["text"], "one");
  }
  client.Send(
      "GET /health HTTP/1.1\r\n\r\nPOST /v1/completions HTTP/1.1\r\nContent-Length: 16\r\n\r\n{\"prompt\":\"two\"}"
      "GET /v1/models HTTP/1.1\r\nConnection: close\r\n\r\n");
  EXPECT_EQ(client.Read().body, R"({"status":"ok"})");
  EXPECT_EQ(Json::parse(client.Read().body)["choices"][0]["text"], "two");
  const RawResponse last = client.Read();
  EXPECT_EQ(last.headers.at("connection"), "close");
  EXPECT_TRUE(client.ClosedByServer());
}

// 32 kB of them: more than are read ahead.
TEST_F(HostileClientTest, AThousandPipelinedRequestsAreAnswered) {
  Start();
  RawClient client = Connect();
  std::thread sender([&] {
    for (int i = 0; i < 1000; ++i) client.Get("/health");
  });
  // The reader is another thread's socket half: only receives are made here.
  int answered = 0;
  while (answered < 1000 && client.Read().status == 200) ++answered;
  sender.join();
  EXPECT_EQ(answered, 1000);
}

TEST_F(HostileClientTest, RequestsBehindALongReplyAreAnsweredAfterIt) {
  Start();
  engine_.stay = Phase::kDecoding;
  RawClient client = Connect();
  client.Post("/v1/completions", R"({"prompt":"abc"})");
  ASSERT_TRUE(Eventually([&] { return engine_.live() == 1; }));
  constexpr int kBehind = 60;
  for (int i = 0; i < kBehind; ++i) client.Get("/health?" + std::string(1000, 'x'));
  std::this_thread::sleep_for(50ms);
  EXPECT_EQ(engine_.live(), 1u);
  engine_.stay = Phase::kNever;
  EXPECT_EQ(client.Read().status, 200);
  for (int i = 0; i < kBehind; ++i) ASSERT_EQ(client.Read().body, R"({"status":"ok"})") << i;
}

TEST_F(HostileClientTest, AThousandIdleConnectionsCostLittleAndDisturbNobody) {
  Start();
  ASSERT_GE(server_->connections_max(), 1000u);
  std::vector<RawClient> idle;
  for (int i = 0; i < 10; ++i) idle.push_back(Connect());
  const uint64_t before = ResidentBytes();
  for (int i = 0; i < 1000; ++i) {
    idle.push_back(Connect());
    ASSERT_TRUE(idle.back().connected());
    if (i % 2 == 0) {  // half of them have asked before
      idle.back().Get("/health");
      ASSERT_EQ(idle.back().Read().status, 200);
    }
  }
  const uint64_t each = (ResidentBytes() - before) / 1000;
  RecordProperty("bytes_per_idle_connection", static_cast<int>(each));
  EXPECT_LT(each, 20'000u);  // client and server together
  ExpectServing();
  for (size_t i = 10; i < idle.size(); i += 100) {
    idle[i].Get("/health");
    EXPECT_EQ(idle[i].Read().status, 200);
  }
}

// Connections with a request stay; none but them is worth a refusal.
TEST_F(HostileClientTest, OneConnectionTooManyIsToldSo) {
  options_.limits.connections_max = 4;
  engine_.stay = Phase::kDecoding;
  Start();
  std::this_thread::sleep_for(50ms);  // until the connection that asked for /ready is gone
  std::vector<RawClient> busy;
  for (int i = 0; i < 4; ++i) {
    busy.push_back(Connect());
    busy.back().Post("/v1/completions", R"({"prompt":"abc"})");
  }
  ASSERT_TRUE(Eventually([&] { return engine_.live() == 4; }));
  const RawResponse refused = Complete(R"({"prompt":"a"})");
  EXPECT_EQ(refused.status, 503);
  EXPECT_EQ(CodeOf(refused), "queue_full");
  EXPECT_EQ(engine_.live(), 4u);
  engine_.stay = Phase::kNever;
  busy.clear();
  EXPECT_TRUE(Eventually([&] { return Complete(R"({"prompt":"a"})").status == 200; }));
}

TEST_F(HostileClientTest, IdleConnectionsMakeRoom) {
  options_.limits.connections_max = 4;
  Start();
  std::vector<RawClient> idle;
  for (int i = 0; i < 4; ++i) idle.push_back(Connect());
  // Refused while all of them have only just come.
  EXPECT_TRUE(Eventually([&] { return Complete(R"({"prompt":"a"})").status == 200; }));
  idle.back().Get("/health");
  EXPECT_EQ(idle.back().Read().status, 200);  // it was the longest idle one that went
}

TEST_F(HostileClientTest, HugeBodiesAreRefusedWithBothNumbers) {
  options_.limits.body_bytes_max = 1 << 20;
  Start();
  RawClient declared = Connect();
  const std::string body(3 << 20, 'x');
  declared.Post("/v1/completions", body);  // all of it is sent before the reply is read
  RawResponse response = declared.Read();
  EXPECT_EQ(response.status, 413);
  const Json error = Json::parse(response.body)["error"];
  EXPECT_EQ(error["code"], "body_too_large");
  EXPECT_EQ(error["limit"], 1 << 20);
  EXPECT_EQ(error["got"], 3 << 20);

  RawClient chunked = Connect();
  chunked.Send("POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n300000\r\n");
  chunked.Send(body);
  response = chunked.Read();
  EXPECT_EQ(response.status, 413);
  EXPECT_EQ(CodeOf(response), "body_too_large");
  ExpectServing();
}

TEST_F(HostileClientTest, ABodyOfTheLimitIsRead) {
  options_.limits.body_bytes_max = 1 << 20;
  engine_.context = 2 << 20;
  Start();
  const std::string start = R"({"prompt":")", end = R"(","max_tokens":1})";
  const std::string prompt((1 << 20) - start.size() - end.size(), 'y');
  EXPECT_EQ(Complete(start + prompt + end).status, 200);
}

// What goes from a request into headers, paths, logs and templates.
TEST_F(HostileClientTest, OddNamesAndHeadersAreAnsweredAndDoNoHarm) {
  options_.api_keys = {"key"};
  Start();
  const std::string key = "Authorization: Bearer key\r\n", body = R"({"prompt":"abc"})";
  const auto status = [&](const std::string& head, const std::string& content = "") {
    RawClient client = Connect();
    client.Send(head + "Content-Length: " + std::to_string(content.size()) + "\r\n\r\n" + content);
    const RawResponse response = client.Read();
    EXPECT_TRUE(response.complete || response.status == 0) << head;
    EXPECT_TRUE(response.body.empty() || !Json::parse(response.body, nullptr, false).is_discarded()) << head;
    return response.status;
  };
  const std::string post = "POST /v1/completions HTTP/1.1\r\n";
  EXPECT_EQ(status(post + "Authorization: Bearer \xFF\xFE\r\n", body), 401);
  EXPECT_EQ(status(post + "Authorization: Bearer " + std::string(8000, 'k') + "\r\n", body), 401);
  EXPECT_EQ(status(post + key + "Origin: \xFF\"<script>\r\n", body), 403);
  EXPECT_EQ(status(post + key + "Origin: " + std::string(8000, 'o') + "\r\n", body), 403);
  EXPECT_EQ(status(post + key + "Origin: http://[::1\r\n", body), 403);
  EXPECT_EQ(status(post + key + "Origin: http://localhost:1\r\nOrigin: http://evil.org\r\n", body), 200)
      << "a browser sends one; of two the first counts";
  for (const char* name : {"%FF%0d%0aX-Evil:1", "%", "%4", "%zz", "..%2f..", "%00", "\xC3\x28"}) {
    EXPECT_EQ(status(std::string("GET /v1/models/") + name + " HTTP/1.1\r\n" + key), 404) << name;
  }
  EXPECT_EQ(status("GET /v1/models/" + std::string(9000, 'm') + " HTTP/1.1\r\n" + key), 404);
  EXPECT_EQ(status("GET /v1/models/%66ake HTTP/1.1\r\n" + key), 200) << "the control: a name may be escaped";
  EXPECT_EQ(status("OPTIONS /v1/models HTTP/1.1\r\nOrigin: http://localhost\r\nAccess-Control-Request-Headers: " +
                   std::string(8000, 'h') + "\r\n"),
            204);
  EXPECT_EQ(status("POST /detokenize HTTP/1.1\r\n" + key, R"({"tokens":[255,254,10]})"), 200);
}

TEST_F(HostileClientTest, HugeToolsAndSchemasOverTheWireAreTypedErrors) {
  Start();
  const std::string start = R"({"messages":[{"role":"user","content":"x"}],)";
  std::string tools, deep(200'000, '['), biases;
  for (int i = 0; i < 100'000; ++i) tools += (i == 0 ? "" : ",") + std::string(R"({"function":{"name":"f"}})");
  for (int i = 0; i < 400'000; ++i) biases += (i == 0 ? "\"" : ",\"") + std::to_string(i) + "\":1";
  EXPECT_EQ(CodeOf(Chat(start + "\"tools\":[" + tools + "]}")), "body_too_large");
  EXPECT_EQ(CodeOf(Chat(start + "\"logit_bias\":{" + biases + "}}")), "body_too_large");
  EXPECT_EQ(CodeOf(Chat(start + "\"tools\":" + deep + "}")), "invalid_json");
  EXPECT_EQ(CodeOf(Chat(start + R"("response_format":{"type":"json_object","schema":)" + deep + "}}")), "invalid_json");
  EXPECT_EQ(CodeOf(Chat(start + R"("response_format":{"type":"json_object","schema":{"title":")" +
                        std::string(1 << 20, 's') + "\"}}}")),
            "invalid_value");
  ExpectServing();
}

TEST_F(HostileClientTest, ExpectContinueIsAnswered) {
  Start();
  RawClient client = Connect();
  const std::string body = R"({"prompt":"abc"})";
  client.Send("POST /v1/completions HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 16\r\n\r\n");
  EXPECT_EQ(client.Read().status, 100);
  client.Send(body);
  EXPECT_EQ(client.Read().status, 200);
  RawClient large = Connect();
  large.Send("POST /v1/completions HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 104857600\r\n\r\n");
  EXPECT_EQ(large.Read().status, 413);
}

TEST_F(HostileClientTest, SlowHeadersAndBodiesTimeOut) {
  options_.limits.header_ms = 60;
  options_.limits.body_stall_ms = 60;
  options_.limits.linger_ms = 60;
  options_.limits.idle_ms = 10'000;
  Start();
  RawClient header = Connect();
  header.Send("GET /health HTTP/1.1\r\nHo");
  RawResponse response = header.Read();
  EXPECT_EQ(response.status, 408);
  EXPECT_TRUE(header.ClosedByServer());
  RawClient body = Connect();
  body.Send("POST /v1/completions HTTP/1.1\r\nContent-Length: 100\r\n\r\n{");
  response = body.Read();
  EXPECT_EQ(response.status, 408);
  EXPECT_EQ(CodeOf(response), "invalid_value");
  RawClient silent = Connect();  // the control: a connection that asks nothing may wait
  std::this_thread::sleep_for(200ms);
  silent.Get("/health");
  EXPECT_EQ(silent.Read().status, 200);
  ExpectServing();
}

TEST_F(HostileClientTest, ADrippingHeaderTimesOutToo) {
  options_.limits.header_ms = 100;
  Start();
  RawClient client = Connect();
  client.Send("GET /health HTTP/1.1\r\n");
  bool alive = true;
  for (int i = 0; i < 100 && alive; ++i) {
    alive = client.Send("X: y\r\n");
    std::this_thread::sleep_for(10ms);
  }
  EXPECT_EQ(client.Read().status, 408);
}

TEST_F(HostileClientTest, IdleConnectionsAreClosedInTheEnd) {
  options_.limits.idle_ms = 50;
  Start();
  RawClient client = Connect();
  EXPECT_TRUE(client.ClosedByServer());
}

TEST_F(HostileClientTest, WhatIsNotHttpIsClosedWithoutAWord) {
  Start();
  for (const std::string& bytes : {std::string("\x16\x03\x01\x02\x00\x01", 6), std::string("SSH-2.0-client\r\n"),
                                   std::string("GET /\r\n\r\n"), std::string(200'000, '\0'), std::string("\xff\xfe")}) {
    RawClient client = Connect();
    client.Send(bytes);
    EXPECT_TRUE(client.ClosedByServer());
    EXPECT_EQ(client.buffered(), "");
  }
  ExpectServing();
}

TEST_F(HostileClientTest, BadHttpGetsATypedError) {
  Start();
  const std::string post = "POST /v1/completions HTTP/1.1\r\n";
  const std::pair<std::string, int> kBad[] = {
      {post + "X: " + std::string(20'000, 'x') + "\r\n\r\n", 431},
      {post + "Content-Length: nine\r\n\r\n", 400},
      {post + "Transfer-Encoding: chunked\r\n\r\nnonsense\r\n", 400},
      {post + "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n", 400},
      {post + "Content-Encoding: gzip\r\nContent-Length: 3\r\n\r\nabc", 415},
      {post + "bad header\r\n\r\n", 400},
  };
  for (const auto& [bytes, status] : kBad) {
    RawClient client = Connect();
    client.Send(bytes);
    const RawResponse response = client.Read();
    EXPECT_EQ(response.status, status) << bytes.substr(0, 100);
    EXPECT_EQ(CodeOf(response).find("no error"), std::string::npos);
  }
  ExpectServing();
}

TEST_F(HostileClientTest, BadBodiesGetATypedError) {
  Start();
  const std::pair<std::string, std::string> kBad[] = {
      {"", "invalid_json"},
      {"{", "invalid_json"},
      {"\xff\xfe", "invalid_json"},
      {R"({"prompt":"\ud800"})", "invalid_json"},
      {R"({"prompt":NaN})", "invalid_json"},
      {R"({"prompt":"a","temperature":1e999})", "invalid_json"},
      {std::string(100'000, '['), "invalid_json"},
      {R"({"prompt":"a","prompt":"b"})", "invalid_json"},
      {R"({"prompt":[)" + std::string(50'000, '1') + "]}", "invalid_json"},
      {R"({"prompt":["a","b"]})", "unsupported"},
      {R"({"prompt":"a","top_q":1})", "unknown_field"},
      {R"({"prompt":"a","top_p":2})", "invalid_value"},
      {R"({"prompt":[300]})", "invalid_value"},
  };
  RawClient client = Connect();  // one connection for all: a wrong body does not end it
  for (const auto& [body, code] : kBad) {
    client.Post("/v1/completions", body);
    const RawResponse response = client.Read();
    EXPECT_EQ(response.status, 400) << body.substr(0, 100);
    EXPECT_EQ(CodeOf(response), code) << body.substr(0, 100);
  }
  std::string many = "[1";
  for (int i = 0; i < 30'000; ++i) many += ",1";
  client.Post("/v1/completions", R"({"prompt":)" + many + "]}");
  EXPECT_EQ(client.Read().status, 413);
  ExpectServing();
}

TEST_F(HostileClientTest, RandomCancelsLeakNothing) {
  Start();
  engine_.step_us = 50;
  std::vector<std::thread> clients;
  std::atomic<int> wrong{0};
  for (int c = 0; c < 8; ++c) {
    clients.emplace_back([&, c] {
      uint32_t random = 77 + c;
      for (int i = 0; i < 40; ++i) {
        random = random * 1664525 + 1013904223;
        RawClient client = Connect();
        const std::string prompt = "client " + std::to_string(c) + " request " + std::to_string(i);
        client.Post("/v1/completions", Dump(Json({{"prompt", prompt}, {"stream", (random >> 9) % 2 == 0}})));
        if ((random >> 16) % 3 == 0) continue;  // hangs up at once
        const RawResponse response = client.Read();
        if (response.status != 200 || !response.complete) ++wrong;
        if (response.headers.contains("content-length") && Json::parse(response.body)["choices"][0]["text"] != prompt) {
          ++wrong;
        }
      }
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_TRUE(Eventually([&] { return engine_.live() == 0; }));
  ExpectServing();
}

}  // namespace
}  // namespace reprise
