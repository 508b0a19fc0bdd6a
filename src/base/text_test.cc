#include "base/text.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

namespace reprise {
namespace {

TEST(TextTest, DistanceCountsInsertionsRemovalsAndReplacements) {
  EXPECT_EQ(EditDistance("", ""), 0u);
  EXPECT_EQ(EditDistance("", "abc"), 3u);
  EXPECT_EQ(EditDistance("abc", ""), 3u);
  EXPECT_EQ(EditDistance("context", "context"), 0u);
  EXPECT_EQ(EditDistance("contxt", "context"), 1u);
  EXPECT_EQ(EditDistance("kitten", "sitting"), 3u);
  EXPECT_EQ(EditDistance("sitting", "kitten"), 3u);
  EXPECT_EQ(EditDistance("ab", "ba"), 2u);
}

TEST(TextTest, EveryCharacterBeginsOnce) {
  const std::string text = "aé日😀";
  EXPECT_EQ(std::count_if(text.begin(), text.end(), BeginsCharacter), 4);
}

TEST(TextTest, CommasStandBeforeEveryThirdDigit) {
  EXPECT_EQ(WithCommas(0), "0");
  EXPECT_EQ(WithCommas(999), "999");
  EXPECT_EQ(WithCommas(1000), "1,000");
  EXPECT_EQ(WithCommas(1234567), "1,234,567");
}

TEST(TextTest, ControlsDoNotReachATerminal) {
  EXPECT_EQ(WithoutControls("a\tb\nç 東"), "a\tb\nç 東");
  EXPECT_EQ(WithoutControls("\x1b[2J"), "\xEF\xBF\xBD[2J");
  EXPECT_EQ(WithoutControls("\xC2\x9B"
                            "2J\x7F\r"),
            "\xEF\xBF\xBD"
            "2J\xEF\xBF\xBD\xEF\xBF\xBD");
  EXPECT_EQ(WithoutControls("\xC2"), "\xC2");
}

}  // namespace
}  // namespace reprise
