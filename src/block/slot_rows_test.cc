#include "block/slot_rows.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "base/kv_view.h"
#include "block/block_tables.h"

namespace reprise {
namespace {

// docs/format/block.md, example.
Geometry Example() {
  return {.groups = {{.kind = GroupKind::kFull, .layers = {0, 1}, .kv_heads = 2, .key_dim = 64, .value_dim = 64}},
          .block_tokens = 64};
}

TEST(SlotLayout, OffsetsMatchTheDocument) {
  const Geometry geometry = Example();
  EXPECT_EQ(LayerKeyBytes(geometry, GroupId(0)), 16384u);
  EXPECT_EQ(LayerBlockBytes(geometry, GroupId(0)), 32768u);
  EXPECT_EQ(SlotBytes(geometry, GroupId(0)), 65536u);
  std::vector<std::byte> slots(2 * 65536);
  const KvLayerView view = LayerView(geometry, GroupId(0), {.base = slots.data(), .slots = 2}, 1);
  const std::byte* slot = slots.data() + 65536;
  EXPECT_EQ(view.Key(SlotId(1)) + ((1 * 64 + 5) * 64 + 37) * 2, slot + 41674);
  EXPECT_EQ(view.Value(SlotId(1)) + ((1 * 64 + 37) * 64 + 5) * 2, slot + 62090);

  Geometry gemma = {.groups = {{.kind = GroupKind::kWindow,
                                .layers = std::vector<uint32_t>(15),
                                .kv_heads = 1,
                                .key_dim = 256,
                                .value_dim = 256,
                                .window = 512}},
                    .block_tokens = 64};
  EXPECT_EQ(SlotBytes(gemma, GroupId(0)), 983040u);
}

// cases/capacity 17.
TEST(SlotLayout, Token37LivesInSlot2Row5) {
  Ledger ledger(1 << 20);
  BlockTables tables({.sequences = 2, .groups = 1, .blocks_max = 4}, ledger);
  EXPECT_EQ(ledger.taken_bytes(), BlockTables::FootprintBytes({.sequences = 2, .groups = 1, .blocks_max = 4}));
  const std::span<SlotId> table = tables.table(1, 0);
  table[0] = SlotId(3);
  table[1] = SlotId(9);
  table[2] = SlotId(2);
  const std::span<const SlotId> seen = tables.Heads(1, 3)[0];
  ASSERT_EQ(seen.size(), 3u);
  EXPECT_EQ(seen[37 / 16], SlotId(2));
  EXPECT_EQ(37 % 16, 5);
  EXPECT_EQ(tables.table(1, 0)[3], kNoSlot);
  EXPECT_EQ(tables.table(0, 0)[0], kNoSlot);
}

// K [heads][dim][rows] and V [heads][rows][dim] of elements that say where they are.
class SlotRowsTest : public testing::TestWithParam<ElementType> {
 protected:
  SlotRowsTest() {
    geometry_.key_type = GetParam();
    geometry_.value_type = ElementType::kF16;
    bytes_ = SlotBytes(geometry_, GroupId(0));
  }
  // f(row, element bytes) for every element of the slot.
  template <class F>
  void ForEachElement(std::vector<std::byte>& slot, F f) {
    const uint32_t rows = geometry_.block_tokens;
    for (uint32_t layer = 0; layer < 2; ++layer) {
      const KvLayerView view = LayerView(geometry_, GroupId(0), {.base = slot.data(), .slots = 1}, layer);
      const size_t key_bytes = ElementBytes(view.key_type), value_bytes = ElementBytes(view.value_type);
      for (uint32_t lane = 0; lane < 3 * 6; ++lane)
        for (uint32_t row = 0; row < rows; ++row)
          f(row, std::span(view.Key(SlotId(0)) + (lane * rows + row) * key_bytes, key_bytes));
      for (uint32_t head = 0; head < 3; ++head)
        for (uint32_t row = 0; row < rows; ++row)
          for (uint32_t d = 0; d < 5; ++d)
            f(row, std::span(view.Value(SlotId(0)) + ((head * rows + row) * 5 + d) * value_bytes, value_bytes));
    }
  }
  Geometry geometry_{
      .groups = {{.kind = GroupKind::kFull, .layers = {0, 1}, .kv_heads = 3, .key_dim = 6, .value_dim = 5}},
      .block_tokens = 16};
  uint64_t bytes_ = 0;
};

TEST_P(SlotRowsTest, CopiesTheRowsAskedFor) {
  std::vector<std::byte> from(bytes_), to(bytes_);
  uint32_t next = 1;
  for (std::byte& byte : from) byte = static_cast<std::byte>(next = next * 1103515245 + 12345);
  CopyRows(geometry_, GroupId(0), from, to, 5);
  std::vector<std::vector<std::byte>> wanted;
  ForEachElement(from, [&](uint32_t row, std::span<std::byte> element) {
    if (row < 5) wanted.emplace_back(element.begin(), element.end());
  });
  size_t at = 0;
  ForEachElement(to, [&](uint32_t row, std::span<std::byte> element) {
    if (row >= 5) return;
    EXPECT_TRUE(std::equal(element.begin(), element.end(), wanted[at++].begin()));
  });
  EXPECT_EQ(at, wanted.size());
}

TEST_P(SlotRowsTest, ClearsExactlyTheRowsFromTheFirstOn) {
  for (uint32_t first : {0u, 1u, 7u, 15u, 16u}) {
    std::vector<std::byte> slot(bytes_, std::byte{0xFF});  // NaN in every element
    ClearRows(geometry_, GroupId(0), slot, first);
    uint64_t seen = 0;
    ForEachElement(slot, [&](uint32_t row, std::span<std::byte> element) {
      for (std::byte byte : element)
        ASSERT_EQ(byte, row < first ? std::byte{0xFF} : std::byte{0}) << first << " " << row;
      seen += element.size();
    });
    EXPECT_EQ(seen, bytes_);
  }
}

INSTANTIATE_TEST_SUITE_P(ElementTypes, SlotRowsTest, testing::Values(ElementType::kF32, ElementType::kF16),
                         [](const auto& info) { return std::string(Name(info.param)); });

}  // namespace
}  // namespace reprise
