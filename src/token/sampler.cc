#include "token/sampler.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>

#include "base/carver.h"
#include "base/check.h"
#include "base/ledger.h"
#include "token/philox.h"

namespace reprise {
namespace {

constexpr float kNegativeInfinity = -std::numeric_limits<float>::infinity();
// The histogram of logits: 64 buckets for each unit below the maximum, the last one for all the rest. 32 KiB.
constexpr float kBucketsPerUnit = 64;
constexpr uint32_t kBuckets = 2048;
constexpr uint32_t kChunk = 512;  // weights summed together; the draw looks into one chunk only

// e^x for x <= 0, relative error below 3e-7; exactly 1 at 0; 0 below -87. No branch, so that loops of it
// become vector code.
inline float ExpNegative(float x) {
  const float clamped = std::max(x, -87.0f);
  constexpr float kMagic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  const float shifted = clamped * 1.44269504f + kMagic;
  const float n = shifted - kMagic;
  const float r = (clamped - n * 0.693359375f) - n * -2.12194440e-4f;  // ln 2 in two parts
  float p = 1.0f / 720;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  const uint32_t scale = (std::bit_cast<uint32_t>(shifted) + 127u) << 23;  // 2^n; the magic's bits fall off
  return x < -87.0f ? 0.0f : p * std::bit_cast<float>(scale);
}

// ln x for x >= 1, to about 1e-16.
double Log(double x) {
  int exponent = 0;
  double mantissa = std::frexp(x, &exponent);  // [0.5, 1)
  if (mantissa < 0.70710678118654752) {
    mantissa *= 2;
    --exponent;
  }
  const double s = (mantissa - 1) / (mantissa + 1);  // |s| < 0.172
  double sum = 0;
  for (int k = 21; k >= 1; k -= 2) sum = sum * (s * s) + 1.0 / k;
  return 2 * s * sum + exponent * 0.69314718055994531;
}

// Larger for a larger logit; among equal logits, larger for the lower id.
inline uint32_t Orderable(float logit) {
  const uint32_t bits = std::bit_cast<uint32_t>(logit + 0.0f);  // -0 becomes 0
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
inline uint64_t Key(float logit, uint32_t id) { return uint64_t{Orderable(logit)} << 32 | (UINT32_MAX - id); }
inline uint32_t IdOf(uint64_t key) { return UINT32_MAX - static_cast<uint32_t>(key); }

struct Bucket {
  uint32_t count;
  double mass;
};
inline uint32_t BucketOf(float logit, float max) {
  return static_cast<uint32_t>(std::min((max - logit) * kBucketsPerUnit, float{kBuckets - 1}));
}

struct Layout {
  std::span<float> logits;    // [vocab_size], banned ones at -infinity
  std::span<float> weights;   // [vocab_size], e^(logit - max)
  std::span<double> sums;     // [chunks]
  std::span<Bucket> buckets;  // [kBuckets]
  std::span<uint64_t> keys;   // [vocab_size], those of one bucket
  Layout(const uint32_t& vocab_size, Carver& carver)
      : logits(carver.Array<float>(vocab_size)),
        weights(carver.Array<float>(vocab_size)),
        sums(carver.Array<double>(CeilDiv(vocab_size, kChunk))),
        buckets(carver.Array<Bucket>(kBuckets)),
        keys(carver.Array<uint64_t>(vocab_size)) {}
};

void Weigh(std::span<const float> logits, float max, float temperature, std::span<float> weights) {
  const float* in = logits.data();
  float* out = weights.data();
  const size_t n = logits.size();
  for (size_t i = 0; i < n; ++i) out[i] = ExpNegative((in[i] - max) / temperature);
}

// In eight lanes and a fixed tree.
double Sum(std::span<const float> values) {
  double lanes[8] = {};
  size_t i = 0;
  for (; i + 8 <= values.size(); i += 8) {
    for (size_t lane = 0; lane < 8; ++lane) lanes[lane] += values[i + lane];
  }
  for (; i < values.size(); ++i) lanes[i % 8] += values[i];
  return ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) + ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]));
}

