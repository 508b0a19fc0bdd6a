// Conversations on several templates against what llama.cpp's server made of the same request bodies
// (tests/data/record_chat_prompts.py).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "nlohmann/json.hpp"
#include "token/chat_template.h"
#include "token/real_models.h"

namespace reprise {
namespace {

using Json = nlohmann::ordered_json;

Json ReadJson(const std::string& name) {
  std::ifstream file(std::string(REPRISE_TEST_DATA) + "/" + name);
  EXPECT_TRUE(file.good()) << name;
  return Json::parse(file);
}

std::string ReadTemplate(const std::string& name) {
  std::ifstream file(std::string(REPRISE_LLAMA_TEMPLATES) + "/" + name);
  EXPECT_TRUE(file.good()) << name;
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

std::string TextAt(const Json& json, const char* key) {
  return json.contains(key) && json[key].is_string() ? json[key].get<std::string>() : "";
}

ChatRequest ToRequest(const Json& body) {
  ChatRequest request;
  for (const Json& message : body["messages"]) {
    ChatMessage& to = request.messages.emplace_back();
    to.role = TextAt(message, "role");
    to.content = TextAt(message, "content");
    to.reasoning = TextAt(message, "reasoning_content");
    to.tool_call_id = TextAt(message, "tool_call_id");
    to.name = TextAt(message, "name");
    for (const Json& call : message.value("tool_calls", Json::array()))
      to.tool_calls.push_back(
          {TextAt(call, "id"), TextAt(call["function"], "name"), TextAt(call["function"], "arguments")});
  }
  for (const Json& tool : body.value("tools", Json::array())) {
    const Json& function = tool["function"];
    request.tools.push_back({TextAt(function, "name"), TextAt(function, "description"), function["parameters"].dump()});
  }
  const std::string choice = TextAt(body, "tool_choice");
  if (choice == "none") request.tool_choice = ToolChoice::kNone;
  if (choice == "required") request.tool_choice = ToolChoice::kRequired;
  request.parallel_tool_calls = body.value("parallel_tool_calls", true);
  if (body.contains("response_format")) request.json_schema = body["response_format"]["json_schema"]["schema"].dump();
  const Json kwargs = body.value("chat_template_kwargs", Json::object());
  for (const auto& [name, value] : kwargs.items()) request.template_kwargs.emplace_back(name, value.dump());
  return request;
}

TEST(ChatPromptsTest, AreByteForByteThoseOfLlamaServer) {
  const Json conversations = ReadJson("chat_conversations.json");
  ASSERT_GE(conversations.size(), 30u);
  uint32_t equal = 0, refused = 0;
  for (const Json& set : ReadJson("chat_prompts.json")) {
    const std::string model = TextAt(set, "model"), name = TextAt(set, "template");
    const std::string family = model.starts_with("smollm2") ? "smollm2"
                               : model.starts_with("gemma") ? "gemma3"
                                                            : "qwen2";
    const auto chat = ChatTemplate::Load(RealModelOf(family).tokenizer(), name.empty() ? "" : ReadTemplate(name));
    ASSERT_TRUE(chat.ok()) << chat.status();
    ASSERT_EQ(set["prompts"].size(), conversations.size());
    for (size_t i = 0; i < conversations.size(); ++i) {
      SCOPED_TRACE(model + " " + name + " conversation " + std::to_string(i));
      const Json& expected = set["prompts"][i];
      const ChatRequest request = ToRequest(conversations[i]);
      const auto prompt = (*chat)->Prompt(request);
      if (expected.is_null()) {
        EXPECT_EQ(prompt.status().code(), absl::StatusCode::kInvalidArgument);
        ++refused;
      } else if (request.tool_choice == ToolChoice::kRequired && !prompt.ok()) {
        // Where a template has no tools, llama.cpp's server passes over the choice.
        EXPECT_THAT(std::string(prompt.status().message()), testing::HasSubstr("has no tool calls"));
      } else {
        ASSERT_TRUE(prompt.ok()) << prompt.status();
        EXPECT_EQ(prompt->text, expected.get<std::string>());
        ++equal;
      }
    }
  }
  EXPECT_GE(equal, 200u);
  EXPECT_GT(refused, 0u);
}

}  // namespace
}  // namespace reprise
