// What one step computes: a ragged batch of prompt slices and decodes.
//
// Ownership: views, valid during Executor::Run. Threads: values.
#pragma once

#include <cstdint>
#include <span>

#include "base/ids.h"

namespace reprise {

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
};

struct Batch {
  std::span<const BatchSlice> slices;
};

}  // namespace reprise
