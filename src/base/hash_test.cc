#include "base/hash.h"

#include <gtest/gtest.h>

#include "base/bytes.h"

namespace reprise {
namespace {

TEST(Sha256, MatchesTheStandard) {  // FIPS 180-4 examples
  EXPECT_EQ(Sha256::Of("abc").Hex(), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(Sha256::Of("").Hex(), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
}

TEST(Sha256, StartsAnewAfterFinish) {
  Sha256 hash;
  hash.Update("x");
  hash.Finish();
  hash.Update("a");
  hash.Update("bc");
  EXPECT_EQ(hash.Finish(), Sha256::Of("abc"));
}

TEST(Digest, HexRoundTripsAndRefusesOthers) {
  const Digest digest = Sha256::Of("abc");
  EXPECT_EQ(*Digest::FromHex(digest.Hex()), digest);
  EXPECT_FALSE(Digest::FromHex("abc").ok());
  EXPECT_FALSE(Digest::FromHex(std::string(64, 'G')).ok());
}

TEST(Bytes, ParsesSizesAndNamesTheUnits) {
  EXPECT_EQ(*ParseBytes("6GiB"), 6ull << 30);
  EXPECT_EQ(*ParseBytes("20GB"), 20000000000ull);
  EXPECT_EQ(*ParseBytes("1.5 MiB"), 1572864ull);
  EXPECT_EQ(*ParseBytes("17"), 17ull);
  for (const char* bad : {"", "GiB", "-1GB", "6 gigs", "1e30GB", "99999999999GiB"})
    EXPECT_FALSE(ParseBytes(bad).ok()) << bad;
  EXPECT_EQ(HumanBytes(32768), "32 KiB");
  EXPECT_EQ(HumanBytes(1610612736), "1.50 GiB");
}

}  // namespace
}  // namespace reprise
