#include "tests/logits.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/check.h"

namespace reprise {
namespace {

// ln(sum(exp)), in double.
double LogSum(std::span<const float> logits) {
  const double most = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit - most);
  return most + std::log(sum);
}

size_t First(std::span<const float> logits) {
  return static_cast<size_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

}  // namespace

Agreement Compare(std::span<const float> reference, std::span<const float> other, uint32_t vocab) {
  CHECK_EQ(reference.size(), other.size());
  CHECK_LT(0u, reference.size());
  const size_t rows = reference.size() / vocab;
  Agreement out;
  for (size_t row = 0; row < rows; ++row) {
    const std::span<const float> p = reference.subspan(row * vocab, vocab);
    const std::span<const float> q = other.subspan(row * vocab, vocab);
    const double sum_p = LogSum(p);
    const double sum_q = LogSum(q);
    double kl = 0;
    for (uint32_t i = 0; i < vocab; ++i) {
      const double log_p = p[i] - sum_p;
      kl += std::exp(log_p) * (log_p - (q[i] - sum_q));
    }
    out.mean_kl += kl / static_cast<double>(rows);
    out.max_kl = std::max(out.max_kl, kl);
    out.same_first += (First(p) == First(q) ? 1.0 : 0.0) / static_cast<double>(rows);
  }
  return out;
}

bool SameBits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

double Surprise(std::span<const float> logits, TokenId token) {
  return LogSum(logits) - logits[static_cast<size_t>(token.value())];
}

}  // namespace reprise
