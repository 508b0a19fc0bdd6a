// What one step computes: a ragged batch of prompt slices and decodes.
//
// Ownership: views, valid during Executor::Run. Threads: values.
#pragma once

#include <cstdint>
#include <span>

#include "base/ids.h"

namespace reprise {

inline constexpr uint32_t kAdapterUsesMax = 8;        // of one sequence
inline constexpr float kAdapterScaleLimit = 1024.0f;  // scales are within [-limit, limit]

// One LoRA adapter of the executor's (Executor::adapters) and how strongly it takes part.
struct AdapterUse {
  uint32_t adapter = 0;  // index
  float scale = 1.0f;    // finite; 0 is the same as leaving it out
  friend bool operator==(const AdapterUse&, const AdapterUse&) = default;
};

// Consecutive tokens of one sequence.
struct BatchSlice {
  std::span<const TokenId> tokens;
  uint32_t first_position = 0;
  // [groups]: the sequence's block table of each layer group. Slots of all blocks that the tokens see
  // or are written to are resident.
  std::span<const std::span<const SlotId>> tables;
  // Logits are wanted for the last `logits_rows` tokens: 0 in the middle of a prompt, 1 at its end,
  // tokens.size() for prompt log-probabilities.
  uint32_t logits_rows = 0;
  // Added to every product in this order, each adapter at most once; empty: the model alone.
  std::span<const AdapterUse> adapters = {};
};

struct Batch {
  std::span<const BatchSlice> slices;
};

}  // namespace reprise
