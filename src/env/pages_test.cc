#include "env/pages.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace reprise {
namespace {

class PagesTest : public testing::Test {
 protected:
  void SetUp() override {
    memory_ = Map(PROT_READ | PROT_WRITE);
    if (!PopulatePages(memory_.last(1))) GTEST_SKIP() << "the system has no such call";
    munmap(memory_.data(), kBytes);
    memory_ = Map(PROT_READ | PROT_WRITE);
  }
  void TearDown() override { munmap(memory_.data(), kBytes); }

  static std::span<std::byte> Map(int protection) {
    void* start = mmap(nullptr, kBytes, protection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT_NE(start, MAP_FAILED);
    madvise(start, kBytes, MADV_NOHUGEPAGE);  // so that pages can be counted
    return {static_cast<std::byte*>(start), kBytes};
  }
  uint64_t Resident() const {
    std::vector<unsigned char> pages(kPages);
    EXPECT_EQ(mincore(memory_.data(), kBytes, pages.data()), 0);
    return std::count_if(pages.begin(), pages.end(), [](unsigned char page) { return (page & 1) != 0; });
  }

  static constexpr uint64_t kPages = 64;
  static inline const uint64_t kPage = sysconf(_SC_PAGESIZE), kBytes = kPages * kPage;
  std::span<std::byte> memory_;
};

TEST_F(PagesTest, EveryPageOfTheMemoryIsThereAndNoOther) {
  EXPECT_EQ(Resident(), 0u) << "control";
  EXPECT_TRUE(PopulatePages(memory_.subspan(3 * kPage - 1, 2 * kPage + 2))) << "four pages have a part of it";
  EXPECT_EQ(Resident(), 4u);
  EXPECT_TRUE(PopulatePages({}));
  EXPECT_EQ(Resident(), 4u);
}

TEST_F(PagesTest, NoByteChanges) {
  memory_[5] = std::byte{7};
  EXPECT_TRUE(PopulatePages(memory_));
  EXPECT_EQ(memory_[5], std::byte{7});
  EXPECT_EQ(memory_[kBytes - 1], std::byte{0});
}

TEST_F(PagesTest, MemoryThatCannotBeWrittenIsRefused) {
  const std::span<std::byte> constant = Map(PROT_READ);
  EXPECT_FALSE(PopulatePages(constant));
  munmap(constant.data(), kBytes);
}

}  // namespace
}  // namespace reprise
