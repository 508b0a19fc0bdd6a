// The tile kernels, one template for every instruction set:
//   L  sixteen lanes, for softmax and merging (kernel/lanes_*.h)
//   V  one register of floats, for the products: kWidth, Set, Zero, Load<type>, Fma, Store, Prefetch
//   P  how many rows and registers a tile takes: what the registers of the set allow
// Scores: lanes are tokens, one fused multiply-add chain over dim each. Values: lanes are dimensions,
// one chain over tokens each. So tile shapes share loads and never change bits.
//
// Prefetch is spread over all steps: V while scoring, the next K while summing V. Without it decode is
// about half as fast; in bursts it loses.
#pragma once

#include <cstring>
#include <type_traits>

#include "attention/attention_kernel.h"
#include "base/geometry.h"
#include "kernel/half.h"
#include "kernel/lanes_math.h"

namespace reprise {

// From so many dimensions on, tiles of V may be narrower (P::ValueRegisters).
inline constexpr uint32_t kLongRow = 128;

template <ElementType type>
using StoredAs = std::conditional_t<type == ElementType::kF32, float, uint16_t>;

template <class L, class V, class P>
struct AttentionTile {
  template <uint32_t n>
  using Number = std::integral_constant<uint32_t, n>;

  // f(Number<rows>) for the row counts that P takes.
  template <class F>
  [[gnu::always_inline]] static inline void WithRows(uint32_t rows, F f) {
    switch (rows) {
#define REPRISE_ROWS(n)                               \
  case n:                                             \
    if constexpr (P::Takes(n)) return f(Number<n>()); \
    break;
      REPRISE_ROWS(1)
      REPRISE_ROWS(2)
      REPRISE_ROWS(3)
      REPRISE_ROWS(4)
      REPRISE_ROWS(5)
      REPRISE_ROWS(6)
      REPRISE_ROWS(7)
      REPRISE_ROWS(8)
      REPRISE_ROWS(12)
#undef REPRISE_ROWS
    }
    __builtin_unreachable();
  }

  // f(Number<registers>, first register) until `registers` are done, `most` at a time while they last.
  template <uint32_t most, class F>
  [[gnu::always_inline]] static inline void WithRegisters(uint32_t first, uint32_t registers, F f) {
    for (; first + most <= registers; first += most) f(Number<most>(), first);
    if constexpr (most > 1) {
      if (first < registers) WithRegisters<most / 2>(first, registers, f);
    }
  }
  static uint32_t PassesOver(uint32_t registers, uint32_t most) {
    uint32_t passes = 0;
    for (; most > 0; most /= 2) {
      passes += registers / most;
      registers %= most;
    }
    return passes;
  }

  // Walks over memory that is needed soon, `step` bytes at each call.
  struct Ahead {
    const char* at;
    uint32_t step;
    [[gnu::always_inline]] inline void Next(uint32_t steps) {
      V::Prefetch(at);
      at += steps * step;
    }
  };

  // sums[i][j] += a[i] * b[j]: one step of the chains of R rows x N registers. Which operand is loaded
  // first decides how many registers the step needs beside the sums: N + 1 or R + 1.
  template <ElementType type, uint32_t R, uint32_t N>
  [[gnu::always_inline]] static inline void Step(V (&sums)[R][N], const float* a, uint32_t a_stride,
                                                 const StoredAs<type>* b) {
    if constexpr (N <= 2) {
      V right[N];
      for (uint32_t j = 0; j < N; ++j) right[j] = V::template Load<type>(b + j * V::kWidth);
      for (uint32_t i = 0; i < R; ++i) {
        const V left = V::Set(a[i * a_stride]);
        for (uint32_t j = 0; j < N; ++j) sums[i][j] = V::Fma(left, right[j], sums[i][j]);
      }
    } else {
      V left[R];
      for (uint32_t i = 0; i < R; ++i) left[i] = V::Set(a[i * a_stride]);
      for (uint32_t j = 0; j < N; ++j) {
        const V right = V::template Load<type>(b + j * V::kWidth);
        for (uint32_t i = 0; i < R; ++i) sums[i][j] = V::Fma(left[i], right, sums[i][j]);
      }
    }
  }

  // R rows x N registers of tokens: scores += q k over dim.
  template <ElementType type, uint32_t R, uint32_t N>
  [[gnu::always_inline]] static inline void ScoreTile(const TileTask& task, uint32_t row, const StoredAs<type>* key,
                                                      float* scores, Ahead& ahead) {
    V sums[R][N];
    for (uint32_t i = 0; i < R; ++i) {
      for (uint32_t j = 0; j < N; ++j) sums[i][j] = V::Zero();
    }
    const float* q = task.q + row;
    const uint32_t stride = task.block_tokens;
    constexpr bool kEveryStep = N * V::kWidth >= 32;
    const uint32_t q_stride = task.q_stride;
    const uint32_t dim = task.dim;
#pragma GCC unroll 4
    for (uint32_t d = 0; d < dim; ++d) {
      if (kEveryStep || d % 2 == 0) ahead.Next(kEveryStep ? 1 : 2);
      Step<type>(sums, q, 1, key);
      q += q_stride;
      key += stride;
    }
    for (uint32_t i = 0; i < R; ++i) {
      for (uint32_t j = 0; j < N; ++j) sums[i][j].Store(scores + i * kPartitionTokens + j * V::kWidth);
    }
  }

