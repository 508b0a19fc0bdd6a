#include "prefix/block_key.h"

#include <gtest/gtest.h>

#include <vector>

namespace reprise {
namespace {

// Namespace A of docs/format/identity.md.
Digest NamespaceA() { return *Digest::FromHex("1190c0da8c2fbf236adda89b7e6674d888e4e9ebd68dd299b3498615c859042c"); }
std::vector<TokenId> Range(int32_t first, int32_t last) {
  std::vector<TokenId> out;
  for (int32_t id = first; id < last; ++id) out.push_back(TokenId(id));
  return out;
}

TEST(BlockKey, ChainMatchesTheVectorsOfTheDocument) {
  BlockHasher hasher;
  const BlockKey first = hasher.Next(NamespaceA(), Range(0, 64));
  EXPECT_EQ(first.digest.Hex(), "55694ff76c56d7fd214654945263edba3a9f6109bca46495ad8e43998cf0f7b3");
  const BlockKey second = hasher.Next(first.digest, Range(64, 128));
  EXPECT_EQ(second.digest.Hex(), "a7661d505b25d7f7031eb732b95aeb46395b1b317e9a1aede2a025244cbc2511");
  EXPECT_EQ(hasher.Next(NamespaceA(), Range(1, 5)).digest.Hex(),
            "278ce1b2243b6944531deefab31790b746c0f7e12f7169cb7900436fd644c28c");
}

TEST(BlockKey, WhatFollowsASharedPrefixMatchesTheVectorsOfTheDocument) {
  BlockHasher hasher;
  const Digest shared = *Digest::FromHex("4f3d60d84ed2b809eba02da37738fb422e5169d8b76b92dbc5f1aceeeeecaffd");
  const BlockKey last = hasher.Next(shared, Range(0, 64));
  EXPECT_EQ(last.digest.Hex(), "1105bd49f38f8844e0766ce2fe00089e50e56c1145a45369399fa349fa77b350");
  const Digest rest = hasher.Reroot(last.digest, NamespaceId{NamespaceA()});
  EXPECT_EQ(rest.Hex(), "22548b5e7a1d60ef90f9ce5ff3096757006e8dd820d93e440f23b344bbadcfb9");
  EXPECT_EQ(hasher.Next(rest, Range(64, 128)).digest.Hex(),
            "63bb6b9baedcb1f6a14b283e08cdadc48f37afa93c1e7187a0f2d10a35491369");
  EXPECT_NE(hasher.Reroot(last.digest, NamespaceId{shared}), rest);
}

// cases/identity 9: other content under the same placeholder tokens.
TEST(BlockKey, OtherContentUnderTheSamePlaceholdersIsAnotherKey) {
  BlockHasher hasher;
  const BlockExtra image[] = {{.offset = 2, .content = Sha256::Of("image")}};
  const BlockExtra other[] = {{.offset = 2, .content = Sha256::Of("other image")}};
  const BlockExtra moved[] = {{.offset = 1, .content = Sha256::Of("image")}};
  const BlockKey key = hasher.Next(NamespaceA(), Range(1, 5), image);
  EXPECT_EQ(key.digest.Hex(), "1c9fc5ad35bb868f0b1d3647b7237c8becdbde01273a2726b3e15ccc3c387769");
  EXPECT_EQ(key, hasher.Next(NamespaceA(), Range(1, 5), image));  // control
  EXPECT_NE(key, hasher.Next(NamespaceA(), Range(1, 5), other));
  EXPECT_NE(key, hasher.Next(NamespaceA(), Range(1, 5), moved));
  EXPECT_NE(key, hasher.Next(NamespaceA(), Range(1, 5)));
}

TEST(BlockKey, EveryTokenItsOrderAndTheCountMatter) {
  BlockHasher hasher;
  const BlockKey key = hasher.Next(NamespaceA(), Range(0, 16));
  for (size_t i = 0; i < 16; ++i) {
    std::vector<TokenId> changed = Range(0, 16);
    changed[i] = TokenId(changed[i].value() + 1);
    EXPECT_NE(key, hasher.Next(NamespaceA(), changed)) << i;
  }
  std::vector<TokenId> swapped = Range(0, 16);
  std::swap(swapped[3], swapped[4]);
  EXPECT_NE(key, hasher.Next(NamespaceA(), swapped));
  EXPECT_NE(key, hasher.Next(NamespaceA(), Range(0, 15)));
  EXPECT_EQ(key, hasher.Next(NamespaceA(), Range(0, 16)));  // control
}

TEST(BlockKey, AKeyNamesItsWholeHistory) {
  BlockHasher hasher;
  const std::vector<TokenId> block = Range(100, 116);
  const BlockKey deep = hasher.Next(hasher.Next(NamespaceA(), Range(0, 16)).digest, block);
  EXPECT_NE(deep, hasher.Next(NamespaceA(), block));                                           // another depth
  EXPECT_NE(deep, hasher.Next(hasher.Next(NamespaceA(), Range(1, 17)).digest, block));         // another beginning
  EXPECT_NE(deep, hasher.Next(hasher.Next(Sha256::Of("other"), Range(0, 16)).digest, block));  // another namespace
  EXPECT_EQ(deep, hasher.Next(hasher.Next(NamespaceA(), Range(0, 16)).digest, block));         // control
}

}  // namespace
}  // namespace reprise
