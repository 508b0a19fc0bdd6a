// Load or recompute, in virtual time: over a grid of tiers and machines, every decision is near the better one, and
// none costs much.
#include "cache/fetch_model.h"

#include <array>
#include <deque>
#include <limits>

#include "cache/cache_testing.h"

namespace reprise {
namespace {

TEST(FetchModel, LearnsBothTermsOfWhatItSees) {
  FetchModel model(2);
  EXPECT_FALSE(model.knows_reads());
  for (int i = 0; i < 30; ++i) {
    const uint64_t bytes = i % 2 == 0 ? 200'000 : 1'500'000;
    model.ObserveRead(bytes, 10e-3 + static_cast<double>(bytes) / 50e6);
    model.ObservePrefill(100 + i, (100.0 + i) * (i * 50), 2e-3 * (100 + i) + 1e-6 * (100.0 + i) * (i * 50));
  }
  EXPECT_TRUE(model.knows_reads());
  EXPECT_NEAR(model.ReadSeconds(8, 8'000'000), 4 * (10e-3 + 20e-3), 6e-3);
  EXPECT_NEAR(model.PrefillSeconds(1000, 3000), 2e-3 * 2000 + 1e-6 * 2000 * 2000, 0.4);
}

TEST(FetchModel, WhatIsNoTimeIsNotLearned) {
  FetchModel model(1);
  const double before = model.ReadSeconds(1, 1'000'000);
  model.ObserveRead(1'000'000, -1);
  model.ObserveRead(1'000'000, std::numeric_limits<double>::quiet_NaN());
  EXPECT_EQ(model.ReadSeconds(1, 1'000'000), before);
  model.ObserveRead(1'000'000, 1);  // control
  EXPECT_GT(model.ReadSeconds(1, 1'000'000), before * 2);
}

TEST(FetchModel, FollowsATierThatChanges) {
  FetchModel model(1);
  for (int i = 0; i < 100; ++i) model.ObserveRead(1'000'000, 1e-3);
  for (int i = 0; i < 100; ++i) model.ObserveRead(1'000'000, 100e-3);
  EXPECT_NEAR(model.ReadSeconds(1, 1'000'000), 100e-3, 30e-3);
}

// Has everything; two readers, each of which takes its latency and half of the bandwidth for a piece.
class VirtualTier : public Tier {
 public:
  VirtualTier(double latency_s, double bytes_per_s, uint64_t piece_bytes)
      : latency_s(latency_s), bytes_per_s(bytes_per_s), payload_(piece_bytes) {}

  double latency_s, bytes_per_s;
  Clock::time_point now{};

  // When something can be shown next.
  Clock::time_point NextEvent() const {
    Clock::time_point next = Clock::time_point::max();
    for (const Op& op : ops_) next = std::min(next, std::min(op.done, op.deadline));
    return next;
  }

