#include "server/json.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

namespace reprise {
namespace {

MaybeError Parse(std::string_view text, JsonLimits limits = {}) {
  Json out;
  return ParseJson(text, limits, &out);
}

TEST(JsonTest, KeepsValuesAndTheOrderOfKeys) {
  Json out;
  const std::string text = R"({"z":1,"a":[true,null,-2,0.5,"é😀"],"m":{"b":{},"a":[]}})";
  ASSERT_FALSE(ParseJson(text, {}, &out));
  EXPECT_EQ(Dump(out), text);
}

TEST(JsonTest, RefusesWhatIsNotJson) {
  for (const std::string_view text : {"",
                                      " ",
                                      "{",
                                      "}",
                                      "[1,]",
                                      "{\"a\":}",
                                      "{\"a\" 1}",
                                      "{a:1}",
                                      "{'a':1}",
                                      "NaN",
                                      "[Infinity]",
                                      "[-]",
                                      "[01]",
                                      "[1e]",
                                      "\"\xff\"",
                                      "\"\xc3\"",
                                      "\"\xed\xa0\x80\"",
                                      "\"\\ud800\"",
                                      "\"a\nb\"",
                                      "{} {}",
                                      "[1e999]",
                                      "nul",
                                      "[1] // x"}) {
    const MaybeError error = Parse(text);
    ASSERT_TRUE(error) << text;
    EXPECT_EQ(error->code, "invalid_json") << text;
    EXPECT_EQ(error->http_status, 400);
  }
}

TEST(JsonTest, BoundsTheDepthBeforeBuildingIt) {
  EXPECT_FALSE(Parse("[[[1]]]", {.depth_max = 3}));
  const MaybeError error = Parse("[[[[1]]]]", {.depth_max = 3});
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code, "invalid_json");
  EXPECT_EQ(error->limit, 3);
  EXPECT_TRUE(Parse(std::string(1 << 20, '[')));
  std::string objects;
  for (int i = 0; i < 100'000; ++i) objects += "{\"a\":";
  EXPECT_TRUE(Parse(objects));
}

TEST(JsonTest, BoundsTheNumberOfValues) {
  EXPECT_FALSE(Parse("[1,2,3]", {.values_max = 4}));
  const MaybeError error = Parse("[1,2,3,4]", {.values_max = 4});
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code, "body_too_large");
  EXPECT_EQ(error->http_status, 413);
}

TEST(JsonTest, RefusesAKeyThatAppearsTwice) {
  EXPECT_FALSE(Parse(R"({"a":{"b":1},"b":{"b":1}})"));
  const MaybeError error = Parse(R"({"a":1,"b":2,"a":3})");
  ASSERT_TRUE(error);
  EXPECT_NE(error->message.find("\"a\""), std::string::npos);
}

TEST(JsonTest, MessagesStayShortWhateverTheBody) {
  const MaybeError error = Parse("\"" + std::string(1 << 20, 'x'));
  ASSERT_TRUE(error);
  EXPECT_LT(error->message.size(), 300u);
}

TEST(JsonTest, FloatsReadBackToTheSameValue) {
  std::mt19937_64 random(7);
  for (int i = 0; i < 10'000; ++i) {
    const uint32_t bits = static_cast<uint32_t>(random());
    float value;
    std::memcpy(&value, &bits, sizeof(value));
    if (!std::isfinite(value)) continue;
    Json back;
    ASSERT_FALSE(ParseJson(Dump(Json::array({static_cast<double>(value)})), {}, &back));
    EXPECT_EQ(back[0].get<double>(), static_cast<double>(value));
  }
}

TEST(JsonTest, DumpNeverFailsOnBytesThatAreNotText) {
  EXPECT_EQ(Dump(Json("a\xff"
                      "b")),
            "\"a\xEF\xBF\xBD"
            "b\"");
}

TEST(ErrorsTest, BodyHasTheShapeOfTheSchema) {
  RequestError error = InvalidValue("top_p", "`top_p` is wrong", 1, 1.5);
  EXPECT_EQ(ErrorBody(error), R"({"error":{"type":"invalid_request_error","code":"invalid_value","param":"top_p",)"
                              R"("message":"`top_p` is wrong","limit":1,"got":1.5}})");
  EXPECT_EQ(ErrorBody(ShuttingDown()), R"({"error":{"type":"server_error","code":"shutting_down","param":null,)"
                                       R"("message":"the server is shutting down and takes no new requests"}})");
}

}  // namespace
}  // namespace reprise
