#include "base/geometry.h"

#include <gtest/gtest.h>

namespace reprise {
namespace {

Geometry OneGroup(uint32_t layers, uint32_t kv_heads, uint32_t dim) {
  Geometry geometry;
  LayerGroup group{.kv_heads = kv_heads, .key_dim = dim, .value_dim = dim};
  for (uint32_t i = 0; i < layers; ++i) group.layers.push_back(i);
  geometry.groups.push_back(group);
  return geometry;
}

// The worked values of the capacity cases.
TEST(Geometry, BytesPerTokenComeOut) {
  EXPECT_EQ(BytesPerToken(OneGroup(32, 8, 128), GroupId(0)), 131072u);
  EXPECT_EQ(BytesPerToken(OneGroup(30, 3, 64), GroupId(0)), 23040u);  // 22.5 KiB
  EXPECT_EQ(BytesPerToken(OneGroup(24, 2, 64), GroupId(0)), 12u * 1024);
  EXPECT_EQ(BytesPerToken(OneGroup(28, 2, 128), GroupId(0)), 28u * 1024);
}

TEST(Geometry, BlockTokensKeepOneLayerAtLeast32KiB) {
  EXPECT_EQ(DeriveBlockTokens(OneGroup(1, 8, 128)), 16u);  // 4 KiB per token: 16 -> 64 KiB
  EXPECT_EQ(DeriveBlockTokens(OneGroup(1, 2, 128)), 32u);  // 1 KiB: 32 -> 32 KiB
  EXPECT_EQ(DeriveBlockTokens(OneGroup(1, 1, 64)), 64u);   // 256 B: 64 at the most
}

TEST(Geometry, WindowGroupsStopGrowing) {
  Geometry geometry = OneGroup(15, 1, 256);
  geometry.block_tokens = 32;
  geometry.groups[0].kind = GroupKind::kWindow;
  geometry.groups[0].window = 512;
  EXPECT_EQ(ResidentBlocks(geometry, GroupId(0), 100000, 1), 17u);    // ceil(511 / 32) + 1
  EXPECT_EQ(ResidentBlocks(geometry, GroupId(0), 100000, 512), 33u);  // ceil(1022 / 32) + 1
  EXPECT_EQ(ResidentBlocks(geometry, GroupId(0), 33, 1), 2u);
  geometry.groups[0].kind = GroupKind::kFull;
  EXPECT_EQ(ResidentBlocks(geometry, GroupId(0), 100000, 1), 3125u);
}

}  // namespace
}  // namespace reprise
