#include "planner/trace.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/check.h"

namespace reprise {
namespace {

constexpr uint64_t kBlocksMax = 1 << 16;  // of one prompt
constexpr uint64_t kFileBytesMax = uint64_t{1} << 30;
constexpr uint64_t kNever = UINT64_MAX;

class NoMemory : public SlotMemory {
 public:
  void CopyRows(GroupId, SlotId, SlotId, uint32_t) override {}
  void ClearRows(GroupId, SlotId, uint32_t) override {}
};

absl::Status Bad(size_t line, std::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("line ", line, ": ", std::string(what)));
}

// Numbers of hashes, in the order in which they are met, and what each of them follows: a hash stands for a whole
// prefix.
struct Ids {
  std::unordered_map<std::string, uint32_t> numbers;
  std::vector<uint32_t> parents;
};
constexpr uint32_t kNoParent = UINT32_MAX;

const nlohmann::json* Field(const nlohmann::json& object, const char* name) {
  const auto at = object.find(name);
  return at == object.end() ? nullptr : &*at;
}

absl::StatusOr<TraceRequest> ParseLine(size_t number, const std::string& line, Ids& ids) {
  const nlohmann::json object = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!object.is_object()) return Bad(number, "no JSON object");
  if (object.contains("level") && !object.contains("hash_ids"))
    return TraceRequest();  // of a log, about something else
  const nlohmann::json* hashes = Field(object, "hash_ids");
  const nlohmann::json* length = Field(object, "input_length");
  if (hashes == nullptr || !hashes->is_array()) return Bad(number, "`hash_ids` must be a list of numbers");
  if (length == nullptr || !length->is_number_unsigned())
    return Bad(number, "`input_length` must be a count of tokens");
  if (hashes->size() > kBlocksMax) return Bad(number, absl::StrCat("more than ", kBlocksMax, " `hash_ids`"));
  TraceRequest request;
  const uint64_t tokens = length->get<uint64_t>();
  if (CeilDiv(tokens, kTraceBlockTokens) != hashes->size())
    return Bad(number, absl::StrCat("`hash_ids` has ", hashes->size(), " entries for ", tokens, " tokens, one per ",
                                    kTraceBlockTokens, " are needed"));
  request.prompt_tokens = static_cast<uint32_t>(tokens);
  if (const nlohmann::json* time = Field(object, "timestamp"); time != nullptr && time->is_number_unsigned())
    request.time_ms = time->get<uint64_t>();
  if (const nlohmann::json* reply = Field(object, "output_length"); reply != nullptr && reply->is_number_unsigned())
    request.reply_tokens = static_cast<uint32_t>(std::min<uint64_t>(reply->get<uint64_t>(), UINT32_MAX));
  uint32_t parent = kNoParent;
  for (const nlohmann::json& hash : *hashes) {
    if (!hash.is_number_integer()) return Bad(number, "`hash_ids` must be a list of whole numbers below 2^64");
    const auto [at, added] = ids.numbers.try_emplace(hash.dump(), static_cast<uint32_t>(ids.numbers.size()));
    if (added) ids.parents.push_back(parent);
    if (ids.parents[at->second] != parent)
      return Bad(number,
                 absl::StrCat("hash ", at->first, " follows another one than before: each stands for a whole prefix"));
    parent = at->second;
    request.blocks.push_back(parent);
  }
  return request;
}

KvCacheOptions CacheOptions(const Trace& trace, const ReplayOptions& options, SlotMemory& memory) {
  KvCacheOptions cache;
  cache.geometry = {.groups = {{.kind = GroupKind::kFull, .layers = {0}, .kv_heads = 1, .key_dim = 1, .value_dim = 1}},
                    .block_tokens = options.block_tokens};
  cache.memory = &memory;
  cache.eviction = options.eviction;
  cache.context_max = trace.longest * kTraceBlockTokens + 1;
  cache.in_flight_max = cache.context_max;
  cache.sequences_max = 1;
  CHECK_GE(options.capacity_blocks, trace.longest);
  cache.slots = {static_cast<uint32_t>(options.capacity_blocks * (kTraceBlockTokens / options.block_tokens) + 1)};
  return cache;
}

}  // namespace

absl::StatusOr<Trace> ParseTrace(std::string_view text) {
  Trace trace;
  Ids ids;
  std::istringstream lines{std::string(text)};
  std::string line;
  for (size_t number = 1; std::getline(lines, line); ++number) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    absl::StatusOr<TraceRequest> request = ParseLine(number, line, ids);
    if (!request.ok()) return request.status();
    if (request->blocks.empty()) continue;
    trace.blocks += request->blocks.size();
    trace.tokens += request->prompt_tokens;
    trace.longest = std::max(trace.longest, static_cast<uint32_t>(request->blocks.size()));
    trace.requests.push_back(*std::move(request));
  }
  if (trace.requests.empty()) return absl::InvalidArgumentError("the trace has no requests");
  trace.distinct_blocks = static_cast<uint32_t>(ids.numbers.size());
  return trace;
}

