#include "block/slot_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

namespace reprise {
namespace {

SlotPoolOptions Options(uint32_t slots, uint64_t shuffle_seed = 0) {
  return {.name = "pool", .slot_bytes = 128, .slots = slots, .shuffle_seed = shuffle_seed};
}

TEST(SlotPool, TakesExactlyItsFootprint) {
  Ledger ledger(1 << 20);
  const SlotPool pool(Options(10), ledger);
  uint64_t planned = 0;
  for (const Footprint& line : SlotPool::Footprints(Options(10))) planned += line.bytes;
  EXPECT_EQ(ledger.taken_bytes(), planned);
  EXPECT_EQ(ledger.taken_by_component().at("pool"), 1280u);
}

TEST(SlotPool, AnExhaustedPoolIsAnOutcome) {
  Ledger ledger(1 << 20);
  SlotPool pool(Options(2), ledger);
  const SlotId first = *pool.TryReserve();
  EXPECT_NE(first, *pool.TryReserve());
  EXPECT_EQ(pool.TryReserve(), std::nullopt);
  pool.Unpin(first);
  EXPECT_EQ(pool.TryReserve(), first);  // control
}

TEST(SlotPool, SlotsAreApartAndAlignedTo64Bytes) {
  Ledger ledger(1 << 20);
  SlotPool pool(Options(3), ledger);
  for (uint32_t i = 0; i < 3; ++i) {
    EXPECT_EQ(pool.bytes(SlotId(i)).data(), pool.view().base + i * 128);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(pool.bytes(SlotId(i)).data()) % 64, 0u);
  }
}

TEST(SlotPool, OnlySealedSlotsOutliveTheirPins) {
  Ledger ledger(1 << 20);
  SlotPool pool(Options(3), ledger);
  const SlotId reserved = *pool.TryReserve(), filled = *pool.TryReserve(), sealed = *pool.TryReserve();
  pool.Fill(filled);
  pool.Fill(sealed);
  pool.Seal(sealed);
  for (SlotId slot : {reserved, filled, sealed}) pool.Unpin(slot);
  EXPECT_EQ(pool.state(reserved), SlotState::kFree);
  EXPECT_EQ(pool.state(filled), SlotState::kFree);
  EXPECT_EQ(pool.state(sealed), SlotState::kSealed);
  EXPECT_EQ(pool.free(), 2u);
  EXPECT_EQ(pool.reusable(), 1u);
  pool.Free(sealed);
  EXPECT_EQ(pool.free(), 3u);
  pool.CheckIntegrity();
}

TEST(SlotPool, MisuseAborts) {
  Ledger ledger(1 << 20);
  SlotPool pool(Options(2), ledger);
  const SlotId slot = *pool.TryReserve();
  EXPECT_DEATH(pool.Seal(slot), "kFilled");
  EXPECT_DEATH(pool.Pin(slot), "kSealed");  // nobody may read what is not published
  EXPECT_DEATH(pool.Free(slot), "kSealed");
  EXPECT_DEATH(pool.Unpin(SlotId(1)), "pins");
  EXPECT_DEATH(pool.Unpin(SlotId(2)), "2 vs. 2");
  pool.Fill(slot);
  pool.Seal(slot);
  EXPECT_DEATH(pool.Free(slot), "pins");  // pinned
  pool.Pin(slot);
  EXPECT_DEATH(pool.Unseal(slot), "pins");  // someone else reads it
  pool.Unpin(slot);
  pool.Unseal(slot);  // control
  EXPECT_EQ(pool.state(slot), SlotState::kReserved);
}

TEST(SlotPool, ShuffledPoolsHandOutEverySlotInAnotherOrder) {
  const auto order = [](uint64_t seed) {
    Ledger ledger(1 << 20);
    SlotPool pool(Options(64, seed), ledger);
    std::vector<uint32_t> out;
    while (const std::optional<SlotId> slot = pool.TryReserve()) out.push_back(slot->value());
    return out;
  };
  std::vector<uint32_t> plain(64);
  std::iota(plain.begin(), plain.end(), 0);
  EXPECT_EQ(order(0), plain);
  EXPECT_NE(order(5), plain);
  EXPECT_NE(order(5), order(6));
  EXPECT_EQ(order(5), order(5));
  std::vector<uint32_t> sorted = order(5);
  std::sort(sorted.begin(), sorted.end());
  EXPECT_EQ(sorted, plain);
}

TEST(SlotPoolRandom, AgreesWithTheNaiveModel) {
  struct Model {
    SlotState state = SlotState::kFree;
    uint32_t pins = 0;
  };
  std::mt19937_64 random(11);
  Ledger ledger(1 << 20);
  SlotPool pool(Options(12, 1), ledger);
  std::vector<Model> model(12);
  for (int step = 0; step < 50000; ++step) {
    const SlotId slot(static_cast<uint32_t>(random() % 12));
    Model& known = model[slot.value()];
    const auto count = [&](auto holds) {
      return static_cast<uint32_t>(std::count_if(model.begin(), model.end(), holds));
    };
    switch (random() % 7) {
      case 0: {
        const bool free = count([](const Model& m) { return m.state == SlotState::kFree; }) > 0;
        const std::optional<SlotId> got = pool.TryReserve();
        ASSERT_EQ(got.has_value(), free);
        if (!got) break;
        ASSERT_EQ(model[got->value()].state, SlotState::kFree);
        model[got->value()] = {SlotState::kReserved, 1};
        break;
      }
      case 1:
        if (known.state != SlotState::kReserved) break;
        pool.Fill(slot);
        known.state = SlotState::kFilled;
        break;
      case 2:
        if (known.state != SlotState::kFilled) break;
        pool.Seal(slot);
        known.state = SlotState::kSealed;
        break;
      case 3:
        if (known.state != SlotState::kSealed || known.pins > 3) break;
        pool.Pin(slot);
        ++known.pins;
        break;
      case 4:
        if (known.pins == 0) break;
        pool.Unpin(slot);
        if (--known.pins == 0 && known.state != SlotState::kSealed) known.state = SlotState::kFree;
        break;
      case 5:
        if (known.state != SlotState::kSealed || known.pins > 0) break;
        pool.Free(slot);
        known.state = SlotState::kFree;
        break;
      case 6:
        if (known.state != SlotState::kSealed || known.pins != 1) break;
        pool.Unseal(slot);
        known.state = SlotState::kReserved;
        break;
    }
    pool.CheckIntegrity();
    for (uint32_t i = 0; i < 12; ++i) {
      ASSERT_EQ(pool.state(SlotId(i)), model[i].state);
      ASSERT_EQ(pool.pins(SlotId(i)), model[i].pins);
    }
    ASSERT_EQ(pool.pinned(), count([](const Model& m) { return m.pins > 0; }));
    ASSERT_EQ(pool.reusable(), count([](const Model& m) { return m.state == SlotState::kSealed && m.pins == 0; }));
  }
}

}  // namespace
}  // namespace reprise
