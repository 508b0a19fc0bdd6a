// What the tests of kernels share: the instruction sets of this CPU, random values, equality of bits.
#pragma once

#include <cstring>
#include <random>
#include <vector>

#include "kernel/isa.h"

namespace reprise {

inline std::vector<Isa> Isas() {
  std::vector<Isa> out;
  for (const Isa isa : {Isa::kPortable, Isa::kAvx2, Isa::kAvx512}) {
    if (Supported(isa)) out.push_back(isa);
  }
  return out;
}

inline std::vector<float> Gauss(size_t count, float scale, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal(0.0f, scale);
  std::vector<float> out(count);
  for (float& value : out) value = normal(random);
  return out;
}

inline bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

}  // namespace reprise
