// The field `lora`, which needs to know what is loaded; every other field is in request_test.cc.
#include "server/completion_fields.h"

#include <gtest/gtest.h>

namespace reprise {
namespace {

class LoraFieldTest : public ::testing::Test {
 protected:
  MaybeError Parse(const std::string& lora, CompletionRequest* request) const {
    return ParseCompletion(Endpoint::kText, R"({"prompt":"p","lora":)" + lora + "}",
                           {.json = {}, .vocab_size = 1000, .adapters = loaded_}, request);
  }
  std::optional<std::vector<AdapterUse>> Uses(const std::string& lora) const {
    CompletionRequest request;
    const MaybeError error = Parse(lora, &request);
    EXPECT_FALSE(error) << error->message;
    return request.adapters;
  }

  const std::vector<AdapterInfo> loaded_ = {{.name = "law", .scale = 0.75f}, {.name = "medicine", .scale = 1.0f}};
};

TEST_F(LoraFieldTest, NamesAdaptersInItsOwnOrder) {
  using Uses_ = std::vector<AdapterUse>;
  EXPECT_EQ(Uses("null"), std::nullopt) << "those of the start";
  EXPECT_EQ(Uses("[]"), Uses_{}) << "the model alone";
  EXPECT_EQ(Uses(R"([{"name":"medicine","scale":-0.5},{"name":"law","scale":2}])"), (Uses_{{1, -0.5f}, {0, 2.0f}}));
  EXPECT_EQ(Uses(R"([{"name":"law"},{"name":"medicine","scale":null}])"), (Uses_{{0, 0.75f}, {1, 1.0f}}))
      << "the scales of the start";
  EXPECT_EQ(Uses(R"([{"name":"law","scale":0}])"), (Uses_{{0, 0.0f}}));
}

TEST_F(LoraFieldTest, RefusesByFieldWhatCannotBe) {
  struct Wrong {
    const char* value;
    const char* code;
    const char* param;
  };
  const Wrong all[] = {
      {R"("law")", "invalid_value", "lora"},
      {R"({"name":"law"})", "invalid_value", "lora"},
      {R"(["law"])", "invalid_value", "lora[0]"},
      {R"([{"name":"law"},{"scale":1}])", "missing_field", "lora[1].name"},
      {R"([{"name":""}])", "invalid_value", "lora[0].name"},
      {R"([{"name":7}])", "invalid_value", "lora[0].name"},
      {R"([{"name":"Law"}])", "invalid_value", "lora[0].name"},
      {R"([{"id":0,"scale":1}])", "unknown_field", "lora[0].id"},
      {R"([{"name":"law","scale":"1"}])", "invalid_value", "lora[0].scale"},
      {R"([{"name":"law","scale":1025}])", "invalid_value", "lora[0].scale"},
      {R"([{"name":"law","scale":-1e300}])", "invalid_value", "lora[0].scale"},
      {R"([{"name":"law","scale":1},{"name":"law","scale":2}])", "invalid_value", "lora[1].name"},
  };
  for (const Wrong& wrong : all) {
    CompletionRequest request;
    const MaybeError error = Parse(wrong.value, &request);
    ASSERT_TRUE(error) << wrong.value;
    EXPECT_EQ(error->code, wrong.code) << wrong.value;
    EXPECT_EQ(error->param, wrong.param) << wrong.value;
  }
  std::string nine = "[";
  for (int i = 0; i < 9; ++i) nine += std::string(i == 0 ? "" : ",") + R"({"name":"law"})";
  CompletionRequest request;
  const MaybeError error = Parse(nine + "]", &request);
  ASSERT_TRUE(error);
  EXPECT_EQ(error->limit, 8);
  EXPECT_EQ(error->got, 9);
}

TEST_F(LoraFieldTest, AnUnknownNameListsTheLoadedOnes) {
  CompletionRequest request;
  const MaybeError error = Parse(R"([{"name":"cooking"}])", &request);
  ASSERT_TRUE(error);
  EXPECT_NE(error->message.find("loaded: law, medicine"), std::string::npos) << error->message;
}

}  // namespace
}  // namespace reprise
