#include "server/cache_stats.h"

#include <utility>

#include "server/json.h"

namespace reprise {
namespace {

Json PoolBytes(uint64_t free, uint64_t active, uint64_t reusable) {
  return Json({{"free", free}, {"active", active}, {"reusable", reusable}, {"held", 0}});
}

Json OperationOf(const TierStats::Operation& operation) {
  return Json({{"ok", operation.ok},
               {"missing", operation.missing},
               {"checksum_failed", operation.checksum_failed},
               {"record_damaged", operation.damaged},
               {"tier_error", operation.error},
               {"tier_timeout", operation.timeout},
               {"declined", operation.declined},
               {"cancelled", operation.cancelled},
               {"bytes", operation.bytes},
               {"seconds", operation.seconds}});
}

Json TierOf(const TierStats& tier) {
  const TierUsage& usage = tier.usage;
  return Json(
      {{"writable", tier.writable},
       {"bytes", usage.bytes},
       {"bytes_max", usage.bytes_max},
       {"bytes_live", usage.bytes_live},
       {"records", usage.records},
       {"blocks", usage.blocks},
       {"tails", usage.tails},
       {"segments", usage.segments},
       {"namespaces", usage.namespaces},
       {"evicted_blocks", usage.evicted_blocks},
       {"damaged", usage.damaged},
       {"operations",
        {{"fetch", OperationOf(tier.fetch)}, {"store", OperationOf(tier.store)}, {"erase", OperationOf(tier.erase)}}},
       {"breaker",
        {{"fetch", std::string(Name(tier.fetch_breaker))}, {"store", std::string(Name(tier.store_breaker))}}},
       {"last_error", tier.last_error.empty() ? Json(nullptr) : Json(tier.last_error)}});
}

}  // namespace

std::string_view Name(TierStats::Breaker breaker) {
  switch (breaker) {
    case TierStats::Breaker::kClosed:
      return "closed";
    case TierStats::Breaker::kOpen:
      return "open";
    case TierStats::Breaker::kTrying:
      return "trying";
  }
  return "";
}

std::string CacheStatsBody(const PrefixCounters& counters, const KvCache::Stats& cache,
                           const EngineInterface::Stats& engine, const std::optional<TierStats>& tier) {
  Json tiers = Json::object();
  if (tier) tiers[tier->name] = TierOf(*tier);
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
  return Dump(Json({{"kv_hit_rate", counters.Share(counters.pool_tokens() + counters.disk_tokens())},
                    {"kv_tokens_total",
                     {{"pool", counters.pool_tokens()},
                      {"ram", 0},
                      {"disk", counters.disk_tokens()},
                      {"redis", 0},
                      {"computed", counters.computed_tokens()}}},
                    {"kv_miss_total", std::move(misses)},
                    {"pool_bytes", PoolBytes(free, active, reusable)},
                    {"groups", std::move(groups)},
                    {"tiers", std::move(tiers)},
                    {"fetches",
                     {{"count", cache.fetches},
                      {"worse", cache.fetches_worse},
                      {"expected_ms", cache.fetch_expected_ms},
                      {"took_ms", cache.fetch_took_ms},
                      {"saved_ms", cache.fetch_saved_ms}}},
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
