#include "server/request_log.h"

#include <gtest/gtest.h>
#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/spdlog.h>

#include <memory>
#include <sstream>

#include "server/live_server.h"

namespace reprise {
namespace {

// Catches what the default logger writes.
class RequestLogTest : public LiveServerTest {
 protected:
  void SetUp() override {
    before_ = spdlog::default_logger();
    spdlog::set_default_logger(
        std::make_shared<spdlog::logger>("test", std::make_shared<spdlog::sinks::ostream_sink_mt>(out_)));
    spdlog::set_pattern("%v");
    spdlog::set_level(spdlog::level::info);
  }
  void TearDown() override {
    LiveServerTest::TearDown();
    SetLogFormat(LogFormat::kText);
    spdlog::set_default_logger(before_);
  }
  std::vector<std::string> Lines() {
    if (server_) server_->Stop(0);
    std::vector<std::string> lines;
    std::istringstream text(out_.str());
    for (std::string line; std::getline(text, line);) lines.push_back(line);
    return lines;
  }

  std::shared_ptr<spdlog::logger> before_;
  std::ostringstream out_;
};

const RequestLine kLine{.id = "cmpl-1",
                        .model = "m",
                        .endpoint = "/v1/completions",
                        .prompt_tokens = 480,
                        .reused_tokens = 384,
                        .disk_tokens = 128,
                        .computed_tokens = 96,
                        .miss = "tokens_differ",
                        .generated_tokens = 64,
                        .queue_ms = 0.12,
                        .first_token_ms = 84,
                        .total_ms = 985.14,
                        .reason = "stop"};

TEST_F(RequestLogTest, Text) {
  LogRequest(kLine);
  RequestLine odd = kLine;
  odd.model = "a b\nc=\"";
  LogRequest(odd);
  LogPrompt("cmpl-1", "line\nline");
  const auto lines = Lines();
  ASSERT_EQ(lines.size(), 3u) << "whatever a client names, a line is one line";
  EXPECT_EQ(lines[0],
            "cmpl-1 tenant=default model=m endpoint=/v1/completions status=200 in=480 reused=384 disk=128 computed=96 "
            "miss=tokens_differ out=64 queue_ms=0.1 first_ms=84.0 ms=985.1 end=stop");
  EXPECT_NE(lines[1].find(R"(model="a b\nc=\"" endpoint)"), std::string::npos);
  EXPECT_EQ(lines[2], R"(cmpl-1 prompt="line\nline")");
}

TEST_F(RequestLogTest, EveryLineIsAnObject) {
  SetLogFormat(LogFormat::kJson);
  LogRequest(kLine);
  spdlog::warn("{} \"quoted\"", "{");
  const auto lines = Lines();
  ASSERT_EQ(lines.size(), 2u);
  const Json request = Json::parse(lines[0]);
  EXPECT_EQ(request["level"], "info");
  EXPECT_EQ(request["id"], "cmpl-1");
  EXPECT_EQ(request["in"], 480);
  EXPECT_EQ(request["reused"], 384);
  EXPECT_EQ(request["disk"], 128);
  EXPECT_EQ(request["miss"], "tokens_differ");
  EXPECT_EQ(request["ms"], 985.14);
  EXPECT_EQ(request["end"], "stop");
  EXPECT_EQ(request["time"].get<std::string>()[10], 'T');
  const Json message = Json::parse(lines[1]);
  EXPECT_EQ(message["level"], "warning");
  EXPECT_EQ(message["message"], "{ \"quoted\"");
}

TEST_F(RequestLogTest, OneLineForEveryRequestAndNoWordOfItsText) {
  Start();
  Complete(R"({"prompt":"secret","n":2,"max_tokens":3})");
  Chat(R"({"messages":[{"role":"user","content":"secret"}],"stream":true})");
  Complete(R"({"prompt":"secret","temperature":-1})");
  Complete(R"({"prompt":"secret","model":"other"})");
  engine_.fail_at = 2;
  Complete(R"({"prompt":"secret","stream":true})");
  const auto lines = Lines();
  ASSERT_EQ(lines.size(), 5u);
  for (const std::string& line : lines) EXPECT_EQ(line.find("secret"), std::string::npos) << line;
  EXPECT_NE(lines[0].find(
                "model=fake endpoint=/v1/completions status=200 in=6 reused=5 disk=0 computed=1 miss=never_seen out=6"),
            std::string::npos)
      << lines[0];
  EXPECT_TRUE(lines[0].ends_with("end=length")) << lines[0];
  EXPECT_NE(lines[1].find("endpoint=/v1/chat/completions"), std::string::npos);
  EXPECT_TRUE(lines[1].ends_with("end=stop"));
  EXPECT_NE(lines[2].find("computed=0 miss=- out=0"), std::string::npos) << "it did not come to that";
  EXPECT_NE(lines[2].find("status=400"), std::string::npos);
  EXPECT_TRUE(lines[2].ends_with("end=invalid_value"));
  EXPECT_TRUE(lines[3].ends_with("end=model_not_found"));
  EXPECT_NE(lines[4].find("status=200"), std::string::npos);
  EXPECT_TRUE(lines[4].ends_with("end=internal"));
}

TEST_F(RequestLogTest, TracesOnlyWhereAskedForAndOfWhatWasServed) {
  SetLogFormat(LogFormat::kJson);
  options_.log_traces = true;
  Start();
  Complete(R"({"prompt":"abcdef","max_tokens":3})");
  Complete(R"({"prompt":"abcdef","max_tokens":3})");
  Complete(R"({"prompt":"abcdef","max_tokens":-3})");
  const auto lines = Lines();
  ASSERT_EQ(lines.size(), 3u);
  const Json first = Json::parse(lines[0]), second = Json::parse(lines[1]);
  EXPECT_EQ(first["input_length"], 6);
  EXPECT_EQ(first["output_length"], 3);
  EXPECT_GT(first["timestamp"].get<uint64_t>(), 1'700'000'000'000u);
  ASSERT_EQ(first["hash_ids"].size(), 1u);
  EXPECT_EQ(first["hash_ids"], second["hash_ids"]);
  EXPECT_FALSE(Json::parse(lines[2]).contains("hash_ids"));
}

TEST_F(RequestLogTest, PromptsOnlyWhereAskedFor) {
  options_.log_prompts = true;
  Start();
  Complete(R"({"prompt":"secret\n"})");
  Complete(R"({"prompt":[65,66]})");
  Chat(R"({"messages":[{"role":"user","content":"secret"}]})");
  const auto lines = Lines();
  ASSERT_EQ(lines.size(), 6u);
  EXPECT_TRUE(lines[0].ends_with(R"( prompt="secret\n")")) << lines[0];
  EXPECT_TRUE(lines[2].ends_with(R"( prompt="AB")")) << lines[2];
  EXPECT_TRUE(lines[4].ends_with(R"( prompt="user:secret\n")")) << lines[4];
}

}  // namespace
}  // namespace reprise
