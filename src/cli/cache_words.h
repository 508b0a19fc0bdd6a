// What the cache's endpoints answer, in words for a terminal.
//
// Ownership: values. Threads: any.
// Errors:    none: an answer that is no JSON object has no words (""), and what one does not have is left out.
// Design:    docs/cache.md
#pragma once

#include <string>
#include <string_view>

namespace reprise {

// Of POST /v1/cache/explain: how much is reused, why not more, where, what that costs, what to do.
std::string ExplainInWords(std::string_view answer);

// Of GET /v1/cache/stats.
std::string CacheStatsInWords(std::string_view answer);

// Of POST /v1/cache/purge.
std::string PurgedInWords(std::string_view answer);

}  // namespace reprise
