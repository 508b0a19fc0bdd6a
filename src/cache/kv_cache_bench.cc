// What the cache costs the engine thread: matching a long prompt, sealing and evicting blocks.
//   cache_kv_cache_bench --benchmark_min_time=0.5
#include <benchmark/benchmark.h>

#include <chrono>
#include <memory>
#include <vector>

#include "base/check.h"
#include "cache/kv_cache.h"

namespace reprise {
namespace {

// Rows of two bytes: the time is that of the bookkeeping, not of K and V.
class NoMemory : public SlotMemory {
 public:
  void CopyRows(GroupId, SlotId, SlotId, uint32_t) override {}
  void ClearRows(GroupId, SlotId, uint32_t) override {}
};

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
void Compute(KvCache& cache, const NamespaceDigests& name_space, std::span<const TokenId> prompt) {
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
  Compute(cache, name_space, prompt);
  for (auto _ : state) {
    const PrefixMatch match = cache.Lookup(name_space, prompt);
    CHECK_EQ(match.tokens, tokens - 1);
  }
  state.SetItemsProcessed(state.iterations() * tokens);
}
BENCHMARK(BM_Match)->Arg(2048)->Arg(32768)->Unit(benchmark::kMicrosecond);

// The first miss below a block with many children: all of them are looked at. Items are children.
void BM_ManyChildren(benchmark::State& state) {
  const uint32_t children = static_cast<uint32_t>(state.range(0));
  Ledger ledger(uint64_t{1} << 30);
  KvCache cache(Options(2 * children + 8, 256), ledger);
  const NamespaceDigests name_space = cache.Namespace({});
  std::vector<TokenId> prompt = Prompt(128, 0);
  for (uint32_t i = 0; i < children; ++i) {
    prompt[64 + i % 8] = TokenId(static_cast<int32_t>(60000 + i));
    Compute(cache, name_space, prompt);
  }
  prompt[64] = TokenId(1);
  for (auto _ : state) benchmark::DoNotOptimize(cache.Lookup(name_space, prompt).tokens);
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

// A cache with a million blocks, all of them resident, in prompts of 32k tokens with 32 tokens a block.
class Million : public benchmark::Fixture {
 public:
  static constexpr uint32_t kBlocks = 1 << 20, kBlockTokens = 32, kPrompt = 32768;
  void SetUp(benchmark::State&) override {
    if (cache_ != nullptr) return;
    KvCacheOptions options;
    options.geometry = {
        .groups = {{.kind = GroupKind::kFull, .layers = {0}, .kv_heads = 1, .key_dim = 1, .value_dim = 1}},
        .block_tokens = kBlockTokens};
    options.slots = {kBlocks};
    options.sequences_max = 2;
    options.context_max = kPrompt + 1;
    options.in_flight_max = kPrompt;
    options.memory = &memory_;
    cache_ = std::make_unique<KvCache>(options, ledger_);
    name_space_ = cache_->Namespace({});
    for (uint32_t i = 0; i < kBlocks / (kPrompt / kBlockTokens); ++i) Compute(*cache_, name_space_, Next());
  }
  static std::vector<TokenId> Next() { return Prompt(kPrompt, static_cast<int32_t>(100'000 * seed_++)); }

 protected:
  static inline NoMemory memory_;
  static inline Ledger ledger_{uint64_t{4} << 30};
  static inline std::unique_ptr<KvCache> cache_;
  static inline NamespaceDigests name_space_;
  static inline uint32_t seed_ = 0;
};

// The limit of any cache with such keys: the chain of digests alone.
void BM_ChainAlone(benchmark::State& state) {
  const std::vector<TokenId> prompt = Prompt(Million::kPrompt, 7);
  BlockHasher hasher;
  for (auto _ : state) {
    Digest last{};
    for (uint32_t at = 0; at < prompt.size(); at += Million::kBlockTokens)
      last = hasher.Next(last, std::span(prompt).subspan(at, Million::kBlockTokens)).digest;
    benchmark::DoNotOptimize(last);
  }
  state.SetItemsProcessed(state.iterations() * Million::kPrompt);
}
BENCHMARK(BM_ChainAlone)->Unit(benchmark::kMicrosecond);

// A full hit, admitted and let go of: hash, find, compare, pin, unpin. Items are tokens.
BENCHMARK_DEFINE_F(Million, Hit)(benchmark::State& state) {
  std::vector<TokenId> prompt = Next();
  prompt.resize(kPrompt - 1);
  Compute(*cache_, name_space_, prompt);
  for (auto _ : state) {
    CacheSequence sequence;
    CHECK(cache_->Admit({.name_space = name_space_, .prompt = prompt, .tokens_max = kPrompt - 1}, sequence) ==
          KvCache::Outcome::kAdmitted);
    CHECK_EQ(sequence.length(), kPrompt - 2);
  }
  state.SetItemsProcessed(state.iterations() * kPrompt);
}
BENCHMARK_REGISTER_F(Million, Hit)->Unit(benchmark::kMicrosecond);

// The same without taking it.
BENCHMARK_DEFINE_F(Million, Match)(benchmark::State& state) {
  const std::vector<TokenId> prompt = Next();
  Compute(*cache_, name_space_, prompt);
  for (auto _ : state) CHECK_EQ(cache_->Lookup(name_space_, prompt).tokens, kPrompt - 1);
  state.SetItemsProcessed(state.iterations() * kPrompt);
}
BENCHMARK_REGISTER_F(Million, Match)->Unit(benchmark::kMicrosecond);

// New prompts, block by block, each evicting one. Items are blocks; `longest_us` is the longest single call.
BENCHMARK_DEFINE_F(Million, InsertAndEvict)(benchmark::State& state) {
  using Clock = std::chrono::steady_clock;
  Clock::duration longest{};
  const auto timed = [&](auto call) {
    const auto start = Clock::now();
    call();
    longest = std::max(longest, Clock::now() - start);
  };
  for (auto _ : state) {
    state.PauseTiming();
    const std::vector<TokenId> prompt = Next();
    state.ResumeTiming();
    CacheSequence sequence;
    timed([&] {
      CHECK(cache_->Admit({.name_space = name_space_, .prompt = prompt, .tokens_max = kPrompt}, sequence) ==
            KvCache::Outcome::kAdmitted);
    });
    for (uint32_t at = sequence.length(); at < kPrompt; at += kBlockTokens) {
      timed([&] { sequence.Prepare(kBlockTokens); });
      timed([&] { sequence.Commit(std::span(prompt).subspan(at, kBlockTokens)); });
    }
    timed([&] { sequence.Finish(); });
  }
  state.SetItemsProcessed(state.iterations() * (kPrompt / kBlockTokens));
  state.counters["longest_us"] = std::chrono::duration<double, std::micro>(longest).count();
}
BENCHMARK_REGISTER_F(Million, InsertAndEvict)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace reprise

BENCHMARK_MAIN();
