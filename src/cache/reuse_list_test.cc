#include "cache/reuse_list.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace reprise {
namespace {

TEST(ReuseList, KeptOnesComeAfterAllOthers) {
  Ledger ledger(1 << 20);
  ReuseList list("list", 8, ledger);
  EXPECT_EQ(ledger.taken_bytes(), ReuseList::FootprintBytes(8));
  EXPECT_EQ(list.Oldest(), std::nullopt);
  list.Keep(SlotId(1));
  for (uint32_t slot : {1, 2, 3}) list.Add(SlotId(slot));
  EXPECT_EQ(list.Oldest(), SlotId(2));
  list.Keep(SlotId(2));  // while listed
  EXPECT_EQ(list.Oldest(), SlotId(3));
  list.Remove(SlotId(3));
  EXPECT_EQ(list.Oldest(), SlotId(1));
  list.Remove(SlotId(1));
  list.Forget(SlotId(1));
  list.Add(SlotId(1));
  EXPECT_EQ(list.Oldest(), SlotId(1));  // control: ordinary again
}

TEST(ReuseListRandom, AgreesWithTwoVectors) {
  std::mt19937_64 random(3);
  Ledger ledger(1 << 20);
  ReuseList list("list", 10, ledger);
  std::vector<SlotId> model[2];
  std::vector<bool> kept(10);
  for (int step = 0; step < 50000; ++step) {
    const SlotId slot(static_cast<uint32_t>(random() % 10));
    std::vector<SlotId>& mine = model[kept[slot.value()]];
    const auto at = std::find(mine.begin(), mine.end(), slot);
    ASSERT_EQ(list.Contains(slot), at != mine.end());
    switch (random() % 4) {
      case 0:
      case 1:
        if (at == mine.end()) {
          list.Add(slot);
          mine.push_back(slot);
        } else {
          list.Remove(slot);
          mine.erase(at);
        }
        break;
      case 2:
        list.Keep(slot);
        if (!kept[slot.value()] && at != mine.end()) {
          mine.erase(at);
          model[1].push_back(slot);
        }
        kept[slot.value()] = true;
        break;
      case 3:
        if (at != mine.end()) break;
        list.Forget(slot);
        kept[slot.value()] = false;
        break;
    }
    std::vector<SlotId> order;
    list.ForEach([&](SlotId each) { order.push_back(each); });
    std::vector<SlotId> expected = model[0];
    expected.insert(expected.end(), model[1].begin(), model[1].end());
    ASSERT_EQ(order, expected);
    ASSERT_EQ(list.Oldest(), expected.empty() ? std::nullopt : std::optional(expected[0]));
    ASSERT_EQ(list.size(), expected.size());
  }
}

}  // namespace
}  // namespace reprise
