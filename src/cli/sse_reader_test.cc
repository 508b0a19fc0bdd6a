#include "cli/sse_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

namespace reprise {
namespace {

using ::testing::ElementsAre;

std::vector<std::string> ReadIn(const std::vector<std::string_view>& pieces) {
  SseReader reader;
  std::vector<std::string> events;
  for (std::string_view piece : pieces) {
    auto more = reader.Append(piece);
    EXPECT_TRUE(more.ok());
    events.insert(events.end(), more->begin(), more->end());
  }
  return events;
}

TEST(SseReaderTest, AnySplitOfTheBytesGivesTheSameEvents) {
  const std::string stream =
      ": queued\n\ndata: {\"a\":1}\n\n: prefill 4/8\r\n\r\nevent: x\rdata:two\rdata: lines\r\rdata:\n\ndata: "
      "[DONE]\r\n\r\n";
  const std::vector<std::string> whole = ReadIn({stream});
  ASSERT_THAT(whole, ElementsAre("{\"a\":1}", "two\nlines", "", "[DONE]"));
  for (uint32_t seed = 0; seed < 500; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    std::vector<std::string_view> pieces;
    for (std::string_view rest = stream; !rest.empty();) {
      const size_t size = std::min<size_t>(rest.size(), random() % (2 + seed % 9));
      pieces.push_back(rest.substr(0, size));
      rest.remove_prefix(size);
    }
    EXPECT_EQ(ReadIn(pieces), whole);
  }
}

TEST(SseReaderTest, AnEventWithoutItsEmptyLineIsNotShown) {
  EXPECT_THAT(ReadIn({"data: whole\n\ndata: half\n"}), ElementsAre("whole"));
}

TEST(SseReaderTest, AnEndlessEventIsRefused) {
  SseReader reader;
  const std::string line = "data: " + std::string(1 << 20, 'x') + "\n";
  int taken = 0;
  while (taken < 10 && reader.Append(line).ok()) ++taken;
  EXPECT_GE(taken, 3);
  EXPECT_LT(taken, 5);
}

}  // namespace
}  // namespace reprise
