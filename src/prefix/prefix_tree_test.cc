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

TEST_F(PrefixTreeTest, ARootThatGoesOnFromABlockKeepsItAndIsNoneOfItsChildren) {
  const NodeId shared = tree_.AddRoot(Root(1));
  const NodeId last = *tree_.AddBlock(shared, Key(1), Tokens({1, 2, 3, 4}));
  const NodeId rest = tree_.AddRoot(Root(2), last);
  const NodeId next = *tree_.AddBlock(rest, Key(2), Tokens({5, 6, 7, 8}));
  tree_.CheckIntegrity();
  EXPECT_EQ(tree_.LastBlock(rest), last);
  EXPECT_EQ(tree_.LastBlock(tree_.parent(next)), last);
  EXPECT_EQ(tree_.LastBlock(shared), shared);
  EXPECT_EQ(tree_.parent(rest), kNoNode);
  EXPECT_EQ(tree_.AnyChild(last), kNoNode);
  EXPECT_EQ(tree_.LongestRun(last, Tokens({5, 6, 7, 8}), Any).node, kNoNode);
  EXPECT_FALSE(tree_.IsFreeLeaf(last));
  tree_.Remove(next);
  tree_.Remove(rest);
  EXPECT_TRUE(tree_.IsFreeLeaf(last));
  tree_.Remove(last);
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

// Children that share more or less of their tokens, added and removed at random, against a list of them.
TEST(PrefixTreeChildrenTest, LongestRunsAndOrderAreThoseOfAList) {
  constexpr uint32_t kBlockTokens = 6;
  std::mt19937 random(5);
  Ledger ledger(1 << 22);
  PrefixTree tree({.block_tokens = kBlockTokens, .blocks_max = 300, .roots_max = 1}, ledger);
  const NodeId root = tree.AddRoot(Root(1));
  std::map<std::vector<TokenId>, NodeId> children;
  const auto draw = [&](uint32_t length) {
    std::vector<TokenId> tokens;
    while (tokens.size() < length) tokens.push_back(TokenId(static_cast<int32_t>(random() % 3)));
    return tokens;
  };
  for (int step = 0; step < 20000; ++step) {
    const std::vector<TokenId> tokens = draw(kBlockTokens);
    const auto at = children.find(tokens);
    if (at == children.end() && children.size() < 250) {
      children[tokens] = *tree.AddBlock(root, Key(step), tokens);
    } else if (at != children.end()) {
      tree.Remove(at->second);
      children.erase(at);
    }
    const std::vector<TokenId> wanted = draw(random() % (kBlockTokens + 1));
    const auto usable = [](NodeId id) { return id.value() % 3 != 0; };
    uint32_t longest = 0, longest_usable = 0;
    bool differs = false;
    for (const auto& [have, id] : children) {
      uint32_t run = 0;
      while (run < wanted.size() && wanted[run] == have[run]) ++run;
      if (run > longest) differs = false;
      if (run >= longest && run < wanted.size()) differs = true;
      longest = std::max(longest, run);
      if (usable(id)) longest_usable = std::max(longest_usable, run);
    }
    const PrefixTree::Run run = tree.LongestRun(root, wanted, usable);
    ASSERT_EQ(run.tokens_any, longest);
    ASSERT_EQ(run.tokens, longest_usable);
    ASSERT_EQ(run.differs, differs) << step;
    ASSERT_TRUE(run.node == kNoNode || usable(run.node));
    NodeId id = tree.FirstBlock(root);
    for (const auto& [have, child] : children) {
      ASSERT_EQ(id, child);
      id = tree.NextBlock(id);
    }
    ASSERT_EQ(id, kNoNode);
    if (step % 100 == 0) tree.CheckIntegrity();
  }
}

TEST(PrefixTreeChildrenTest, AWalkMeetsChildrenBeforeParentsAndSurvivesTheirRemoval) {
  std::mt19937 random(5);
  Ledger ledger(1 << 22);
  PrefixTree tree({.block_tokens = 2, .blocks_max = 200, .roots_max = 1}, ledger);
  const NodeId root = tree.AddRoot(Root(1));
  EXPECT_EQ(tree.FirstBelow(root), kNoNode);
  std::vector<NodeId> blocks = {root};
  for (int i = 0; i < 150; ++i) {
    const NodeId parent = blocks[random() % blocks.size()];
    if (i % 4 == 0) {
      tree.AddTail(parent, Tokens({i}));
    } else {
      blocks.push_back(*tree.AddBlock(parent, Key(i), Tokens({i, i})));
    }
  }
  uint32_t left = 150;
  for (NodeId node = tree.FirstBelow(root); node != kNoNode; --left) {
    const NodeId next = tree.NextBelow(root, node);
    tree.Remove(node);  // checks that nothing hangs below it
    node = next;
  }
  EXPECT_EQ(left, 0u);
  tree.CheckIntegrity();
}

TEST(PrefixTreeChildrenTest, WhatIsHiddenIsNotFoundAndGivesItsKeyFree) {
  Ledger ledger(1 << 20);
  PrefixTree tree({.block_tokens = 2, .blocks_max = 8, .roots_max = 2}, ledger);
  const NodeId root = tree.AddRoot(Root(1));
  const NodeId block = *tree.AddBlock(root, Key(1), Tokens({1, 2}));
  tree.Hide(root);
  tree.Hide(block);
  EXPECT_EQ(tree.FindRoot(Root(1)), std::nullopt);
  EXPECT_EQ(tree.FindBlock(root, Key(1), Tokens({1, 2})), std::nullopt);
  const NodeId again = tree.AddRoot(Root(1));
  EXPECT_NE(tree.root_index(again), tree.root_index(root));
  const NodeId same = *tree.AddBlock(again, Key(1), Tokens({1, 2}));
  EXPECT_EQ(tree.root_index(same), tree.root_index(again));
  EXPECT_EQ(tree.key_collisions(), 0u);
  tree.CheckIntegrity();
  tree.Remove(block);
  tree.Remove(root);
  tree.CheckIntegrity();
  EXPECT_EQ(tree.FindBlock(again, Key(1), Tokens({1, 2})), same);
}

}  // namespace
}  // namespace reprise
