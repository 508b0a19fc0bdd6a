#include "kernel/isa.h"

#include <string>

#include "absl/strings/str_cat.h"

namespace reprise {

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
      return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c") &&
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
