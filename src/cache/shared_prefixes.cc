// Prefixes that the operator declared to be everyone's. Their blocks are in the shared scope, under one root for each
// computation; what a tenant goes on with hangs under a root of that tenant's, which goes on from the last shared
// block. So blocks of two tenants are never siblings, and no partial match can cross from one to the other.
//
// A prompt takes part in the longest declared prefix that is whole in it, and in no part of one: then all that is
// ever in the shared scope are tokens that the operator wrote (CheckShared).
#include <algorithm>

#include "base/check.h"
#include "cache/kv_cache_impl.h"

namespace reprise {

KvCache::Impl::Asker KvCache::Impl::AskerOf(const NamespaceDigests& digests, std::span<const TokenId> prompt) const {
  Asker asker{.digests = digests};
  if (!digests.shared) return asker;
  for (const std::vector<TokenId>& prefix : options.shared_prefixes) {
    const auto blocks = static_cast<uint32_t>(prefix.size() / block_tokens());
    const auto tokens = static_cast<ptrdiff_t>(blocks) * block_tokens();
    if (blocks > asker.shared && prompt.size() >= static_cast<size_t>(tokens) &&
        std::equal(prefix.begin(), prefix.begin() + tokens, prompt.begin()))
      asker.shared = blocks;
  }
  return asker;
}

// Of the namespace of its first block.
NamespaceDigests KvCache::Impl::FirstDigests(const Asker& asker) {
  NamespaceDigests first = asker.digests;
  if (asker.shared == 0) return first;
  first.id = *asker.digests.shared;
  first.shared = std::nullopt;
  for (const NamespaceTag tag : {NamespaceTag::kTenant, NamespaceTag::kEpoch, NamespaceTag::kSalt})
    first.tags[static_cast<size_t>(tag) - 1] = std::nullopt;
  return first;
}

// What the next block's key goes on from. After the last shared block that is the root of the asker's own rest, and
// `tip` becomes this root; or stays, and is not what goes on, where the asker has none.
Digest KvCache::Impl::Cross(NodeId& tip, uint32_t blocks, const Asker& asker) const {
  if (asker.shared == 0 || blocks != asker.shared || tree.IsRoot(tip)) return tree.digest(tip);
  const NamespaceId rest{hasher.Reroot(tree.digest(tip), asker.digests.id)};
  const std::optional<NodeId> root = tree.FindRoot(rest);
  if (root && tree.above(*root) == tip) tip = *root;
  return rest.digest;
}

// What the key of `block` goes on from, by those before it.
Digest KvCache::Impl::ParentOf(const Asker& asker, std::span<const BlockKey> keys, uint32_t block) const {
  if (block == 0) return NamespaceAt(asker, 0).digest;
  return block == asker.shared ? hasher.Reroot(keys[block - 1].digest, asker.digests.id) : keys[block - 1].digest;
}

// Once the sequence has all of its shared prefix, what it adds is its tenant's, under a root of that tenant's; and if
// it has less again, because a fetch went wrong, it is back in the shared scope.
void KvCache::Impl::MoveHome(uint32_t index) {
  Sequence& mine = sequence(index);
  const bool in_rest = mine.shared > 0 && mine.sealed >= mine.shared;
  if (in_rest == (tree.above(memory.namespaces[mine.root].root) != kNoNode)) return;
  const NodeId last = in_rest ? path(index)[mine.shared - 1] : kNoNode;
  const NodeId root = in_rest ? UseNamespace(memory.askers[index], last) : UseNamespace(FirstDigests(AskerOf(index)));
  if (in_rest && mine.tip == last) SetTip(index, root);
  --memory.namespaces[mine.root].users;
  mine.root = tree.root_index(root);
}

// In the shared scope is nothing but declared prefixes; in a rest nothing but one tenant's; and sequences are where
// they should be.
void KvCache::Impl::CheckShared() const {
  for (uint32_t index = oldest_namespace; index != kNoNamespace; index = memory.namespaces[index].newer) {
    const Namespace& each = memory.namespaces[index];
    const bool is_shared = !each.digests.tag(NamespaceTag::kTenant).has_value();
    const NodeId above = tree.above(each.root);
    CHECK(above == kNoNode ||
          !memory.namespaces[tree.root_index(above)].digests.tag(NamespaceTag::kTenant).has_value());
    if (!is_shared) continue;
    CHECK_EQ(above, kNoNode);
    for (NodeId node = tree.FirstBelow(each.root); node != kNoNode; node = tree.NextBelow(each.root, node)) {
      std::vector<TokenId> prefix;  // backwards
      for (NodeId at = node; !tree.IsRoot(at); at = tree.parent(at))
        prefix.insert(prefix.end(), tree.tokens(at).rbegin(), tree.tokens(at).rend());
      CHECK(std::any_of(options.shared_prefixes.begin(), options.shared_prefixes.end(), [&](const auto& declared) {
        return prefix.size() <= declared.size() && std::equal(prefix.rbegin(), prefix.rend(), declared.begin());
      }));
    }
  }
  for (uint32_t index = 0; index < options.sequences_max; ++index) {
    const Sequence& mine = memory.sequences[index];
    if (!mine.admitted) continue;
    const Namespace& home = memory.namespaces[mine.root];
    CHECK_EQ(home.digests.tag(NamespaceTag::kTenant).has_value(), mine.sealed >= mine.shared);
    CHECK_EQ(tree.above(home.root),
             mine.shared > 0 && mine.sealed >= mine.shared ? path(index)[mine.shared - 1] : kNoNode);
    if (mine.sealed >= mine.shared) CHECK(home.digests.id == memory.askers[index].id);
  }
}

}  // namespace reprise