absl::StatusOr<Trace> ReadTrace(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error))
    return absl::NotFoundError(absl::StrCat(path, " is no file that can be read"));
  if (const uintmax_t bytes = std::filesystem::file_size(path, error); error || bytes > kFileBytesMax)
    return absl::InvalidArgumentError(
        absl::StrCat(path, " has more than ", HumanBytes(kFileBytesMax), ", the most for a trace"));
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file) return absl::NotFoundError(absl::StrCat("cannot read ", path));
  absl::StatusOr<Trace> trace = ParseTrace(text.view());
  if (!trace.ok()) return absl::InvalidArgumentError(absl::StrCat(path, ": ", std::string(trace.status().message())));
  return trace;
}

ReplayResult Replay(const Trace& trace, const ReplayOptions& options) {
  CHECK(options.block_tokens > 0 && kTraceBlockTokens % options.block_tokens == 0);
  NoMemory memory;
  const KvCacheOptions cache_options = CacheOptions(trace, options, memory);
  ReplayResult result;
  for (const Footprint& line : KvCache::Footprints(cache_options)) result.memory_bytes += line.bytes;
  Ledger ledger(result.memory_bytes);
  KvCache cache(cache_options, ledger);
  const NamespaceDigests name_space = cache.Namespace({});
  std::vector<TokenId> prompt;
  const auto start = std::chrono::steady_clock::now();
  for (const TraceRequest& request : trace.requests) {
    prompt.clear();
    for (const uint32_t block : request.blocks)
      prompt.insert(prompt.end(), kTraceBlockTokens, TokenId(static_cast<int32_t>(block)));
    const auto whole = static_cast<uint32_t>(prompt.size());
    prompt.push_back(TokenId(0));  // the last token is always computed
    cache.SetTime(request.time_ms);
    CacheSequence sequence;
    CHECK(cache.Admit({.name_space = name_space, .prompt = prompt, .tokens_max = whole + 1}, sequence) ==
          KvCache::Outcome::kAdmitted);
    const uint32_t matched = std::min(sequence.length(), whole) / kTraceBlockTokens;
    result.blocks_hit += matched;
    result.tokens_hit += std::min(request.prompt_tokens, matched * kTraceBlockTokens);
    result.cache_blocks += whole / options.block_tokens;
    sequence.SetReplyTokens(request.reply_tokens);
    sequence.Prepare(whole + 1 - sequence.length());
    sequence.Commit(std::span(prompt).subspan(sequence.length(), whole + 1 - sequence.length()));
  }
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return result;
}

ReplayResult ReplayUnlimited(const Trace& trace) {
  ReplayResult result;
  std::unordered_set<uint32_t> seen;
  for (const TraceRequest& request : trace.requests) {
    uint32_t matched = 0;
    while (matched < request.blocks.size() && seen.contains(request.blocks[matched])) ++matched;
    result.blocks_hit += matched;
    result.tokens_hit += std::min<uint64_t>(request.prompt_tokens, uint64_t{matched} * kTraceBlockTokens);
    seen.insert(request.blocks.begin(), request.blocks.end());
  }
  return result;
}

uint64_t ClairvoyantHits(const Trace& trace, uint64_t capacity_blocks) {
  // next[i][b]: the request after i that has block b of request i.
  std::vector<std::vector<uint64_t>> next(trace.requests.size());
  std::vector<uint64_t> later(trace.distinct_blocks, kNever);
  for (size_t i = trace.requests.size(); i > 0; --i) {
    const std::vector<uint32_t>& blocks = trace.requests[i - 1].blocks;
    for (const uint32_t block : blocks) next[i - 1].push_back(later[block]);
    for (const uint32_t block : blocks) later[block] = i - 1;
  }
  struct Held {
    uint64_t next = kNever;
    uint32_t depth = 0;
    bool resident = false;
  };
  std::vector<Held> held(trace.distinct_blocks);
  // Needed again last, and of those the deepest: a parent is needed no later than its children.
  std::set<std::tuple<uint64_t, uint32_t, uint32_t>> order;
  uint64_t hits = 0;
  for (size_t i = 0; i < trace.requests.size(); ++i) {
    const std::vector<uint32_t>& blocks = trace.requests[i].blocks;
    uint32_t matched = 0;
    while (matched < blocks.size() && held[blocks[matched]].resident) ++matched;
    hits += matched;
    for (uint32_t depth = 0; depth < blocks.size(); ++depth) {
      Held& block = held[blocks[depth]];
      if (block.resident) order.erase({block.next, block.depth, blocks[depth]});
      block = {.next = next[i][depth], .depth = depth, .resident = true};
      order.insert({block.next, depth, blocks[depth]});
    }
    while (order.size() > capacity_blocks) {
      held[std::get<2>(*order.rbegin())].resident = false;
      order.erase(std::prev(order.end()));
    }
  }
  return hits;
}

}  // namespace reprise
