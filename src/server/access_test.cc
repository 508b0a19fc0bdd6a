#include "server/access.h"

#include <gtest/gtest.h>

#include "server/live_server.h"

namespace reprise {
namespace {

HttpRequest From(const std::string& origin, const std::string& host = "127.0.0.1:8080") {
  HttpRequest request;
  request.origin = origin;
  request.host = host;
  return request;
}

int StatusOf(const MaybeError& error) { return error ? error->http_status : 200; }

TEST(AccessTest, OnlyPagesOfThisMachineMayAskUnlessOthersAreNamed) {
  const AccessPolicy closed({}, {});
  const AccessPolicy one({}, {"https://chat.example.org", "app://obsidian.md"});
  const AccessPolicy open({}, {"*"});
  struct Case {
    const char* origin;
    bool local;  // or named
  };
  for (const Case& c :
       {Case{"", true}, Case{"http://localhost", true}, Case{"http://localhost:3000", true},
        Case{"https://127.0.0.1:1", true}, Case{"http://[::1]:5", true}, Case{"http://localhost.evil.org", false},
        Case{"http://evil.org", false}, Case{"null", false}, Case{"http://127.0.0.1.evil.org", false},
        Case{"http://evil.org:localhost", false}, Case{"file://localhost", false},
        Case{"https://chat.example.org", false}, Case{"chrome-extension://localhost", false}, Case{"http://", false}}) {
    EXPECT_EQ(StatusOf(closed.Check(From(c.origin))), c.local ? 200 : 403) << c.origin;
    const bool named = std::string_view(c.origin) == "https://chat.example.org";
    EXPECT_EQ(StatusOf(one.Check(From(c.origin))), c.local || named ? 200 : 403) << c.origin;
    EXPECT_EQ(StatusOf(open.Check(From(c.origin))), 200) << c.origin;
    EXPECT_EQ(closed.CorsHeaders(c.origin).empty(), !c.local || *c.origin == '\0') << c.origin;
  }
  EXPECT_EQ(StatusOf(one.Check(From("app://obsidian.md"))), 200);
  EXPECT_EQ(StatusOf(one.Check(From("http://chat.example.org"))), 403) << "another scheme";
}

TEST(AccessTest, PagesOfTheServersOwnAddressMayAskButNotOfANameThatPointsHere) {
  const AccessPolicy policy({}, {});
  EXPECT_EQ(StatusOf(policy.Check(From("http://192.168.1.5:8080", "192.168.1.5:8080"))), 200);
  EXPECT_EQ(StatusOf(policy.Check(From("http://192.168.1.5:9000", "192.168.1.5:8080"))), 403);
  EXPECT_EQ(StatusOf(policy.Check(From("http://rebound.example:8080", "rebound.example:8080"))), 403);
}

TEST(AccessTest, OnlyAWholeKeyFits) {
  const std::string keys[] = {"secret-one", "secret-two"};
  const AccessPolicy policy(keys, {});
  const auto status = [&](const std::string& authorization) {
    HttpRequest request;
    request.authorization = authorization;
    return StatusOf(policy.Check(request));
  };
  EXPECT_EQ(status("Bearer secret-one"), 200);
  EXPECT_EQ(status("bearer   secret-two "), 200);
  for (const char* wrong : {"", "Bearer", "Bearer ", "Bearer secret", "Bearer secret-one2", "Basic secret-one",
                            "secret-one", "Bearer SECRET-ONE", "Bearer secret-one,secret-two"}) {
    EXPECT_EQ(status(wrong), 401) << wrong;
  }
  EXPECT_EQ(StatusOf(AccessPolicy({}, {}).Check(From(""))), 200) << "without keys none is needed";
}

class AccessServerTest : public LiveServerTest {
 protected:
  RawResponse Send(const std::string& method, const std::string& path, const std::string& headers,
                   const std::string& body = "") {
    RawClient client = Connect();
    client.Send(method + " " + path + " HTTP/1.1\r\nHost: 127.0.0.1\r\n" + headers +
                "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body);
    return client.Read();
  }
};

TEST_F(AccessServerTest, EverythingButTheProbesNeedsAKey) {
  options_.api_keys = {"k1", "k2"};
  Start();
  const std::string good = "Authorization: Bearer k2\r\n", bad = "Authorization: Bearer k3\r\n";
  for (const auto& [method, path] : std::vector<std::pair<std::string, std::string>>{{"POST", "/v1/completions"},
                                                                                     {"POST", "/v1/chat/completions"},
                                                                                     {"POST", "/tokenize"},
                                                                                     {"POST", "/detokenize"},
                                                                                     {"GET", "/v1/models"},
                                                                                     {"GET", "/v1/models/fake"}}) {
    for (const std::string& headers : {std::string(), bad}) {
      const RawResponse response = Send(method, path, headers, method == "POST" ? "{}" : "");
      EXPECT_EQ(response.status, 401) << path;
      EXPECT_EQ(CodeOf(response), "unauthorized");
      EXPECT_EQ(response.headers.at("www-authenticate"), "Bearer realm=\"reprise\"");
      EXPECT_EQ(Json::parse(response.body)["error"]["type"], "authentication_error");
    }
    EXPECT_NE(Send(method, path, good, method == "POST" ? "{}" : "").status, 401) << path;
    EXPECT_EQ(Send("OPTIONS", path, "").status, 204) << path;
  }
  EXPECT_EQ(Send("GET", "/health", "").status, 200);
  EXPECT_EQ(Send("GET", "/ready", bad).status, 200);
  EXPECT_EQ(Send("POST", "/v1/completions", good, R"({"prompt":"a"})").status, 200);
}

TEST_F(AccessServerTest, ABodyIsNotWaitedForWithoutAKey) {
  options_.api_keys = {"key"};
  Start();
  for (const char* more : {"", "Expect: 100-continue\r\n", "Authorization: Bearer wrong\r\n"}) {
    RawClient client = Connect();
    client.Send(std::string("POST /v1/completions HTTP/1.1\r\nContent-Length: 5000000\r\n") + more + "\r\n{");
    const RawResponse response = client.Read();
    EXPECT_EQ(response.status, 401) << more;
    EXPECT_EQ(response.headers.at("connection"), "close");
  }
  RawClient client = Connect();  // the control
  client.Send("POST /v1/completions HTTP/1.1\r\nAuthorization: Bearer key\r\nContent-Length: 14\r\n\r\n{");
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  client.Send(R"("prompt":"a"})");
  EXPECT_EQ(client.Read().status, 200);
}

TEST_F(AccessServerTest, AStrangersPageIsRefusedBeforeAnythingIsDone) {
  Start();
  const std::string body = R"({"prompt":"abc"})";
  const RawResponse refused = Send("POST", "/v1/completions", "Origin: https://evil.example\r\n", body);
  EXPECT_EQ(refused.status, 403);
  EXPECT_EQ(CodeOf(refused), "unauthorized");
  EXPECT_NE(refused.body.find("--cors https://evil.example"), std::string::npos);
  EXPECT_FALSE(refused.headers.contains("access-control-allow-origin"));
  EXPECT_TRUE(engine_.requests().empty());
  EXPECT_FALSE(Send("OPTIONS", "/v1/completions", "Origin: https://evil.example\r\n")
                   .headers.contains("access-control-allow-methods"));
  EXPECT_EQ(Send("POST", "/v1/completions", "", body).status, 200) << "the control: programs send no Origin";
}

TEST_F(AccessServerTest, RepliesToPagesThatMayAskSaySo) {
  options_.cors_origins = {"https://chat.example.org"};
  options_.limits.body_bytes_max = 1 << 10;
  Start();
  const std::string origin = "Origin: https://chat.example.org\r\n";
  const auto allowed = [](const RawResponse& response) {
    const auto at = response.headers.find("access-control-allow-origin");
    return at != response.headers.end() && at->second == "https://chat.example.org" &&
           response.headers.at("vary") == "Origin";
  };
  EXPECT_TRUE(allowed(Send("POST", "/v1/completions", origin, R"({"prompt":"abc"})")));
  EXPECT_TRUE(allowed(Send("POST", "/v1/completions", origin, R"({"prompt":"abc","stream":true})")));
  EXPECT_TRUE(allowed(Send("POST", "/v1/completions", origin, "{")));
  EXPECT_TRUE(allowed(Send("POST", "/v1/completions", origin, std::string(2 << 10, ' ')))) << "an error of HTTP";
  EXPECT_TRUE(allowed(Send("GET", "/nowhere", origin)));
  EXPECT_FALSE(allowed(Send("GET", "/v1/models", "")));

  const RawResponse preflight =
      Send("OPTIONS", "/v1/chat/completions",
           origin + "Access-Control-Request-Method: POST\r\nAccess-Control-Request-Headers: authorization,x-a\r\n");
  EXPECT_EQ(preflight.status, 204);
  EXPECT_TRUE(allowed(preflight));
  EXPECT_EQ(preflight.headers.at("access-control-allow-methods"), "POST, OPTIONS");
  EXPECT_EQ(preflight.headers.at("access-control-allow-headers"), "authorization,x-a");
  EXPECT_FALSE(preflight.headers.contains("content-length"));
}

TEST_F(AccessServerTest, AConnectionForgetsTheOriginOfTheRequestBefore) {
  Start();
  RawClient client = Connect();
  client.Send("GET /health HTTP/1.1\r\nOrigin: http://localhost\r\n\r\n");
  EXPECT_TRUE(client.Read().headers.contains("access-control-allow-origin"));
  client.Get("/health");
  EXPECT_FALSE(client.Read().headers.contains("access-control-allow-origin"));
}

}  // namespace
}  // namespace reprise
