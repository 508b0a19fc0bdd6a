// An executor for tests whose replies depend on every K and V row that attention would read, through
// the block tables, and on nothing else. Each token's id is written into its rows; the next token is a
// hash of the ids found in place. So any wrong reuse, lost row or slot used twice changes the reply, and
// `FakeNextToken` says what it must be.
//
// Ownership: uses the slots it is given. Threads: one. Errors: none, unless told to.
#pragma once

#include <cstring>
#include <span>
#include <vector>

#include "base/check.h"
#include "base/kv_view.h"
#include "model/executor.h"

namespace reprise {

inline constexpr uint32_t kFakeWindow = 40;

// One full and one window group, one layer each, f32 rows of one head of two values.
inline Geometry FakeGeometry(uint32_t block_tokens) {
  Geometry geometry;
  geometry.groups = {
      {.kind = GroupKind::kFull, .layers = {0}, .kv_heads = 1, .key_dim = 2, .value_dim = 2},
      {.kind = GroupKind::kWindow, .layers = {1}, .kv_heads = 1, .key_dim = 2, .value_dim = 2, .window = kFakeWindow}};
  geometry.key_type = geometry.value_type = ElementType::kF32;
  geometry.block_tokens = block_tokens;
  return geometry;
}

inline uint64_t FakeMix(uint64_t hash, uint64_t value) { return (hash ^ value) * 0x9E3779B97F4A7C15ull ^ (hash >> 29); }

// The token that follows `tokens`.
inline TokenId FakeNextToken(std::span<const TokenId> tokens, uint32_t vocab_size) {
  uint64_t hash = 1;
  for (TokenId token : tokens) hash = FakeMix(hash, token.value());
  const size_t first = tokens.size() > kFakeWindow ? tokens.size() - kFakeWindow : 0;
  for (size_t i = first; i < tokens.size(); ++i) hash = FakeMix(hash, tokens[i].value());
  return TokenId(static_cast<int32_t>((hash >> 20) % vocab_size));
}

class FakeExecutor final : public Executor {
 public:
  struct Limits {
    uint32_t vocab_size = 1000;
    uint32_t context_max = 2048;
    uint32_t batch_rows_max = 64;
    uint32_t slices_max = 16;
  };
  FakeExecutor(const Limits& limits, uint32_t block_tokens)
      : limits_(limits),
        geometry_(FakeGeometry(block_tokens)),
        logits_(uint64_t{limits.slices_max} * limits.vocab_size) {}
  void UseSlots(std::span<const KvGroupView> groups) {
    for (uint32_t g = 0; g < groups.size(); ++g) layers_[g] = LayerView(geometry_, GroupId(g), groups[g], 0);
  }

  const Geometry& geometry() const override { return geometry_; }
  uint32_t vocab_size() const override { return limits_.vocab_size; }
  uint32_t context_max() const override { return limits_.context_max; }
  uint32_t batch_rows_max() const override { return limits_.batch_rows_max; }
  uint32_t logits_rows_max() const override { return limits_.slices_max; }
  uint32_t slices_max() const override { return limits_.slices_max; }

  absl::StatusOr<std::span<const float>> Run(const Batch& batch) override {
    uint32_t rows = 0, logits_rows = 0;
    finite_.clear();
    for (const BatchSlice& slice : batch.slices) {
      CHECK(!slice.tokens.empty());
      rows += static_cast<uint32_t>(slice.tokens.size());
      rows_computed += slice.tokens.size();
      bool finite = true;
      for (uint32_t i = 0; i < slice.tokens.size(); ++i) {
        WriteRow(slice, slice.first_position + i, slice.tokens[i]);
        finite = finite && slice.tokens[i] != poisoned_token;
      }
      finite_.push_back(finite);
      CHECK_LE(slice.logits_rows, 1u);
      if (slice.logits_rows == 0) continue;
      const uint32_t position = slice.first_position + static_cast<uint32_t>(slice.tokens.size()) - 1;
      std::span<float> row =
          std::span(logits_).subspan(uint64_t{logits_rows++} * limits_.vocab_size, limits_.vocab_size);
      std::fill(row.begin(), row.end(), 0.0f);
      row[ReadNext(slice, position).value()] = 10.0f;
    }
    CHECK_LE(rows, limits_.batch_rows_max);
    rows_in_batch_max = std::max(rows_in_batch_max, rows);
    if (fail_runs) return absl::UnavailableError("told to fail");
    return std::span<const float>(logits_).first(uint64_t{logits_rows} * limits_.vocab_size);
  }
  std::span<const uint8_t> finite() const override { return finite_; }

  uint64_t rows_computed = 0;
  uint32_t rows_in_batch_max = 0;
  TokenId poisoned_token{-1};  // computes to NaN
  bool fail_runs = false;

 private:
  // K lane t of dimension 0 and V row t, both hold the token.
  float* KeyOf(const BatchSlice& slice, uint32_t group, uint32_t position) const {
    return reinterpret_cast<float*>(layers_[group].Key(SlotOf(slice, group, position))) +
           position % geometry_.block_tokens;
  }
  float* ValueOf(const BatchSlice& slice, uint32_t group, uint32_t position) const {
    return reinterpret_cast<float*>(layers_[group].Value(SlotOf(slice, group, position))) +
           2 * (position % geometry_.block_tokens);
  }
  SlotId SlotOf(const BatchSlice& slice, uint32_t group, uint32_t position) const {
    const SlotId slot = slice.tables[group][position / geometry_.block_tokens];
    CHECK(slot != kNoSlot);
    return slot;
  }
  void WriteRow(const BatchSlice& slice, uint32_t position, TokenId token) {
    for (uint32_t group = 0; group < 2; ++group) {
      *KeyOf(slice, group, position) = static_cast<float>(token.value());
      *ValueOf(slice, group, position) = static_cast<float>(token.value());
    }
  }
  TokenId ReadNext(const BatchSlice& slice, uint32_t position) const {
    uint64_t hash = 1;
    const auto read = [&](uint32_t group, uint32_t p) {
      const float key = *KeyOf(slice, group, p), value = *ValueOf(slice, group, p);
      CHECK_EQ(key, value);
      hash = FakeMix(hash, static_cast<uint64_t>(key));
    };
    for (uint32_t p = 0; p <= position; ++p) read(0, p);
    for (uint32_t p = position + 1 > kFakeWindow ? position + 1 - kFakeWindow : 0; p <= position; ++p) read(1, p);
    return TokenId(static_cast<int32_t>((hash >> 20) % limits_.vocab_size));
  }

  const Limits limits_;
  const Geometry geometry_;
  KvLayerView layers_[2];
  std::vector<float> logits_;
  std::vector<uint8_t> finite_;
};

}  // namespace reprise
