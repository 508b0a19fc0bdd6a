// Namespaces that have state: which, how long ago they were used, and forgetting all of a tenant's.
#include <algorithm>

#include "base/check.h"
#include "cache/kv_cache_impl.h"

namespace reprise {

NodeId KvCache::Impl::UseNamespace(const NamespaceDigests& digests, NodeId goes_on_from) {
  NamespaceId id = digests.id;
  if (goes_on_from != kNoNode) id.digest = hasher.Reroot(tree.digest(goes_on_from), digests.id);
  std::optional<NodeId> root = tree.FindRoot(id);
  if (root) {
    CHECK_EQ(tree.above(*root), goes_on_from);
    Unlink(tree.root_index(*root));
  } else {
    if (tree.roots() == memory.namespaces.size()) {
      uint32_t oldest = oldest_namespace;
      while (memory.namespaces[oldest].users > 0) oldest = memory.namespaces[oldest].newer;
      DropUnpinned(memory.namespaces[oldest].root);
    }
    root = tree.AddRoot(id, goes_on_from);
    if (goes_on_from != kNoNode) ++memory.namespaces[tree.root_index(goes_on_from)].users;
    memory.namespaces[tree.root_index(*root)] = {.digests = digests, .root = *root, .tenant = TenantOf(digests)};
  }
  const uint32_t index = tree.root_index(*root);
  ++memory.namespaces[index].users;
  Link(index);
  return *root;
}

// Which of the quotas is theirs.
uint32_t KvCache::Impl::TenantOf(const NamespaceDigests& digests) const {
  for (uint32_t i = 0; i < options.quotas.size(); ++i)
    if (TenantDigest(options.quotas[i].tenant) == digests.tag(NamespaceTag::kTenant)) return i;
  return static_cast<uint32_t>(options.quotas.size());
}

std::optional<Digest> KvCache::Impl::TenantDigest(std::string_view tenant) const {
  return DeriveNamespace({}, options.geometry, {.tenant = std::string(tenant)}).tag(NamespaceTag::kTenant);
}

void KvCache::Impl::LeaveNamespace(const Sequence& sequence) {
  Namespace& left = memory.namespaces[sequence.root];
  CHECK_GT(left.users, 0u);
  --left.users;
  Reap(sequence.tip);  // may be all of it
  if (left.purged && left.users == 0) DropUnpinned(left.root);
}

void KvCache::Impl::ForgetNamespace(uint32_t root) {
  CHECK_EQ(memory.namespaces[root].users, 0u);
  const NodeId above = tree.above(memory.namespaces[root].root);
  if (above != kNoNode) --memory.namespaces[tree.root_index(above)].users;
  Unlink(root);
  memory.namespaces[root] = Namespace{};
}

void KvCache::Impl::Link(uint32_t root) {
  Namespace& linked = memory.namespaces[root];
  linked.older = newest_namespace;
  linked.newer = kNoNamespace;
  (newest_namespace == kNoNamespace ? oldest_namespace : memory.namespaces[newest_namespace].newer) = root;
  newest_namespace = root;
}

void KvCache::Impl::Unlink(uint32_t root) {
  const Namespace& gone = memory.namespaces[root];
  (gone.older == kNoNamespace ? oldest_namespace : memory.namespaces[gone.older].newer) = gone.newer;
  (gone.newer == kNoNamespace ? newest_namespace : memory.namespaces[gone.newer].older) = gone.older;
}

KvCache::Purged KvCache::Impl::Purge(std::string_view tenant) {
  const std::optional<Digest> wanted = TenantDigest(tenant);
  Purged purged;
  std::fill(memory.evicted.begin(), memory.evicted.end(), 0);  // a trace of what there was
  for (uint32_t i = 0; i < options.sequences_max; ++i) {       // in shared prefixes too, which stay
    if (!sequence(i).admitted || memory.askers[i].tag(NamespaceTag::kTenant) != wanted) continue;
    if (!fetches.empty() && fetches[i].active) EndFetch(i);  // with what is in place; it computes the rest
    sequence(i).read = sequence(i).write = false;
  }
  std::vector<NodeId> roots;  // beforehand: with the last that goes on from a shared prefix that may go too
  for (uint32_t index = oldest_namespace; index != kNoNamespace; index = memory.namespaces[index].newer) {
    const Namespace& each = memory.namespaces[index];
    if (!each.purged && each.digests.tag(NamespaceTag::kTenant) == wanted) roots.push_back(each.root);
  }
  for (const NodeId root : roots) {
    Namespace& each = memory.namespaces[tree.root_index(root)];
    each.purged = true;
    const bool stays = each.users > 0;
    purged.blocks += DropUnpinned(root);
    if (!stays) continue;
    tree.Hide(root);
    for (NodeId node = tree.FirstBelow(root); node != kNoNode; node = tree.NextBelow(root, node)) {
      tree.Hide(node);
      ++purged.pinned;
    }
  }
  return purged;
}

// Everything below the root that no running sequence uses, and the root if nothing is left. Returns nodes dropped.
uint64_t KvCache::Impl::DropUnpinned(NodeId root) {
  uint64_t dropped = 0;
  for (NodeId node = tree.FirstBelow(root); node != kNoNode;) {
    const NodeId next = tree.NextBelow(root, node);
    if (tree.IsFreeLeaf(node) && !IsPinned(node)) {
      for (Group& group : groups) FreeNodeSlot(group, node);
      RemoveNode(node);
      ++dropped;
    }
    node = next;
  }
  Reap(root);
  return dropped;
}

}  // namespace reprise
