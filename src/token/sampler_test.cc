#include "token/sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <optional>
#include <random>

#include "base/ledger.h"
#include "token/philox.h"

namespace reprise {
namespace {

using ::testing::ElementsAre;

// A sampler with its memory.
struct OwnedSampler {
  explicit OwnedSampler(uint32_t vocab_size)
      : ledger(uint64_t{1} << 30),
        region(ledger.Take("sampler", Sampler::Footprint(vocab_size))),
        sampler(vocab_size, region.bytes()) {}
  TokenId Sample(const std::vector<float>& logits, const SamplingParameters& parameters, uint64_t position,
                 std::vector<TokenId> banned = {}) {
    return sampler.Sample(logits, parameters, position, {.banned = banned});
  }
  Ledger ledger;
  Region region;
  Sampler sampler;
};

std::vector<float> RandomLogits(uint32_t n, uint32_t seed, float scale) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, scale);
  std::vector<float> logits(n);
  for (float& logit : logits) logit = normal(random);
  return logits;
}

// The filters as their definitions say, with a sort: which ids may be drawn, and with what probability.
std::map<int, double> NaiveDistribution(const std::vector<float>& logits, const SamplingParameters& p) {
  std::vector<int> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return logits[a] > logits[b]; });
  if (p.top_k != 0 && p.top_k < order.size()) order.resize(p.top_k);
  const auto weight = [&](int id, double t) { return std::exp((double{logits[id]} - logits[order[0]]) / t); };
  if (p.top_p < 1) {
    double total = 0, sum = 0;
    for (const int id : order) total += weight(id, 1);
    size_t n = 0;
    while (n < order.size() && sum < p.top_p * total) sum += weight(order[n++], 1);
    order.resize(n);
  }
  std::erase_if(order, [&](int id) { return weight(id, 1) < p.min_p; });
  double total = 0;
  for (const int id : order) total += weight(id, p.temperature);
  std::map<int, double> distribution;
  for (const int id : order) distribution[id] = weight(id, p.temperature) / total;
  return distribution;
}

// The known answers of Random123's kat_vectors.
TEST(PhiloxTest, MatchesPublishedVectors) {
  EXPECT_THAT(Philox4x32({0, 0, 0, 0}, {0, 0}), ElementsAre(0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8));
  EXPECT_THAT(Philox4x32({~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}),
              ElementsAre(0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd));
  EXPECT_THAT(Philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
              ElementsAre(0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1));
}

TEST(UniformAtTest, IsAFunctionOfSeedAndPositionInTheUnitInterval) {
  double sum = 0;
  for (uint64_t position = 0; position < 10000; ++position) {
    const double u = UniformAt(7, position);
    ASSERT_GE(u, 0);
    ASSERT_LT(u, 1);
    ASSERT_EQ(u, UniformAt(7, position));
    sum += u;
  }
  EXPECT_NEAR(sum / 10000, 0.5, 0.01);
  EXPECT_NE(UniformAt(7, 1), UniformAt(8, 1));
  EXPECT_NE(UniformAt(7, 1), UniformAt(7, 2));
  EXPECT_NE(UniformAt(7, 1), UniformAt(7 + (uint64_t{1} << 32), 1));  // all bits of the seed count
  EXPECT_NE(UniformAt(7, 1), UniformAt(7, 1 + (uint64_t{1} << 32)));
}

TEST(SamplerTest, GreedyTakesTheFirstOfEquals) {
  OwnedSampler s(6);
  const SamplingParameters greedy{.temperature = 0, .top_p = 0.5f, .top_k = 1};
  EXPECT_EQ(s.Sample({-1, 3, 2, 3, 3, 0}, greedy, 0), TokenId(1));
  EXPECT_EQ(s.Sample({-1, 3, 2, 3, 3, 0}, greedy, 0, {TokenId(1)}), TokenId(3));
  EXPECT_EQ(s.Sample({-5, -4, -9, -4, -4, -7}, greedy, 0), TokenId(1));
}

TEST(SamplerTest, BannedTokensAreNeverDrawn) {
  OwnedSampler s(4);
  bool drawn = false;
  for (uint64_t position = 0; position < 500; ++position) {
    EXPECT_NE(s.Sample({5, 1, 1, 1}, {}, position, {TokenId(0)}), TokenId(0));
    drawn |= s.Sample({5, 1, 1, 1}, {}, position) == TokenId(0);  // control: unbanned it is
  }
  EXPECT_TRUE(drawn);
}

