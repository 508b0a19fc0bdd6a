// What a parallel region costs when the pieces cost nothing, with workers that still spin and with
// workers that sleep. Recipe: env_worker_pool_bench --benchmark_repetitions=5
#include <benchmark/benchmark.h>

#include <chrono>
#include <thread>

#include "env/worker_pool.h"

namespace reprise {
namespace {

void BM_BackToBack(benchmark::State& state) {
  WorkerPool pool(static_cast<uint32_t>(state.range(0)));
  for (auto _ : state) pool.Run(8, [](uint32_t piece, uint32_t) { benchmark::DoNotOptimize(piece); });
}
BENCHMARK(BM_BackToBack)->Arg(1)->Arg(2)->Arg(4)->UseRealTime();

// 200 us between two runs: the workers sleep.
void BM_AfterSleep(benchmark::State& state) {
  WorkerPool pool(static_cast<uint32_t>(state.range(0)));
  for (auto _ : state) {
    std::this_thread::sleep_for(std::chrono::microseconds(200));
    const auto start = std::chrono::steady_clock::now();
    pool.Run(8, [](uint32_t piece, uint32_t) { benchmark::DoNotOptimize(piece); });
    const auto end = std::chrono::steady_clock::now();
    state.SetIterationTime(std::chrono::duration<double>(end - start).count());
  }
}
BENCHMARK(BM_AfterSleep)->Arg(1)->Arg(2)->Arg(4)->UseManualTime()->Iterations(2000);

}  // namespace
}  // namespace reprise

BENCHMARK_MAIN();
