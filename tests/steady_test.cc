// Nothing leaks and nothing allocates: a real model under mixed load with cancels, and a steady decode
// with every allocation counted.
#include <dirent.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>

#include "engine/local_engine.h"
#include "env/machine.h"
#include "scheduler/scheduler.h"
#include "tests/allocation_counter.h"
#include "tests/engine_client.h"
#include "tests/models.h"

namespace reprise {
namespace {

uint32_t OpenFiles() {
  uint32_t count = 0;
  DIR* folder = opendir("/proc/self/fd");
  while (readdir(folder) != nullptr) ++count;
  closedir(folder);
  return count;
}

TEST(Steady, MixedLoadWithCancelsLeaksNothingAndAnswersAsAlone) {
  constexpr uint32_t kRequests = 500;
  constexpr uint32_t kClients = 16;
  LocalEngineOptions options{.model_path = ModelPath(SmallModels()[0]), .memory_bytes = 800ull << 20, .context = 2048};
  options.shuffle_seed = 9;
  auto local = LocalEngine::Load(options, nullptr);
  ASSERT_TRUE(local.ok()) << local.status();
  TextEngine& engine = (*local)->engine();
  const uint32_t vocab_size = (*local)->model().vocab_size;

  // A few prompts and sampling parameters, so that many requests can be held against the same lone run.
  struct Case {
    GenerationRequest request;
    Reply alone;
  };
  std::mt19937 random(1);
  std::vector<Case> cases;
  const std::vector<TokenId> shared = RandomTokens(200, vocab_size, 77);
  for (uint32_t i = 0; i < 24; ++i) {
    std::vector<TokenId> prompt(shared.begin(), shared.begin() + random() % shared.size());
    const std::vector<TokenId> own = RandomTokens(1 + random() % 60, vocab_size, i);
    prompt.insert(prompt.end(), own.begin(), own.end());
    GenerationRequest request = GreedyRequest(prompt, 1 + random() % 12);
    if (i % 3 == 0) request.sampling = {.temperature = 0.9f, .top_p = 0.95f, .top_k = 50, .seed = i};
    GenerationRequest alone = request;
    alone.cache_read = alone.cache_write = false;
    cases.push_back({request, PendingReply(engine, alone).Wait()});
    ASSERT_FALSE(cases.back().alone.last.error);
  }

  const uint32_t files = OpenFiles();
  const uint64_t resident = ResidentBytes();
  uint32_t cancelled = 0, finished = 0;
  std::deque<std::pair<const Case*, PendingReply>> running;
  const auto settle_one = [&] {
    const Reply reply = running.front().second.Wait();
    const Reply& alone = running.front().first->alone;
    if (reply.last.finish == FinishReason::kCancelled) {
      ++cancelled;
      ASSERT_LE(reply.tokens.size(), alone.tokens.size());
      EXPECT_TRUE(std::equal(reply.tokens.begin(), reply.tokens.end(), alone.tokens.begin()));
    } else {
      ++finished;
      EXPECT_EQ(reply.tokens, alone.tokens);
      EXPECT_EQ(reply.text, alone.text);
    }
    running.pop_front();
  };
  for (uint32_t i = 0; i < kRequests; ++i) {
    const Case& c = cases[random() % cases.size()];
    running.emplace_back(&c, PendingReply(engine, c.request));
    if (random() % 4 == 0) engine.Cancel(running[random() % running.size()].second.id());
    while (running.size() >= kClients) settle_one();
  }
  while (!running.empty()) settle_one();
  EXPECT_EQ(cancelled + finished, kRequests);
  EXPECT_GT(finished, kRequests / 2);
  EXPECT_EQ(OpenFiles(), files);
  // The pool's pages come in on first use; beyond those nothing grows.
  uint64_t pools = 0;
  for (const Footprint& line : (*local)->plan().lines)
    if (line.component.find("pool") != std::string::npos) pools += line.bytes;
  EXPECT_LE(ResidentBytes(), resident + pools + (16ull << 20));

  engine.Drain(10'000);
  for (const auto& group : engine.cache_stats().groups) {
    EXPECT_EQ(group.slots_active, 0u);
    EXPECT_EQ(group.slots_free + group.slots_reusable, group.slots_total);
  }
}

// Scheduler, cache, attention and model, without the engine around them.
TEST(Steady, DecodeAllocatesNothing) {
  constexpr uint32_t kSequences = 4;
  for (const std::string& file : {SmallModels()[0], SmallModels()[1]}) {
    SCOPED_TRACE(file);
    Ledger ledger(3ull << 30);
    WorkerPool pool(2);
    const auto model = ModelDescription::Read(ModelPath(file), {});
    ASSERT_TRUE(model.ok()) << model.status();
    const auto weights = ModelWeights::Load(**model, pool, ledger, nullptr);
    ASSERT_TRUE(weights.ok()) << weights.status();
    KvCacheOptions cache_options{.geometry = (*model)->geometry, .identity = (*weights)->identity()};
    cache_options.slots.assign((*model)->geometry.groups.size(), 300);
    cache_options.sequences_max = kSequences;
    cache_options.context_max = 2048;
    cache_options.in_flight_max = 128;
    KvCache cache(cache_options, ledger);
    ForwardPass forward(**model, **weights,
                        {.context_max = 2048,
                         .batch_rows_max = 128,
                         .logits_rows_max = kSequences,
                         .slices_max = kSequences,
                         .threads = 2},
                        cache.group_views(), {&pool, BestIsa()}, ledger);
    Scheduler scheduler({.sequences_max = kSequences,
                         .step_rows_max = 128,
                         .shared_rows_max = 128,
                         .context_max = 2048,
                         .queue_requests_max = 16,
                         .queue_tokens_max = 10000},
                        cache, ledger);
    for (uint32_t i = 0; i < kSequences; ++i)
      scheduler.Enqueue({.id = SequenceId(i + 1),
                         .name_space = cache.Namespace({.tenant = "test"}),
                         .prompt = RandomTokens(600 + 40 * i, (*model)->vocab_size, i),
                         .tokens_max = 1500});
    uint32_t steady_steps = 0;
    for (uint32_t step = 0; steady_steps < 100; ++step) {
      ASSERT_LT(step, 1000u);
      const bool steady = scheduler.running() == kSequences && step > 30;
      const uint64_t before = AllocationCount();
      ASSERT_TRUE(scheduler.Plan());
      const auto logits = forward.Run(scheduler.batch());
      size_t row = 0;
      for (size_t i = 0; i < scheduler.step().size(); ++i) {
        scheduler.Commit(i);
        if (!scheduler.step()[i].wants_token) continue;
        const auto values = logits->subspan(row++ * forward.vocab_size(), forward.vocab_size());
        scheduler.Append(
            scheduler.step()[i].id,
            TokenId(static_cast<int32_t>(std::max_element(values.begin(), values.end()) - values.begin())));
      }
      if (!steady) continue;
      EXPECT_EQ(AllocationCount() - before, 0u) << "step " << step;
      ++steady_steps;
    }
  }
  // The counter counts: a control.
  const uint64_t before = AllocationCount();
  const auto control = std::make_unique<std::vector<int>>(3);
  EXPECT_GE(AllocationCount() - before, 2u);
}

}  // namespace
}  // namespace reprise
