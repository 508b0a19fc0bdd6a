#include "tier/codec.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <random>

namespace reprise {
namespace {

// Like K and V: bf16 or f32 values of about one size; their first bytes repeat, their last ones do not.
std::vector<std::byte> Values(size_t elements, uint32_t element_bytes, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<std::byte> out(elements * element_bytes);
  for (size_t i = 0; i < elements; ++i) {
    const uint32_t bits = std::bit_cast<uint32_t>(normal(random)) >> (32 - 8 * element_bytes);
    std::memcpy(out.data() + i * element_bytes, &bits, element_bytes);
  }
  return out;
}

std::vector<std::byte> Noise(size_t bytes, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<std::byte> out(bytes);
  for (std::byte& byte : out) byte = static_cast<std::byte>(random());
  return out;
}

TEST(Planes, GiveBackWhatWasEncoded) {
  std::vector<std::byte> scratch;
  for (uint32_t element_bytes : {2u, 4u})
    for (size_t elements : {size_t{1000}, size_t{4097}, size_t{128 << 10}, size_t{(128 << 10) + 1}, size_t{400'000}}) {
      const std::vector<std::byte> in = Values(elements, element_bytes, static_cast<uint32_t>(elements));
      std::vector<std::byte> encoded = {std::byte{42}};  // what is there stays
      ASSERT_TRUE(EncodePlanes(in, element_bytes, encoded)) << elements;
      ASSERT_LT(encoded.size(), in.size());
      ASSERT_EQ(encoded[0], std::byte{42});
      std::vector<std::byte> out(in.size());
      ASSERT_TRUE(DecodePlanes(std::span(encoded).subspan(1), element_bytes, out, scratch));
      ASSERT_TRUE(out == in);
    }
}

TEST(Planes, RefuseWhatDoesNotShrink) {
  for (size_t bytes : {size_t{0}, size_t{2}, size_t{1 << 20}}) {
    std::vector<std::byte> encoded = {std::byte{42}};
    EXPECT_FALSE(EncodePlanes(Noise(bytes, 1), 2, encoded));
    EXPECT_EQ(encoded.size(), 1u);
  }
}

TEST(Planes, AreDecodedToTheirSizeOrNotAtAll) {
  const std::vector<std::byte> in = Values(5000, 2, 3);
  std::vector<std::byte> encoded, out(in.size()), scratch;
  ASSERT_TRUE(EncodePlanes(in, 2, encoded));
  for (size_t length = 0; length < encoded.size(); ++length)
    ASSERT_FALSE(DecodePlanes(std::span(encoded).first(length), 2, out, scratch)) << length;
  for (size_t size : {size_t{0}, in.size() - 2, in.size() - 1, in.size() + 1, in.size() + 2, size_t{1 << 20}}) {
    std::vector<std::byte> other(size);
    ASSERT_FALSE(DecodePlanes(encoded, 2, other, scratch)) << size;
  }
  encoded.push_back(std::byte{0});
  EXPECT_FALSE(DecodePlanes(encoded, 2, out, scratch));
}

TEST(Planes, SurviveAnyBytes) {
  const std::vector<std::byte> in = Values(3000, 2, 4);
  std::vector<std::byte> encoded, out(in.size()), scratch;
  ASSERT_TRUE(EncodePlanes(in, 2, encoded));
  for (size_t at = 0; at < encoded.size(); ++at)
    for (int bit : {0, 7}) {
      encoded[at] ^= std::byte{1} << bit;
      DecodePlanes(encoded, 2, out, scratch);  // true or not: the record's checksum tells
      encoded[at] ^= std::byte{1} << bit;
    }
  for (uint32_t seed = 0; seed < 2000; ++seed) {
    const uint32_t element_bytes = seed % 2 ? 2 : 4;
    DecodePlanes(Noise(seed % 300, seed), element_bytes, out, scratch);
  }
  EXPECT_LE(scratch.size(), out.size());  // nothing grew with what the bytes claimed
}

}  // namespace
}  // namespace reprise
