#include "cli/usage.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>

#include "cli/commands.h"
#include "cli/flag_values.h"
#include "tests/tiny_model.h"

namespace reprise {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// What the binary says to a command line; "" if it is understood.
std::string Explain(std::vector<std::string> arguments) {
  CLI::App app("test", "reprise");
  app.require_subcommand(1);
  std::string model;
  uint32_t context = 0;
  CLI::App* serve = app.add_subcommand("serve", "");
  serve->add_option("model", model)->required();
  serve->add_option("--context", context)->check(CLI::Range(1, 100000));
  serve->add_option("--port", context);
  app.add_subcommand("inspect", "");
  CLI::App* cache = app.add_subcommand("cache", "");
  cache->require_subcommand(1);
  cache->add_subcommand("stat", "");
  std::string file;
  cache->add_subcommand("explain", "")->add_option("FILE", file)->required();
  std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());
  try {
    app.parse(reversed);
  } catch (const CLI::ParseError& error) {
    return ExplainUsage(app, error, arguments);
  }
  return "";
}

TEST(UsageTest, AWrongFlagNamesTheNearestOne) {
  EXPECT_THAT(Explain({"serve", "m.gguf", "--contxt", "5"}), HasSubstr("did you mean --context?"));
  EXPECT_THAT(Explain({"serve", "m.gguf", "--prot=5"}), HasSubstr("did you mean --port?"));
  EXPECT_THAT(Explain({"serve", "m.gguf", "--zzzzzzzz"}), testing::Not(HasSubstr("did you mean")));
  EXPECT_EQ(Explain({"serve", "m.gguf", "--context", "5"}), "") << "control";
}

TEST(UsageTest, FlagsOfOtherServersHaveANameHere) {
  EXPECT_THAT(Explain({"serve", "m.gguf", "--ctx-size", "5"}), HasSubstr("--context"));
  EXPECT_THAT(Explain({"serve", "-m", "m.gguf"}), HasSubstr("reprise serve MODEL.gguf"));
}

TEST(UsageTest, CommandsToo) {
  EXPECT_THAT(Explain({"sreve", "m.gguf"}), HasSubstr("`reprise serve`"));
  EXPECT_THAT(Explain({"m.gguf"}), HasSubstr("reprise serve m.gguf"));
  EXPECT_THAT(Explain({}), HasSubstr("reprise serve MODEL.gguf"));
  EXPECT_THAT(Explain({"serve"}), HasSubstr("reprise serve MODEL.gguf"));
  EXPECT_THAT(Explain({"serve", "m.gguf", "n.gguf"}), HasSubstr("'n.gguf' is one argument too many"));
}

TEST(UsageTest, CommandsOfCommandsToo) {
  EXPECT_THAT(Explain({"cache"}), HasSubstr("`reprise cache stat|explain`"));
  EXPECT_THAT(Explain({"cache", "explian", "x"}), HasSubstr("`reprise cache explain`"));
  EXPECT_THAT(Explain({"cache", "--jsn"}), HasSubstr("there is no --jsn"));
  EXPECT_THAT(Explain({"cache", "stat", "x"}), HasSubstr("'x' is one argument too many"));
  EXPECT_THAT(Explain({"cache", "explain"}), HasSubstr("FILE"));
  EXPECT_EQ(Explain({"cache", "explain", "x"}), "") << "control";
}

TEST(FlagValuesTest, TimesHaveUnits) {
  EXPECT_EQ(*ParseMilliseconds("30s"), 30'000u);
  EXPECT_EQ(*ParseMilliseconds("1500 ms"), 1500u);
  EXPECT_EQ(*ParseMilliseconds("0.5m"), 30'000u);
  EXPECT_EQ(*ParseMilliseconds("2h"), 7'200'000u);
  for (const char* wrong : {"", "30", "s", "-1s", "30 sec", "1e3s", "1000h", "nan s"})
    EXPECT_FALSE(ParseMilliseconds(wrong).ok()) << wrong;
}

TEST(FlagValuesTest, KeysAreOneALine) {
  const std::string path = TestPath("keys");
  std::ofstream(path) << "# mine\nsk-one\n\n  sk-two \r\nsk-one\n";
  chmod(path.c_str(), 0600);
  auto file = ReadKeyFile(path);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_THAT(file->keys, ElementsAre("sk-one", "sk-two"));
  EXPECT_EQ(file->warning, "");
  chmod(path.c_str(), 0644);
  file = ReadKeyFile(path);
  ASSERT_TRUE(file.ok());
  EXPECT_THAT(file->warning, HasSubstr("chmod 600"));
  for (const char* wrong : {"", "# none\n", "two words\n", "b\xc3\xa4r\n"}) {
    std::ofstream(path) << wrong;
    EXPECT_FALSE(ReadKeyFile(path).ok()) << wrong;
  }
  EXPECT_FALSE(ReadKeyFile(testing::TempDir()).ok());
  EXPECT_FALSE(ReadKeyFile(path + ".none").ok());
}

TEST(FlagValuesTest, LorasMayHaveAScale) {
  EXPECT_EQ(ParseLora("a.gguf"), (AdapterOptions{"a.gguf", 1.0f}));
  EXPECT_EQ(ParseLora("a.gguf:0.5"), (AdapterOptions{"a.gguf", 0.5f}));
  EXPECT_EQ(ParseLora("d:/a.gguf:-2"), (AdapterOptions{"d:/a.gguf", -2.0f}));
  for (const char* name : {"a:b.gguf", "a.gguf:", "a.gguf:1x"})
    EXPECT_EQ(ParseLora(name), (AdapterOptions{name, 1.0f}));
}

TEST(FlagValuesTest, LoopbackIsThisMachineOnly) {
  for (const char* host : {"127.0.0.1", "127.8.8.8", "::1", "localhost"}) EXPECT_TRUE(IsLoopback(host)) << host;
  for (const char* host : {"0.0.0.0", "::", "192.168.1.1", "example", "12.7.0.1"})
    EXPECT_FALSE(IsLoopback(host)) << host;
}

}  // namespace
}  // namespace reprise