  template <ElementType type>
  static void Scores(const TileTask& task) {
    const uint32_t registers = task.block_tokens / V::kWidth;
    uint32_t passes = 0;
    for (uint32_t r = 0; r < task.rows; r += P::Take(task.rows - r)) {
      WithRows(P::Take(task.rows - r), [&](auto rows) { passes += PassesOver(registers, P::ScoreRegisters(rows)); });
    }
    // V of the same block, while its K is scored.
    const uint32_t block_bytes = task.block_tokens * task.dim * sizeof(StoredAs<type>);
    const uint32_t step = (block_bytes + passes * task.dim - 1) / (passes * task.dim);
    const uint32_t last_block = (task.last_token + task.block_tokens - 1) / task.block_tokens;
    for (uint32_t b = task.first_token / task.block_tokens; b < last_block; ++b) {
      Ahead ahead{reinterpret_cast<const char*>(task.value[b]), step};
      const auto* key = reinterpret_cast<const StoredAs<type>*>(task.key[b]);
      float* scores = task.scores + b * task.block_tokens;
      for (uint32_t r = 0; r < task.rows; r += P::Take(task.rows - r)) {
        WithRows(
            P::Take(task.rows - r), [&](auto rows) __attribute__((always_inline)) {
              WithRegisters<P::ScoreRegisters(rows)>(
                  0, registers, [&](auto columns, uint32_t first) __attribute__((always_inline)) {
                    ScoreTile<type, rows(), columns()>(task, r, key + first * V::kWidth,
                                                       scores + r * kPartitionTokens + first * V::kWidth, ahead);
                  });
            });
      }
    }
  }

  static void Softmax(const TileTask& task) {
    const uint32_t first = task.first_token / task.block_tokens * task.block_tokens;
    const uint32_t last = (task.last_token + task.block_tokens - 1) / task.block_tokens * task.block_tokens;
    for (uint32_t r = 0; r < task.rows; ++r) {
      float* scores = task.scores + r * kPartitionTokens;
      if (task.soft_cap != 0.0f) {
        const L cap = L::Set(task.soft_cap);
        for (uint32_t t = first; t < last; t += 16)
          L::Mul(cap, Tanh(L::Div(L::Load(scores + t), cap))).Store(scores + t);
      }
      SoftmaxRow(scores, first, last, task.row_first[r], task.row_last[r], task.results + r * ResultStride(task.dim),
                 task.dim);
    }
  }

  // Tokens [first, last) have scores; the row sees [row_first, row_last), maybe none of them.
  [[gnu::always_inline]] static inline void SoftmaxRow(float* scores, uint32_t first, uint32_t last, uint32_t row_first,
                                                       uint32_t row_last, float* result, uint32_t dim) {
    for (uint32_t t = first; t < last && t < row_first; ++t) scores[t] = -__builtin_inff();
    for (uint32_t t = row_last > first ? row_last : first; t < last; ++t) scores[t] = -__builtin_inff();
    L most = L::Set(-__builtin_inff());
    for (uint32_t t = first; t < last; t += 16) most = L::Max(L::Load(scores + t), most);
    const float maximum = L::Largest(most);
    const L subtract = L::Set(maximum);
    L sum = L::Set(0.0f);
    for (uint32_t t = first; t < last; t += 16) {
      const L weight = Exp2Weight(L::Sub(L::Load(scores + t), subtract));
      weight.Store(scores + t);
      sum = L::Add(sum, weight);
    }
    MaximumOf(result, dim) = maximum;
    SumOf(result, dim) = L::TreeSum(sum);
  }

  // R rows x N registers of dimensions: results += weights v over `tokens` of one block.
  template <ElementType type, uint32_t R, uint32_t N>
  [[gnu::always_inline]] static inline void ValueTile(const TileTask& task, const float* weights,
                                                      const StoredAs<type>* value, uint32_t tokens, float* results,
                                                      Ahead& ahead) {
    const uint32_t stride = ResultStride(task.dim);
    V sums[R][N];
    for (uint32_t i = 0; i < R; ++i) {
      for (uint32_t j = 0; j < N; ++j)
        sums[i][j] = V::template Load<ElementType::kF32>(results + i * stride + j * V::kWidth);
    }
    const uint32_t dim = task.dim;
#pragma GCC unroll 4
    for (uint32_t t = 0; t < tokens; ++t) {
      if constexpr (N * V::kWidth >= 64) V::Prefetch(ahead.at + 64);
      ahead.Next(1);
      Step<type>(sums, weights + t, kPartitionTokens, value);
      value += dim;
    }
    for (uint32_t i = 0; i < R; ++i) {
      for (uint32_t j = 0; j < N; ++j) sums[i][j].Store(results + i * stride + j * V::kWidth);
    }
  }

