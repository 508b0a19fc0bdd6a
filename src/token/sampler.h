// From logits to a token: libllama's filters, our draw. A draw depends on (seed, position) alone, by a
// counter-based generator (Philox4x32-10, Salmon et al., 2011), so a reply does not depend on who else
// is served, on pauses or on retries.
//
// Ownership: owns its candidate arrays, sized at construction. Threads: one per object.
// Errors:    parameters are checked by the server; a wrong one aborts.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/ids.h"

namespace reprise {

struct SamplingParameters {
  float temperature = 1.0f;  // 0: greedy
  float top_p = 1.0f;        // (0, 1]
  uint32_t top_k = 0;        // 0: off
  float min_p = 0.0f;        // [0, 1]
  uint64_t seed = 0;
};

struct TokenLogprob {
  TokenId token;
  float logprob = 0;  // ln, of the unfiltered distribution at temperature 1
};

class Sampler {
 public:
  static uint64_t Footprint(uint32_t vocab_size);
  Sampler(uint32_t vocab_size, std::span<std::byte> memory);  // memory: Footprint bytes
  ~Sampler();

  // Draws the token for `position` (its index in the sequence). Greedy takes the first of equals.
  // `banned`: tokens that may not be drawn. Steady state allocates nothing.
  TokenId Sample(std::span<const float> logits, const SamplingParameters& parameters, uint64_t position,
                 std::span<const TokenId> banned);

  // The log-probability of `token` and of the `top` most likely ones, most likely first.
  TokenLogprob Logprobs(std::span<const float> logits, TokenId token, uint32_t top, std::vector<TokenLogprob>& out);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Uniform in [0, 1), 53 bits, of (seed, position).
double UniformAt(uint64_t seed, uint64_t position);

}  // namespace reprise
