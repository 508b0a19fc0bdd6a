#include "base/crc32c.h"

#include <gtest/gtest.h>

#include <random>
#include <string_view>
#include <vector>

namespace reprise {
namespace {

std::vector<std::byte> Bytes(size_t size, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<std::byte> out(size);
  for (std::byte& byte : out) byte = static_cast<std::byte>(random());
  return out;
}

TEST(Crc32c, MatchesTheStandard) {  // RFC 3720 B.4, and the check value of the catalogue of CRCs
  std::vector<std::byte> ascending(32), descending(32);
  for (size_t i = 0; i < 32; ++i) {
    ascending[i] = static_cast<std::byte>(i);
    descending[i] = static_cast<std::byte>(31 - i);
  }
  const std::string_view digits = "123456789";
  for (auto* crc : {&Crc32c, &Crc32cPortable}) {
    EXPECT_EQ(crc(std::vector<std::byte>(32), 0), 0x8a9136aau);
    EXPECT_EQ(crc(std::vector<std::byte>(32, std::byte{0xff}), 0), 0x62a8ab43u);
    EXPECT_EQ(crc(ascending, 0), 0x46dd794eu);
    EXPECT_EQ(crc(descending, 0), 0x113fdb5cu);
    EXPECT_EQ(crc(std::as_bytes(std::span(digits.data(), digits.size())), 0), 0xe3069283u);
    EXPECT_EQ(crc({}, 0), 0u);
  }
}

TEST(Crc32c, IsTheSameWithAndWithoutTheInstruction) {
  const std::vector<std::byte> bytes = Bytes(40'000, 1);
  std::mt19937 random(2);
  for (int round = 0; round < 2000; ++round) {
    const size_t begin = random() % 64, size = random() % (round % 2 ? 200 : 39'900);
    const auto part = std::span(bytes).subspan(begin, size);
    const uint32_t before = static_cast<uint32_t>(random());
    ASSERT_EQ(Crc32c(part, before), Crc32cPortable(part, before)) << begin << " " << size;
  }
}

TEST(Crc32c, GoesOnWhereItStopped) {
  const std::vector<std::byte> bytes = Bytes(10'000, 3);
  const uint32_t whole = Crc32c(bytes);
  std::mt19937 random(4);
  for (int round = 0; round < 500; ++round) {
    const size_t split = random() % bytes.size();
    ASSERT_EQ(Crc32c(std::span(bytes).subspan(split), Crc32c(std::span(bytes).first(split))), whole) << split;
  }
}

TEST(Crc32c, EveryFlippedBitChangesIt) {
  std::vector<std::byte> bytes = Bytes(4096, 5);
  const uint32_t whole = Crc32c(bytes);
  for (size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
    const std::byte mask = std::byte{1} << bit % 8;
    bytes[bit / 8] ^= mask;
    ASSERT_NE(Crc32c(bytes), whole) << bit;
    bytes[bit / 8] ^= mask;
  }
}

}  // namespace
}  // namespace reprise
