// Request traces: what a cache of some size would have reused, had these requests come. The real cache is run,
// with slots that have no bytes.
//
// A trace is JSON, one object a line: `timestamp` (ms), `input_length`, `output_length` (tokens) and `hash_ids`, one
// number per kTraceBlockTokens tokens of the prompt: equal numbers stand for equal prefixes up to there. That is
// the format of the open traces of Mooncake (FAST '25) and of the server's own request log with
// --log-json --log-traces; other fields are ignored.
//
// Ownership: values. Threads: pure functions. Errors: InvalidArgument names the line.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "cache/kv_cache.h"

namespace reprise {

inline constexpr uint32_t kTraceBlockTokens = 512;

struct TraceRequest {
  uint64_t time_ms = 0;
  uint32_t prompt_tokens = 0;
  uint32_t reply_tokens = 0;
  std::vector<uint32_t> blocks;  // one id per kTraceBlockTokens, the last one rounded up
};

struct Trace {
  std::vector<TraceRequest> requests;
  uint32_t distinct_blocks = 0;  // ids are below this
  uint32_t longest = 0;          // blocks of the longest prompt: the least capacity
  uint64_t blocks = 0;           // of all requests
  uint64_t tokens = 0;
};

absl::StatusOr<Trace> ReadTrace(const std::string& path);
absl::StatusOr<Trace> ParseTrace(std::string_view text);

struct ReplayOptions {
  uint64_t capacity_blocks = 0;  // trace blocks that fit. REQUIRES: at least trace.longest
  uint32_t block_tokens = 64;    // of the cache; divides kTraceBlockTokens
  EvictionPolicy eviction = EvictionPolicy::kValuePerByte;
};

struct ReplayResult {
  uint64_t blocks_hit = 0;
  uint64_t tokens_hit = 0;
  double seconds = 0;
  uint64_t cache_blocks = 0;  // matched or sealed by the cache, in `seconds`
  uint64_t memory_bytes = 0;  // all that the cache took
};

// The requests one after another, whole prompts only: replies are not in a trace.
ReplayResult Replay(const Trace& trace, const ReplayOptions& options);

// Blocks hit without a limit, the most that any cache of this trace reuses.
ReplayResult ReplayUnlimited(const Trace& trace);
// Blocks hit by a cache that always evicts what is needed again last: the most that one of that size reuses.
uint64_t ClairvoyantHits(const Trace& trace, uint64_t capacity_blocks);

}  // namespace reprise