TEST(SamplerTest, DependsOnSeedAndPositionOnly) {
  OwnedSampler a(1000), b(1000);
  const auto logits = RandomLogits(1000, 1, 2);
  const SamplingParameters p{.top_p = 0.9f, .seed = 42};
  std::vector<TokenId> forward;
  for (uint64_t position = 0; position < 50; ++position) forward.push_back(a.Sample(logits, p, position));
  for (uint64_t position = 50; position-- > 0;) {
    (void)b.Sample(RandomLogits(1000, static_cast<uint32_t>(position), 3), {}, position);  // other work between
    EXPECT_EQ(b.Sample(logits, p, position), forward[position]);
  }
}

// Filters keep exactly what their definitions keep, and draws follow the distribution.
TEST(SamplerTest, DrawsFollowTheFilteredDistribution) {
  struct Case {
    uint32_t vocab_size;
    float scale;
    SamplingParameters p;
  };
  const Case cases[] = {
      {10, 1, {}},
      {10, 1, {.temperature = 0.5f}},
      {200, 2, {.top_k = 7}},
      {200, 2, {.top_p = 0.8f}},
      {200, 2, {.min_p = 0.1f}},
      {200, 2, {.temperature = 1.5f, .top_p = 0.9f, .top_k = 30, .min_p = 0.02f}},
      {3000, 0.05f, {.top_k = 20}},  // many in one bucket
      {3000, 0, {.top_k = 20}},      // all equal: the lowest ids stay
      {3000, 0, {.top_p = 0.01f}},
      {513, 3, {.top_p = 1e-6f}},  // at least one stays
      {513, 3, {.temperature = 1e-3f}},
      {5, 1, {.top_k = 100}},
  };
  for (const Case& c : cases) {
    OwnedSampler s(c.vocab_size);
    const auto logits = RandomLogits(c.vocab_size, 99, c.scale);
    const auto expected = NaiveDistribution(logits, c.p);
    std::map<int, int> count;
    constexpr int kDraws = 5000;
    for (uint64_t position = 0; position < kDraws; ++position) ++count[s.Sample(logits, c.p, position).value()];
    for (const auto& [id, n] : count) {
      ASSERT_TRUE(expected.contains(id)) << id << " of " << c.vocab_size << ", k " << c.p.top_k << " p " << c.p.top_p;
    }
    double chi2 = 0;
    int degrees = -1;
    for (const auto& [id, probability] : expected) {
      const double mean = probability * kDraws;
      if (mean < 5) continue;
      chi2 += (count[id] - mean) * (count[id] - mean) / mean;
      ++degrees;
    }
    EXPECT_LT(chi2, degrees + 4 * std::sqrt(2.0 * std::max(degrees, 1)) + 8) << c.vocab_size << " k " << c.p.top_k;
  }
}

TEST(SamplerTest, InvertsTheCumulativeSumInOrderOfIds) {
  constexpr uint32_t kVocab = 5000;  // many chunks
  OwnedSampler s(kVocab);
  const auto logits = RandomLogits(kVocab, 5, 2);
  std::vector<double> below(kVocab + 1, 0);
  const float max = *std::max_element(logits.begin(), logits.end());
  for (uint32_t id = 0; id < kVocab; ++id) below[id + 1] = below[id] + std::exp(double{logits[id]} - max);
  for (uint64_t position = 0; position < 2000; ++position) {
    const double target = UniformAt(3, position) * below[kVocab];
    const int id = s.Sample(logits, {.seed = 3}, position).value();
    const double slack = 1e-5 * below[kVocab];  // weights are floats here, doubles there
    EXPECT_GE(target, below[id] - slack);
    EXPECT_LE(target, below[id + 1] + slack);
  }
}

TEST(SamplerTest, ExtremeLogitsAreDrawnCorrectly) {
  OwnedSampler s(4);
  for (uint64_t position = 0; position < 100; ++position) {
    EXPECT_EQ(s.Sample({-3e38f, 3e38f, 0, -3e38f}, {}, position), TokenId(1));
    EXPECT_EQ(s.Sample({0, 1e-3f, 0, 0}, {.temperature = 1e-38f}, position), TokenId(1));
  }
}

