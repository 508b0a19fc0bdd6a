// The kernels of an instruction set.
#pragma once

#include "attention/attention_kernel.h"
#include "kernel/isa.h"

namespace reprise {

inline const AttentionTable& TableOf(Isa isa) {
  switch (isa) {
    case Isa::kAvx2:
      return kAttentionAvx2;
    case Isa::kAvx512:
      return kAttentionAvx512;
    case Isa::kPortable:
      break;
  }
  return kAttentionPortable;
}

}  // namespace reprise
