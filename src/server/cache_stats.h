// What the prompts of all requests found in the cache, counted as they end, and the bodies of the cache's endpoints.
//
// Ownership: values. Threads: counters on one thread, the server's I/O thread; bodies on any. Errors: none.
// Design:    docs/cache.md; names as in SCHEMA 5
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "engine/engine.h"

namespace reprise {

class PrefixCounters {
 public:
  static constexpr size_t kReasons = static_cast<size_t>(MissReason::kTierSlowerThanRecompute) + 1;

  // Of one generation's prompt.
  void AddTokens(const Timings& timings) {
    pool_tokens_ += timings.cached_pool;
    disk_tokens_ += timings.cached_disk;
    computed_tokens_ += timings.computed_n;
  }
  // Of one request.
  void AddMiss(MissReason reason) { ++misses_[static_cast<size_t>(reason)]; }

  uint64_t pool_tokens() const { return pool_tokens_; }
  uint64_t disk_tokens() const { return disk_tokens_; }
  uint64_t computed_tokens() const { return computed_tokens_; }
  // Of all tokens; 0 of none.
  double Share(uint64_t tokens) const {
    const uint64_t all = pool_tokens_ + disk_tokens_ + computed_tokens_;
    return all == 0 ? 0 : static_cast<double>(tokens) / static_cast<double>(all);
  }
  uint64_t misses(MissReason reason) const { return misses_[static_cast<size_t>(reason)]; }

 private:
  uint64_t pool_tokens_ = 0;
  uint64_t disk_tokens_ = 0;
  uint64_t computed_tokens_ = 0;
  std::array<uint64_t, kReasons> misses_{};
};

std::string_view Name(TierStats::Breaker breaker);  // "closed" "open" "trying"

// GET /v1/cache/stats.
std::string CacheStatsBody(const PrefixCounters& counters, const KvCache::Stats& cache,
                           const EngineInterface::Stats& engine, const std::optional<TierStats>& tier);
// POST /v1/cache/purge.
std::string PurgedBody(const EngineInterface::Purged& purged);  // REQUIRES: the tier's is ok, if there is one

}  // namespace reprise
