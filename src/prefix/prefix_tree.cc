#include "prefix/prefix_tree.h"

#include <bit>
#include <cstring>

#include "base/check.h"

namespace reprise {
namespace {

bool IsBefore(std::span<const TokenId> a, std::span<const TokenId> b) {
  const auto [left, right] = std::mismatch(a.begin(), a.end(), b.begin(), b.end());
  return right != b.end() && (left == a.end() || *left < *right);
}

}  // namespace

PrefixTree::Layout::Layout(const PrefixTreeOptions& options, Carver& carver) {
  const uint64_t count = uint64_t{options.blocks_max} + options.roots_max;
  nodes = carver.Array<Node>(count);
  tokens = carver.Array<TokenId>(uint64_t{options.blocks_max} * options.block_tokens);
  // At most half full: a miss ends after 2.5 probes on average.
  index = carver.Array<uint32_t>(std::bit_ceil(std::max<uint64_t>(2 * count, 2)));
  free_roots = carver.Array<uint32_t>(options.roots_max);
}

uint64_t PrefixTree::FootprintBytes(const PrefixTreeOptions& options) { return Measure<Layout>(options); }

PrefixTree::PrefixTree(const PrefixTreeOptions& options, Ledger& ledger)
    : options_(options), region_(ledger.Take("prefix tree", FootprintBytes(options))) {
  const Layout layout = Carve<Layout>(region_, options);
  nodes_ = layout.nodes;
  tokens_ = layout.tokens;
  index_ = layout.index;
  free_roots_ = layout.free_roots;
  for (uint32_t i = 0; i < options.roots_max; ++i) free_roots_[i] = options.roots_max - 1 - i;
  CHECK_LT(nodes_.size(), UINT32_MAX);
  for (uint32_t i = options.blocks_max; i > 0; --i) {
    nodes_[i - 1].links.right = free_;
    free_ = NodeId(i - 1);
  }
}

std::span<const TokenId> PrefixTree::tokens(NodeId id) const {
  if (IsRoot(id)) return {};
  return tokens_.subspan(size_t{id.value()} * options_.block_tokens, node(id).count);
}

std::optional<NodeId> PrefixTree::FindRoot(const NamespaceId& name_space) const {
  for (size_t at = Home(name_space.digest); index_[at] != 0; at = (at + 1) & (index_.size() - 1)) {
    const NodeId id(index_[at] - 1);
    if (node(id).kind == Kind::kRoot && node(id).digest == name_space.digest) return id;
  }
  return std::nullopt;
}

NodeId PrefixTree::AddRoot(const NamespaceId& name_space, NodeId goes_on_from) {
  CHECK_LT(roots_, options_.roots_max);
  const uint32_t index = free_roots_[options_.roots_max - 1 - roots_];
  const NodeId id(options_.blocks_max + index);
  CHECK(goes_on_from == kNoNode || node(goes_on_from).kind == Kind::kBlock);
  if (goes_on_from != kNoNode) Ref(goes_on_from);
  node(id) = Node{.digest = name_space.digest,
                  .parent = goes_on_from,
                  .links = {},
                  .first_child = kNoNode,
                  .first_tail = kNoNode,
                  .root = index,
                  .kind = Kind::kRoot};
  IndexAdd(id);
  ++roots_;
  return id;
}

void PrefixTree::Hide(NodeId id) {
  Node& hidden = node(id);
  CHECK(hidden.kind != Kind::kFree);
  if (hidden.kind == Kind::kTail || hidden.hidden) return;
  IndexRemove(id);
  hidden.hidden = true;
}

NodeId PrefixTree::LowerBound(NodeId parent, std::span<const TokenId> wanted) const {
  return siblings().LowerBound(node(parent).first_child, [&](NodeId id) { return IsBefore(tokens(id), wanted); });
}

NodeId PrefixTree::Deepest(NodeId id) const {
  while (true) {
    if (const NodeId block = FirstBlock(id); block != kNoNode) {
      id = block;
    } else {
      return node(id).first_tail != kNoNode ? node(id).first_tail : id;
    }
  }
}

NodeId PrefixTree::NextBelow(NodeId root, NodeId id) const {
  const Node& each = node(id);
  if (each.kind == Kind::kBlock) {
    if (const NodeId next = NextBlock(id); next != kNoNode) return Deepest(next);
    if (node(each.parent).first_tail != kNoNode) return node(each.parent).first_tail;
  } else if (each.links.right != kNoNode) {
    return each.links.right;
  }
  return each.parent == root ? kNoNode : each.parent;
}

std::optional<NodeId> PrefixTree::FindBlock(NodeId parent, const BlockKey& key, std::span<const TokenId> tokens) const {
  for (size_t at = Home(key.digest); index_[at] != 0; at = (at + 1) & (index_.size() - 1)) {
    const NodeId id(index_[at] - 1);
    if (node(id).kind != Kind::kBlock || node(id).digest != key.digest) continue;
    const std::span<const TokenId> have = this->tokens(id);
    if (node(id).parent == parent && std::equal(have.begin(), have.end(), tokens.begin(), tokens.end())) return id;
    ++key_collisions_;
    return std::nullopt;  // a key is held once
  }
  return std::nullopt;
}

std::optional<NodeId> PrefixTree::AddBlock(NodeId parent, const BlockKey& key, std::span<const TokenId> tokens) {
  CHECK_EQ(tokens.size(), options_.block_tokens);
  if (blocks_ + tails_ == options_.blocks_max) return std::nullopt;
  for (size_t at = Home(key.digest); index_[at] != 0; at = (at + 1) & (index_.size() - 1)) {
    const Node& other = nodes_[index_[at] - 1];
    if (other.kind == Kind::kBlock && other.digest == key.digest) return std::nullopt;
  }
  const NodeId id = NewNode(Kind::kBlock, parent, tokens);
  node(id).digest = key.digest;
  IndexAdd(id);
  ++blocks_;
  return id;
}

std::optional<NodeId> PrefixTree::AddTail(NodeId parent, std::span<const TokenId> tokens) {
  CHECK(!tokens.empty() && tokens.size() < options_.block_tokens);
  if (blocks_ + tails_ == options_.blocks_max) return std::nullopt;
  const NodeId id = NewNode(Kind::kTail, parent, tokens);
  ++node(parent).tails;
  ++tails_;
  return id;
}

NodeId PrefixTree::NewNode(Kind kind, NodeId parent, std::span<const TokenId> tokens) {
  CHECK(free_ != kNoNode);
  const NodeId id = free_;
  Node& made = node(id);
  free_ = made.links.right;
  made = Node{.parent = parent,
              .links = {},
              .first_child = kNoNode,
              .first_tail = kNoNode,
              .count = static_cast<uint32_t>(tokens.size()),
              .root = node(parent).root,
              .kind = kind};
  std::copy(tokens.begin(), tokens.end(), tokens_.begin() + size_t{id.value()} * options_.block_tokens);
  CHECK(node(parent).kind == Kind::kRoot || node(parent).kind == Kind::kBlock);
  if (kind == Kind::kBlock) {
    siblings().Insert(node(parent).first_child, id,
                      [&](NodeId other) { return IsBefore(this->tokens(other), tokens); });
    return id;
  }
  NodeId& first = node(parent).first_tail;
  made.links.right = first;
  if (first != kNoNode) node(first).links.left = id;
  first = id;
  return id;
}

void PrefixTree::Unref(NodeId id) {
  CHECK_GT(node(id).refs, 0u);
  --node(id).refs;
}

bool PrefixTree::IsFreeLeaf(NodeId id) const {
  const Node& leaf = node(id);
  return leaf.first_child == kNoNode && leaf.first_tail == kNoNode && leaf.refs == 0;
}

void PrefixTree::Remove(NodeId id) {
  CHECK(node(id).kind != Kind::kFree);
  CHECK(IsFreeLeaf(id));
  Node& gone = node(id);
  if (gone.kind == Kind::kBlock) siblings().Remove(node(gone.parent).first_child, id);
  if (gone.kind == Kind::kTail) {
    const auto [newer, older, up] = gone.links;
    (newer == kNoNode ? node(gone.parent).first_tail : node(newer).links.right) = older;
    if (older != kNoNode) node(older).links.left = newer;
    --node(gone.parent).tails;
    --tails_;
  } else {
    if (!gone.hidden) IndexRemove(id);
    --(gone.kind == Kind::kRoot ? roots_ : blocks_);
    if (gone.kind == Kind::kRoot) free_roots_[options_.roots_max - 1 - roots_] = gone.root;
    if (gone.kind == Kind::kRoot && gone.parent != kNoNode) Unref(gone.parent);
  }
  if (gone.kind != Kind::kRoot) {
    gone.links.right = free_;
    free_ = id;
  }
  gone.kind = Kind::kFree;
}

void PrefixTree::IndexAdd(NodeId id) {
  size_t at = Home(node(id).digest);
  while (index_[at] != 0) at = (at + 1) & (index_.size() - 1);
  index_[at] = id.value() + 1;
}

void PrefixTree::IndexRemove(NodeId id) {
  const size_t mask = index_.size() - 1;
  size_t hole = Home(node(id).digest);
  while (index_[hole] != id.value() + 1) {
    CHECK_NE(index_[hole], 0u);
    hole = (hole + 1) & mask;
  }
  // Close the hole with what a probe starting before it would otherwise not find.
  for (size_t at = (hole + 1) & mask; index_[at] != 0; at = (at + 1) & mask) {
    const size_t home = Home(nodes_[index_[at] - 1].digest);
    if (((at - home) & mask) < ((at - hole) & mask)) continue;
    index_[hole] = index_[at];
    hole = at;
  }
  index_[hole] = 0;
}

// The blocks of one parent: in order, heaped, each with the links that lead to it. Returns how many.
uint32_t PrefixTree::CheckBlocks(NodeId parent) const {
  uint32_t count = 0;
  NodeId last = kNoNode;
  for (NodeId id = FirstBlock(parent); id != kNoNode; id = NextBlock(id)) {
    const Node& each = node(id);
    CHECK(each.kind == Kind::kBlock);
    CHECK_EQ(each.parent, parent);
    CHECK(last == kNoNode || IsBefore(tokens(last), tokens(id)));
    CHECK_EQ(PreviousBlock(id), last);
    CHECK(siblings().IsLinked(node(parent).first_child, id));
    last = id;
    ++count;
  }
  CHECK_EQ(siblings().Last(node(parent).first_child), last);
  return count;
}

void PrefixTree::CheckIntegrity() const {
  uint32_t blocks = 0, tails = 0, roots = 0, free = 0, indexed = 0, linked = 0, hidden = 0;
  for (uint32_t i = 0; i < nodes_.size(); ++i) {
    const NodeId id(i);
    const Node& each = node(id);
    if (each.kind == Kind::kFree) continue;
    ++(each.kind == Kind::kRoot ? roots : each.kind == Kind::kBlock ? blocks : tails);
    CHECK(each.parent != kNoNode || each.kind == Kind::kRoot);
    if (each.kind == Kind::kRoot && each.parent != kNoNode) {
      CHECK(node(each.parent).kind == Kind::kBlock);
      CHECK_GT(node(each.parent).refs, 0u);
    }
    CHECK_LT(each.root, options_.roots_max);
    CHECK(each.kind == Kind::kRoot || each.root == node(each.parent).root);
    CHECK(each.kind != Kind::kTail || (each.first_child == kNoNode && each.first_tail == kNoNode));
    CHECK(each.kind != Kind::kBlock || each.count == options_.block_tokens);
    CHECK(each.kind != Kind::kTail || (each.count > 0 && each.count < options_.block_tokens));
    if (each.kind != Kind::kTail) linked += CheckBlocks(id);
    NodeId previous = kNoNode;
    uint32_t own_tails = 0;
    ForEachTail(id, [&](NodeId child) {
      CHECK(node(child).kind == Kind::kTail);
      CHECK_EQ(node(child).parent, id);
      CHECK_EQ(node(child).links.left, previous);
      previous = child;
      ++linked;
      ++own_tails;
    });
    CHECK_EQ(own_tails, each.tails);
    if (each.kind == Kind::kTail) continue;
    hidden += each.hidden;
    if (each.hidden) continue;
    size_t at = Home(each.digest);
    while (index_[at] != i + 1) {
      CHECK_NE(index_[at], 0u);  // reachable without crossing an empty place
      at = (at + 1) & (index_.size() - 1);
    }
  }
  for (uint32_t entry : index_) indexed += entry != 0;
  for (NodeId id = free_; id != kNoNode; id = node(id).links.right) ++free;
  CHECK_EQ(indexed, blocks + roots - hidden);
  CHECK_EQ(linked, blocks + tails);
  CHECK_EQ(free + blocks + tails, options_.blocks_max);
  CHECK_EQ(blocks, blocks_);
  CHECK_EQ(tails, tails_);
  CHECK_EQ(roots, roots_);
}

}  // namespace reprise
