#include "tier/tier_store.h"

#include "base/check.h"

namespace reprise {

std::string_view Name(TierOutcome outcome) {
  switch (outcome) {
    case TierOutcome::kOk:
      return "ok";
    case TierOutcome::kMissing:
      return "missing";
    case TierOutcome::kChecksum:
      return "checksum_failed";
    case TierOutcome::kDamaged:
      return "record_damaged";
    case TierOutcome::kError:
      return "tier_error";
    case TierOutcome::kTimeout:
      return "tier_timeout";
  }
  CHECK(false);
}

}  // namespace reprise
