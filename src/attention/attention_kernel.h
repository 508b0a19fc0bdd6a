// The inner part of attention: some rows of queries against one partition of 256 tokens. One table of
// functions per instruction set; all tables give the same bits.
//
// Ownership: views. Threads: a task belongs to one worker. Errors: none; attention.cc has checked.
// Design:    docs/format/numerics_attention.md
#pragma once

#include <cstddef>
#include <cstdint>

namespace reprise {

// The unit of reduction over tokens: part of the numerics, at absolute positions.
inline constexpr uint32_t kPartitionTokens = 256;
// Rows (queries x heads of a group) that share the loads of K and V. 48 and 96 were no faster.
inline constexpr uint32_t kTileRows = 24;
inline constexpr uint32_t kPartitionBlocksMax = kPartitionTokens / 16;

// A row's running result is [dim] weighted values, not divided yet, then the maximum and the sum of
// its softmax, in one array so that it moves as one.
constexpr uint32_t ResultStride(uint32_t dim) { return dim + 16; }  // floats; keeps rows on cache lines
static inline float& MaximumOf(float* result, uint32_t dim) { return result[dim]; }
static inline float& SumOf(float* result, uint32_t dim) { return result[dim + 1]; }

struct TileTask {
  uint32_t rows = 0;  // up to kTileRows
  uint32_t dim = 0;   // a multiple of 16
  uint32_t block_tokens = 0;
  uint32_t first_token = 0, last_token = 0;  // of the partition: what some row sees
  float soft_cap = 0.0f;                     // times log2(e); 0: off
  const float* q = nullptr;                  // [dim][q_stride], times scale * log2(e)
  uint32_t q_stride = 0;                     // rows, rounded up: few rows in few cache lines
  float* scores = nullptr;                   // [kTileRows][kPartitionTokens]
  float* results = nullptr;                  // [rows][ResultStride(dim)]
  uint32_t row_first[kTileRows];             // tokens of the partition that each row sees:
  uint32_t row_last[kTileRows];              // [row_first, row_last)
  // Of one kv head; the blocks of [first_token, last_token) are set.
  const std::byte* key[kPartitionBlocksMax];       // [dim][block_tokens]
  const std::byte* value[kPartitionBlocksMax];     // [block_tokens][dim]
  const std::byte* next_key[kPartitionBlocksMax];  // what is likely needed next, or null: a hint
};

struct AttentionTable {
  // Indexed by ElementType.
  void (*scores[3])(const TileTask& task);  // task.scores = q k
  void (*values[3])(const TileTask& task);  // task.results = softmax weights times V
  // From scores to weights, 2^(score - maximum); maximum and sum of each row.
  void (*softmax)(const TileTask& task);
  // Adds the result of a later partition to that of all earlier ones.
  void (*merge)(float* result, const float* later, uint32_t dim);
  // out = result / sum.
  void (*finish)(const float* result, float* out, uint32_t dim);
  // Rounds `count` values (a multiple of 16) to the type, clamped to its finite range.
  void (*round[3])(const float* from, std::byte* to, uint32_t count);
};
extern const AttentionTable kAttentionPortable;
extern const AttentionTable kAttentionAvx2;
extern const AttentionTable kAttentionAvx512;

}  // namespace reprise