  std::string_view name() const override { return "virtual"; }
  bool writable() const override { return false; }
  void Contains(const NamespaceId&, std::span<const BlockKey>, std::span<uint32_t> groups) override {
    std::fill(groups.begin(), groups.end(), 1);
  }
  std::optional<TierRun> FindRun(const NamespaceId&, const Digest&, std::span<const TokenId>, uint32_t, bool) override {
    return std::nullopt;
  }
  std::vector<NamespaceDigests> NamespacesWith(std::span<const TokenId>) const override { return {}; }
  bool Fetch(TierTicket ticket, uint32_t first_index, std::span<const TierRead> reads,
             Clock::time_point deadline) override {
    for (uint32_t i = 0; i < reads.size(); ++i) {
      Clock::time_point& reader = *std::min_element(readers_.begin(), readers_.end());
      const double service = latency_s + 2 * static_cast<double>(payload_.size()) / bytes_per_s;
      reader =
          std::max(reader, now) + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(service));
      ops_.push_back({ticket, first_index + i, reader, deadline, service * 1e3});
    }
    return true;
  }
  void Cancel(TierTicket ticket) override {
    // What has not begun is not read; of two readers at most two pieces have.
    std::erase_if(ops_, [&](const Op& op) { return op.ticket == ticket; });
    for (Clock::time_point& reader : readers_)
      reader = std::min(reader, now + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(
                                          latency_s + 2 * static_cast<double>(payload_.size()) / bytes_per_s)));
  }
  size_t Drain(const std::function<void(const TierFetched&)>& visit) override {
    std::vector<TierFetched> shown;
    std::erase_if(ops_, [&](const Op& op) {
      if (op.done <= now && op.done <= op.deadline)
        shown.push_back({.ticket = op.ticket,
                         .index = op.index,
                         .outcome = TierOutcome::kOk,
                         .payload = payload_,
                         .service_ms = op.service_ms});
      else if (op.deadline <= now)
        shown.push_back({.ticket = op.ticket, .index = op.index, .outcome = TierOutcome::kTimeout});
      else
        return false;
      return true;
    });
    for (const TierFetched& fetched : shown) visit(fetched);
    return shown.size();
  }
  bool HasRoomFor(uint64_t) const override { return false; }
  StoreOutcome Store(const TierRecord&) override { return StoreOutcome::kDeclined; }
  void Erase(const Digest&, std::function<void(absl::StatusOr<TierErased>)>) override {}
  bool Flush(Clock::time_point) override { return true; }
  void SetWake(std::function<void()>) override {}
  TierStats stats() const override { return {}; }

 private:
  struct Op {
    TierTicket ticket;
    uint32_t index;
    Clock::time_point done, deadline;
    double service_ms;
  };
  std::array<Clock::time_point, 2> readers_{};
  std::deque<Op> ops_;
  std::vector<std::byte> payload_;
};

struct Tally {
  uint32_t requests = 0, near = 0, fetched = 0, recomputed = 0;
  double worst = 0;  // time to first token, of what recomputing takes
};

