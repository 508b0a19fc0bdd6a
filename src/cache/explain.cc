// Why a prompt's prefix ends where it does, for people.
#include <algorithm>

#include "cache/kv_cache_impl.h"

namespace reprise {
namespace {

constexpr uint32_t kOtherNamespacesMax = 64;  // looked at, the last used first

MissReason ReasonOf(NamespaceTag tag) {
  switch (tag) {
    case NamespaceTag::kModel:
      return MissReason::kModelDiffers;
    case NamespaceTag::kTokenizer:
      return MissReason::kTokenizerDiffers;
    case NamespaceTag::kAdapters:
      return MissReason::kAdapterDiffers;
    case NamespaceTag::kPosition:
      return MissReason::kPositionDiffers;
    case NamespaceTag::kAttention:
      return MissReason::kAttentionDiffers;
    case NamespaceTag::kGeometry:
      return MissReason::kGeometryDiffers;
    case NamespaceTag::kNumerics:
      return MissReason::kNumericsDiffers;
    case NamespaceTag::kTenant:
      return MissReason::kTenantDiffers;
    case NamespaceTag::kEpoch:
      return MissReason::kEpochStale;
    case NamespaceTag::kSalt:
      return MissReason::kSaltDiffers;
  }
  return MissReason::kNeverSeen;
}

// Which tag tells the two apart, the first in tag order; a tenant's before all others.
MissReason Difference(const NamespaceDigests& a, const NamespaceDigests& b) {
  if (a.tag(NamespaceTag::kTenant) != b.tag(NamespaceTag::kTenant)) return MissReason::kTenantDiffers;
  for (size_t tag = 0; tag < kNamespaceTags; ++tag)
    if (a.tags[tag] != b.tags[tag]) return ReasonOf(static_cast<NamespaceTag>(tag + 1));
  return MissReason::kNeverSeen;
}

}  // namespace

PrefixReport KvCache::Impl::Explain(const NamespaceDigests& digests, std::span<const TokenId> prompt,
                                    ReportView view) const {
  const Asker asker = AskerOf(digests, prompt);
  const Match match = Find(asker, prompt);
  PrefixReport report{.match = {.tokens = match.tokens, .reason = match.reason}};
  report.key = match.blocks == 0 ? digests.id.digest : tree.digest(tree.LastBlock(match.tip));
  report.fork = match.tokens;
  DescribeFork(asker, prompt, report);
  if (options.tier != nullptr) AskTier(asker, prompt, report);
  if (report.match.reason == MissReason::kNeverSeen || report.match.reason == MissReason::kTokensDiffer) {
    const MissReason other = OtherNamespace(digests, prompt, view, report.fork);
    if (other != MissReason::kNone) report.match.reason = other;
  }
  return report;
}

// What a tier would give beyond the match.
void KvCache::Impl::AskTier(const Asker& asker, std::span<const TokenId> prompt, PrefixReport& report) const {
  const Survey survey = LookAround(asker, prompt);
  const std::optional<FetchEdge> edge = ChooseEdge(report.match.tokens, survey);
  if (!edge) return;
  report.tier.saved_ms = edge->saved_s * 1e3;
  report.tier.cost_ms = edge->cost_s * 1e3;
  if (edge->saved_s <= edge->cost_s) {
    report.match.reason = MissReason::kTierSlowerThanRecompute;
    return;
  }
  const uint32_t position = edge->blocks * block_tokens() + edge->run;
  report.tier.tokens = position - report.match.tokens;
  report.match.tokens = position;
  report.key = edge->blocks == 0 ? asker.digests.id.digest : survey.keys[edge->blocks - 1].digest;
  report.fork = std::max(report.fork, position);
  if (position + 1 == prompt.size())
    report.match.reason = MissReason::kLastTokenRule;
  else
    report.match.reason = edge->run > 0 ? MissReason::kTokensDiffer : MissReason::kNeverSeen;
}

// Follows the tree from `tip`, where `at` tokens end, as far as its tokens are the prompt's, resident or not. Returns
// the last step: into what is next to the prompt where they part, if anything is.
PrefixTree::Run KvCache::Impl::Follow(NodeId& tip, uint32_t& at, std::span<const TokenId> prompt) const {
  while (true) {
    const PrefixTree::Run run = tree.LongestRun(tip, prompt.subspan(at), [](NodeId) { return true; });
    at += run.tokens;
    if (run.node == kNoNode || tree.tokens(run.node).size() > run.tokens) return run;
    tip = run.node;
  }
}

void KvCache::Impl::DescribeFork(const Asker& asker, std::span<const TokenId> prompt, PrefixReport& report) const {
  const std::optional<NodeId> root = tree.FindRoot(NamespaceAt(asker, 0));
  if (!root) return;
  NodeId tip = *root;
  uint32_t at = 0;
  if (asker.shared > 0) {
    const uint32_t shared = asker.shared * block_tokens();
    Follow(tip, at, prompt.first(shared));
    report.fork = at;
    // Before its end the prompt is the shared prefix: what others go on with is another prefix's.
    if (at < shared) return;
    const Digest from = Cross(tip, asker.shared, asker);
    if (from != tree.digest(tip)) return;
  }
  const PrefixTree::Run run = Follow(tip, at, prompt);
  report.fork = at;
  if (at == prompt.size()) return;
  NodeId branch = run.node;
  if (branch == kNoNode) {
    // Nothing below shares a token: one of several, then.
    branch = tree.AnyChild(tip);
    if (branch == kNoNode) return;
    report.cached_token = tree.tokens(branch)[0];
    report.cached_beyond = static_cast<uint32_t>(tree.tokens(branch).size());
  } else {
    report.cached_token = tree.tokens(branch)[run.tokens];
    report.cached_beyond = static_cast<uint32_t>(tree.tokens(branch).size()) - run.tokens;
  }
  for (NodeId below = tree.AnyChild(branch); below != kNoNode; below = tree.AnyChild(below))
    report.cached_beyond += static_cast<uint32_t>(tree.tokens(below).size());
}

// A namespace that has more than `reach` tokens of the prompt, and how it differs; kNone: there is none.
MissReason KvCache::Impl::OtherNamespace(const NamespaceDigests& digests, std::span<const TokenId> prompt,
                                         ReportView view, uint32_t reach) const {
  MissReason best = MissReason::kNone;
  uint32_t looked = 0;
  for (uint32_t index = newest_namespace; index != kNoNamespace && looked < kOtherNamespacesMax; ++looked) {
    const Namespace& other = memory.namespaces[index];
    index = other.older;
    if (other.purged || other.digests.id == digests.id) continue;
    const MissReason difference = Difference(digests, other.digests);
    if (difference == MissReason::kTenantDiffers && view != ReportView::kOperator) continue;
    const uint32_t tokens = Find(AskerOf(other.digests, prompt), prompt).tokens;
    if (tokens <= reach) continue;
    reach = tokens;
    best = difference;
  }
  if (best != MissReason::kNone || options.tier == nullptr || reach > 0) return best;
  for (const NamespaceDigests& other : options.tier->NamespacesWith(prompt)) {
    if (other.id == digests.id) continue;
    const MissReason difference = Difference(digests, other);
    if (difference != MissReason::kTenantDiffers || view == ReportView::kOperator) return difference;
  }
  return best;
}

}  // namespace reprise
