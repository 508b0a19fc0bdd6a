#include "token/text_stream.h"

#include <gtest/gtest.h>

#include <random>

#include "base/ledger.h"
#include "token/real_models.h"

namespace reprise {
namespace {

// AppendBytes never looks at the tokenizer; any will do.
const Tokenizer& AnyTokenizer() {
  alignas(alignof(std::max_align_t)) static std::byte nothing[sizeof(Tokenizer)];
  return reinterpret_cast<const Tokenizer&>(nothing);
}

struct Shown {
  std::string text;
  bool stopped;
  std::string stop_string;
  bool operator==(const Shown&) const = default;
};

// Streams `bytes` in pieces of random sizes and holds each delta against the promises.
Shown Stream(std::string_view bytes, const std::vector<std::string>& stop, std::mt19937& random, size_t piece_max) {
  TextStream stream(AnyTokenizer(), stop);
  Shown shown{};
  while (!bytes.empty()) {
    const size_t n = std::min<size_t>(bytes.size(), random() % piece_max + 1);
    const std::string delta = stream.AppendBytes(bytes.substr(0, n));
    EXPECT_EQ(delta, ToUtf8(delta, nullptr)) << "a delta is not whole UTF-8";
    shown.text += delta;
    bytes.remove_prefix(n);
  }
  shown.text += stream.Flush();
  EXPECT_EQ(stream.Flush(), "");
  shown.stopped = stream.stopped();
  shown.stop_string = stream.stop_string();
  return shown;
}

// The definition, on the whole text.
Shown Naive(std::string_view bytes, const std::vector<std::string>& stop) {
  for (size_t end = 0; end <= bytes.size(); ++end) {
    std::string longest;
    for (const std::string& s : stop) {
      if (bytes.substr(0, end).ends_with(s) && s.size() > longest.size()) longest = s;
    }
    if (!longest.empty()) return {ToUtf8(bytes.substr(0, end - longest.size()), nullptr), true, longest};
  }
  return {ToUtf8(bytes, nullptr), false, ""};
}

TEST(ToUtf8Test, ReplacesWhatIsNotUtf8) {
  const auto text = [](std::string_view bytes) { return ToUtf8(bytes, nullptr); };
  const std::string r = "\xEF\xBF\xBD";
  EXPECT_EQ(text("aé漢🙂"), "aé漢🙂");
  EXPECT_EQ(text("\x80"), r);
  EXPECT_EQ(text("\xC0\xAF"), r + r);                  // overlong
  EXPECT_EQ(text("\xE0\x80\x80"), r + r + r);          // overlong
  EXPECT_EQ(text("\xED\xA0\x80"), r + r + r);          // surrogate
  EXPECT_EQ(text("\xF4\x90\x80\x80"), r + r + r + r);  // above U+10FFFF
  EXPECT_EQ(text("\xF0\x9F\x99"
                 "a"),
            r + "a");  // one for the part of a character
  EXPECT_EQ(text("\xF0\x9F\x99"), r);
  size_t incomplete = 0;
  EXPECT_EQ(ToUtf8("a\xF0\x9F\x99", &incomplete), "a");
  EXPECT_EQ(incomplete, 3u);
  EXPECT_EQ(ToUtf8("a\xFF", &incomplete), "a" + r);
  EXPECT_EQ(incomplete, 0u);
}

TEST(TextStreamTest, HoldsBackPartsOfCharactersAndOfStops) {
  TextStream stream(AnyTokenizer(), {"END"});
  EXPECT_EQ(stream.AppendBytes("a\xF0\x9F"), "a");
  EXPECT_EQ(stream.AppendBytes("\x99\x82 E"), "🙂 ");
  EXPECT_EQ(stream.AppendBytes("N"), "");
  EXPECT_EQ(stream.AppendBytes("E"), "EN");
  EXPECT_EQ(stream.AppendBytes("ND and more"), "");
  EXPECT_TRUE(stream.stopped());
  EXPECT_EQ(stream.stop_string(), "END");
  EXPECT_EQ(stream.AppendBytes("x"), "");
  EXPECT_EQ(stream.Flush(), "");
}

TEST(TextStreamTest, FlushShowsWhatWasHeldBack) {
  TextStream stream(AnyTokenizer(), {"END"});
  EXPECT_EQ(stream.AppendBytes("EN"), "");
  EXPECT_EQ(stream.Flush(), "EN");
  EXPECT_FALSE(stream.stopped());
}

TEST(TextStreamTest, TheFirstStopToEndCountsAndTheLongestOfThose) {
  std::mt19937 random(1);
  EXPECT_EQ(Stream("abcd", {"abcd", "c"}, random, 1), (Shown{"ab", true, "c"}));
  EXPECT_EQ(Stream("abcd", {"abcd", "c"}, random, 9), (Shown{"ab", true, "c"}));
  EXPECT_EQ(Stream("xabc", {"c", "abc"}, random, 9), (Shown{"x", true, "abc"}));
}

TEST(TextStreamTest, SplitsMakeNoDifference) {
  const char* pieces[] = {"a", "b", "ab", "é", "漢", "🙂", "\xF0\x9F", "\x80", "\xFF", "\n", "<|", "|>", " "};
  const std::vector<std::vector<std::string>> stops = {
      {}, {"ab"}, {"aab", "b\n"}, {"é漢"}, {"<||>", "|>"}, {"🙂", "a🙂a"}, {"bbbbbbbbbb"}, {" \n", "\n "}};
  int stopped = 0;
  for (uint32_t seed = 0; seed < 4000; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    std::string bytes;
    for (uint32_t n = random() % 24; n > 0; --n) bytes += pieces[random() % std::size(pieces)];
    const auto& stop = stops[random() % stops.size()];
    const Shown expected = Naive(bytes, stop);
    stopped += expected.stopped;
    for (const size_t piece_max : {1, 2, 5, 100}) ASSERT_EQ(Stream(bytes, stop, random, piece_max), expected);
  }
  EXPECT_GT(stopped, 400);  // control: both ends are met
  EXPECT_LT(stopped, 3600);
}

TEST(TextStreamTest, TokensOfARealModelGiveTheirText) {
  for (const RealModel& model : RealModels()) {
    const std::string text = "Grüße, 世界! 🙂👩‍👩‍👧 \tπ≈3.14159\n\nfin";
    TextStream stream(model.tokenizer(), {});
    std::string shown;
    for (const TokenId token : model.tokenizer().Encode(text, /*add_special=*/false, /*parse_special=*/false)) {
      const std::string delta = stream.Append(token);
      EXPECT_EQ(delta, ToUtf8(delta, nullptr));
      shown += delta;
    }
    EXPECT_EQ(shown + stream.Flush(), text) << model.file;
  }
}

}  // namespace
}  // namespace reprise
