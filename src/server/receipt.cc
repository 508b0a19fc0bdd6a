#include "server/receipt.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace reprise {
namespace {

std::string Sha(const Digest& digest) { return absl::StrCat("sha256:", digest.Hex()); }

Json CompatibilityOf(const ReceiptFacts& facts) {
  const ComputationIdentity& computation = facts.identity->computation;
  return Json({{"model_revision", Sha(computation.model)},
               {"tokenizer_revision", Sha(computation.tokenizer)},
               {"position_encoding", computation.position},
               {"adapters", facts.adapters},
               {"numerics", computation.numerics},
               {"geometry", Sha(facts.identity->geometry)},
               {"system_prompt_hash", facts.system_prompt ? Json(Sha(*facts.system_prompt)) : Json(nullptr)},
               {"tenant_scope", facts.tenant},
               {"acl_epoch", facts.epoch}});
}

std::string TokensDiffer(std::span<const TokenId> prompt, const PrefixReport& report, const TextCodec& codec) {
  std::string text = absl::StrCat("position ", report.fork);
  if (report.fork < prompt.size()) absl::StrAppend(&text, ": asked ", TokenInWords(prompt[report.fork], codec));
  if (report.cached_token) absl::StrAppend(&text, ", cached ", TokenInWords(*report.cached_token, codec));
  return text;
}

// One sentence for a person; docs/cache.md says what to do about each.
std::string DetailOf(std::span<const TokenId> prompt, const PrefixReport& report, const TextCodec& codec) {
  const uint32_t reused = report.match.tokens;
  switch (report.match.reason) {
    case MissReason::kNone:
      return "";
    case MissReason::kNeverSeen:
      return reused == 0 ? "nothing in this scope begins like this prompt"
                         : absl::StrCat("nothing in this scope goes on from position ", reused, " like this prompt");
    case MissReason::kTokensDiffer:
      return TokensDiffer(prompt, report, codec);
    case MissReason::kModelDiffers:
      return "these tokens are cached for another model";
    case MissReason::kTokenizerDiffers:
      return "these tokens are cached for another tokenizer";
    case MissReason::kAdapterDiffers:
      return "these tokens are cached with other adapters, or other scales of them";
    case MissReason::kPositionDiffers:
      return "these tokens are cached with another encoding of positions";
    case MissReason::kAttentionDiffers:
      return "these tokens are cached with another attention";
    case MissReason::kGeometryDiffers:
      return "these tokens are cached in another geometry or element type";
    case MissReason::kNumericsDiffers:
      return "these tokens are cached by another version of the arithmetic";
    case MissReason::kTenantDiffers:
      return "these tokens are cached for another tenant";
    case MissReason::kEpochStale:
      return "these tokens are cached from before this tenant's state was revoked";
    case MissReason::kSaltDiffers:
      return "these tokens are cached under another `cache.salt`, or without one";
    case MissReason::kEvicted:
      return "it was cached, and its memory was needed for other requests";
    case MissReason::kExpired:
      return "it was cached longer ago than it may be kept";
    case MissReason::kWindowNotResident:
      return absl::StrCat("tokens up to position ", report.fork,
                          " are known, but not all of the sliding window that is needed to go on there");
    case MissReason::kSnapshotMissing:
      return absl::StrCat("tokens up to position ", report.fork, " are known, but there is no snapshot to go on from");
    case MissReason::kLastTokenRule:
      return "all of the prompt is cached; its last token is always computed, since the reply begins with its logits";
    case MissReason::kReadDisabled:
      return "`cache.read` is false";
    case MissReason::kWriteDisabled:
      return "what began like this was asked with `cache.write`: false";
    case MissReason::kStillBeingComputed:
      return "another request is computing it at this moment";
    case MissReason::kChecksumFailed:
      return "what the cache directory holds of it is not what was written; it was computed instead";
    case MissReason::kRecordDamaged:
      return "its record in the cache directory is damaged; it was computed instead";
    case MissReason::kTierError:
      return "the cache directory could not be read; it was computed instead";
    case MissReason::kTierTimeout:
      return "reading it took longer than it was worth; it was computed instead";
    case MissReason::kTierSlowerThanRecompute:
      return "it is kept in the cache directory, and computing it is expected to be faster than reading it";
  }
  return "";
}

Json MissesOf(std::span<const TokenId> prompt, const PrefixReport& report, const TextCodec& codec) {
  Json misses = Json::array();
  if (report.match.reason == MissReason::kNone) return misses;
  misses.push_back(Json({{"at_token", report.match.tokens},
                         {"reason", std::string(Name(report.match.reason))},
                         {"detail", DetailOf(prompt, report, codec)}}));
  return misses;
}

}  // namespace

std::optional<Digest> SystemPromptDigest(std::span<const ChatMessage> messages) {
  Sha256 sha;
  bool any = false;
  for (const ChatMessage& message : messages) {
    if (message.role != "system") continue;
    any = true;
    sha.Update(message.content);
  }
  if (!any) return std::nullopt;
  return sha.Finish();
}

std::string TokenInWords(TokenId token, const TextCodec& codec) {
  return absl::StrCat(token.value(), " ", Dump(Json(codec.Piece(token))));
}

Json ReceiptOf(const ReceiptFacts& facts, std::span<const TokenId> prompt, const PrefixReport& report,
               const TextCodec& codec) {
  const uint32_t reused = report.match.tokens;
  const TierReport& tier = report.tier;
  const char* const decision = !facts.cache_read ? "read_disabled" : reused > 0 ? "safe_reuse" : "recompute";
  return Json(
      {{"id", facts.id},
       {"key", Sha(report.key)},
       {"compatibility", CompatibilityOf(facts)},
       {"hit",
        {{"reusable_tokens", reused},
         {"prefill_skipped", reused > 0},
         {"suffix_tokens", prompt.size() - reused},
         {"by_tier", {{"pool", reused - tier.tokens}, {"ram", 0}, {"disk", tier.tokens}, {"redis", 0}}}}},
       {"plan",
        {{"fetch_tokens", tier.tokens},
         {"estimated_saved_ms", tier.saved_ms},
         {"estimated_cost_ms", tier.cost_ms},
         {"actual_load_ms", tier.load_ms}}},
       {"gates",
        {{"cross_tenant", "reject"}, {"acl_epoch_mismatch", "miss_and_recompute"}, {"active_sequence", "never_evict"}}},
       {"miss", MissesOf(prompt, report, codec)},
       {"decision", decision}});
}

}  // namespace reprise
