// The rows of ops.h on one thread: one template over the lanes of an instruction set, one table of
// functions per set. All tables give the same bits.
//
// Ownership: views. Threads: any. Errors: none.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernel/lanes_math.h"

namespace reprise {

struct OpsTable {
  void (*rms_norm)(const float* x, float* out, const float* weight, uint32_t dim, float epsilon);
  void (*silu_multiply)(float* gate, const float* up, uint64_t count);
  void (*gelu_tanh_multiply)(float* gate, const float* up, uint64_t count);
  void (*add_scaled)(float* x, float scale, const float* y, uint64_t count);
  void (*soft_cap)(float* x, float cap, uint64_t count);
  void (*exp)(float* x, uint64_t count);  // the definitions, for tests
  void (*tanh)(float* x, uint64_t count);
};
extern const OpsTable kOpsPortable;
extern const OpsTable kOpsAvx2;
extern const OpsTable kOpsAvx512;

template <class L>
struct OpsRows {
  // Up to 16 values, zeros behind them.
  static L LoadTail(const float* from, uint64_t count) {
    float values[16] = {};
    std::memcpy(values, from, count * sizeof(float));
    return L::Load(values);
  }
  static void StoreTail(L lanes, float* to, uint64_t count) {
    float values[16];
    lanes.Store(values);
    std::memcpy(to, values, count * sizeof(float));
  }

  template <class F>
  static void Each(float* x, const float* y, uint64_t count, F f) {
    const uint64_t whole = count / 16 * 16;
    for (uint64_t i = 0; i < whole; i += 16) f(L::Load(x + i), L::Load(y + i)).Store(x + i);
    if (whole < count)
      StoreTail(f(LoadTail(x + whole, count - whole), LoadTail(y + whole, count - whole)), x + whole, count - whole);
  }

  static void RmsNorm(const float* x, float* out, const float* weight, uint32_t dim, float epsilon) {
    L sum = L::Set(0.0f);
    const uint32_t whole = dim / 16 * 16;
    for (uint32_t i = 0; i < whole; i += 16) {
      const L values = L::Load(x + i);
      sum = L::Fma(values, values, sum);
    }
    if (whole < dim) {  // zeros leave the other lanes as they are
      const L values = LoadTail(x + whole, dim - whole);
      sum = L::Fma(values, values, sum);
    }
    const float total = L::TreeSum(sum);
    // total - total: a sum that overflowed must not turn into a row of zeros.
    const float scale = 1.0f / __builtin_sqrtf(total / static_cast<float>(dim) + epsilon) + (total - total);
    const L scales = L::Set(scale);
    for (uint32_t i = 0; i < whole; i += 16) {
      L::Mul(L::Mul(L::Load(x + i), scales), L::Load(weight + i)).Store(out + i);
    }
    if (whole < dim) {
      const L tail = L::Mul(L::Mul(LoadTail(x + whole, dim - whole), scales), LoadTail(weight + whole, dim - whole));
      StoreTail(tail, out + whole, dim - whole);
    }
  }

  static void SiluMultiply(float* gate, const float* up, uint64_t count) {
    Each(gate, up, count, [](L x, L y) {
      const L sigmoid_divisor = L::Add(Exp(L::Sub(L::Set(0.0f), x)), L::Set(1.0f));
      return L::Mul(L::Div(x, sigmoid_divisor), y);
    });
  }
  // x / 2 * (1 + tanh(u)) with u = sqrt(2 / pi) * (x + 0.044715 x^3), as the equal x / (1 + exp(-2 u)),
  // which keeps its accuracy where tanh(u) is near -1.
  static void GeluTanhMultiply(float* gate, const float* up, uint64_t count) {
    Each(gate, up, count, [](L x, L y) {
      const L u = L::Mul(x, L::Fma(L::Mul(x, x), L::Set(3.567740694e-02f), L::Set(7.978845835e-01f)));
      return L::Mul(L::Div(x, L::Add(Exp(L::Mul(u, L::Set(-2.0f))), L::Set(1.0f))), y);
    });
  }
  static void AddScaled(float* x, float scale, const float* y, uint64_t count) {
    const L scales = L::Set(scale);
    Each(x, y, count, [scales](L value, L more) { return L::Fma(scales, more, value); });
  }
  static void SoftCap(float* x, float cap, uint64_t count) {
    const L caps = L::Set(cap);
    Each(x, x, count, [caps](L value, L) { return L::Mul(caps, Tanh(L::Div(value, caps))); });
  }
  static void ExpEach(float* x, uint64_t count) {
    Each(x, x, count, [](L value, L) { return Exp(value); });
  }
  static void TanhEach(float* x, uint64_t count) {
    Each(x, x, count, [](L value, L) { return Tanh(value); });
  }

  static constexpr OpsTable Table() {
    return {RmsNorm, SiluMultiply, GeluTanhMultiply, AddScaled, SoftCap, ExpEach, TanhEach};
  }
};

}  // namespace reprise
