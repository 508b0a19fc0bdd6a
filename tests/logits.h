// Comparing rows of logits.
//
// Ownership: views. Threads: pure functions.
#pragma once

#include <cstdint>
#include <span>

#include "base/ids.h"

namespace reprise {

struct Agreement {
  double same_first = 0;  // fraction of rows with the same most likely token
  double mean_kl = 0;     // of the second's distribution from the first's, in nats
  double max_kl = 0;
};
// Both: [rows, vocab].
Agreement Compare(std::span<const float> reference, std::span<const float> other, uint32_t vocab);

bool SameBits(std::span<const float> a, std::span<const float> b);

// -ln p(token) under one row of logits, [vocab].
double Surprise(std::span<const float> logits, TokenId token);

}  // namespace reprise
