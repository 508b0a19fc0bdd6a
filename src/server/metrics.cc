#include "server/metrics.h"

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace reprise {
namespace {

// Families one after the other, each with its samples together, as the format wants it.
class Writer {
 public:
  void Begin(std::string_view name, std::string_view type, std::string_view help) {
    name_ = absl::StrCat("reprise_", std::string(name));
    absl::StrAppend(&text_, "# HELP ", name_, " ", std::string(help), "\n# TYPE ", name_, " ", std::string(type), "\n");
  }
  // `labels`: "tier=\"disk\"", or nothing. All values of labels are names of ours: nothing to escape.
  void Sample(std::string_view labels, uint64_t value) { Line("", labels, absl::StrCat(value)); }
  void Sample(std::string_view labels, double value) { Line("", labels, absl::StrFormat("%.9g", value)); }
  void One(std::string_view name, std::string_view type, std::string_view help, uint64_t value) {
    Begin(name, type, help);
    Sample("", value);
  }
  void Line(std::string_view suffix, std::string_view labels, const std::string& value) {
    absl::StrAppend(&text_, name_, std::string(suffix));
    if (!labels.empty()) absl::StrAppend(&text_, "{", std::string(labels), "}");
    absl::StrAppend(&text_, " ", value, "\n");
  }
  void Histogram(std::string_view name, std::string_view help, const SecondsHistogram& histogram) {
    Begin(name, "histogram", help);
    uint64_t count = 0;
    for (size_t i = 0; i < SecondsHistogram::kBounds.size(); ++i) {
      count += histogram.counts()[i];
      Line("_bucket", absl::StrFormat("le=\"%g\"", SecondsHistogram::kBounds[i]), absl::StrCat(count));
    }
    count += histogram.counts().back();
    Line("_bucket", "le=\"+Inf\"", absl::StrCat(count));
    Line("_sum", "", absl::StrFormat("%.9g", histogram.sum()));
    Line("_count", "", absl::StrCat(count));
  }
  std::string Take() { return std::move(text_); }

 private:
  std::string name_;
  std::string text_;
};

std::string Label(std::string_view name, std::string_view value) {
  return absl::StrCat(std::string(name), "=\"", std::string(value), "\"");
}

void WritePrefixes(const PrefixCounters& counters, Writer& out) {
  out.Begin("kv_hit_rate", "gauge", "Prompt tokens that were not computed, of all; by tier with a label");
  out.Sample("", counters.Share(counters.pool_tokens() + counters.disk_tokens()));
  out.Sample(Label("tier", "pool"), counters.Share(counters.pool_tokens()));
  out.Sample(Label("tier", "disk"), counters.Share(counters.disk_tokens()));
  out.Begin("kv_tokens_total", "counter", "Prompt tokens by where their state came from");
  out.Sample(Label("source", "pool"), counters.pool_tokens());
  out.Sample(Label("source", "disk"), counters.disk_tokens());
  out.Sample(Label("source", "computed"), counters.computed_tokens());
  out.Begin("kv_miss_total", "counter", "Requests by why not more of their prompt was reused");
  for (size_t i = 1; i < PrefixCounters::kReasons; ++i) {
    const auto reason = static_cast<MissReason>(i);
    out.Sample(Label("reason", Name(reason)), counters.misses(reason));
  }
}

void WriteCache(const KvCache::Stats& cache, Writer& out) {
  uint64_t free = 0, active = 0, reusable = 0;
  for (const KvCache::GroupStats& group : cache.groups) {
    free += uint64_t{group.slots_free} * group.slot_bytes;
    active += uint64_t{group.slots_active} * group.slot_bytes;
    reusable += uint64_t{group.slots_reusable} * group.slot_bytes;
  }
  out.Begin("pool_bytes", "gauge", "Memory of the KV pool");
  out.Sample(Label("state", "free"), free);
  out.Sample(Label("state", "active"), active);
  out.Sample(Label("state", "reusable"), reusable);
  out.One("kv_evicted_blocks_total", "counter", "Blocks thrown out of the pool for other requests",
          cache.evicted_blocks);
  out.One("kv_nodes", "gauge", "Blocks in the tree of prefixes", cache.nodes);
}

void WriteOperations(const TierStats& tier, Writer& out) {
  using Operation = TierStats::Operation;
  const std::string name = Label("tier", tier.name);
  const std::pair<const char*, const Operation*> operations[] = {
      {"fetch", &tier.fetch}, {"store", &tier.store}, {"erase", &tier.erase}};
  const auto labels = [&name](const char* op) { return absl::StrCat(name, ",", Label("op", op)); };
  out.Begin("tier_operations_total", "counter", "Blocks read from, records written to and tenants erased from a tier");
  const std::pair<const char*, uint64_t Operation::*> results[] = {{"ok", &Operation::ok},
                                                                   {"missing", &Operation::missing},
                                                                   {"checksum_failed", &Operation::checksum_failed},
                                                                   {"record_damaged", &Operation::damaged},
                                                                   {"tier_error", &Operation::error},
                                                                   {"tier_timeout", &Operation::timeout},
                                                                   {"declined", &Operation::declined},
                                                                   {"cancelled", &Operation::cancelled}};
  for (const auto& [op, counted] : operations)
    for (const auto& [result, field] : results)
      out.Sample(absl::StrCat(labels(op), ",", Label("result", result)), counted->*field);
  out.Begin("tier_bytes_total", "counter", "Bytes of K and V that went there and back");
  for (const auto& [op, counted] : operations) out.Sample(labels(op), counted->bytes);
  out.Begin("tier_latency_seconds", "summary", "Service of operations that were ok, without their wait in the queue");
  for (const auto& [op, counted] : operations) {
    out.Line("_sum", labels(op), absl::StrFormat("%.9g", counted->seconds));
    out.Line("_count", labels(op), absl::StrCat(counted->ok));
  }
}

// How good the choice between reading and computing was.
void WriteFetches(const KvCache::Stats& cache, Writer& out) {
  out.One("kv_fetches_total", "counter", "Prompts of which something was read from a tier", cache.fetches);
  out.One("kv_fetches_worse_total", "counter", "Of them: reading took longer than computing was expected to take",
          cache.fetches_worse);
  out.Begin("kv_fetch_seconds_total", "counter",
            "Of them: what reading was expected to take, what it took, and what computing was expected to take");
  out.Sample(Label("kind", "expected"), cache.fetch_expected_ms / 1e3);
  out.Sample(Label("kind", "took"), cache.fetch_took_ms / 1e3);
  out.Sample(Label("kind", "saved"), cache.fetch_saved_ms / 1e3);
}

void WriteTier(const TierStats& tier, Writer& out) {
  WriteOperations(tier, out);
  const std::string name = Label("tier", tier.name);
  out.Begin("tier_breaker", "gauge", "1: left alone after failures; 0.5: being tried again; 0: in use");
  const auto state = [](TierStats::Breaker breaker) {
    return breaker == TierStats::Breaker::kOpen ? 1.0 : breaker == TierStats::Breaker::kTrying ? 0.5 : 0.0;
  };
  out.Sample(name, std::max(state(tier.fetch_breaker), state(tier.store_breaker)));
  out.Begin("tier_used_bytes", "gauge", "What the tier takes");
  out.Sample(name, tier.usage.bytes);
  out.Begin("tier_max_bytes", "gauge", "What the tier may take");
  out.Sample(name, tier.usage.bytes_max);
  out.Begin("tier_blocks", "gauge", "Blocks and ends of blocks, of every kind of layer, that the tier holds");
  out.Sample(name, tier.usage.blocks);
  out.Begin("tier_evicted_blocks_total", "counter", "Blocks given up to stay within tier_max_bytes");
  out.Sample(name, tier.usage.evicted_blocks);
  out.Begin("tier_damaged_total", "counter", "Records and blocks found damaged, and not served");
  out.Sample(name, tier.usage.damaged);
}

}  // namespace

void SecondsHistogram::Add(double seconds) {
  const auto bound = std::lower_bound(kBounds.begin(), kBounds.end(), seconds);
  ++counts_[static_cast<size_t>(bound - kBounds.begin())];
  sum_ += seconds;
}

std::string MetricsText(const MetricsSources& sources) {
  Writer out;
  WritePrefixes(sources.prefixes, out);
  WriteCache(sources.cache, out);
  out.Begin("requests_total", "counter", "Completions by the status of their reply");
  for (const auto& [status, count] : sources.requests.by_status) out.Sample(Label("code", absl::StrCat(status)), count);
  out.Histogram("ttft_seconds", "From the request to the first token of its reply", sources.requests.first_token);
  out.Histogram("tpot_seconds", "Mean time between two tokens of a reply", sources.requests.per_token);
  out.Histogram("e2e_seconds", "From the request to the end of its reply", sources.requests.whole);
  out.One("queue_depth", "gauge", "Requests that wait", sources.engine.queued_requests);
  out.One("queue_tokens", "gauge", "Prompt tokens of requests that wait", sources.engine.queued_tokens);
  out.Begin("sequences", "gauge", "Replies being computed");
  out.Sample(Label("state", "running"), uint64_t{sources.engine.running});
  out.One("generated_tokens_total", "counter", "Tokens of replies", sources.engine.tokens_generated);
  if (sources.tier) {
    WriteTier(*sources.tier, out);
    WriteFetches(sources.cache, out);
  }
  return out.Take();
}

}  // namespace reprise
