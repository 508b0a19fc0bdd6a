// One draw from vocabularies of SmolLM2's, Qwen2.5's and Gemma 3's size.
#include <benchmark/benchmark.h>

#include <random>

#include "base/ledger.h"
#include "token/sampler.h"

namespace reprise {
namespace {

void Draw(benchmark::State& state, const SamplingParameters& parameters) {
  const uint32_t vocab_size = static_cast<uint32_t>(state.range(0));
  Ledger ledger(uint64_t{1} << 30);
  const Region region = ledger.Take("sampler", Sampler::Footprint(vocab_size));
  Sampler sampler(vocab_size, region.bytes());
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0, 3);
  std::vector<float> logits(vocab_size);
  for (float& logit : logits) logit = normal(random);
  uint64_t position = 0;
  for (auto _ : state) benchmark::DoNotOptimize(sampler.Sample(logits, parameters, position++, {}));
}

BENCHMARK_CAPTURE(Draw, greedy, SamplingParameters{.temperature = 0})->Arg(49152)->Arg(151936)->Arg(262144);
BENCHMARK_CAPTURE(Draw, unfiltered, SamplingParameters{})->Arg(49152)->Arg(151936)->Arg(262144);
BENCHMARK_CAPTURE(Draw, top_k, SamplingParameters{.top_k = 40})->Arg(49152)->Arg(151936)->Arg(262144);
BENCHMARK_CAPTURE(Draw, all_filters,
                  SamplingParameters{.temperature = 0.8f, .top_p = 0.95f, .top_k = 40, .min_p = 0.05f})
    ->Arg(49152)
    ->Arg(151936)
    ->Arg(262144);
BENCHMARK_CAPTURE(Draw, top_p, SamplingParameters{.top_p = 0.95f})->Arg(49152)->Arg(151936)->Arg(262144);

}  // namespace
}  // namespace reprise

BENCHMARK_MAIN();