// `count` prompts, one after the other, on a machine that computes `rate` tokens a second.
void Serve(VirtualTier& tier, KvCache& cache, double rate, double quadratic, uint32_t count, uint32_t seed,
           Tally& tally) {
  const auto prefill = [&](double from, double to) {
    return (to - from) / rate + quadratic * (to - from) * (from + to) / 2;
  };
  cache.ObservePrefill(32, 32 * 15.5, prefill(0, 32));  // the start of an engine
  for (uint32_t i = 0; i < count; ++i) {
    const uint32_t length = std::array{260u, 1030u, 4000u}[i % 3];
    const std::vector<TokenId> prompt = Count(length, static_cast<int32_t>((seed * 1000 + i) * 10'000));
    CacheSequence sequence;
    const NamespaceDigests name_space = cache.Namespace({.tenant = "test"});
    ASSERT_EQ(cache.Admit({.name_space = name_space, .prompt = prompt, .tokens_max = length}, sequence),
              KvCache::Outcome::kAdmitted);
    const Tier::Clock::time_point begun = tier.now;
    sequence.BeginFetch();
    while (sequence.fetching()) {
      tier.now = std::max(tier.now, tier.NextEvent());
      cache.Poll(0);
    }
    const double waited = std::chrono::duration<double>(tier.now - begun).count();
    const double took = waited + prefill(sequence.length(), length), recompute = prefill(0, length);
    // All of it brought at once, by readers that have nothing else to do.
    const uint32_t blocks = (length - 1) / 64;
    const double slot_bytes = static_cast<double>(SlotBytes(cache.geometry(), GroupId(0)));
    const double fetch =
        std::ceil(blocks / 2.0) * (tier.latency_s + 2 * slot_bytes / tier.bytes_per_s) + prefill(blocks * 64, length);
    ++tally.requests;
    tally.near += took <= 1.1 * std::min(recompute, fetch);
    (sequence.length() > 0 ? tally.fetched : tally.recomputed) += 1;
    tally.worst = std::max(tally.worst, took / recompute);
    tier.now += std::chrono::seconds(1);  // computing and replying; hung reads end
    cache.ObservePrefill(length - sequence.length(),
                         (length - sequence.length()) * ((length + sequence.length()) / 2.0),
                         prefill(sequence.length(), length));
    sequence = {};
    cache.Clear();
  }
}

TEST(FetchGrid, TheDecisionIsNearTheBetterOneAndNeverCostsMuch) {
  Tally all;
  uint32_t cell = 0;
  for (const double megabytes : {1.0, 10.0, 100.0, 1000.0}) {
    for (const double latency_ms : {1.0, 10.0, 100.0}) {
      for (const double rate : {50.0, 300.0, 3000.0}) {
        Geometry geometry = SmallGeometry({FullGroup({0})}, 64);
        geometry.groups[0].key_dim = geometry.groups[0].value_dim = 128;  // 32 KiB a block
        const uint64_t slot_bytes = SlotBytes(geometry, GroupId(0));
        // 1.5 MB a block of the model that is meant: the tier is slower by as much as the blocks are smaller.
        VirtualTier tier(latency_ms / 1e3, megabytes * 1e6 * static_cast<double>(slot_bytes) / 1.5e6, slot_bytes);
        TestCache cache({.geometry = geometry,
                         .slots = {128},
                         .context_max = 4096,
                         .in_flight_max = 64,
                         .tier = &tier,
                         .tier_now = [&tier] { return tier.now; },
                         .tier_patience_ms = KvCacheOptions().tier_patience_ms});
        Tally tally;
        Serve(tier, *cache, rate, 1e-7, 60, ++cell, tally);
        EXPECT_LE(tally.worst, 1.1) << megabytes << " MB/s, " << latency_ms << " ms, " << rate << " tokens/s";
        if (tally.near < 0.9 * tally.requests)
          std::printf("%6.0f MB/s %4.0f ms %6.0f tokens/s: %u of %u near the better choice, %u fetched, worst %.3f\n",
                      megabytes, latency_ms, rate, tally.near, tally.requests, tally.fetched, tally.worst);
        all.requests += tally.requests;
        all.near += tally.near;
        all.fetched += tally.fetched;
        all.recomputed += tally.recomputed;
        all.worst = std::max(all.worst, tally.worst);
      }
    }
  }
  std::printf(
      "%u requests: %.1f %% within 10 %% of the better choice, %u brought something, worst %.3f x recomputing\n",
      all.requests, 100.0 * all.near / all.requests, all.fetched, all.worst);
  EXPECT_GE(all.near, 0.95 * all.requests);
  EXPECT_GT(all.fetched, all.requests / 4) << "control";
  EXPECT_GT(all.recomputed, all.requests / 4) << "control";
}

// A tier that slows down a hundredfold in the middle: nothing is worse than 1.1 x for more than one request.
TEST(FetchGrid, ATierThatSlowsDownCostsOnce) {
  Geometry geometry = SmallGeometry({FullGroup({0})}, 64);
  VirtualTier tier(1e-3, 1e9, SlotBytes(geometry, GroupId(0)));
  TestCache cache({.geometry = geometry,
                   .slots = {128},
                   .context_max = 4096,
                   .in_flight_max = 64,
                   .tier = &tier,
                   .tier_now = [&tier] { return tier.now; },
                   .tier_patience_ms = KvCacheOptions().tier_patience_ms});
  Tally before, after;
  Serve(tier, *cache, 1000, 0, 12, 1, before);
  EXPECT_EQ(before.fetched, 12u);
  tier.latency_s = 2;
  Serve(tier, *cache, 1000, 0, 12, 2, after);
  EXPECT_LE(after.worst, 1.35);
  Serve(tier, *cache, 1000, 0, 30, 3, after = {});
  EXPECT_LE(after.worst, 1.1);
}

}  // namespace
}  // namespace reprise