float Max(std::span<const float> values) {
  float lanes[8];
  std::fill(lanes, lanes + 8, kNegativeInfinity);
  size_t i = 0;
  for (; i + 8 <= values.size(); i += 8) {
    for (size_t lane = 0; lane < 8; ++lane)
      lanes[lane] = values[i + lane] > lanes[lane] ? values[i + lane] : lanes[lane];
  }
  for (; i < values.size(); ++i) lanes[0] = std::max(lanes[0], values[i]);
  return *std::max_element(lanes, lanes + 8);
}

}  // namespace

struct Sampler::Impl {
  Impl(uint32_t vocab_size, Carver& carver) : scratch(vocab_size, carver) {}

  // The keys of the bucket, best first.
  std::span<const uint64_t> KeysOf(uint32_t bucket, float max);
  // The key of the last token kept when tokens are taken best first until there are `count` of them or
  // their mass has reached `mass`; all of them if neither happens. `reached`: the mass kept.
  uint64_t KeepTop(uint64_t count, double mass, float max, double& reached);
  // The filters top_k and top_p as one threshold. REQUIRES: weights at temperature 1.
  uint64_t Threshold(float max);
  // scratch.logits with the request's changes.
  void Change();
  // scratch.weights and sums of scratch.logits, by the filters and the temperature.
  void WeighKept();
  std::span<const float> Chunk(size_t chunk) const;
  void SumChunks();
  std::optional<TokenId> Draw(double uniform);
  std::optional<TokenId> Best() const;

  Layout scratch;
  // Of the latest Begin.
  std::span<const float> logits;
  SamplingParameters parameters;
  LogitChanges changes;
};

std::span<const uint64_t> Sampler::Impl::KeysOf(uint32_t bucket, float max) {
  const std::span<const float> logits = scratch.logits;
  size_t n = 0;
  for (uint32_t id = 0; id < logits.size(); ++id) {
    if (BucketOf(logits[id], max) == bucket) scratch.keys[n++] = Key(logits[id], id);
  }
  const auto keys = scratch.keys.first(n);
  std::sort(keys.begin(), keys.end(), std::greater<>());
  return keys;
}

uint64_t Sampler::Impl::KeepTop(uint64_t count, double mass, float max, double& reached) {
  uint64_t kept = 0;
  reached = 0;
  for (uint32_t bucket = 0; bucket < kBuckets; ++bucket) {
    const Bucket& b = scratch.buckets[bucket];
    if (b.count == 0) continue;
    if (kept + b.count < count && reached + b.mass < mass) {
      kept += b.count;
      reached += b.mass;
      continue;
    }
    for (const uint64_t key : KeysOf(bucket, max)) {
      ++kept;
      reached += scratch.weights[IdOf(key)];
      if (kept >= count || reached >= mass) return key;
    }
  }
  return 0;
}

uint64_t Sampler::Impl::Threshold(float max) {
  std::fill(scratch.buckets.begin(), scratch.buckets.end(), Bucket{});
  for (size_t id = 0; id < scratch.logits.size(); ++id) {
    Bucket& bucket = scratch.buckets[BucketOf(scratch.logits[id], max)];
    ++bucket.count;
    bucket.mass += scratch.weights[id];
  }
  const uint64_t count = parameters.top_k == 0 ? UINT64_MAX : parameters.top_k;
  constexpr double kAllMass = std::numeric_limits<double>::infinity();
  double mass = 0;
  const uint64_t by_count = KeepTop(count, kAllMass, max, mass);
  if (parameters.top_p >= 1) return by_count;
  double reached = 0;
  return std::max(by_count, KeepTop(count, parameters.top_p * mass, max, reached));
}

void Sampler::Impl::Change() {
  std::copy(logits.begin(), logits.end(), scratch.logits.begin());
  for (const SeenToken& seen : changes.seen) {
    float& logit = scratch.logits[seen.token.value()];
    logit = logit > 0 ? logit / parameters.repeat_penalty : logit * parameters.repeat_penalty;
    if (seen.in_reply > 0)
      logit -= parameters.frequency_penalty * static_cast<float>(seen.in_reply) + parameters.presence_penalty;
    constexpr float kFinite = 1e38f;  // whatever the penalty: an infinite logit would be drawn, or nothing
    logit = std::clamp(logit, -kFinite, kFinite);
  }
  for (const LogitBias& bias : changes.bias) scratch.logits[bias.token.value()] += bias.bias;
  for (const TokenId token : changes.banned) scratch.logits[token.value()] = kNegativeInfinity;
}

