// How the cache met a prompt: how much of it was there and why not more (SCHEMA 4).
//
// Ownership: values. Threads: any. Errors: none.
// Safe: what belongs to another tenant is never_seen, but for operators.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "base/hash.h"
#include "base/ids.h"

namespace reprise {

enum class MissReason : uint8_t {  // SCHEMA 4
  kNone,
  kNeverSeen,
  kTokensDiffer,
  kModelDiffers,
  kTokenizerDiffers,
  kAdapterDiffers,
  kPositionDiffers,
  kAttentionDiffers,
  kGeometryDiffers,
  kNumericsDiffers,
  kTenantDiffers,  // operators only
  kEpochStale,
  kSaltDiffers,
  kEvicted,
  kExpired,
  kWindowNotResident,
  kSnapshotMissing,
  kLastTokenRule,
  kReadDisabled,
  kWriteDisabled,
  kStillBeingComputed,
  kChecksumFailed,  // these: something was kept in a tier, and was not brought
  kRecordDamaged,
  kTierError,
  kTierTimeout,
  kTierSlowerThanRecompute,
};
std::string_view Name(MissReason reason);  // "tokens_differ"

struct PrefixMatch {
  uint32_t tokens = 0;                    // usable without computing
  MissReason reason = MissReason::kNone;  // why not one more
};

// What a tier gave of a prompt (DESIGN 7.3), or would give.
struct TierReport {
  uint32_t tokens = 0;  // of the match: brought, or found when nothing is run
  double saved_ms = 0;  // what computing them was expected to take
  double cost_ms = 0;   // what bringing them was expected to take
  double load_ms = 0;   // what it took
};

enum class ReportView : uint8_t { kOwner, kOperator };

struct PrefixReport {
  PrefixMatch match;
  TierReport tier;
  Digest key;  // of the last whole block among match.tokens; of the namespace where there is none
  // How far the prompt is what the namespace has seen and not forgotten, usable or not: at least match.tokens.
  uint32_t fork = 0;
  // What the nearest prefix has at `fork`, where the prompt has something else, and how many of its tokens from there
  // on are of no use to this prompt; absent where nothing goes on.
  std::optional<TokenId> cached_token;
  uint32_t cached_beyond = 0;
};

}  // namespace reprise
