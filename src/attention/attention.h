// Paged attention over block tables: one call serves a ragged batch of prompt slices and decodes of
// many sequences, for one layer. MHA, GQA and MQA; full and window layers.
//
// Order of one output row, the contract of exactness (DESIGN 9): scores are one fused multiply-add
// chain over the head dimension with scale * log2(e) folded into q; softmax and values are reduced in
// partitions of 256 tokens at absolute positions, merged left to right; nothing depends on batch
// mates, slices, threads, slots or instruction set.
//
// Ownership: views; the pool owns K and V, the caller q, out and scratch.
// Threads:   functions of their arguments; two calls may not share scratch. Do not allocate.
// Errors:    none; unsupported shapes are refused by AttentionSupported when a model is loaded.
// Design:    docs/format/numerics_attention.md, docs/format/block.md
#pragma once

#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "base/ids.h"
#include "base/kv_view.h"
#include "kernel/isa.h"

namespace reprise {

struct AttentionShape {
  uint32_t query_heads = 0;
  uint32_t window = 0;    // 0: full; else a query at p sees (p - window, p]
  float scale = 0.0f;     // usually 1 / sqrt(head_dim)
  float soft_cap = 0.0f;  // 0: off; else scores = cap * tanh(scores / cap)
};

// Rows of one sequence: `rows` queries at positions first_position, first_position + 1, ...
struct AttentionSlice {
  uint32_t first_row = 0;  // in q and out
  uint32_t rows = 0;
  uint32_t first_position = 0;
  std::span<const SlotId> table;  // slot of block i of the sequence; kNoSlot where out of reach
};

// OK, or Unimplemented naming the dimension or type and what is supported.
absl::Status AttentionSupported(const AttentionShape& shape, const KvLayerView& kv);

// Rounds K and V rows to their storage types and writes them to their places. k: [rows][kv_heads *
// key_dim], v: [rows][kv_heads * value_dim], rows as in `slices`. Values beyond the storage type's
// range are clamped to it (an Inf in a later row would poison earlier ones as 0 * Inf); NaN stays NaN.
void WriteKv(const Compute& compute, const KvLayerView& kv, std::span<const AttentionSlice> slices, const float* k,
             uint32_t k_stride, const float* v, uint32_t v_stride);

// `rows_max` queries in one call, at positions below `positions_max`.
uint64_t AttendScratchBytes(const AttentionShape& shape, uint32_t key_dim, uint32_t value_dim, uint32_t rows_max,
                            uint32_t positions_max, uint32_t threads);

// out[row] = attention of q[row] over the K and V of its sequence up to and including its own position,
// which WriteKv has written. q: [rows][q_stride], query_heads * key_dim used; out: [rows][out_stride],
// query_heads * value_dim written.
void Attend(const Compute& compute, const AttentionShape& shape, const KvLayerView& kv,
            std::span<const AttentionSlice> slices, const float* q, uint32_t q_stride, float* out, uint32_t out_stride,
            std::span<std::byte> scratch);

// The scalar definition of one row and one head, straight from the rule above: out [value_dim].
// Allocates; for tests and readers.
void AttendReference(const AttentionShape& shape, const KvLayerView& kv, std::span<const SlotId> table,
                     uint32_t position, uint32_t query_head, const float* q_head, float* out);

}  // namespace reprise
