// The tree of prefixes: a root per namespace, a node per sealed block under the block before it, and
// beside the blocks tails, partial last blocks that have no key. It knows which prefix something is,
// not where its bytes are.
//
// A block is found by its key; its parent and its tokens are compared as well, so by induction every
// token of a found prefix was compared. Siblings and tails serve partial matches (LongestRun).
//
// Ownership: the tree owns its nodes; all memory comes from the ledger in the constructor.
// Threads:   one thread. Nothing allocates after construction.
// Errors:    a full tree is an outcome (nullopt); misuse aborts.
// Design:    DESIGN 4, 6
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>

#include "base/carver.h"
#include "base/hash.h"
#include "base/ids.h"
#include "base/ledger.h"
#include "base/treap.h"

namespace reprise {

using NodeId = StrongId<struct NodeIdTag, uint32_t>;
inline constexpr NodeId kNoNode{UINT32_MAX};

struct PrefixTreeOptions {
  uint32_t block_tokens = 0;
  uint32_t blocks_max = 0;  // blocks and tails together
  uint32_t roots_max = 0;
};

class PrefixTree {
 public:
  static uint64_t FootprintBytes(const PrefixTreeOptions& options);
  PrefixTree(const PrefixTreeOptions& options, Ledger& ledger);

  // Ids are below this.
  uint32_t nodes_max() const { return static_cast<uint32_t>(nodes_.size()); }

  std::optional<NodeId> FindRoot(const NamespaceId& name_space) const;
  // A root may go on from a block under another root, which is kept for as long as it is there: what follows a shared
  // prefix hangs under roots of their own, so that siblings are always of one namespace.
  // REQUIRES: not there yet, fewer than roots_max roots.
  NodeId AddRoot(const NamespaceId& name_space, NodeId goes_on_from = kNoNode);
  // Nothing finds this root or block again by its digest; what hangs under it stays. No-op on a tail.
  void Hide(NodeId id);

  // The block `key` under `parent` with exactly these tokens. A block with the same key and another
  // parent or other tokens is a miss, and counted.
  std::optional<NodeId> FindBlock(NodeId parent, const BlockKey& key, std::span<const TokenId> tokens) const;
  // nullopt: the tree is full, or another prefix has this key. REQUIRES: FindBlock does not find it.
  std::optional<NodeId> AddBlock(NodeId parent, const BlockKey& key, std::span<const TokenId> tokens);
  // nullopt: the tree is full. REQUIRES: 0 < tokens.size() < block_tokens.
  std::optional<NodeId> AddTail(NodeId parent, std::span<const TokenId> tokens);
  // REQUIRES: no children, no tails, no references, roots that go on from it included.
  void Remove(NodeId id);

  // References keep a node that is nobody's parent: a running sequence's last sealed block, what a root goes on from.
  void Ref(NodeId id) { ++node(id).refs; }
  void Unref(NodeId id);
  // No children, tails or references.
  bool IsFreeLeaf(NodeId id) const;

  bool Exists(NodeId id) const { return node(id).kind != Kind::kFree; }
  bool IsRoot(NodeId id) const { return node(id).kind == Kind::kRoot; }
  bool IsTail(NodeId id) const { return node(id).kind == Kind::kTail; }
  NodeId parent(NodeId id) const { return IsRoot(id) ? kNoNode : node(id).parent; }
  // Its parent; of a root what it goes on from, or kNoNode.
  NodeId above(NodeId id) const { return node(id).parent; }
  // The last block of the prefix that ends here: the block itself, or what a root goes on from. A root if there is
  // none.
  NodeId LastBlock(NodeId id) const { return IsRoot(id) && above(id) != kNoNode ? above(id) : id; }
  // What the keys of its blocks chain from: a block's key or a root's namespace. REQUIRES: no tail.
  const Digest& digest(NodeId id) const { return node(id).digest; }
  std::span<const TokenId> tokens(NodeId id) const;  // empty for a root
  // Of the root that it hangs under, or is: below roots_max, and no other root's while that one lives.
  uint32_t root_index(NodeId id) const { return node(id).root; }
  uint32_t tail_count(NodeId id) const { return node(id).tails; }
  NodeId AnyChild(NodeId id) const {  // block, else tail, else kNoNode
    return node(id).first_child != kNoNode ? node(id).first_child : node(id).first_tail;
  }

  uint32_t blocks() const { return blocks_; }
  uint32_t tails() const { return tails_; }
  uint32_t roots() const { return roots_; }
  uint64_t key_collisions() const { return key_collisions_; }

  // Visits the tails of `parent`, from the newest on: f(NodeId). `f` may remove the node it is given.
  template <class F>
  void ForEachTail(NodeId parent, F f) const {
    for (NodeId id = node(parent).first_tail; id != kNoNode;) {
      const NodeId next = node(id).links.right;
      f(id);
      id = next;
    }
  }
  // The blocks of `parent` are in the order of their tokens. kNoNode before the first and after the last.
  NodeId FirstBlock(NodeId parent) const { return siblings().First(node(parent).first_child); }
  NodeId NextBlock(NodeId id) const { return siblings().Next(id); }
  NodeId PreviousBlock(NodeId id) const { return siblings().Previous(id); }
  // The first whose tokens do not come before `tokens`. O(log blocks).
  NodeId LowerBound(NodeId parent, std::span<const TokenId> tokens) const;