// Draws by rejection, and at the latest after `attempts` of them with a mask.
std::optional<TokenId> DrawAllowed(Sampler& sampler, const std::vector<float>& logits, const SamplingParameters& p,
                                   uint64_t position, const std::vector<bool>& allowed, uint32_t attempts) {
  sampler.Begin(logits, p, {});
  for (uint32_t attempt = 0; attempt < attempts; ++attempt) {
    const auto token = sampler.Draw(position, attempt);
    if (!token) break;
    if (allowed[token->value()]) return token;
    sampler.Reject(*token);
  }
  const auto mask = [&](std::span<float> values) {
    for (size_t id = 0; id < values.size(); ++id)
      if (!allowed[id]) values[id] = -std::numeric_limits<float>::infinity();
  };
  if (!sampler.Restrict(mask)) return std::nullopt;
  return sampler.Draw(position, attempts);
}

TEST(SamplerTest, RejectionGivesTheMaskedDistribution) {
  struct Case {
    SamplingParameters p;
    uint32_t every;     // which tokens are allowed
    uint32_t attempts;  // before the mask
  };
  const Case cases[] = {{{}, 3, 8},
                        {{}, 3, 0},
                        {{}, 50, 8},
                        {{.temperature = 0.7f, .top_k = 30}, 3, 8},
                        {{.temperature = 0.7f, .top_k = 30}, 3, 0},
                        {{.top_p = 0.9f, .min_p = 0.01f}, 4, 3},
                        {{.top_k = 2}, 100, 8}};  // the filters keep nothing that is allowed
  const auto logits = RandomLogits(400, 21, 2);
  for (const Case& c : cases) {
    OwnedSampler s(400);
    std::vector<bool> allowed(400);
    std::vector<float> masked = logits;
    for (size_t id = 0; id < 400; ++id) allowed[id] = id % c.every == 1;
    std::map<int, double> expected = NaiveDistribution(logits, c.p);
    std::erase_if(expected, [&](const auto& entry) { return !allowed[entry.first]; });
    if (expected.empty()) {
      for (size_t id = 0; id < 400; ++id)
        if (!allowed[id]) masked[id] = -1e30f;
      expected = NaiveDistribution(masked, c.p);
    }
    double total = 0;
    for (const auto& [id, probability] : expected) total += probability;
    constexpr int kDraws = 6000;
    std::map<int, int> count;
    for (uint64_t position = 0; position < kDraws; ++position) {
      const auto token = DrawAllowed(s.sampler, logits, c.p, position, allowed, c.attempts);
      ASSERT_TRUE(token);
      ASSERT_TRUE(expected.contains(token->value())) << token->value();
      ++count[token->value()];
    }
    double chi2 = 0;
    int degrees = -1;
    for (const auto& [id, probability] : expected) {
      const double mean = probability / total * kDraws;
      if (mean < 5) continue;
      chi2 += (count[id] - mean) * (count[id] - mean) / mean;
      ++degrees;
    }
    EXPECT_LT(chi2, degrees + 4 * std::sqrt(2.0 * std::max(degrees, 1)) + 8) << c.every << " " << c.attempts;
  }
}

TEST(SamplerTest, GreedyTakesTheBestThatIsAllowed) {
  OwnedSampler s(300);
  const auto logits = RandomLogits(300, 4, 1);
  for (const uint32_t attempts : {0u, 8u, 300u}) {
    std::vector<bool> allowed(300);
    EXPECT_EQ(DrawAllowed(s.sampler, logits, {.temperature = 0}, 0, allowed, attempts), std::nullopt);
    EXPECT_EQ(DrawAllowed(s.sampler, logits, {}, 0, allowed, attempts), std::nullopt);
    int best = -1;
    for (int id = 7; id < 300; id += 40) {
      allowed[id] = true;
      if (best < 0 || logits[id] > logits[best]) best = id;
    }
    EXPECT_EQ(DrawAllowed(s.sampler, logits, {.temperature = 0}, 0, allowed, attempts), TokenId(best));
  }
}

TEST(SamplerTest, AttemptsDrawOtherNumbers) {
  EXPECT_EQ(UniformAt(7, 1), UniformAt(7, 1, 0));
  EXPECT_NE(UniformAt(7, 1, 0), UniformAt(7, 1, 1));
  EXPECT_NE(UniformAt(7, 1, 1), UniformAt(7, 2, 1));
}

