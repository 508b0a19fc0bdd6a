#include "cache/reuse_list.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace reprise {
namespace {

TEST(ReuseLists, ASlotStaysInItsListUntilItIsMoved) {
  Ledger ledger(1 << 20);
  ReuseLists lists("lists", 8, 2, ledger);
  EXPECT_EQ(ledger.taken_bytes(), ReuseLists::FootprintBytes(8));
  EXPECT_EQ(lists.Oldest(0), std::nullopt);
  lists.Move(SlotId(1), 1);
  for (uint32_t slot : {1, 2, 3}) lists.Add(SlotId(slot));
  EXPECT_EQ(lists.Oldest(0), SlotId(2));
  EXPECT_EQ(lists.Oldest(1), SlotId(1));
  lists.Move(SlotId(2), 1);  // while listed
  EXPECT_EQ(lists.Oldest(0), SlotId(3));
  lists.Remove(SlotId(1));
  EXPECT_EQ(lists.Oldest(1), SlotId(2));
  lists.Add(SlotId(1));
  EXPECT_EQ(lists.list(SlotId(1)), 1u) << "and when it comes back";
  EXPECT_EQ(lists.Oldest(1), SlotId(2));
}

TEST(ReuseListsRandom, AgreeWithVectors) {
  constexpr uint32_t kLists = 3;
  std::mt19937_64 random(3);
  Ledger ledger(1 << 20);
  ReuseLists lists("lists", 10, kLists, ledger);
  std::vector<SlotId> model[kLists];
  std::vector<uint32_t> list_of(10);
  for (int step = 0; step < 50000; ++step) {
    const SlotId slot(static_cast<uint32_t>(random() % 10));
    std::vector<SlotId>& mine = model[list_of[slot.value()]];
    const auto at = std::find(mine.begin(), mine.end(), slot);
    const bool listed = at != mine.end();
    ASSERT_EQ(lists.Contains(slot), listed);
    if (random() % 3 == 0) {
      const uint32_t list = random() % kLists;
      if (listed && list != list_of[slot.value()]) {
        mine.erase(at);
        model[list].push_back(slot);
      }
      list_of[slot.value()] = list;
      lists.Move(slot, list);
    } else if (listed) {
      lists.Remove(slot);
      mine.erase(at);
    } else {
      lists.Add(slot);
      mine.push_back(slot);
    }
    std::vector<SlotId> order, expected;
    lists.ForEach([&](SlotId each) { order.push_back(each); });
    for (uint32_t list = 0; list < kLists; ++list) {
      expected.insert(expected.end(), model[list].begin(), model[list].end());
      ASSERT_EQ(lists.Oldest(list), model[list].empty() ? std::nullopt : std::optional(model[list][0]));
    }
    ASSERT_EQ(order, expected);
    ASSERT_EQ(lists.size(), expected.size());
  }
}

}  // namespace
}  // namespace reprise
