#include "scheduler/scheduler.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

#include "scheduler/fake_executor.h"

namespace reprise {
namespace {

constexpr uint32_t kBlockTokens = 16;

std::vector<TokenId> Tokens(uint32_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<TokenId> tokens;
  for (uint32_t i = 0; i < count; ++i) tokens.push_back(TokenId(static_cast<int32_t>(random() % 1000)));
  return tokens;
}

std::vector<TokenId> Join(std::vector<TokenId> a, const std::vector<TokenId>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// Cache, scheduler and a fake executor, run step by step.
class SchedulerTest : public testing::Test {
 protected:
  void Make(uint32_t full_slots, uint32_t window_slots, SchedulerOptions options = {}) {
    scheduler_.reset();
    cache_.reset();
    options.sequences_max = options.sequences_max ? options.sequences_max : 8;
    options.step_rows_max = options.step_rows_max ? options.step_rows_max : 64;
    options.shared_rows_max = options.shared_rows_max ? options.shared_rows_max : 32;
    options.context_max = 2048;
    options.queue_requests_max = 100;
    options.queue_tokens_max = 100000;
    KvCacheOptions cache_options;
    cache_options.geometry = executor_.geometry();
    cache_options.slots = {full_slots, window_slots};
    cache_options.sequences_max = options.sequences_max;
    cache_options.context_max = options.context_max;
    cache_options.in_flight_max = options.step_rows_max;
    cache_options.shuffle_seed = 7;
    cache_options.shared_prefixes = shared_prefixes_;
    cache_ = std::make_unique<KvCache>(cache_options, ledger_);
    executor_.UseSlots(cache_->group_views());
    scheduler_ = std::make_unique<Scheduler>(options, *cache_, ledger_);
    name_space_ = cache_->Namespace({.tenant = "test"});
  }

  SequenceId Enqueue(std::vector<TokenId> prompt, uint32_t output) {
    return Enqueue(std::move(prompt), output, name_space_);
  }
  SequenceId Enqueue(std::vector<TokenId> prompt, uint32_t output, const NamespaceDigests& name_space) {
    const SequenceId id(next_id_++);
    expected_[id] = prompt;
    outputs_[id] = output;
    const uint32_t tokens_max = static_cast<uint32_t>(prompt.size()) + output;
    scheduler_->Enqueue({.id = id, .name_space = name_space, .prompt = std::move(prompt), .tokens_max = tokens_max});
    return id;
  }

  // One step; checks every sampled token against the definition. False: nothing to do.
  bool Step() {
    if (!scheduler_->Plan()) return false;
    const auto logits = executor_.Run(scheduler_->batch());
    size_t row = 0;
    std::vector<SequenceId> done;
    std::vector<Scheduler::StepSlice> step(scheduler_->step().begin(), scheduler_->step().end());
    for (size_t i = 0; i < step.size(); ++i) scheduler_->Commit(i);
    for (const Scheduler::StepSlice& slice : step) {
      if (slice.first) cached_[slice.id] = scheduler_->info(slice.id).cached_tokens;
      if (!slice.wants_token) continue;
      const auto values = logits->subspan(row++ * executor_.vocab_size(), executor_.vocab_size());
      const TokenId token(static_cast<int32_t>(std::max_element(values.begin(), values.end()) - values.begin()));
      std::vector<TokenId>& tokens = expected_[slice.id];
      EXPECT_EQ(token, FakeNextToken(tokens, executor_.vocab_size())) << "sequence " << slice.id;
      tokens.push_back(token);
      if (--outputs_[slice.id] == 0) {
        scheduler_->Finish(slice.id);
      } else {
        scheduler_->Append(slice.id, token);
      }
    }
    scheduler_->CheckIntegrity();
    return true;
  }
  void RunAll() {
    while (Step()) {
    }
    EXPECT_TRUE(scheduler_->idle());
  }

  Ledger ledger_{1ull << 30};
  FakeExecutor executor_{{}, kBlockTokens};
  std::unique_ptr<KvCache> cache_;
  std::unique_ptr<Scheduler> scheduler_;
  std::vector<std::vector<TokenId>> shared_prefixes_;
  NamespaceDigests name_space_;
  uint64_t next_id_ = 1;
  std::map<SequenceId, std::vector<TokenId>> expected_;  // prompt and what was generated
  std::map<SequenceId, uint32_t> outputs_;
  std::map<SequenceId, uint32_t> cached_;
};

TEST_F(SchedulerTest, OnePromptSentByManyIsComputedOnce) {
  Make(400, 200);
  const uint32_t whole = 300 / kBlockTokens * kBlockTokens;
  for (const uint32_t clients : {8, 32, 128}) {
    const std::vector<TokenId> shared = Tokens(300, clients);
    const uint64_t before = executor_.rows_computed;
    for (uint32_t i = 0; i < clients; ++i) Enqueue(Join(shared, Tokens(5, 100 + i)), 1);
    RunAll();
    // The first computes 305; the others only what follows the last whole shared block.
    EXPECT_LE(executor_.rows_computed - before, 305u + (clients - 1) * (305 - whole)) << clients;
  }
}

TEST_F(SchedulerTest, WhatTenantsShareIsComputedOnceAndTheRestByEach) {
  const std::vector<TokenId> prompt = Tokens(300, 1);
  constexpr uint32_t kShared = 160;
  for (const bool declared : {true, false}) {
    if (declared) shared_prefixes_ = {{prompt.begin(), prompt.begin() + kShared}};
    Make(400, 200);
    const uint64_t before = executor_.rows_computed;
    for (const char* tenant : {"a", "b", "c", "d"}) Enqueue(prompt, 1, cache_->Namespace({.tenant = tenant}));
    RunAll();
    EXPECT_EQ(executor_.rows_computed - before, declared ? 300u + 3 * (300 - kShared) : 4 * 300u);
    shared_prefixes_.clear();
  }
}

TEST_F(SchedulerTest, NobodyWaitsForBlocksThatItCannotShare) {
  const std::vector<TokenId> prompt = Tokens(96, 1);
  shared_prefixes_ = {{prompt.begin(), prompt.begin() + 80}};
  // One that parts within the shared prefix is private from its first token on; the control could share, and waits.
  for (const uint32_t common : {75, 90}) {
    Make(400, 200, {.step_rows_max = 60});
    Enqueue(prompt, 1);
    Step();
    const SequenceId other = Enqueue(Join({prompt.begin(), prompt.begin() + common}, Tokens(30, 2)), 1);
    Step();  // 36 rows of the first are left
    EXPECT_EQ(scheduler_->info(other).prompt_done, common == 75 ? 24u : 48u) << common;
    EXPECT_EQ(scheduler_->step().size(), common == 75 ? 2u : 1u);
    RunAll();
  }
}

// 60 rows in a second, then 36 of a shared prompt are left: 0.6 s.
TEST_F(SchedulerTest, AFollowerWhoseDeadlineIsNearerThanItsLeaderComputesForItself) {
  const std::vector<TokenId> prompt = Tokens(96, 1);
  const auto slices_with = [&](std::optional<std::chrono::milliseconds> left) {
    Make(400, 200, {.step_rows_max = 60});
    Enqueue(prompt, 1);
    EXPECT_TRUE(scheduler_->Plan());
    EXPECT_TRUE(executor_.Run(scheduler_->batch()).ok());
    scheduler_->Computed(std::chrono::seconds(1));
    scheduler_->Commit(0);
    const SequenceId id(next_id_++);
    SequenceRequest request{.id = id, .name_space = name_space_, .prompt = prompt, .tokens_max = 97};
    if (left) request.deadline = Scheduler::Clock::now() + *left;
    expected_[id] = prompt;
    outputs_[id] = 1;
    scheduler_->Enqueue(std::move(request));
    Step();
    const size_t slices = scheduler_->step().size();
    RunAll();
    return slices;
  };
  EXPECT_EQ(slices_with(std::chrono::milliseconds(100)), 2u);
  EXPECT_EQ(slices_with(std::chrono::milliseconds(-1)), 2u) << "it is over";
  EXPECT_EQ(slices_with(std::chrono::seconds(100)), 1u) << "the control: in time";
  EXPECT_EQ(slices_with(std::nullopt), 1u) << "no deadline";
}

TEST_F(SchedulerTest, FollowersSurviveTheirLeadersCancellation) {
  Make(400, 200);
  const std::vector<TokenId> shared = Tokens(300, 1);
  const SequenceId leader = Enqueue(shared, 4);
  Enqueue(shared, 4);
  Enqueue(shared, 4);
  Step();
  Step();
  EXPECT_TRUE(scheduler_->Drop(leader));
  EXPECT_FALSE(scheduler_->Drop(leader));
  RunAll();
  EXPECT_LE(executor_.rows_computed, 300u + 3 * kBlockTokens + 3 * 4);
}

TEST_F(SchedulerTest, DecodesComeFirstAndSlicesLeaveThemRoom) {
  Make(400, 200);
  Enqueue(Tokens(10, 1), 50);
  Step();
  Enqueue(Tokens(500, 2), 1);
  uint32_t steps = 0;
  while (scheduler_->running() + scheduler_->waiting() > 1 && Step()) {
    ASSERT_EQ(scheduler_->step().front().rows, 1u) << "the decode is part of every step";
    ++steps;
  }
  EXPECT_GE(steps, 500u / 32);
}

TEST_F(SchedulerTest, TurnsComputeTheNewTokensAndTheLastSampledOne) {
  Make(400, 200);
  std::vector<TokenId> conversation = Tokens(100, 1);
  uint32_t known = 0;
  for (uint32_t turn = 0; turn < 12; ++turn) {
    const SequenceId id = Enqueue(conversation, 9);
    RunAll();
    EXPECT_EQ(cached_[id], known) << "turn " << turn;
    known = static_cast<uint32_t>(conversation.size()) + 8;  // all but the last sampled token
    conversation = Join(expected_[id], Tokens(13, 50 + turn));
  }
}

TEST_F(SchedulerTest, WhatNeverFitsIsRefusedAndTheRestRuns) {
  Make(8, 20);
  const SequenceId too_long = Enqueue(Tokens(150, 1), 10);
  Enqueue(Tokens(50, 2), 10);
  ASSERT_TRUE(Step());
  RunAll();
  EXPECT_EQ(expected_[too_long].size(), 150u);
  EXPECT_EQ(outputs_[SequenceId(2)], 0u);
}

TEST_F(SchedulerTest, RefusedSequencesAreNamed) {
  Make(8, 20);
  const SequenceId too_long = Enqueue(Tokens(150, 1), 10);
  EXPECT_FALSE(scheduler_->Plan());
  ASSERT_EQ(scheduler_->refused().size(), 1u);
  EXPECT_EQ(scheduler_->refused()[0], too_long);
  EXPECT_TRUE(scheduler_->idle());
}

// Random arrivals, cancels, shared prefixes and pools too small for all: every reply is the one that the
// tokens alone define, and nothing is left behind.
TEST_F(SchedulerTest, RandomLoadGivesTheRepliesOfLoneRuns) {
  for (uint32_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const auto below = [&](uint32_t n) { return static_cast<uint32_t>(random() % n); };
    Make(40 + below(100), 30 + below(60),
         {.sequences_max = 1 + below(8), .step_rows_max = 8 + below(56), .shared_rows_max = 1 + below(32)});
    std::vector<std::vector<TokenId>> stems = {Tokens(120, seed), Tokens(70, seed + 1), Tokens(33, seed + 2)};
    std::vector<SequenceId> ids;
    for (uint32_t i = 0; i < 150; ++i) {
      if (below(3) == 0) {
        std::vector<TokenId> prompt = stems[below(3)];
        prompt.resize(1 + below(static_cast<uint32_t>(prompt.size())));
        ids.push_back(Enqueue(Join(prompt, Tokens(below(30), random())), 1 + below(20)));
        if (below(4) == 0) stems[below(3)] = expected_[ids[below(static_cast<uint32_t>(ids.size()))]];
      } else if (!ids.empty() && below(10) == 0) {
        scheduler_->Drop(ids[below(static_cast<uint32_t>(ids.size()))]);
      }
      Step();
    }
    RunAll();
    const KvCache::Stats stats = cache_->stats();
    for (const auto& group : stats.groups) {
      EXPECT_EQ(group.slots_active, 0u);
      EXPECT_EQ(group.slots_free + group.slots_reusable, group.slots_total);
    }
    if (testing::Test::HasFailure()) return;
  }
}

TEST(SchedulerStatesTest, SlicesEndWhereAStateIsKept) {
  const LayerGroup full{.kind = GroupKind::kFull, .layers = {0}, .kv_heads = 1, .key_dim = 1, .value_dim = 1};
  const LayerGroup states{.kind = GroupKind::kRecurrent, .layers = {1}, .kv_heads = 1, .key_dim = 1, .value_dim = 1};
  for (const bool recurrent : {true, false}) {
    Ledger ledger(1 << 24);
    KvCacheOptions options{.geometry = {.groups = {full}, .block_tokens = 16}};
    if (recurrent) options.geometry.groups.push_back(states);
    options.slots.assign(options.geometry.groups.size(), 20);
    options.sequences_max = 2;
    options.context_max = 100;
    options.in_flight_max = 64;
    KvCache cache(options, ledger);
    Scheduler scheduler({.sequences_max = 2, .step_rows_max = 64, .shared_rows_max = 64, .context_max = 100}, cache,
                        ledger);
    const std::vector<TokenId> prompt(40, TokenId(3));
    scheduler.Enqueue({.id = SequenceId(1), .name_space = cache.Namespace({}), .prompt = prompt, .tokens_max = 41});
    ASSERT_TRUE(scheduler.Plan());
    EXPECT_EQ(scheduler.step()[0].rows, recurrent ? 32u : 40u) << "without states a slice takes all";
    scheduler.Commit(0);
    if (recurrent) {
      ASSERT_TRUE(scheduler.Plan());
      EXPECT_EQ(scheduler.step()[0].rows, 8u);
    }
    scheduler.Drop(SequenceId(1));
  }
}

}  // namespace
}  // namespace reprise