// vLLM's definitions, with a map.
TEST(SamplerTest, PenaltiesAndBiasesChangeTheLogitsAsDefined) {
  constexpr uint32_t kVocab = 50;
  std::mt19937 random(3);
  const auto token = [&] { return TokenId(static_cast<int32_t>(random() % kVocab)); };
  for (int round = 0; round < 200; ++round) {
    std::vector<TokenId> prompt, reply;
    for (int i = 0; i < 20; ++i) prompt.push_back(token());
    for (int i = 0; i < 30; ++i) reply.push_back(token());
    SamplingParameters p{.temperature = 0};
    p.repeat_penalty = 0.5f + 0.1f * static_cast<float>(random() % 15);
    p.frequency_penalty = -2 + 0.1f * static_cast<float>(random() % 41);
    p.presence_penalty = -2 + 0.1f * static_cast<float>(random() % 41);
    const std::vector<LogitBias> bias = {{TokenId(3), 1.5f}, {TokenId(9), -100}};
    const auto logits = RandomLogits(kVocab, round, 3);

    std::vector<float> expected = logits;
    for (int id = 0; id < int{kVocab}; ++id) {
      const auto in_prompt = std::count(prompt.begin(), prompt.end(), TokenId(id));
      const auto in_reply = std::count(reply.begin(), reply.end(), TokenId(id));
      if (in_prompt + in_reply > 0) expected[id] *= expected[id] > 0 ? 1 / p.repeat_penalty : p.repeat_penalty;
      expected[id] -= p.frequency_penalty * static_cast<float>(in_reply) + (in_reply > 0 ? p.presence_penalty : 0);
    }
    for (const LogitBias& b : bias) expected[b.token.value()] += b.bias;

    SeenTokens seen(prompt, 30);
    for (const TokenId id : reply) seen.Add(id);
    OwnedSampler s(kVocab);
    const int drawn = s.sampler.Sample(logits, p, 0, {.seen = seen.tokens(), .bias = bias}).value();
    EXPECT_NEAR(expected[drawn], *std::max_element(expected.begin(), expected.end()), 1e-4);
  }
  OwnedSampler s(2);  // no penalty makes a logit infinite
  const std::vector<SeenToken> seen = {{TokenId(0), 1}};
  EXPECT_EQ(s.sampler.Sample(std::vector<float>{-9, -8}, {.repeat_penalty = 1e38f}, 0, {.seen = seen}), TokenId(1));
  EXPECT_EQ(s.sampler.Sample(std::vector<float>{9, 8}, {.repeat_penalty = 1e-38f}, 0, {.seen = seen}), TokenId(0));
}

TEST(SamplerTest, LogprobsAreNormalisedAndSorted) {
  for (const uint32_t vocab_size : {3u, 1000u, 262144u}) {
    OwnedSampler s(vocab_size);
    const auto logits = RandomLogits(vocab_size, 11, 3);
    double sum = 0;
    const double max = *std::max_element(logits.begin(), logits.end());
    for (const float logit : logits) sum += std::exp(logit - max);
    std::vector<TokenLogprob> top;
    const TokenLogprob one = s.sampler.Logprobs(logits, TokenId(2), 5, top);
    EXPECT_EQ(one.token, TokenId(2));
    EXPECT_NEAR(one.logprob, logits[2] - max - std::log(sum), 1e-5);
    ASSERT_EQ(top.size(), std::min(5u, vocab_size));
    for (size_t i = 0; i < top.size(); ++i) {
      EXPECT_NEAR(top[i].logprob, logits[top[i].token.value()] - max - std::log(sum), 1e-5);
      const size_t better = std::count_if(logits.begin(), logits.end(),
                                          [&](float logit) { return logit > logits[top[i].token.value()]; });
      EXPECT_EQ(better, i);
    }
  }
}

TEST(SamplerTest, EqualLogprobsComeInOrderOfIds) {
  OwnedSampler s(4);
  std::vector<TokenLogprob> top;
  (void)s.sampler.Logprobs(std::vector<float>{1, 2, 1, 1}, TokenId(0), 3, top);
  ASSERT_EQ(top.size(), 3u);
  EXPECT_EQ(top[0].token, TokenId(1));
  EXPECT_EQ(top[1].token, TokenId(0));
  EXPECT_EQ(top[2].token, TokenId(2));
  (void)s.sampler.Logprobs(std::vector<float>{1, 2, 1, 1}, TokenId(0), 0, top);
  EXPECT_TRUE(top.empty());
}

}  // namespace
}  // namespace reprise
