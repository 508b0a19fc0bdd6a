// What the prompts of all requests found in the cache, counted as they end, and the bodies of the cache's endpoints.
//
// Ownership: values. Threads: counters on one thread, the server's I/O thread; bodies on any. Errors: none.
// Design:    docs/cache.md; names as in SCHEMA 5
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "engine/engine.h"

namespace reprise {

class PrefixCounters {
 public:
  static constexpr size_t kReasons = static_cast<size_t>(MissReason::kStillBeingComputed) + 1;

  // Of one generation's prompt.
  void AddTokens(uint32_t reused, uint32_t computed) {
    pool_tokens_ += reused;
    computed_tokens_ += computed;
  }
  // Of one request.
  void AddMiss(MissReason reason) { ++misses_[static_cast<size_t>(reason)]; }

  uint64_t pool_tokens() const { return pool_tokens_; }
  uint64_t computed_tokens() const { return computed_tokens_; }
  uint64_t misses(MissReason reason) const { return misses_[static_cast<size_t>(reason)]; }

 private:
  uint64_t pool_tokens_ = 0;
  uint64_t computed_tokens_ = 0;
  std::array<uint64_t, kReasons> misses_{};
};

// GET /v1/cache/stats.
std::string CacheStatsBody(const PrefixCounters& counters, const KvCache::Stats& cache,
                           const EngineInterface::Stats& engine);
// POST /v1/cache/purge.
std::string PurgedBody(const EngineInterface::Purged& purged);  // REQUIRES: the tier's is ok, if there is one

}  // namespace reprise