// REQUIRES: a logit above -infinity.
void Sampler::Impl::WeighKept() {
  const float max = Max(scratch.logits);
  CHECK_GT(max, kNegativeInfinity);
  const bool by_rank = parameters.top_k != 0 || parameters.top_p < 1;
  if (!by_rank && parameters.min_p == 0) {
    Weigh(scratch.logits, max, parameters.temperature, scratch.weights);
  } else {
    Weigh(scratch.logits, max, 1.0f, scratch.weights);
    const uint64_t threshold = by_rank ? Threshold(max) : 0;
    for (uint32_t id = 0; id < scratch.logits.size(); ++id) {  // few are left, and weighed once more
      const float logit = scratch.logits[id];
      float& weight = scratch.weights[id];
      const bool kept = Key(logit, id) >= threshold && weight >= parameters.min_p;
      weight = kept ? ExpNegative((logit - max) / parameters.temperature) : 0;
    }
  }
  SumChunks();
}

std::span<const float> Sampler::Impl::Chunk(size_t chunk) const {
  const std::span<const float> weights = scratch.weights;
  return weights.subspan(chunk * kChunk, std::min<size_t>(kChunk, weights.size() - chunk * kChunk));
}

void Sampler::Impl::SumChunks() {
  for (size_t chunk = 0; chunk < scratch.sums.size(); ++chunk) scratch.sums[chunk] = Sum(Chunk(chunk));
}

std::optional<TokenId> Sampler::Impl::Best() const {
  const float max = Max(scratch.logits);
  if (max == kNegativeInfinity) return std::nullopt;
  return TokenId(
      static_cast<int32_t>(std::find(scratch.logits.begin(), scratch.logits.end(), max) - scratch.logits.begin()));
}

std::optional<TokenId> Sampler::Impl::Draw(double uniform) {
  double total = 0;
  for (const double sum : scratch.sums) total += sum;
  if (total == 0) return std::nullopt;
  const double target = uniform * total;
  double below = 0;
  size_t last = 0;  // the last token with any weight: where rounding at the end of a sum leads
  for (size_t chunk = 0; chunk < scratch.sums.size(); ++chunk) {
    if (scratch.sums[chunk] == 0) continue;
    const bool here = below + scratch.sums[chunk] > target;
    double sum = below;
    for (size_t i = 0; const float weight : Chunk(chunk)) {
      sum += weight;
      if (weight > 0) last = chunk * kChunk + i;
      if (here && weight > 0 && sum > target) return TokenId(static_cast<int32_t>(last));
      ++i;
    }
    if (here) break;
    below += scratch.sums[chunk];
  }
  return TokenId(static_cast<int32_t>(last));
}

uint64_t Sampler::Footprint(uint32_t vocab_size) { return Measure<Layout>(vocab_size); }

Sampler::Sampler(uint32_t vocab_size, std::span<std::byte> memory) {
  CHECK_GT(vocab_size, 0u);
  Carver carver(memory);
  impl_ = std::make_unique<Impl>(vocab_size, carver);
}

Sampler::~Sampler() = default;

void Sampler::Begin(std::span<const float> logits, const SamplingParameters& parameters, const LogitChanges& changes) {
  CHECK_EQ(logits.size(), impl_->scratch.logits.size());
  CHECK(parameters.temperature >= 0 && parameters.top_p > 0 && parameters.min_p >= 0 && parameters.min_p <= 1);
  CHECK(parameters.repeat_penalty > 0);
  impl_->logits = logits;
  impl_->parameters = parameters;
  impl_->changes = changes;
  impl_->Change();
  if (parameters.temperature > 0) impl_->WeighKept();
}

std::optional<TokenId> Sampler::Draw(uint64_t position, uint32_t attempt) {
  if (impl_->parameters.temperature == 0) return impl_->Best();
  return impl_->Draw(UniformAt(impl_->parameters.seed, position, attempt));
}

