// From logits to a token. A draw depends on the logits and on (seed, position) alone, by a counter-based
// generator, so a reply does not depend on who else is served, on pauses or on retries; and not on the
// CPU, since exp and log are polynomials of our own with a fixed order of operations.
//
// The filters are libllama's, in its order: top_k, top_p, min_p on the distribution at temperature 1, then
// the temperature. Each of them keeps the m best by (logit, then lower id), so together they are one
// threshold, found in O(vocab_size) without sorting: libllama's own allocate, break ties by accident and
// sort 262,144 candidates. The draw inverts the cumulative sum of what is left in order of ids.
//
// Ownership: the caller's memory holds the scratch arrays and must outlive it.
// Threads:   one per object.
// Errors:    parameters are checked by the server; a wrong one aborts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/ids.h"

namespace reprise {

struct SamplingParameters {
  float temperature = 1.0f;  // 0: greedy
  float top_p = 1.0f;        // (0, 1]
  uint32_t top_k = 0;        // 0: off
  float min_p = 0.0f;        // [0, 1]
  uint64_t seed = 0;
  // Taken off the logits of tokens that were seen, before all else. vLLM's definitions: repeat divides
  // positive and multiplies negative logits of tokens in prompt and reply; frequency (per occurrence) and
  // presence (once) count the reply alone. Log-probabilities that are reported stay the model's own.
  float repeat_penalty = 1.0f;     // above 0; 1: off
  float frequency_penalty = 0.0f;  // [-2, 2]
  float presence_penalty = 0.0f;   // [-2, 2]
};

struct LogitBias {
  TokenId token;
  float bias = 0;  // [-100, 100], added to the logit; -100 bans, 100 forces, as OpenAI's clients expect
};

// How often a token of prompt and reply was seen.
struct SeenToken {
  TokenId token;
  uint32_t in_reply = 0;  // 0: in the prompt alone
};

// The tokens of prompt and reply, for penalties, in order of ids. Allocates when it is made, not afterwards.
class SeenTokens {
 public:
  SeenTokens() = default;
  SeenTokens(std::span<const TokenId> prompt, uint32_t reply_tokens_max);
  // One more of the reply. O(size) at worst: a move within one array.
  void Add(TokenId token);
  std::span<const SeenToken> tokens() const { return tokens_; }

 private:
  std::vector<SeenToken> tokens_;
};

// What a request changes of the model's logits, in this order: penalties by the seen tokens, biases, bans.
struct LogitChanges {
  std::span<const SeenToken> seen;  // each token once
  std::span<const LogitBias> bias;
  std::span<const TokenId> banned;  // may not be drawn; not all of them
};

struct TokenLogprob {
  TokenId token;
  float logprob = 0;  // ln, of the unfiltered distribution at temperature 1
};

class Sampler {
 public:
  static uint64_t Footprint(uint32_t vocab_size);
  Sampler(uint32_t vocab_size, std::span<std::byte> memory);  // memory: Footprint bytes, aligned to 64
  ~Sampler();

  // Draws the token for `position` (its index in the sequence). Greedy takes the first of equals.
  // `logits`: [vocab_size], finite. Allocates nothing.
  TokenId Sample(std::span<const float> logits, const SamplingParameters& parameters, uint64_t position,
                 const LogitChanges& changes = {});

  // The same in steps, for replies that have to follow a grammar: Begin, then Draw and, if the token may not come,
  // Reject, at each attempt another uniform number of (seed, position, attempt). That gives what masking all of the
  // vocabulary first would: the filters keep some tokens, and among those that the grammar allows the draw goes by
  // their weights. Only if it allows none of them do the filters look at the masked distribution instead.
  // The arguments must stay valid until the next Begin.
  void Begin(std::span<const float> logits, const SamplingParameters& parameters, const LogitChanges& changes);
  // Nothing: all that the filters kept was rejected, or has no weight beside what was.
  std::optional<TokenId> Draw(uint64_t position, uint32_t attempt);
  void Reject(TokenId token);
  // `mask` sets the logits of what may not come to -infinity. False: nothing may.
  bool Restrict(const std::function<void(std::span<float>)>& mask);

  // The log-probability of `token`; in `out` those of the `top` most likely ones, most likely first.
  // Allocates only where `out` has less capacity than `top`.
  TokenLogprob Logprobs(std::span<const float> logits, TokenId token, uint32_t top, std::vector<TokenLogprob>& out);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Uniform in [0, 1), 53 bits, of (seed, position, attempt).
double UniformAt(uint64_t seed, uint64_t position, uint32_t attempt = 0);

}  // namespace reprise
