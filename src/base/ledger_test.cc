#include "base/ledger.h"

#include <gtest/gtest.h>

namespace reprise {
namespace {

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
