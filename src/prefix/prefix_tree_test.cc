#include "prefix/prefix_tree.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <vector>

namespace reprise {
namespace {

std::vector<TokenId> Tokens(std::initializer_list<int32_t> ids) {
  std::vector<TokenId> out;
  for (int32_t id : ids) out.push_back(TokenId(id));
  return out;
}
BlockKey Key(uint64_t value) { return BlockKey{Sha256::Of(std::to_string(value))}; }
NamespaceId Root(uint64_t value) { return NamespaceId{Sha256::Of("root" + std::to_string(value))}; }
bool Any(NodeId) { return true; }

class PrefixTreeTest : public testing::Test {
 protected:
  PrefixTreeOptions options_{.block_tokens = 4, .blocks_max = 8, .roots_max = 3};
  Ledger ledger_{1 << 20};
  PrefixTree tree_{options_, ledger_};
};

TEST_F(PrefixTreeTest, TakesExactlyItsFootprint) {
  EXPECT_EQ(ledger_.taken_bytes(), PrefixTree::FootprintBytes(options_));
}

TEST_F(PrefixTreeTest, ForcedKeyCollisionIsToldApartByTokensAndByParent) {
  const NodeId root = tree_.AddRoot(Root(1));
  const NodeId other = tree_.AddRoot(Root(2));
  const std::vector<TokenId> tokens = Tokens({1, 2, 3, 4});
  const NodeId block = *tree_.AddBlock(root, Key(1), tokens);
  EXPECT_EQ(tree_.FindBlock(root, Key(1), tokens), block);  // control
  EXPECT_EQ(tree_.key_collisions(), 0u);
  EXPECT_EQ(tree_.FindBlock(root, Key(1), Tokens({1, 2, 3, 5})), std::nullopt);
  EXPECT_EQ(tree_.FindBlock(other, Key(1), tokens), std::nullopt);
  EXPECT_EQ(tree_.key_collisions(), 2u);
  EXPECT_EQ(tree_.AddBlock(other, Key(1), tokens), std::nullopt);  // one prefix per key
  tree_.CheckIntegrity();
}

TEST_F(PrefixTreeTest, LongestRunTakesTheBestUsableChildOrTail) {
  const NodeId root = tree_.AddRoot(Root(1));
  const NodeId block = *tree_.AddBlock(root, Key(1), Tokens({1, 2, 3, 4}));
  const NodeId tail = *tree_.AddTail(root, Tokens({1, 2, 9}));
  tree_.AddTail(root, Tokens({7}));
  const std::vector<TokenId> wanted = Tokens({1, 2, 3, 8});
  PrefixTree::Run run = tree_.LongestRun(root, wanted, Any);
  EXPECT_EQ(run.node, block);
  EXPECT_EQ(run.tokens, 3u);
  EXPECT_TRUE(run.differs);
  run = tree_.LongestRun(root, wanted, [&](NodeId node) { return node != block; });
  EXPECT_EQ(run.node, tail);
  EXPECT_EQ(run.tokens, 2u);
  EXPECT_EQ(run.tokens_any, 3u);
  run = tree_.LongestRun(root, Tokens({7, 7}), Any);
  EXPECT_EQ(run.tokens, 1u);
  EXPECT_FALSE(run.differs);  // the tail ends there
  run = tree_.LongestRun(root, Tokens({5}), Any);
  EXPECT_EQ(run.node, kNoNode);
  EXPECT_EQ(run.tokens, 0u);
}

TEST_F(PrefixTreeTest, AFullTreeIsAnOutcome) {
  const NodeId root = tree_.AddRoot(Root(1));
  for (uint32_t i = 0; i < options_.blocks_max; ++i)
    ASSERT_TRUE(tree_.AddBlock(root, Key(i), Tokens({static_cast<int32_t>(i), 0, 0, 0})).has_value());
  EXPECT_EQ(tree_.AddBlock(root, Key(99), Tokens({99, 0, 0, 0})), std::nullopt);
  EXPECT_EQ(tree_.AddTail(root, Tokens({99})), std::nullopt);
  tree_.Remove(*tree_.FindBlock(root, Key(3), Tokens({3, 0, 0, 0})));
  EXPECT_TRUE(tree_.AddTail(root, Tokens({99})).has_value());  // control
  tree_.CheckIntegrity();
}

TEST_F(PrefixTreeTest, ParentsAndReferencedNodesAreNotRemoved) {
  const NodeId root = tree_.AddRoot(Root(1));
  const NodeId block = *tree_.AddBlock(root, Key(1), Tokens({1, 2, 3, 4}));
  EXPECT_DEATH(tree_.Remove(root), "IsFreeLeaf");
  tree_.Ref(block);
  EXPECT_DEATH(tree_.Remove(block), "IsFreeLeaf");
  tree_.Unref(block);
  tree_.Remove(block);
  tree_.Remove(root);
  EXPECT_EQ(tree_.FindRoot(Root(1)), std::nullopt);
  tree_.CheckIntegrity();
}

// Adds and removes at random beside a map; keys crowd into few places of the index, so that probes and
// removals cross each other.
TEST(PrefixTreeRandom, FindsWhatAMapFinds) {
  std::mt19937_64 random(7);
  Ledger ledger(1 << 20);
  PrefixTree tree({.block_tokens = 2, .blocks_max = 40, .roots_max = 2}, ledger);
  const NodeId root = tree.AddRoot(Root(1));
  std::map<uint64_t, NodeId> model;
  const auto crowded = [](uint64_t value) {
    BlockKey key;
    key.digest.bytes[0] = static_cast<uint8_t>(value % 5 * 50);
    key.digest.bytes[9] = static_cast<uint8_t>(value);
    return key;
  };
  for (int step = 0; step < 20000; ++step) {
    const uint64_t value = random() % 80;
    const std::vector<TokenId> tokens = Tokens({static_cast<int32_t>(value), 1});
    const auto known = model.find(value);
    const std::optional<NodeId> found = tree.FindBlock(root, crowded(value), tokens);
    ASSERT_EQ(found.has_value(), known != model.end());
    if (found) {
      ASSERT_EQ(*found, known->second);
      if (random() % 2 == 0) {
        tree.Remove(*found);
        model.erase(known);
      }
    } else if (const std::optional<NodeId> added = tree.AddBlock(root, crowded(value), tokens)) {
      model[value] = *added;
    } else {
      ASSERT_EQ(model.size(), 40u);
    }
    if (step % 100 == 0) tree.CheckIntegrity();
  }
}

}  // namespace
}  // namespace reprise
