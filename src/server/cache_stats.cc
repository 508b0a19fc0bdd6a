#include "server/cache_stats.h"

#include <utility>

#include "server/json.h"

namespace reprise {
namespace {

Json PoolBytes(uint64_t free, uint64_t active, uint64_t reusable) {
  return Json({{"free", free}, {"active", active}, {"reusable", reusable}, {"held", 0}});
}

}  // namespace

std::string CacheStatsBody(const PrefixCounters& counters, const KvCache::Stats& cache,
                           const EngineInterface::Stats& engine) {
  const uint64_t all = counters.pool_tokens() + counters.computed_tokens();
  Json misses = Json::object();
  for (size_t i = 1; i < PrefixCounters::kReasons; ++i) {
    const auto reason = static_cast<MissReason>(i);
    misses[std::string(Name(reason))] = counters.misses(reason);
  }
  uint64_t free = 0, active = 0, reusable = 0;
  Json groups = Json::array();
  for (const KvCache::GroupStats& group : cache.groups) {
    const uint64_t bytes = group.slot_bytes;
    groups.push_back(Json({{"kind", std::string(Name(group.kind))},
                           {"window", group.window},
                           {"slot_bytes", bytes},
                           {"slots", group.slots_total},
                           {"pool_bytes", PoolBytes(group.slots_free * bytes, group.slots_active * bytes,
                                                    group.slots_reusable * bytes)}}));
    free += group.slots_free * bytes;
    active += group.slots_active * bytes;
    reusable += group.slots_reusable * bytes;
  }
  return Dump(
      Json({{"kv_hit_rate", all == 0 ? 0.0 : static_cast<double>(counters.pool_tokens()) / static_cast<double>(all)},
            {"kv_tokens_total",
             {{"pool", counters.pool_tokens()},
              {"ram", 0},
              {"disk", 0},
              {"redis", 0},
              {"computed", counters.computed_tokens()}}},
            {"kv_miss_total", std::move(misses)},
            {"pool_bytes", PoolBytes(free, active, reusable)},
            {"groups", std::move(groups)},
            {"sequences", cache.sequences},
            {"nodes", cache.nodes},
            {"tails", cache.tails},
            {"evicted_blocks", cache.evicted_blocks},
            {"duplicate_seals", cache.duplicate_seals},
            {"key_collisions", cache.key_collisions},
            {"queue_depth", engine.queued_requests},
            {"queue_tokens", engine.queued_tokens}}));
}

std::string PurgedBody(const EngineInterface::Purged& purged) {
  Json body{{"blocks", purged.memory.blocks}, {"pinned", purged.memory.pinned}};
  if (purged.tier) body["disk_blocks"] = (*purged.tier)->blocks;
  return Dump(Json({{"purged", body}}));
}

}  // namespace reprise
