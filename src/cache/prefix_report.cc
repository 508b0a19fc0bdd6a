#include "cache/prefix_report.h"

#include "base/check.h"

namespace reprise {

std::string_view Name(MissReason reason) {
  switch (reason) {
    case MissReason::kNone:
      return "none";
    case MissReason::kNeverSeen:
      return "never_seen";
    case MissReason::kTokensDiffer:
      return "tokens_differ";
    case MissReason::kModelDiffers:
      return "model_differs";
    case MissReason::kTokenizerDiffers:
      return "tokenizer_differs";
    case MissReason::kAdapterDiffers:
      return "adapter_differs";
    case MissReason::kPositionDiffers:
      return "position_differs";
    case MissReason::kAttentionDiffers:
      return "attention_differs";
    case MissReason::kGeometryDiffers:
      return "geometry_differs";
    case MissReason::kNumericsDiffers:
      return "numerics_differs";
    case MissReason::kTenantDiffers:
      return "tenant_differs";
    case MissReason::kEpochStale:
      return "epoch_stale";
    case MissReason::kSaltDiffers:
      return "salt_differs";
    case MissReason::kEvicted:
      return "evicted";
    case MissReason::kExpired:
      return "expired";
    case MissReason::kWindowNotResident:
      return "window_not_resident";
    case MissReason::kSnapshotMissing:
      return "snapshot_missing";
    case MissReason::kLastTokenRule:
      return "last_token_rule";
    case MissReason::kReadDisabled:
      return "read_disabled";
    case MissReason::kWriteDisabled:
      return "write_disabled";
    case MissReason::kStillBeingComputed:
      return "still_being_computed";
    case MissReason::kChecksumFailed:
      return "checksum_failed";
    case MissReason::kRecordDamaged:
      return "record_damaged";
    case MissReason::kTierError:
      return "tier_error";
    case MissReason::kTierTimeout:
      return "tier_timeout";
    case MissReason::kTierSlowerThanRecompute:
      return "tier_slower_than_recompute";
  }
  CHECK(false);
}

}  // namespace reprise