void Sampler::Reject(TokenId token) {
  impl_->scratch.logits[token.value()] = kNegativeInfinity;
  if (impl_->parameters.temperature == 0) return;
  impl_->scratch.weights[token.value()] = 0;
  const size_t chunk = static_cast<size_t>(token.value()) / kChunk;
  impl_->scratch.sums[chunk] = Sum(impl_->Chunk(chunk));
}

bool Sampler::Restrict(const std::function<void(std::span<float>)>& mask) {
  Layout& scratch = impl_->scratch;
  const bool greedy = impl_->parameters.temperature == 0;
  if (!greedy) {
    for (size_t id = 0; id < scratch.logits.size(); ++id)
      if (scratch.weights[id] == 0) scratch.logits[id] = kNegativeInfinity;
    mask(scratch.logits);
    bool left = false;
    for (size_t id = 0; id < scratch.logits.size(); ++id) {
      if (scratch.logits[id] == kNegativeInfinity) scratch.weights[id] = 0;
      left = left || scratch.weights[id] > 0;
    }
    impl_->SumChunks();
    if (left) return true;
  }
  impl_->Change();
  mask(scratch.logits);
  if (!impl_->Best()) return false;
  if (!greedy) impl_->WeighKept();
  return true;
}

TokenId Sampler::Sample(std::span<const float> logits, const SamplingParameters& parameters, uint64_t position,
                        const LogitChanges& changes) {
  Begin(logits, parameters, changes);
  const std::optional<TokenId> token = Draw(position, 0);
  CHECK(token.has_value());
  return *token;
}

TokenLogprob Sampler::Logprobs(std::span<const float> logits, TokenId token, uint32_t top,
                               std::vector<TokenLogprob>& out) {
  Layout& scratch = impl_->scratch;
  CHECK_EQ(logits.size(), scratch.logits.size());
  CHECK_LT(static_cast<size_t>(token.value()), logits.size());
  const float max = Max(logits);
  Weigh(logits, max, 1.0f, scratch.weights);
  const double log_sum = Log(Sum(scratch.weights));
  const auto logprob = [&](uint32_t id) { return static_cast<float>(logits[id] - static_cast<double>(max) - log_sum); };

  // The best so far as a heap in `keys`, the worst of them in front.
  const size_t wanted = std::min<size_t>(top, logits.size());
  uint64_t* const heap = scratch.keys.data();
  size_t n = 0;
  for (uint32_t id = 0; id < logits.size() && wanted > 0; ++id) {
    const uint64_t key = Key(logits[id], id);
    if (n == wanted) {
      if (key < heap[0]) continue;
      std::pop_heap(heap, heap + n--, std::greater<>());
    }
    heap[n++] = key;
    std::push_heap(heap, heap + n, std::greater<>());
  }
  std::sort_heap(heap, heap + n, std::greater<>());
  out.clear();
  for (size_t i = 0; i < n; ++i) {
    const uint32_t id = IdOf(heap[i]);
    out.push_back({TokenId(static_cast<int32_t>(id)), logprob(id)});
  }
  return {token, logprob(static_cast<uint32_t>(token.value()))};
}

SeenTokens::SeenTokens(std::span<const TokenId> prompt, uint32_t reply_tokens_max) {
  std::vector<TokenId> ids(prompt.begin(), prompt.end());
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  tokens_.reserve(ids.size() + reply_tokens_max);
  for (const TokenId token : ids) tokens_.push_back({token});
}

void SeenTokens::Add(TokenId token) {
  const auto at = std::lower_bound(tokens_.begin(), tokens_.end(), token,
                                   [](const SeenToken& seen, TokenId id) { return seen.token < id; });
  if (at != tokens_.end() && at->token == token) {
    ++at->in_reply;
    return;
  }
  CHECK_LT(tokens_.size(), tokens_.capacity());
  tokens_.insert(at, {token, 1});
}

double UniformAt(uint64_t seed, uint64_t position, uint32_t attempt) {
  const auto words = Philox4x32({static_cast<uint32_t>(position), static_cast<uint32_t>(position >> 32), attempt, 0},
                                {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  return static_cast<double>((uint64_t{words[1]} << 32 | words[0]) >> 11) * 0x1p-53;
}

}  // namespace reprise
