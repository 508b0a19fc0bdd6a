#include "cache/hit_density.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/check.h"

namespace reprise {
namespace {

constexpr uint32_t kFitEvery = 4;   // requests from the fit of one class of uses to that of the next
constexpr double kHalfLife = 8192;  // requests after which an observation counts half
constexpr double kPriorHits = 5;    // weight of what is believed before anything was seen
constexpr float kWeightMax = 64;    // of one watch: no prompt, however long, teaches more
// Before anything was learned a block is worth this many times the next: one that was used again is not a scan's.
constexpr std::array<float, BlockClass::kUseClasses> kPriorOfUses = {1, 4, 8, 12, 16};

}  // namespace

HitDensity::Layout::Layout(uint32_t blocks_max, Carver& carver) {
  // A watch must outlive its block: two per request, and a pool may hold what thousands of requests left.
  const uint32_t places = std::clamp<uint32_t>(std::bit_ceil(blocks_max / 16), 1 << 12, 1 << 17);
  ring = carver.Array<Watched>(places);
  index = carver.Array<uint32_t>(2 * places);
}

uint64_t HitDensity::FootprintBytes(uint32_t blocks_max) { return Measure<Layout>(blocks_max); }

HitDensity::HitDensity(uint32_t blocks_max, Ledger& ledger)
    : region_(ledger.Take("eviction learning", FootprintBytes(blocks_max))) {
  const Layout layout = Carve<Layout>(region_, blocks_max);
  ring_ = layout.ring;
  index_ = layout.index;
  for (uint32_t use = 0; use < BlockClass::kUseClasses; ++use) Fit(use);
}

uint32_t HitDensity::Bucket(uint32_t age) { return std::min<uint32_t>(std::bit_width(age), kBuckets - 1); }
double HitDensity::FirstAge(uint32_t bucket) { return bucket == 0 ? 0 : std::ldexp(1.0, static_cast<int>(bucket) - 1); }

void HitDensity::Request() {
  ++now_;
  LearnPiece();
}

uint32_t* HitDensity::Find(uint64_t key) {
  for (size_t at = Home(key); index_[at] != 0; at = (at + 1) & (index_.size() - 1))
    if (ring_[index_[at] - 1].key == key) return &index_[at];
  return nullptr;
}

void HitDensity::Watch(uint64_t key, BlockClass which, float weight) {
  if (key == 0 || Find(key) != nullptr) return;
  Watched& watched = ring_[next_];
  if (watched.key != 0) {
    ends_[watched.which][Bucket(now_ - watched.since)] += watched.weight;
    Forget(next_);
  }
  watched = {.key = key, .since = now_, .weight = std::min(weight, kWeightMax), .which = which.index()};
  size_t at = Home(key);
  while (index_[at] != 0) at = (at + 1) & (index_.size() - 1);
  index_[at] = next_ + 1;
  next_ = (next_ + 1) & (static_cast<uint32_t>(ring_.size()) - 1);
}

void HitDensity::Met(uint64_t key) {
  const uint32_t* found = Find(key);
  if (found == nullptr) return;
  const Watched& watched = ring_[*found - 1];
  const uint32_t bucket = Bucket(now_ - watched.since);
  hits_[watched.which][bucket] += watched.weight;
  ends_[watched.which][bucket] += watched.weight;
  Forget(*found - 1);
}

void HitDensity::Forget(uint32_t place) {
  const size_t mask = index_.size() - 1;
  uint32_t* found = Find(ring_[place].key);
  CHECK(found != nullptr);
  size_t hole = static_cast<size_t>(found - index_.data());
  // Close the hole with what a probe starting before it would otherwise not find.
  for (size_t at = (hole + 1) & mask; index_[at] != 0; at = (at + 1) & mask) {
    const size_t home = Home(ring_[index_[at] - 1].key);
    if (((at - home) & mask) < ((at - hole) & mask)) continue;
    index_[hole] = index_[at];
    hole = at;
  }
  index_[hole] = 0;
  ring_[place].key = 0;
}

// The classes of uses are fitted in turn, at requests of their own, so that none pays for all of it.
void HitDensity::LearnPiece() {
  if (now_ % kFitEvery != 0) return;
  const uint32_t use_class = now_ / kFitEvery % BlockClass::kUseClasses;
  const auto fade = static_cast<float>(std::exp2(-double{kFitEvery} * BlockClass::kUseClasses / kHalfLife));
  for (uint32_t i = 0; i < BlockClass::kPerUse; ++i)
    for (Table* table : {&hits_, &ends_})
      for (float& weight : (*table)[use_class * BlockClass::kPerUse + i]) weight *= fade;
  Fit(use_class);
}

// The values of a class of uses, from its own observations and, where those are few, from those of all of its
// uses together; where those are few as well, from a guess: a tenth of a hit over the age so far.
void HitDensity::Fit(uint32_t use_class) {
  const uint32_t first = use_class * BlockClass::kPerUse;
  std::array<Row, BlockClass::kPerUse> ends{};  // of watches that ended, and of those that have come that far
  std::copy_n(ends_.begin() + first, BlockClass::kPerUse, ends.begin());
  for (const Watched& watched : ring_)
    if (watched.key != 0 && watched.which / BlockClass::kPerUse == use_class)
      ends[watched.which - first][Bucket(now_ - watched.since)] += watched.weight;
  Row all_hits{}, all_ends{}, prior{};
  for (uint32_t bucket = 0; bucket < kBuckets; ++bucket) {
    prior[bucket] = kPriorOfUses[use_class] * 0.1f / static_cast<float>(FirstAge(bucket) + 2);
    for (uint32_t i = 0; i < BlockClass::kPerUse; ++i) {
      all_hits[bucket] += hits_[first + i][bucket];
      all_ends[bucket] += ends[i][bucket];
    }
  }
  const Row together = Index(all_hits, all_ends, prior);
  for (uint32_t i = 0; i < BlockClass::kPerUse; ++i) values_[first + i] = Index(hits_[first + i], ends[i], together);
}

// For every age, the best hits per request waited over all horizons from it on. `ends`: watches that ended there
// or have come that far.
HitDensity::Row HitDensity::Index(const Row& hits, const Row& ends, const Row& prior) {
  std::array<double, kBuckets + 1> beyond{};  // that reach a bucket
  for (uint32_t bucket = kBuckets; bucket > 0; --bucket) beyond[bucket - 1] = beyond[bucket] + ends[bucket - 1];
  Row values{};
  for (uint32_t from = 0; from < kBuckets; ++from) {
    double hit = 0, waited = 0, best = 0;
    for (uint32_t to = from; to < kBuckets; ++to) {
      hit += hits[to];
      waited += (beyond[to + 1] + 0.5 * ends[to]) * (FirstAge(to + 1) - FirstAge(to));
      const bool last = to + 1 == kBuckets || beyond[to + 1] <= 0;
      if (to > from || last) best = std::max(best, (hit + kPriorHits) / (waited + kPriorHits / prior[from]));
      if (last) break;
    }
    values[from] = static_cast<float>(best);
  }
  return values;
}

}  // namespace reprise
