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

enum class MissReason : uint8_t {  // SCHEMA 4, as far as memory alone can give them
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
};
std::string_view Name(MissReason reason);  // "tokens_differ"

struct PrefixMatch {
  uint32_t tokens = 0;                    // usable without computing
  MissReason reason = MissReason::kNone;  // why not one more
};

enum class ReportView : uint8_t { kOwner, kOperator };

struct PrefixReport {
  PrefixMatch match;
  Digest key;  // of the last whole block among match.tokens; of the namespace where there is none
  // How far the prompt is what the namespace has seen and not forgotten, usable or not: at least match.tokens.
  uint32_t fork = 0;
  // What the nearest prefix has at `fork`, where the prompt has something else, and how many of its tokens from there
  // on are of no use to this prompt; absent where nothing goes on.
  std::optional<TokenId> cached_token;
  uint32_t cached_beyond = 0;
};

}  // namespace reprise
