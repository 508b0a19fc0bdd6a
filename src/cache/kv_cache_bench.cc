// What the cache costs the engine thread: matching a long prompt, sealing and evicting blocks.
//   cache_kv_cache_bench --benchmark_min_time=0.5
#include <benchmark/benchmark.h>

#include <vector>

#include "base/check.h"
#include "cache/kv_cache.h"

namespace reprise {
namespace {

// Rows of two bytes: the time is that of the bookkeeping, not of K and V.
KvCacheOptions Options(uint32_t slots, uint32_t context_max) {
  KvCacheOptions options;
  options.geometry = {
      .groups =
          {{.kind = GroupKind::kFull, .layers = {0}, .kv_heads = 1, .key_dim = 1, .value_dim = 1},
           {.kind = GroupKind::kWindow, .layers = {1}, .kv_heads = 1, .key_dim = 1, .value_dim = 1, .window = 512}},
      .block_tokens = 64};
  options.slots = {slots, slots};
  options.sequences_max = 2;
  options.context_max = context_max;
  options.in_flight_max = 512;
  return options;
}
std::vector<TokenId> Prompt(uint32_t tokens, int32_t seed) {
  std::vector<TokenId> out;
  for (uint32_t i = 0; i < tokens; ++i) out.push_back(TokenId(static_cast<int32_t>(i * 7919 + 13) % 50000 + seed));
  return out;
}
void Run(KvCache& cache, const NamespaceDigests& name_space, std::span<const TokenId> prompt) {
  CacheSequence sequence;
  CHECK(cache.Admit({.name_space = name_space, .prompt = prompt, .tokens_max = static_cast<uint32_t>(prompt.size())},
                    sequence) == KvCache::Outcome::kAdmitted);
  while (sequence.length() < prompt.size()) {
    const uint32_t rows = std::min<uint32_t>(512, static_cast<uint32_t>(prompt.size()) - sequence.length());
    sequence.Prepare(rows);
    sequence.Commit(prompt.subspan(sequence.length(), rows));
  }
  sequence.Finish();
}

// Hashes, finds and compares a cached prompt of 32k tokens. Items are tokens.
void BM_Match(benchmark::State& state) {
  const uint32_t tokens = static_cast<uint32_t>(state.range(0));
  Ledger ledger(uint64_t{1} << 30);
  KvCache cache(Options(2048, tokens), ledger);
  const NamespaceDigests name_space = cache.Namespace({});
  const std::vector<TokenId> prompt = Prompt(tokens, 0);
  Run(cache, name_space, prompt);
  for (auto _ : state) {
    const PrefixMatch match = cache.Lookup(name_space.id, prompt);
    CHECK_EQ(match.tokens, tokens - 1);
  }
  state.SetItemsProcessed(state.iterations() * tokens);
}
BENCHMARK(BM_Match)->Arg(2048)->Arg(32768)->Unit(benchmark::kMicrosecond);

// Admits, fills, seals and ends prompts that are new each time, in a full cache: each block evicts one.
// Items are blocks.
void BM_FillAndEvict(benchmark::State& state) {
  Ledger ledger(uint64_t{1} << 30);
  KvCache cache(Options(2048, 32768), ledger);
  const NamespaceDigests name_space = cache.Namespace({});
  int32_t seed = 0;
  for (; seed < 8; ++seed) Run(cache, name_space, Prompt(32768, seed));
  const std::vector<TokenId> even = Prompt(32768, 100000), odd = Prompt(32768, 200000), third = Prompt(32768, 300000),
                             fourth = Prompt(32768, 400000), fifth = Prompt(32768, 500000);
  const std::vector<TokenId>* prompts[] = {&even, &odd, &third, &fourth, &fifth};  // four fit: each returns evicted
  for (auto _ : state) Run(cache, name_space, *prompts[seed++ % 5]);
  CHECK_EQ(cache.stats().tokens_reused, 0u);
  state.SetItemsProcessed(state.iterations() * (32768 / 64));
}
BENCHMARK(BM_FillAndEvict)->Unit(benchmark::kMicrosecond);

// The first miss below a block with many children: all of them are looked at. Items are children.
void BM_ManyChildren(benchmark::State& state) {
  const uint32_t children = static_cast<uint32_t>(state.range(0));
  Ledger ledger(uint64_t{1} << 30);
  KvCache cache(Options(2 * children + 8, 256), ledger);
  const NamespaceDigests name_space = cache.Namespace({});
  std::vector<TokenId> prompt = Prompt(128, 0);
  for (uint32_t i = 0; i < children; ++i) {
    prompt[64 + i % 8] = TokenId(static_cast<int32_t>(60000 + i));
    Run(cache, name_space, prompt);
  }
  prompt[64] = TokenId(1);
  for (auto _ : state) benchmark::DoNotOptimize(cache.Lookup(name_space.id, prompt).tokens);
  state.SetItemsProcessed(state.iterations() * children);
}
BENCHMARK(BM_ManyChildren)->Arg(100)->Arg(4000)->Unit(benchmark::kMicrosecond);

// One step of decode: Prepare and Commit of one token, a seal every 64th.
void BM_DecodeStep(benchmark::State& state) {
  Ledger ledger(uint64_t{1} << 30);
  KvCache cache(Options(2048, 32768), ledger);
  const NamespaceDigests name_space = cache.Namespace({});
  const std::vector<TokenId> tokens = Prompt(32768, 0);
  CacheSequence sequence;
  for (auto _ : state) {
    if (!sequence || sequence.length() == tokens.size()) {
      sequence = CacheSequence();
      cache.Clear();
      CHECK(cache.Admit({.name_space = name_space, .prompt = std::span(tokens).first(1), .tokens_max = 32768},
                        sequence) == KvCache::Outcome::kAdmitted);
    }
    sequence.Prepare(1);
    sequence.Commit(std::span(tokens).subspan(sequence.length(), 1));
  }
}
BENCHMARK(BM_DecodeStep)->Unit(benchmark::kNanosecond);

}  // namespace
}  // namespace reprise

BENCHMARK_MAIN();
