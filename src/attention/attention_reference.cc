// The rule of docs/format/numerics_attention.md, read aloud: one row, one head, no tiles, no lanes but the ones
// of the sums. Scores and values are chains, partitions are merged left to right.
#include "attention/attention_reference.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "attention/attention.h"
#include "attention/attention_kernel.h"
#include "kernel/half.h"
#include "kernel/lanes_math.h"
#include "kernel/lanes_portable.h"

namespace reprise {
namespace {

float LoadElement(const std::byte* array, ElementType type, uint64_t index) {
  if (type == ElementType::kF32) {
    float value;
    std::memcpy(&value, array + index * sizeof(float), sizeof(float));
    return value;
  }
  uint16_t half;
  std::memcpy(&half, array + index * sizeof(half), sizeof(half));
  return type == ElementType::kF16 ? FloatOfF16(half) : FloatOfBf16(half);
}

float Exp2Weight(float x) { return reprise::Exp2Weight(LanesPortable::Set(x)).v[0]; }

// K and V of one kv head of one sequence, by position.
struct Rows {
  const KvLayerView& kv;
  std::span<const SlotId> table;
  uint32_t head;

  float Key(uint32_t position, uint32_t d) const {
    const uint64_t head_at = uint64_t{head} * kv.key_dim * kv.block_tokens;
    return LoadElement(kv.Key(table[position / kv.block_tokens]), kv.key_type,
                       head_at + uint64_t{d} * kv.block_tokens + position % kv.block_tokens);
  }
  float Value(uint32_t position, uint32_t d) const {
    const uint64_t head_at = uint64_t{head} * kv.value_dim * kv.block_tokens;
    return LoadElement(kv.Value(table[position / kv.block_tokens]), kv.value_type,
                       head_at + uint64_t{position % kv.block_tokens} * kv.value_dim + d);
  }
};

struct Partial {
  float maximum = -INFINITY;
  float sum = 0.0f;
  std::vector<float> values;
};

// Positions [first, last), inside one partition.
Partial AttendPartition(const AttentionShape& shape, const Rows& rows, const std::vector<float>& q, uint32_t first,
                        uint32_t last) {
  constexpr double kLog2E = 0x1.71547652b82fep+0;
  Partial out;
  std::vector<float> scores;
  for (uint32_t t = first; t < last; ++t) {
    float score = 0.0f;
    for (uint32_t d = 0; d < q.size(); ++d) score = std::fma(q[d], rows.Key(t, d), score);
    if (shape.soft_cap != 0.0f) {
      const auto cap = static_cast<float>(shape.soft_cap * kLog2E);
      score = cap * Tanh(LanesPortable::Set(score / cap)).v[0];
    }
    scores.push_back(score);
    out.maximum = score > out.maximum ? score : out.maximum;
  }
  float lanes[16] = {};
  out.values.assign(rows.kv.value_dim, 0.0f);
  for (uint32_t t = first; t < last; ++t) {
    const float weight = Exp2Weight(scores[t - first] - out.maximum);
    lanes[t % 16] += weight;
    for (uint32_t d = 0; d < rows.kv.value_dim; ++d) out.values[d] = std::fma(weight, rows.Value(t, d), out.values[d]);
  }
  out.sum = LanesPortable::TreeSum(LanesPortable::Load(lanes));
  return out;
}

void MergeLater(Partial& all, const Partial& later) {
  const float maximum = later.maximum > all.maximum ? later.maximum : all.maximum;
  const float mine = Exp2Weight(all.maximum - maximum);
  const float its = Exp2Weight(later.maximum - maximum);
  all.sum = std::fma(all.sum, mine, later.sum * its);
  all.maximum = maximum;
  for (uint32_t d = 0; d < all.values.size(); ++d) all.values[d] = std::fma(all.values[d], mine, later.values[d] * its);
}

}  // namespace

void AttendReferencePartitions(const AttentionShape& shape, const KvLayerView& kv, std::span<const SlotId> table,
                               uint32_t position, uint32_t query_head, uint32_t partition_tokens, const float* q_head,
                               float* out) {
  constexpr double kLog2E = 0x1.71547652b82fep+0;
  const auto scale = static_cast<float>(shape.scale * kLog2E);
  std::vector<float> q(q_head, q_head + kv.key_dim);
  for (float& value : q) value = value * scale;
  const Rows rows{kv, table, query_head / (shape.query_heads / kv.kv_heads)};

  const uint32_t first = shape.window != 0 && position + 1 > shape.window ? position + 1 - shape.window : 0;
  Partial all;
  for (uint32_t at = first; at <= position;) {
    const uint32_t end = std::min(position + 1, (at / partition_tokens + 1) * partition_tokens);
    Partial partial = AttendPartition(shape, rows, q, at, end);
    if (at == first) {
      all = std::move(partial);
    } else {
      MergeLater(all, partial);
    }
    at = end;
  }
  const float inverse = 1.0f / all.sum;
  for (uint32_t d = 0; d < kv.value_dim; ++d) out[d] = std::fma(all.values[d], inverse, 0.0f);
}

void AttendReference(const AttentionShape& shape, const KvLayerView& kv, std::span<const SlotId> table,
                     uint32_t position, uint32_t query_head, const float* q_head, float* out) {
  AttendReferencePartitions(shape, kv, table, position, query_head, kPartitionTokens, q_head, out);
}

}  // namespace reprise
