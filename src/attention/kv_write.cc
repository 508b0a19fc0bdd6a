// Rounds new K and V rows to their storage types and puts them where attention reads them.
#include <algorithm>
#include <cstring>

#include "attention/attention.h"
#include "attention/attention_table.h"
#include "base/bytes.h"
#include "base/check.h"
#include "kernel/run_pieces.h"

namespace reprise {
namespace {

constexpr uint32_t kDimMax = 256;
// Below so many values in all, one thread is faster than waking another.
constexpr uint64_t kValuesPerPieceMin = 1 << 14;

// Rows of one slice that lie in one block.
struct BlockRows {
  SlotId slot;
  uint32_t first_row = 0;    // in k and v
  uint32_t first_token = 0;  // in the block
  uint32_t rows = 0;
};

uint32_t BlocksOf(const AttentionSlice& slice, uint32_t block_tokens) {
  if (slice.rows == 0) return 0;
  return (slice.first_position + slice.rows - 1) / block_tokens - slice.first_position / block_tokens + 1;
}

BlockRows BlockOf(const AttentionSlice& slice, uint32_t index, uint32_t block_tokens) {
  const uint32_t block = slice.first_position / block_tokens + index;
  const uint32_t first = std::max(slice.first_position, block * block_tokens);
  const uint32_t last = std::min(slice.first_position + slice.rows, (block + 1) * block_tokens);
  CHECK_LT(block, slice.table.size());
  CHECK_NE(slice.table[block], kNoSlot);
  return {slice.table[block], slice.first_row + (first - slice.first_position), first % block_tokens, last - first};
}

// A row of K becomes a column: [dim][block_tokens].
template <class Element>
void ScatterColumn(const std::byte* row, std::byte* head, uint32_t token, uint32_t dim, uint32_t block_tokens) {
  for (uint32_t d = 0; d < dim; ++d) {
    std::memcpy(head + (uint64_t{d} * block_tokens + token) * sizeof(Element), row + d * sizeof(Element),
                sizeof(Element));
  }
}

void WriteBlock(const AttentionTable& table, const KvLayerView& kv, const BlockRows& at, const float* k,
                uint32_t k_stride, const float* v, uint32_t v_stride) {
  const auto round_key = table.round[static_cast<size_t>(kv.key_type)];
  const auto round_value = table.round[static_cast<size_t>(kv.value_type)];
  const uint32_t key_bytes = ElementBytes(kv.key_type);
  const uint32_t value_bytes = ElementBytes(kv.value_type);
  alignas(64) std::byte rounded[kDimMax * sizeof(float)];
  for (uint32_t h = 0; h < kv.kv_heads; ++h) {
    std::byte* key_head = kv.Key(at.slot) + uint64_t{h} * kv.key_dim * kv.block_tokens * key_bytes;
    std::byte* value_head = kv.Value(at.slot) + uint64_t{h} * kv.value_dim * kv.block_tokens * value_bytes;
    for (uint32_t r = 0; r < at.rows; ++r) {
      const uint64_t row = at.first_row + r;
      const uint32_t token = at.first_token + r;
      round_key(k + row * k_stride + h * kv.key_dim, rounded, kv.key_dim);
      if (key_bytes == sizeof(float)) {
        ScatterColumn<float>(rounded, key_head, token, kv.key_dim, kv.block_tokens);
      } else {
        ScatterColumn<uint16_t>(rounded, key_head, token, kv.key_dim, kv.block_tokens);
      }
      round_value(v + row * v_stride + h * kv.value_dim, value_head + uint64_t{token} * kv.value_dim * value_bytes,
                  kv.value_dim);
    }
  }
}

}  // namespace

void WriteKv(const Compute& compute, const KvLayerView& kv, std::span<const AttentionSlice> slices, const float* k,
             uint32_t k_stride, const float* v, uint32_t v_stride) {
  CHECK_LE(kv.key_dim, kDimMax);
  const AttentionTable& table = TableOf(compute.isa);
  uint32_t blocks = 0;
  uint64_t rows = 0;
  for (const AttentionSlice& slice : slices) {
    blocks += BlocksOf(slice, kv.block_tokens);
    rows += slice.rows;
  }
  // A block is written by one worker: neighbours in a column share cache lines.
  const uint64_t values = rows * kv.kv_heads * (kv.key_dim + kv.value_dim);
  const auto pieces = static_cast<uint32_t>(std::clamp<uint64_t>(values / kValuesPerPieceMin, 1, blocks + !blocks));
  RunPieces(compute, pieces, [&](uint32_t piece, uint32_t) {
    const auto first = static_cast<uint32_t>(uint64_t{blocks} * piece / pieces);
    const auto last = static_cast<uint32_t>(uint64_t{blocks} * (piece + 1) / pieces);
    uint32_t at = 0;  // blocks of the slices before
    for (const AttentionSlice& slice : slices) {
      const uint32_t count = BlocksOf(slice, kv.block_tokens);
      for (uint32_t b = std::max(first, at); b < std::min(last, at + count); ++b) {
        WriteBlock(table, kv, BlockOf(slice, b - at, kv.block_tokens), k, k_stride, v, v_stride);
      }
      at += count;
    }
  });
}

}  // namespace reprise
