#include "base/ledger.h"

#include <gtest/gtest.h>

namespace reprise {
namespace {

struct Layout {
  std::span<float> floats;
  std::span<uint8_t> bytes;
  Layout(uint64_t n, Carver& carver) : floats(carver.Array<float>(n)), bytes(carver.Array<uint8_t>(3)) {}
};

TEST(Ledger, MeasuringAndCarvingAreOneFunction) {
  EXPECT_EQ(Measure<Layout>(uint64_t{5}), 128u);
  Ledger ledger(1 << 30);
  for (uint64_t n : {1ull, 1000ull, 3000000ull}) {
    Region region = ledger.Take("test", Measure<Layout>(n));
    const Layout layout = Carve<Layout>(region, n);
    ASSERT_EQ(layout.floats.size(), n);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(layout.floats.data()) % 64, 0u);
    layout.floats[n - 1] = 1;
    layout.bytes[2] = 1;
    EXPECT_EQ(ledger.taken_bytes(), Measure<Layout>(n));
  }
  EXPECT_EQ(ledger.taken_bytes(), 0u);
}

TEST(Ledger, TheLimitIsObeyed) {
  Ledger ledger(1000);
  Region first = ledger.Take("first", 600);
  EXPECT_TRUE(ledger.Fits(400));
  EXPECT_FALSE(ledger.Fits(401));
  EXPECT_DEATH(ledger.Take("second", 401), "second asks for 401 B, left 400");
  first = Region();
  EXPECT_TRUE(ledger.Fits(1000));
}

TEST(Ledger, NamesWhatWasTaken) {
  Ledger ledger(1 << 20);
  const Region a = ledger.Take("pool", 10);
  const Region b = ledger.Account("tokenizer", 20);
  EXPECT_EQ(ledger.taken_by_component().at("pool"), 10u);
  EXPECT_EQ(ledger.taken_by_component().at("tokenizer"), 20u);
}

}  // namespace
}  // namespace reprise
