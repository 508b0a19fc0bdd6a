#include "server/request_reader.h"

#include <gtest/gtest.h>

namespace reprise {
namespace {

using Progress = RequestReader::Progress;

ServerLimits Small() {
  ServerLimits limits;
  limits.header_bytes_max = 512;
  limits.body_bytes_max = 1000;
  limits.bodies_bytes_max = 1500;
  return limits;
}

class RequestReaderTest : public ::testing::Test {
 protected:
  // Feeds `bytes` in pieces of `piece` bytes until something ends; `rest` is what is left over.
  Progress Feed(RequestReader& reader, const std::string& bytes, size_t piece, std::string* rest = nullptr) {
    std::string in;
    Progress progress = Progress::kMore;
    for (size_t at = 0; at < bytes.size() && progress == Progress::kMore; at += piece) {
      in += bytes.substr(at, piece);
      progress = reader.Feed(in);
    }
    if (rest != nullptr) *rest = in;
    return progress;
  }
  RequestReader Reader() { return RequestReader(limits_, budget_); }

  const ServerLimits limits_ = Small();
  const std::shared_ptr<BodyBudget> budget_ = std::make_shared<BodyBudget>(limits_.bodies_bytes_max);
};

TEST_F(RequestReaderTest, ReadsTheSameRequestHoweverItIsCut) {
  const std::string with_length = "POST /v1/x?q=1 HTTP/1.1\r\nHost: a\r\nContent-Length: 11\r\n\r\nhello world";
  const std::string chunked =
      "POST /v1/x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n6;x=y\r\n world\r\n0\r\nT: "
      "v\r\n\r\n";
  for (const std::string& bytes : {with_length, chunked}) {
    for (size_t piece = 1; piece <= bytes.size(); ++piece) {
      RequestReader reader = Reader();
      ASSERT_EQ(Feed(reader, bytes, piece), Progress::kDone) << piece << bytes;
      const HttpRequest request = reader.Take();
      EXPECT_EQ(request.method, "POST");
      EXPECT_EQ(request.path, "/v1/x");
      EXPECT_EQ(request.body, "hello world");
      EXPECT_TRUE(reader.keep_alive());
      EXPECT_TRUE(reader.http11());
    }
  }
}

TEST_F(RequestReaderTest, AnEmptyChunkedBodyMayComeInAnyPieces) {
  const std::string bytes = "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n";
  for (size_t piece = 1; piece <= bytes.size(); ++piece) {
    RequestReader reader = Reader();
    ASSERT_EQ(Feed(reader, bytes, piece), Progress::kDone) << piece;
    EXPECT_EQ(reader.Take().body, "");
  }
}

TEST_F(RequestReaderTest, LeavesTheNextRequestUntouched) {
  RequestReader reader = Reader();
  std::string in = "GET /a HTTP/1.1\r\n\r\nGET /b HTTP/1.0\r\n\r\n";
  ASSERT_EQ(reader.Feed(in), Progress::kDone);
  EXPECT_EQ(reader.Take().path, "/a");
  ASSERT_EQ(reader.Feed(in), Progress::kDone);
  EXPECT_EQ(reader.Take().path, "/b");
  EXPECT_FALSE(reader.http11());
  EXPECT_FALSE(reader.keep_alive());
  EXPECT_TRUE(in.empty());
}

TEST_F(RequestReaderTest, GarbageIsNotHttpAtItsFirstBytes) {
  for (const std::string& bytes :
       {std::string("\x16\x03\x01\x02\x00", 5), std::string("\0\0\0", 3), std::string("hello\r\n"),
        std::string("get / HTTP/1.1\r\n"), std::string("GET /\r\n"), std::string("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
        std::string("SSH-2.0-x\r\n"), std::string(" GET / HTTP/1.1\r\n"), std::string(100, 'A')}) {
    RequestReader reader = Reader();
    EXPECT_EQ(Feed(reader, bytes, 1), Progress::kNotHttp) << bytes;
  }
}

struct Wrong {
  std::string bytes;
  int status;
  std::string code;
};

TEST_F(RequestReaderTest, RefusesWrongRequestsWithTheirStatus) {
  const std::string post = "POST / HTTP/1.1\r\nHost: a\r\n";
  const std::string chunked = post + "Transfer-Encoding: chunked\r\n\r\n";
  const Wrong kWrong[] = {
      {post + "Content-Length: 1001\r\n\r\n", 413, "body_too_large"},
      {post + "Content-Length: 99999999999999999999\r\n\r\n", 400, "invalid_value"},
      {post + "Content-Length: -1\r\n\r\n", 400, "invalid_value"},
      {post + "Content-Length: 2\r\nContent-Length: 3\r\n\r\n", 400, "invalid_value"},
      {post + "Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n", 400, "invalid_value"},
      {post + "Transfer-Encoding: gzip, chunked\r\n\r\n", 501, "invalid_value"},
      {post + "Transfer-Encoding: identity\r\n\r\n", 501, "invalid_value"},
      {post + "Content-Encoding: gzip\r\nContent-Length: 3\r\n\r\n", 415, "unsupported"},
      {post + "no colon\r\n\r\n", 400, "invalid_value"},
      {post + "bad name: x\r\n\r\n", 400, "invalid_value"},
      {post + "X: " + std::string(600, 'x') + "\r\n\r\n", 431, "invalid_value"},
      {"GET /" + std::string(600, 'x') + " HTTP/1.1\r\n\r\n", 431, "invalid_value"},
      {chunked + "zz\r\n\r\n", 400, "invalid_value"},
      {chunked + "5\r\nhelloXY\r\n\r\n", 400, "invalid_value"},
      {chunked + "ffffffffffffffffff\r\n", 400, "invalid_value"},
      {chunked + "400\r\n" + std::string(1024, 'x') + "\r\n", 413, "body_too_large"},
      {chunked + "1;" + std::string(2000, 'x'), 400, "invalid_value"},
  };
  for (const Wrong& wrong : kWrong) {
    for (const size_t piece : {size_t{1}, size_t{7}, wrong.bytes.size()}) {
      RequestReader reader = Reader();
      ASSERT_EQ(Feed(reader, wrong.bytes, piece), Progress::kError) << wrong.bytes.substr(0, 200) << " in " << piece;
      EXPECT_EQ(reader.error().http_status, wrong.status) << wrong.bytes.substr(0, 200);
      EXPECT_EQ(reader.error().code, wrong.code) << wrong.bytes.substr(0, 200);
    }
  }
}

TEST_F(RequestReaderTest, TooLargeSaysTheLimitAndWhatWasDeclared) {
  RequestReader reader = Reader();
  std::string in = "POST / HTTP/1.1\r\nContent-Length: 104857600\r\n\r\n";
  ASSERT_EQ(reader.Feed(in), Progress::kError);
  EXPECT_EQ(reader.error().limit, 1000);
  EXPECT_EQ(reader.error().got, 104857600);
}

TEST_F(RequestReaderTest, AsksForTheBodyWhenTheClientWaits) {
  RequestReader reader = Reader();
  std::string in = "POST / HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n";
  ASSERT_EQ(reader.Feed(in), Progress::kContinue);
  EXPECT_TRUE(reader.in_body());
  in = "ok";
  ASSERT_EQ(reader.Feed(in), Progress::kDone);
  EXPECT_EQ(reader.Take().body, "ok");
}

TEST_F(RequestReaderTest, BodiesShareOneBudgetAndGiveItBack) {
  const std::string head = "POST / HTTP/1.1\r\nContent-Length: 900\r\n\r\n";
  const std::string body(900, 'x');
  RequestReader first = Reader(), second = Reader();
  std::string in = head + body;
  ASSERT_EQ(first.Feed(in), Progress::kDone);
  {
    const HttpRequest held = first.Take();
    EXPECT_EQ(budget_->used_bytes(), 900u);
    in = head + body;
    ASSERT_EQ(second.Feed(in), Progress::kError);
    EXPECT_EQ(second.error().http_status, 429);
    EXPECT_EQ(second.error().retry_after_s, 1u);
  }
  EXPECT_EQ(budget_->used_bytes(), 0u);
  RequestReader third = Reader();  // the control: the same request, once the first is gone
  in = head + body;
  EXPECT_EQ(third.Feed(in), Progress::kDone);
}

TEST_F(RequestReaderTest, SlowClientsAreToldOnlyIfTheySpeakHttp) {
  RequestReader slow = Reader();
  std::string in = "GET / HTTP/1.1\r\nHo";
  ASSERT_EQ(slow.Feed(in), Progress::kMore);
  EXPECT_EQ(slow.TimedOut(in), Progress::kError);
  EXPECT_EQ(slow.error().http_status, 408);
  RequestReader silent = Reader();
  in = "GE";
  ASSERT_EQ(silent.Feed(in), Progress::kMore);
  EXPECT_EQ(silent.TimedOut(in), Progress::kNotHttp);
}

}  // namespace
}  // namespace reprise
