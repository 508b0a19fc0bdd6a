// GET /metrics: the server's counters as Prometheus reads them, in its text format 0.0.4.
//
// Ownership: values. Threads: counters on one thread, the server's I/O thread; the text on any. Errors: none.
// Design:    docs/http.md; names as in SCHEMA 5
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "engine/engine.h"
#include "server/cache_stats.h"

namespace reprise {

inline constexpr char kMetricsType[] = "text/plain; version=0.0.4; charset=utf-8";

// How long things took, counted by upper bounds.
class SecondsHistogram {
 public:
  static constexpr std::array kBounds = {0.005, 0.01, 0.025, 0.05, 0.1,  0.25, 0.5,
                                         1.0,   2.5,  5.0,   10.0, 30.0, 60.0, 300.0};

  void Add(double seconds);
  // [bounds + 1]: of each bound alone; the last one is beyond all of them.
  const std::array<uint64_t, kBounds.size() + 1>& counts() const { return counts_; }
  double sum() const { return sum_; }

 private:
  std::array<uint64_t, kBounds.size() + 1> counts_{};
  double sum_ = 0;
};

// Of completions, as the log has a line for each.
struct RequestCounters {
  std::map<int, uint64_t> by_status;  // of HTTP
  SecondsHistogram first_token;       // from the request to its first token
  SecondsHistogram per_token;         // mean gap between two tokens of one reply
  SecondsHistogram whole;             // from the request to its last token
};

// What there is to tell.
struct MetricsSources {
  const RequestCounters& requests;
  const PrefixCounters& prefixes;
  const KvCache::Stats& cache;
  const EngineInterface::Stats& engine;
  const std::optional<TierStats>& tier;
};
std::string MetricsText(const MetricsSources& sources);

}  // namespace reprise
