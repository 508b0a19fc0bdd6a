#include "cli/shared_prefix.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/tiny_model.h"
#include "token/real_models.h"

namespace reprise {
namespace {

const std::string kRules = "You answer for the house. Be brief, name your sources, and never guess. ";

std::vector<TokenId> PromptOf(const Tokenizer& tokenizer, const ChatTemplate& chat_template, const std::string& system,
                              const std::string& user) {
  ChatRequest request;
  request.messages = {{.role = "system", .content = system}, {.role = "user", .content = user}};
  return tokenizer.Encode(chat_template.Prompt(request)->text, /*add_special=*/true, /*parse_special=*/true);
}
bool BeginsWith(const std::vector<TokenId>& prompt, const std::vector<TokenId>& prefix) {
  return prompt.size() > prefix.size() && std::equal(prefix.begin(), prefix.end(), prompt.begin());
}

TEST(SharedPrefix, IsWhatChatsWithThatSystemMessageBeginWith) {
  for (const char* family : {"smollm2", "qwen2"}) {
    SCOPED_TRACE(family);
    const RealModel& model = RealModelOf(family);
    const auto chat_template = ChatTemplate::Load(model.tokenizer(), "");
    ASSERT_TRUE(chat_template.ok());
    const auto prefix = SharedPrefixOf(kRules + "End", model.tokenizer(), **chat_template);
    ASSERT_TRUE(prefix.ok());
    EXPECT_GE(prefix->size() + 3, model.tokenizer().Encode(kRules + "End", false, false).size()) << "all of the text";
    for (const char* user : {"hello", "42?", "  spaces", "   more", "\n\nlines", "\n\n\nlines", "\n spaces",
                             "\xC3\xA9t\xC3\xA9", "!", "\t"})
      EXPECT_TRUE(BeginsWith(PromptOf(model.tokenizer(), **chat_template, kRules + "End", user), *prefix)) << user;
    // The control: other texts part from it.
    EXPECT_FALSE(BeginsWith(PromptOf(model.tokenizer(), **chat_template, kRules + "Stop", "hello"), *prefix));
    EXPECT_FALSE(BeginsWith(PromptOf(model.tokenizer(), **chat_template, "x" + kRules + "End", "hello"), *prefix));
  }
}

TEST(SharedPrefix, FilesAreReadWithoutTheirLastLineEnd) {
  const RealModel& model = RealModelOf("smollm2");
  const std::filesystem::path path = TestPath("shared_prefix.txt");
  std::ofstream(path) << kRules << "End\n";
  const auto read = ReadSharedPrefixes({path}, model.file, "");
  ASSERT_TRUE(read.ok());
  const auto chat_template = ChatTemplate::Load(model.tokenizer(), "");
  EXPECT_EQ(read->at(0), *SharedPrefixOf(kRules + "End", model.tokenizer(), **chat_template));
  EXPECT_TRUE(ReadSharedPrefixes({}, "no model", "")->empty());
  // A base model has no chats.
  EXPECT_EQ(ReadSharedPrefixes({path}, RealModelOf("gemma3").file, "").status().code(),
            absl::StatusCode::kFailedPrecondition);
  const auto none = ReadSharedPrefixes({path.string() + ".none"}, model.file, "");
  EXPECT_NE(none.status().message().find("--shared-prefix"), std::string::npos) << none.status();
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace reprise
