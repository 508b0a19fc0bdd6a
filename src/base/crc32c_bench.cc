// GB/s of checksums in cache and out of it.
#include <benchmark/benchmark.h>

#include "base/crc32c.h"

namespace reprise {
namespace {

template <auto kCrc>
void Checksum(benchmark::State& state) {
  const std::vector<std::byte> bytes(state.range(0), std::byte{0x5a});
  for (auto _ : state) benchmark::DoNotOptimize(kCrc(bytes, 0));
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations()) * state.range(0));
}
BENCHMARK(Checksum<Crc32c>)->Arg(1 << 10)->Arg(256 << 10)->Arg(64 << 20);
BENCHMARK(Checksum<Crc32cPortable>)->Arg(256 << 10);

}  // namespace
}  // namespace reprise

BENCHMARK_MAIN();
