#include "server/prefix_ids.h"

#include <gtest/gtest.h>

namespace reprise {
namespace {

std::vector<TokenId> Tokens(size_t count) {
  std::vector<TokenId> tokens;
  while (tokens.size() < count) tokens.push_back(TokenId(static_cast<int32_t>(tokens.size() * 7)));
  return tokens;
}

TEST(PrefixIdsTest, EqualPrefixesHaveEqualNumbersAndNoOthers) {
  const Digest key = Sha256::Of("a start");
  const Scope scope{.tenant = "t"};
  const std::vector<TokenId> tokens = Tokens(1500);
  const std::vector<uint64_t> ids = PrefixIds(key, scope, tokens);
  ASSERT_EQ(ids.size(), 3u);
  EXPECT_EQ(PrefixIds(key, scope, std::span(tokens).first(1024)), std::vector<uint64_t>(ids.begin(), ids.begin() + 2));
  std::vector<TokenId> other = tokens;
  other[600] = TokenId(1);
  const std::vector<uint64_t> parted = PrefixIds(key, scope, other);
  EXPECT_EQ(parted[0], ids[0]);
  EXPECT_NE(parted[1], ids[1]);
  EXPECT_NE(parted[2], ids[2]) << "the same tokens after others are another prefix";
  for (const uint64_t id : ids) EXPECT_LT(id, uint64_t{1} << 53);
  EXPECT_NE(PrefixIds(key, {.tenant = "u"}, tokens)[0], ids[0]);
  EXPECT_NE(PrefixIds(key, {.tenant = "t", .salt = ""}, tokens)[0], ids[0]);
  EXPECT_NE(PrefixIds(Sha256::Of("another start"), scope, tokens)[0], ids[0]);
  EXPECT_TRUE(PrefixIds(key, scope, {}).empty());
}

}  // namespace
}  // namespace reprise
