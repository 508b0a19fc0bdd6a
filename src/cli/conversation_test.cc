#include "cli/conversation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <fstream>

#include "tests/tiny_model.h"

namespace reprise {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(ConversationTest, LinesAreTextOrCommands) {
  EXPECT_EQ(ParseCommand("hello /help").kind, CommandKind::kSay);
  EXPECT_EQ(ParseCommand("/help").kind, CommandKind::kHelp);
  EXPECT_EQ(ParseCommand("/system  Be brief. ").text, "Be brief.");
  EXPECT_EQ(ParseCommand("/save a b.json").text, "a b.json");
  const ChatCommand path = ParseCommand("//etc/hosts has a line");
  EXPECT_EQ(path.kind, CommandKind::kSay);
  EXPECT_EQ(path.text, "/etc/hosts has a line");
}

TEST(ConversationTest, WrongCommandsSayWhatIsRight) {
  EXPECT_EQ(ParseCommand("/sav x").kind, CommandKind::kUnknown);
  EXPECT_THAT(ParseCommand("/sav x").text, HasSubstr("/save"));
  EXPECT_EQ(ParseCommand("/save").kind, CommandKind::kUnknown);
  EXPECT_EQ(ParseCommand("/new now").kind, CommandKind::kUnknown);
  EXPECT_THAT(ParseCommand("/etc/hosts").text, HasSubstr("//"));
}

TEST(ConversationTest, EveryCommandIsInTheHelp) {
  for (const char* name : {"/system", "/new", "/retry", "/save", "/load", "/stats", "/quit"})
    EXPECT_THAT(std::string(ChatHelp()), HasSubstr(name));
}

TEST(ConversationTest, OneBackslashContinuesTwoAreText) {
  const auto take = [](std::string line) {
    const bool more = TakeContinuation(line);
    return std::make_pair(more, line);
  };
  EXPECT_EQ(take("a\\"), std::make_pair(true, std::string("a")));
  EXPECT_EQ(take("a\\\\"), std::make_pair(false, std::string("a\\\\")));
  EXPECT_EQ(take("\\"), std::make_pair(true, std::string()));
  EXPECT_EQ(take("a"), std::make_pair(false, std::string("a")));
  EXPECT_EQ(take(""), std::make_pair(false, std::string()));
}

TEST(ConversationTest, SystemIsFirstAndSurvivesClear) {
  Conversation talk;
  talk.AddUser("hi");
  talk.SetSystem("one");
  talk.SetSystem("two");
  EXPECT_THAT(talk.turns(), ElementsAre(ChatTurn{"system", "two"}, ChatTurn{"user", "hi"}));
  talk.Clear();
  EXPECT_THAT(talk.turns(), ElementsAre(ChatTurn{"system", "two"}));
  talk.SetSystem("");
  EXPECT_TRUE(talk.turns().empty());
}

TEST(ConversationTest, RetryDropsTheReplyOnly) {
  Conversation talk;
  EXPECT_FALSE(talk.DropReply());
  talk.AddUser("q");
  talk.AddAssistant("a");
  EXPECT_TRUE(talk.DropReply());
  EXPECT_THAT(talk.turns(), ElementsAre(ChatTurn{"user", "q"}));
  EXPECT_TRUE(talk.DropReply()) << "an unanswered question can be asked again";
  talk.DropQuestion();
  EXPECT_TRUE(talk.turns().empty());
}

TEST(ConversationTest, SavedConversationsLoadTheSame) {
  Conversation talk, back;
  talk.SetSystem("s \"quoted\"\n");
  talk.AddUser("Zürich 東京");
  talk.AddAssistant("");
  ASSERT_TRUE(talk.Save(TestPath("same.json")).ok());
  ASSERT_TRUE(back.Load(TestPath("same.json")).ok());
  EXPECT_EQ(back.turns(), talk.turns());
}

TEST(ConversationTest, WhatIsNoConversationChangesNothing) {
  Conversation talk;
  talk.AddUser("kept");
  for (const char* text : {"", "hello", "[]", "{\"messages\": 1}", "{\"messages\": [{\"role\": \"user\"}]}",
                           "{\"messages\": [{\"role\": 1, \"content\": \"x\"}]}"}) {
    std::ofstream(TestPath("wrong.json")) << text;
    EXPECT_FALSE(talk.Load(TestPath("wrong.json")).ok()) << text;
    EXPECT_THAT(talk.turns(), ElementsAre(ChatTurn{"user", "kept"}));
  }
  EXPECT_FALSE(talk.Load(TestPath("nowhere.json")).ok());
  EXPECT_FALSE(talk.Load(testing::TempDir()).ok());
  EXPECT_FALSE(talk.Save(TestPath("no/such/directory.json")).ok());
}

TEST(ConversationTest, TheTurnLineHasReusedComputedAndSpeed) {
  const TurnStats stats{.prompt_tokens = 134,
                        .reused_tokens = 120,
                        .reply_tokens = 11,
                        .first_token_ms = 31,
                        .decode_ms = 100,
                        .end = "stop",
                        .counted = true};
  EXPECT_EQ(Describe(stats), "120 reused · 14 computed · 11 tokens at 100.0/s · first after 31 ms");
  TurnStats unknown = stats;
  unknown.counted = false;
  EXPECT_THAT(Describe(unknown), testing::Not(HasSubstr("reused")));
  EXPECT_EQ(Describe({.end = "cancelled"}), "0 tokens · stopped") << "before the first one";
}

TEST(ConversationTest, RepliesCannotControlTheTerminal) {
  EXPECT_EQ(Printable("a\x1b]0;title\x07z\r\n\tü \xc2\x9b"
                      "2J"),
            "a]0;titlez\n\tü 2J");
}

}  // namespace
}  // namespace reprise
