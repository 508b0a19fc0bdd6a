#include "base/treap.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <vector>

#include "base/ids.h"

namespace reprise {
namespace {

using Id = StrongId<struct TestIdTag, uint32_t>;

struct Links {
  std::vector<TreapLinks<Id>>* all;
  TreapLinks<Id>& operator()(Id id) const { return (*all)[id.value()]; }
};

TEST(TreapTest, HoldsWhatASetHoldsInItsOrder) {
  std::mt19937 random(3);
  std::vector<TreapLinks<Id>> links(200);
  const Treap<Id, Links> treap(Links{&links});
  Id top = treap.kNone;
  std::set<uint32_t> set;
  for (int step = 0; step < 20000; ++step) {
    const uint32_t value = random() % 200;
    const Id id(value);
    if (set.insert(value).second) {
      treap.Insert(top, id, [&](Id other) { return other < id; });
    } else {
      set.erase(value);
      treap.Remove(top, id);
    }
    Id at = treap.First(top);
    Id last = treap.kNone;
    for (const uint32_t wanted : set) {
      ASSERT_EQ(at, Id(wanted));
      ASSERT_TRUE(treap.IsLinked(top, at));
      ASSERT_EQ(treap.Previous(at), last);
      last = at;
      at = treap.Next(at);
    }
    ASSERT_EQ(at, treap.kNone);
    ASSERT_EQ(treap.Last(top), last);
    const uint32_t bound = random() % 220;
    const auto expected = set.lower_bound(bound);
    ASSERT_EQ(treap.LowerBound(top, [&](Id other) { return other.value() < bound; }),
              expected == set.end() ? treap.kNone : Id(*expected));
  }
}

// Conversations take ids at regular distances: no distance makes a chain.
TEST(TreapTest, IdsAtRegularDistancesStayBalanced) {
  for (const uint32_t stride : {1u, 2u, 8u, 89u, 233u, 610u, 1597u}) {
    const uint32_t count = std::min((1u << 20) / stride, 4096u);
    std::vector<TreapLinks<Id>> links(uint64_t{count} * stride);
    const Treap<Id, Links> treap(Links{&links});
    Id top = treap.kNone;
    for (uint32_t i = 0; i < count; ++i) {
      const Id id(i * stride);
      treap.Insert(top, id, [&](Id other) { return other < id; });
    }
    uint32_t deepest = 0;
    for (uint32_t i = 0; i < count; ++i) {
      uint32_t depth = 0;
      for (Id id(i * stride); id != treap.kNone; id = links[id.value()].up) ++depth;
      deepest = std::max(deepest, depth);
    }
    EXPECT_LE(deepest, 50u) << "ids " << stride << " apart, " << count << " of them";
  }
}

}  // namespace
}  // namespace reprise