  // A walk over all below `root`, children before their parents: begin here, and go on until nothing is left. The
  // next is known before a node is removed.
  NodeId FirstBelow(NodeId root) const {
    const NodeId first = Deepest(root);
    return first == root ? kNoNode : first;
  }
  NodeId NextBelow(NodeId root, NodeId id) const;

  struct Run {
    NodeId node = kNoNode;    // the usable child or tail with the longest common run of tokens, if any is not 0
    uint32_t tokens = 0;      // that run
    uint32_t tokens_any = 0;  // the longest run of any child or tail, usable or not
    bool differs = false;     // what has the longest run goes on with another token than `wanted`
  };
  // The longest common run of `wanted` with a child or tail of `parent` for which usable(NodeId) holds. O(log children
  // + tails): the longest runs are next to where `wanted` belongs. Of unusable children there, kUnusableMax are looked
  // at.
  template <class Usable>
  Run LongestRun(NodeId parent, std::span<const TokenId> wanted, Usable usable) const {
    Run best;
    // False: nothing beyond this one has a longer run than the best.
    const auto consider = [&](NodeId id) {
      const std::span<const TokenId> have = tokens(id);
      const size_t most = std::min(have.size(), wanted.size());
      const auto run =
          static_cast<uint32_t>(std::mismatch(have.begin(), have.begin() + most, wanted.begin()).first - have.begin());
      if (run >= best.tokens_any) {
        // Siblings with equal runs: one that ends there leaves the question open, one that goes on answers it.
        best.differs = (best.differs && run == best.tokens_any) || run < most;
        best.tokens_any = run;
      }
      if (run <= best.tokens) return false;
      if (!usable(id)) return true;
      best.tokens = run;
      best.node = id;
      return false;
    };
    const NodeId above = LowerBound(parent, wanted);
    NodeId id = above;
    for (uint32_t i = 0; i < kUnusableMax && id != kNoNode && consider(id); ++i) id = NextBlock(id);
    id = above == kNoNode ? siblings().Last(node(parent).first_child) : PreviousBlock(above);
    for (uint32_t i = 0; i < kUnusableMax && id != kNoNode && consider(id); ++i) id = PreviousBlock(id);
    ForEachTail(parent, consider);
    return best;
  }
  static constexpr uint32_t kUnusableMax = 64;

  // Aborts unless links, counts and the index agree. O(nodes).
  void CheckIntegrity() const;

 private:
  enum class Kind : uint8_t { kFree = 0, kRoot, kBlock, kTail };
  struct Node {
    Digest digest;             // root: namespace; block: key; tail: none
    NodeId parent;             // root: what it goes on from
    TreapLinks<NodeId> links;  // block: among its siblings, by tokens; tail: a list, left is newer; free: a list, right
    NodeId first_child, first_tail;  // first_child: top of the treap
    uint32_t tails;
    uint32_t refs;
    uint32_t count;  // tokens
    uint32_t root;
    Kind kind;
    bool hidden;  // not in the index
  };
  struct Layout {
    std::span<Node> nodes;           // blocks and tails, then roots by their index
    std::span<TokenId> tokens;       // [blocks_max][block_tokens]
    std::span<uint32_t> index;       // open addressing by digest: node id + 1, 0 is empty; a power of two
    std::span<uint32_t> free_roots;  // [roots_max] a stack of root indices
    Layout(const PrefixTreeOptions& options, Carver& carver);
  };

  Node& node(NodeId id) { return nodes_[id.value()]; }
  const Node& node(NodeId id) const { return nodes_[id.value()]; }
  // The blocks of a parent, by their tokens.
  struct LinksOf {
    std::span<Node> nodes;
    TreapLinks<NodeId>& operator()(NodeId id) const { return nodes[id.value()].links; }
  };
  Treap<NodeId, LinksOf> siblings() const { return Treap<NodeId, LinksOf>(LinksOf{nodes_}); }
  uint32_t CheckBlocks(NodeId parent) const;
  NodeId Deepest(NodeId id) const;
  NodeId NewNode(Kind kind, NodeId parent, std::span<const TokenId> tokens);
  size_t Home(const Digest& digest) const { return TableHash(digest) & (index_.size() - 1); }
  void IndexAdd(NodeId id);
  void IndexRemove(NodeId id);

  const PrefixTreeOptions options_;
  Region region_;
  std::span<Node> nodes_;
  std::span<TokenId> tokens_;
  std::span<uint32_t> index_;
  std::span<uint32_t> free_roots_;
  NodeId free_ = kNoNode;
  uint32_t blocks_ = 0, tails_ = 0, roots_ = 0;
  mutable uint64_t key_collisions_ = 0;
};

}  // namespace reprise
