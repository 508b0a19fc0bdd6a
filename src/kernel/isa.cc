#include "kernel/isa.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <string>

#include "absl/strings/str_cat.h"

namespace reprise {
namespace {

#if defined(__x86_64__)
// clang 16 does not know "f16c" in __builtin_cpu_supports. Leaf 1, ECX bit 29 (Intel SDM 2A, CPUID); that the
// system saves the registers follows from AVX2.
bool HasF16c() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx >> 29 & 1) != 0;
}
#endif

}  // namespace

std::string_view Name(Isa isa) {
  switch (isa) {
    case Isa::kPortable:
      return "portable";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvx512:
      return "avx512";
  }
  return "unknown";
}

bool Supported(Isa isa) {
  switch (isa) {
    case Isa::kPortable:
      return true;
#if defined(__x86_64__)
    case Isa::kAvx2:
      return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && HasF16c() &&
             __builtin_cpu_supports("bmi2");
    case Isa::kAvx512:
      return Supported(Isa::kAvx2) && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
             __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
             __builtin_cpu_supports("avx512vnni");
#endif
    default:
      return false;
  }
}

Isa BestIsa() {
  if (Supported(Isa::kAvx512)) return Isa::kAvx512;
  if (Supported(Isa::kAvx2)) return Isa::kAvx2;
  return Isa::kPortable;
}

absl::StatusOr<Isa> ParseIsa(std::string_view name) {
  std::string supported;
  for (const Isa isa : {Isa::kPortable, Isa::kAvx2, Isa::kAvx512}) {
    if (!Supported(isa)) continue;
    if (Name(isa) == name) return isa;
    absl::StrAppend(&supported, supported.empty() ? "" : ", ", std::string(Name(isa)));
  }
  return absl::InvalidArgumentError(
      absl::StrCat("instruction set '", std::string(name), "' is not one of those of this machine: ", supported));
}

}  // namespace reprise
