// reprise bench trace: what the cache would have reused of recorded requests, by its size and policy.
#include "cli/bench_trace.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/text.h"
#include "cli/commands.h"
#include "planner/trace.h"

namespace reprise {
namespace {

struct TraceFlags {
  std::vector<std::string> files;
  std::vector<double> shares = {10, 25, 50};
  uint32_t block_tokens = 64;
  bool json = false;
};

double Percent(uint64_t part, uint64_t whole) {
  return whole == 0 ? 0 : 100.0 * static_cast<double>(part) / static_cast<double>(whole);
}

// How far from LRU to what nobody can beat.
double GapClosed(uint64_t hits, uint64_t lru, uint64_t best) {
  return best <= lru ? 100
                     : 100 * (static_cast<double>(hits) - static_cast<double>(lru)) / static_cast<double>(best - lru);
}

nlohmann::ordered_json RunShare(const Trace& trace, double share, uint32_t block_tokens) {
  const auto capacity = std::max(static_cast<uint64_t>(share / 100 * trace.distinct_blocks), uint64_t{trace.longest});
  const ReplayResult value = Replay(trace, {.capacity_blocks = capacity, .block_tokens = block_tokens});
  const ReplayResult lru = Replay(
      trace,
      {.capacity_blocks = capacity, .block_tokens = block_tokens, .eviction = EvictionPolicy::kLruWithTenantQuota});
  const uint64_t best = ClairvoyantHits(trace, capacity);
  const double slots = static_cast<double>(capacity) * kTraceBlockTokens / block_tokens;
  return {{"share_pct", share},
          {"value_per_byte_hit_pct", Percent(value.blocks_hit, trace.blocks)},
          {"value_per_byte_token_hit_pct", Percent(value.tokens_hit, trace.tokens)},
          {"lru_hit_pct", Percent(lru.blocks_hit, trace.blocks)},
          {"clairvoyant_hit_pct", Percent(best, trace.blocks)},
          {"gap_closed_pct", GapClosed(value.blocks_hit, lru.blocks_hit, best)},
          {"blocks_per_second", static_cast<double>(value.cache_blocks) / value.seconds},
          {"lru_blocks_per_second", static_cast<double>(lru.cache_blocks) / lru.seconds},
          {"bytes_per_block", static_cast<double>(value.memory_bytes) / slots}};
}

void PrintShare(const nlohmann::ordered_json& row) {
  const auto number = [&](const char* name) { return row[name].get<double>(); };
  std::printf("%5.1f %%  %10.2f  %8.2f  %11.2f  %8.0f %%  %11.0f k  %10.0f\n", number("share_pct"),
              number("value_per_byte_hit_pct"), number("lru_hit_pct"), number("clairvoyant_hit_pct"),
              number("gap_closed_pct"), number("blocks_per_second") / 1000, number("bytes_per_block"));
  std::fflush(stdout);
}

absl::Status RunFile(const std::string& file, const TraceFlags& flags, nlohmann::ordered_json& out) {
  const absl::StatusOr<Trace> trace = ReadTrace(file);
  if (!trace.ok()) return trace.status();
  const ReplayResult ceiling = ReplayUnlimited(*trace);
  const ReplayResult unlimited =
      Replay(*trace, {.capacity_blocks = trace->distinct_blocks, .block_tokens = flags.block_tokens});
  nlohmann::ordered_json result = {{"trace", file},
                                   {"requests", trace->requests.size()},
                                   {"distinct_blocks", trace->distinct_blocks},
                                   {"ceiling_hit_pct", Percent(ceiling.blocks_hit, trace->blocks)},
                                   {"ceiling_token_hit_pct", Percent(ceiling.tokens_hit, trace->tokens)},
                                   {"unlimited_hit_pct", Percent(unlimited.blocks_hit, trace->blocks)},
                                   {"unlimited_reaches_the_ceiling", unlimited.tokens_hit == ceiling.tokens_hit}};
  if (!flags.json) {
    std::printf("%s: %zu requests, %u distinct blocks of %u tokens\n", file.c_str(), trace->requests.size(),
                trace->distinct_blocks, kTraceBlockTokens);
    std::printf("without a limit %.2f %% of the blocks, %.2f %% of the tokens; the cache reuses %s\n",
                result["ceiling_hit_pct"].get<double>(), result["ceiling_token_hit_pct"].get<double>(),
                unlimited.tokens_hit == ceiling.tokens_hit ? "exactly that" : "LESS");
    std::printf("  size  value/byte %%     LRU %%  clairvoyant %%  gap closed     blocks/s  bytes/block\n");
  }
  for (const double share : flags.shares) {
    result["shares"].push_back(RunShare(*trace, share, flags.block_tokens));
    if (!flags.json) PrintShare(result["shares"].back());
  }
  out.push_back(std::move(result));
  return absl::OkStatus();
}

absl::Status RunTraces(const TraceFlags& flags) {
  nlohmann::ordered_json results = nlohmann::ordered_json::array();
  for (const std::string& file : flags.files) {
    const absl::Status status = RunFile(file, flags, results);
    if (!status.ok()) return status;
  }
  if (flags.json) std::printf("%s\n", results.dump(2).c_str());
  return absl::OkStatus();
}

}  // namespace

void AddBenchTraceCommand(CLI::App& bench, int& status) {
  auto flags = std::make_shared<TraceFlags>();
  CLI::App* command = bench.add_subcommand("trace", "replay recorded requests through the cache: hit rates by size");
  command->add_option("FILE", flags->files, "traces: JSON lines with input_length and hash_ids")->required();
  command->add_option("--share", flags->shares, "cache sizes, in % of what the whole trace would take")
      ->delimiter(',')
      ->capture_default_str()
      ->check([](const std::string& text) {
        const double share = std::strtod(text.c_str(), nullptr);
        return share >= 0.1 && share <= 100 ? std::string() : "must be from 0.1 to 100, not " + text;
      });
  command->add_option("--block-tokens", flags->block_tokens, "tokens of one block of the cache")
      ->capture_default_str()
      ->check(CLI::IsMember({16, 32, 64, 128, 256, 512}));
  command->add_flag("--json", flags->json, "print JSON");
  command->callback([flags, &status] {
    const absl::Status run = RunTraces(*flags);
    if (!run.ok()) status = Report(run);
  });
}

}  // namespace reprise