  template <ElementType type>
  static void Values(const TileTask& task) {
    const uint32_t registers = task.dim / V::kWidth;
    uint32_t passes = 0;
    for (uint32_t r = 0; r < task.rows; r += P::Take(task.rows - r)) {
      WithRows(P::Take(task.rows - r),
               [&](auto rows) { passes += PassesOver(registers, P::ValueRegisters(rows, task.dim >= kLongRow)); });
      for (uint32_t i = r; i < r + P::Take(task.rows - r); ++i)
        std::memset(task.results + i * ResultStride(task.dim), 0, task.dim * sizeof(float));
    }
    const uint32_t row_bytes = task.dim * sizeof(StoredAs<type>);
    for (uint32_t t = task.first_token; t < task.last_token;) {
      const uint32_t b = t / task.block_tokens;
      const uint32_t block_end = (b + 1) * task.block_tokens;
      const uint32_t tokens = (block_end < task.last_token ? block_end : task.last_token) - t;
      // K of the next partition; where there is none, a place that is in the cache anyway.
      const bool hint = task.next_key[b] != nullptr;
      const auto* soon = hint ? reinterpret_cast<const char*>(task.next_key[b]) : reinterpret_cast<char*>(task.scores);
      Ahead ahead{soon, hint ? (row_bytes + passes - 1) / passes : 0};
      const auto* value =
          reinterpret_cast<const StoredAs<type>*>(task.value[b]) + (t - b * task.block_tokens) * task.dim;
      for (uint32_t r = 0; r < task.rows; r += P::Take(task.rows - r)) {
        WithRows(
            P::Take(task.rows - r), [&](auto rows) __attribute__((always_inline)) {
              const auto tile = [&](auto columns, uint32_t first) __attribute__((always_inline)) {
                ValueTile<type, rows(), columns()>(
                    task, task.scores + r * kPartitionTokens + t, value + first * V::kWidth, tokens,
                    task.results + r * ResultStride(task.dim) + first * V::kWidth, ahead);
              };
              if (task.dim >= kLongRow) {
                WithRegisters<P::ValueRegisters(rows, true)>(0, registers, tile);
              } else {
                WithRegisters<P::ValueRegisters(rows, false)>(0, registers, tile);
              }
            });
      }
      t += tokens;
    }
  }

  static float Weight(float below_maximum) {
    float lanes[16];
    Exp2Weight(L::Set(below_maximum)).Store(lanes);
    return lanes[0];
  }

  static void Merge(float* result, const float* later, uint32_t dim) {
    const float maximum = later[dim] > result[dim] ? later[dim] : result[dim];
    const float mine = Weight(result[dim] - maximum);
    const float its = Weight(later[dim] - maximum);
    SumOf(result, dim) = __builtin_fmaf(result[dim + 1], mine, later[dim + 1] * its);
    MaximumOf(result, dim) = maximum;
    const L mine_lanes = L::Set(mine);
    const L its_lanes = L::Set(its);
    for (uint32_t d = 0; d < dim; d += 16) {
      L::Fma(L::Load(result + d), mine_lanes, L::Mul(L::Load(later + d), its_lanes)).Store(result + d);
    }
  }

  // The + 0 makes a zero positive: whether a sum of nothing but underflows is -0 may depend on the tile.
  static void Finish(const float* result, float* out, uint32_t dim) {
    const L inverse = L::Set(1.0f / result[dim + 1]);
    for (uint32_t d = 0; d < dim; d += 16) L::Fma(L::Load(result + d), inverse, L::Set(0.0f)).Store(out + d);
  }

  template <ElementType type>
  static void Round(const float* from, std::byte* to, uint32_t count) {
    constexpr float kMost = type == ElementType::kF16 ? kF16Max : type == ElementType::kBf16 ? kBf16Max : __FLT_MAX__;
    auto* out = reinterpret_cast<StoredAs<type>*>(to);
    for (uint32_t i = 0; i < count; i += 16) {
      const L value = L::Max(L::Set(-kMost), L::Min(L::Set(kMost), L::Load(from + i)));
      if constexpr (type == ElementType::kF16) value.StoreF16(out + i);
      if constexpr (type == ElementType::kBf16) value.StoreBf16(out + i);
      if constexpr (type == ElementType::kF32) value.Store(out + i);
    }
  }

  static constexpr AttentionTable Table() {
    return {.scores = {Scores<ElementType::kF32>, Scores<ElementType::kF16>, Scores<ElementType::kBf16>},
            .values = {Values<ElementType::kF32>, Values<ElementType::kF16>, Values<ElementType::kBf16>},
            .softmax = Softmax,
            .merge = Merge,
            .finish = Finish,
            .round = {Round<ElementType::kF32>, Round<ElementType::kF16>, Round<ElementType::kBf16>}};
  }
};

}  // namespace reprise
