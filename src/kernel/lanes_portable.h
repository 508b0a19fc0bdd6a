// Sixteen float lanes, the unit of every reduction (DESIGN 9), in plain C++: the definition that the
// vector units are held against, bit for bit. LanesAvx2 and LanesAvx512 have the same members.
//
// Ownership: values. Threads: any. Errors: none.
// Design:    docs/format/numerics_attention.md
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "kernel/half.h"

namespace reprise {

struct LanesPortable {
  static constexpr uint32_t kLanes = 16;
  float v[16];

  template <class F>
  static LanesPortable Each(F f) {
    LanesPortable out;
    for (uint32_t i = 0; i < 16; ++i) out.v[i] = f(i);
    return out;
  }

  static LanesPortable Load(const float* from) {
    return Each([&](uint32_t i) { return from[i]; });
  }
  // Of 16-bit storage types.
  static LanesPortable LoadF16(const uint16_t* from) {
    return Each([&](uint32_t i) { return FloatOfF16(from[i]); });
  }
  static LanesPortable LoadBf16(const uint16_t* from) {
    return Each([&](uint32_t i) { return FloatOfBf16(from[i]); });
  }
  static LanesPortable Set(float x) {
    return Each([&](uint32_t) { return x; });
  }
  void Store(float* to) const { std::memcpy(to, v, sizeof(v)); }
  // Round to nearest even; the caller has clamped to the type's range.
  void StoreF16(uint16_t* to) const {
    for (uint32_t i = 0; i < 16; ++i) to[i] = F16OfFloat(v[i]);
  }
  void StoreBf16(uint16_t* to) const {
    for (uint32_t i = 0; i < 16; ++i) to[i] = Bf16OfFloat(v[i]);
  }

  static LanesPortable Add(LanesPortable a, LanesPortable b) {
    return Each([&](uint32_t i) { return a.v[i] + b.v[i]; });
  }
  static LanesPortable Sub(LanesPortable a, LanesPortable b) {
    return Each([&](uint32_t i) { return a.v[i] - b.v[i]; });
  }
  static LanesPortable Mul(LanesPortable a, LanesPortable b) {
    return Each([&](uint32_t i) { return a.v[i] * b.v[i]; });
  }
  static LanesPortable Div(LanesPortable a, LanesPortable b) {
    return Each([&](uint32_t i) { return a.v[i] / b.v[i]; });
  }
  // a * b + c, rounded once.
  static LanesPortable Fma(LanesPortable a, LanesPortable b, LanesPortable c) {
    return Each([&](uint32_t i) { return std::fma(a.v[i], b.v[i], c.v[i]); });
  }
  // b unless the comparison holds, so a NaN in b stays and one in a is dropped.
  static LanesPortable Max(LanesPortable a, LanesPortable b) {
    return Each([&](uint32_t i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
  }
  static LanesPortable Min(LanesPortable a, LanesPortable b) {
    return Each([&](uint32_t i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; });
  }
  static LanesPortable Abs(LanesPortable a) {
    return Each([&](uint32_t i) { return std::fabs(a.v[i]); });
  }
  static LanesPortable CopySign(LanesPortable magnitude, LanesPortable sign) {
    return Each([&](uint32_t i) { return std::copysign(magnitude.v[i], sign.v[i]); });
  }
  // a < b ? yes : no; no where one is NaN.
  static LanesPortable SelectLess(LanesPortable a, LanesPortable b, LanesPortable yes, LanesPortable no) {
    return Each([&](uint32_t i) { return a.v[i] < b.v[i] ? yes.v[i] : no.v[i]; });
  }
  // The bits shifted up by 23: the low byte becomes the exponent.
  static LanesPortable ExponentFromLowBits(LanesPortable a) {
    return Each([&](uint32_t i) { return std::bit_cast<float>(std::bit_cast<uint32_t>(a.v[i]) << 23); });
  }
  // The one tree: lane i takes lane i + 8, then i + 4, i + 2, i + 1.
  static float TreeSum(LanesPortable a) {
    for (uint32_t width = 8; width > 0; width /= 2) {
      for (uint32_t i = 0; i < width; ++i) a.v[i] = a.v[i] + a.v[i + width];
    }
    return a.v[0];
  }
  // REQUIRES: no NaN. Which of +0 and -0 it returns is open.
  static float Largest(const LanesPortable& a) {
    float most = a.v[0];
    for (const float value : a.v) most = value > most ? value : most;
    return most;
  }
  static void Prefetch(const void*) {}
};

}  // namespace reprise
