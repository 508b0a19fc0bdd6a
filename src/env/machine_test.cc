#include "env/machine.h"

#include <gtest/gtest.h>

namespace reprise {
namespace {

TEST(Machine, TellsWhatThisProcessHas) {
  const MachineInfo info = ReadMachineInfo();
  EXPECT_GE(info.cores, 1u);
  EXPECT_GT(info.memory_total_bytes, 64ull << 20);
  EXPECT_LE(info.memory_available_bytes, info.memory_total_bytes);
  EXPECT_FALSE(info.system.empty());
  EXPECT_GT(ResidentBytes(), 100'000u);
}

TEST(Machine, DefaultMemoryObeysTheControlGroupAndWhatIsFree) {
  MachineInfo info{.memory_total_bytes = 1000, .memory_available_bytes = 1000};
  EXPECT_EQ(DefaultMemoryBytes(info), 500u);
  info.memory_limit_bytes = 400;
  EXPECT_EQ(DefaultMemoryBytes(info), 360u);
  info.memory_available_bytes = 200;
  EXPECT_EQ(DefaultMemoryBytes(info), 180u);
  info = {.memory_total_bytes = 1000, .memory_available_bytes = 300, .memory_limit_bytes = 5000};
  EXPECT_EQ(DefaultMemoryBytes(info), 270u);
}

}  // namespace
}  // namespace reprise
