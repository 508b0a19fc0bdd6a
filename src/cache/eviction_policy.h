// Which of the blocks that nobody uses go first when the pool is full.
//
// Ownership: values. Threads: any.
// Design:    DESIGN 6, docs/decisions/0010-eviction.md
#pragma once

#include <cstdint>
#include <string>

namespace reprise {

// Under both, tenants with more than their quota give first, and a block's children go before it.
enum class EvictionPolicy : uint8_t {
  kValuePerByte,        // the least expected hits per request kept, learned from what was used again and what was not
  kLruWithTenantQuota,  // what was let go of longest ago
};

// How much of the pool a tenant may keep while others want it.
struct TenantQuota {
  std::string tenant;  // a Scope's
  double share = 0;    // of the pool, in (0, 1]; all of them together at most 1
};
inline constexpr uint32_t kTenantQuotasMax = 255;

}  // namespace reprise
