#include "cli/cache_words.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace reprise {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::string Explained(const std::string& reason = "tokens_differ", const std::string& after = "2.") {
  return R"({"prefix_cache_receipt": {"hit": {"reusable_tokens": 1029, "suffix_tokens": 283},
    "miss": [{"at_token": 1029, "reason": ")" +
         reason + R"(", "detail": "position 1029: asked 34 \"2\", cached 33 \"1\""}],
    "fork": {"at_token": 1029, "asked": {"id": 34, "text": "2"}, "cached": {"id": 33, "text": "1"}, "lost_tokens": 254,
             "before": "The time\nis 12:0", "after": ")" +
         after + R"(", "message": {"index": 0, "role": "system"},
             "summary": "message 0 (system) differs", "advice": "move it"}}})";
}

TEST(CacheWordsTest, GoldenExplain) {
  EXPECT_EQ(ExplainInWords(Explained()),
            "reused      1,029 of 1,312 tokens; 283 have to be computed\n"
            "why         tokens_differ: position 1029: asked 34 \"2\", cached 33 \"1\"\n"
            "where       token 1,029, asked 34 \"2\", cached 33 \"1\"\n"
            "              …The time\\nis 12:0⟨here⟩2.…\n"
            "lost        254 cached tokens that are of no use here\n"
            "so          message 0 (system) differs\n"
            "do          move it\n");
}

TEST(CacheWordsTest, APromptThatIsAllThereHasNoPlaceToShow) {
  EXPECT_THAT(ExplainInWords(Explained("last_token_rule")), Not(HasSubstr("where")));
  EXPECT_THAT(ExplainInWords(Explained("read_disabled")), Not(HasSubstr("where")));
  EXPECT_THAT(ExplainInWords(Explained("evicted")), HasSubstr("do          a larger --memory"));
  EXPECT_THAT(ExplainInWords(Explained("evicted")), Not(HasSubstr("move it"))) << "the text is not at fault";
  EXPECT_THAT(ExplainInWords(R"({"prefix_cache_receipt": {"fork": null}})"), Not(HasSubstr("where")));
  EXPECT_THAT(ExplainInWords(Explained()), HasSubstr("where")) << "control";
}

TEST(CacheWordsTest, TextsOfAPromptDoNotDriveTheTerminal) {
  const std::string words = ExplainInWords(Explained("tokens_differ", "\\u001b[2J\x7F"));
  EXPECT_THAT(words, HasSubstr("[2J"));
  EXPECT_EQ(words.find('\x1b'), std::string::npos);
  EXPECT_EQ(words.find('\x7F'), std::string::npos);
}

TEST(CacheWordsTest, GoldenStats) {
  constexpr std::string_view kAnswer = R"({"kv_hit_rate": 0.75, "kv_tokens_total": {"pool": 3000, "computed": 1000},
    "kv_miss_total": {"never_seen": 2, "evicted": 0, "tokens_differ": 3},
    "pool_bytes": {"free": 1048576, "active": 0, "reusable": 2048, "held": 0},
    "groups": [{"kind": "full", "window": 0, "pool_bytes": {"free": 1024}},
               {"kind": "window", "window": 512, "pool_bytes": {"free": 0}}],
    "tiers": {"disk": {"writable": true, "blocks": 1500, "bytes": 2048, "bytes_max": 1048576, "damaged": 2,
              "operations": {"fetch": {"ok": 1}, "store": {"ok": 12}}, "breaker": {"fetch": "closed", "store": "open"},
              "last_error": "no space left"}},
    "nodes": 1200, "tails": 3, "evicted_blocks": 5, "duplicate_seals": 0, "sequences": 1, "queue_depth": 2,
    "queue_tokens": 99})";
  EXPECT_EQ(CacheStatsInWords(kAnswer),
            "hit rate    75.0 %: 3,000 of 4,000 prompt tokens were not computed\n"
            "ended by    tokens_differ 3, never_seen 2\n"
            "pool        2 KiB reusable, 1 MiB free\n"
            "              full        1 KiB free\n"
            "              window 512  empty\n"
            "disk        1,500 blocks, 2 KiB of 1 MiB; read 1 block, wrote 12 records, found 2 damaged\n"
            "              store left alone after failures (open): no space left\n"
            "tree        1,200 blocks, ends of blocks 3; evicted 5, computed twice 0\n"
            "now         1 running, 2 waiting with 99 prompt tokens\n");
}

TEST(CacheWordsTest, Purged) {
  EXPECT_EQ(PurgedInWords(R"({"purged": {"blocks": 1200, "pinned": 0}})"), "forgot 1,200 blocks\n");
  EXPECT_EQ(PurgedInWords(R"({"purged": {"blocks": 7, "pinned": 0, "disk_blocks": 70}})"),
            "forgot 7 blocks, and 70 on disk\n");
  EXPECT_EQ(PurgedInWords(R"({"purged": {"blocks": 1, "pinned": 4}})"),
            "forgot 1 block; 4 more when the requests that use them end\n");
}

TEST(CacheWordsTest, AnswersOfOtherKindsAreNoCrash) {
  for (const char* text : {"{}", R"({"prefix_cache_receipt": 5})",
                           R"({"prefix_cache_receipt": {"miss": [1], "fork": {"asked": "x"}, "hit": []}})",
                           R"({"kv_hit_rate": "x", "groups": [1, {}], "tiers": {"disk": 1}, "kv_miss_total": [1]})",
                           R"({"purged": []})"}) {
    EXPECT_FALSE(ExplainInWords(text).empty()) << text;
    EXPECT_FALSE(CacheStatsInWords(text).empty()) << text;
    EXPECT_FALSE(PurgedInWords(text).empty()) << text;
  }
  for (const char* text : {"", "[]", "null", "<html>"}) {
    EXPECT_EQ(ExplainInWords(text), "") << text;
    EXPECT_EQ(CacheStatsInWords(text), "") << text;
    EXPECT_EQ(PurgedInWords(text), "") << text;
  }
}

}  // namespace
}  // namespace reprise
