// The instruction sets that kernels are written for. All give the same bits; the choice is made once,
// at run time, and handed down as a value so that tests can hold them against each other.
#pragma once

#include <cstdint>
#include <string_view>

#include "absl/status/statusor.h"
#include "env/worker_pool.h"

namespace reprise {

enum class Isa : uint8_t { kPortable = 0, kAvx2 = 1, kAvx512 = 2 };

std::string_view Name(Isa isa);  // "portable", "avx2", "avx512"
bool Supported(Isa isa);         // by this CPU and operating system
Isa BestIsa();
// Error: names the value and the ones this machine supports.
absl::StatusOr<Isa> ParseIsa(std::string_view name);

// How and on what a kernel runs. Value; does not own the pool.
struct Compute {
  WorkerPool* pool = nullptr;
  Isa isa = Isa::kPortable;
};

}  // namespace reprise
