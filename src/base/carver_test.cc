#include "base/carver.h"

#include <gtest/gtest.h>

namespace reprise {
namespace {

struct Layout {
  std::span<float> floats;
  std::span<uint8_t> bytes;
  Layout(uint64_t n, Carver& carver) : floats(carver.Array<float>(n)), bytes(carver.Array<uint8_t>(3)) {}
};

TEST(Carver, MeasuringAndCarvingAreOneFunction) {
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

}  // namespace
}  // namespace reprise
