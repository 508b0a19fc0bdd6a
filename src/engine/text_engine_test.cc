#include "engine/text_engine.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <future>
#include <random>

#include "scheduler/fake_executor.h"

namespace reprise {
namespace {

std::string ModelPath(const std::string& file) {
  const char* folder = std::getenv("REPRISE_MODELS");
  return (folder != nullptr ? std::string(folder) : std::string(std::getenv("HOME")) + "/.cache/reprise/models") + "/" +
         file;
}

std::vector<TokenId> Tokens(uint32_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<TokenId> tokens;
  for (uint32_t i = 0; i < count; ++i) tokens.push_back(TokenId(static_cast<int32_t>(500 + random() % 20000)));
  return tokens;
}

// What one request got, once it has ended.
struct Reply {
  std::string text;
  std::vector<TokenId> tokens;
  GenerationEvent last;
  uint32_t prefill_events = 0;
};

// Gathers events; `ended` is the reply.
class Collector {
 public:
  GenerationSink Sink() {
    return [state = state_](GenerationEvent event) {
      state->reply.text += event.text;
      for (const GeneratedToken& token : event.tokens) state->reply.tokens.push_back(token.token);
      if (event.prefilled > 0) ++state->reply.prefill_events;
      if (!event.finish) return;
      state->reply.last = std::move(event);
      state->promise.set_value(std::move(state->reply));
    };
  }
  Reply Wait() { return future_.get(); }

 private:
  struct State {
    Reply reply;
    std::promise<Reply> promise;
  };
  std::shared_ptr<State> state_ = std::make_shared<State>();
  std::future<Reply> future_ = state_->promise.get_future();
};

class TextEngineTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    ledger_ = new Ledger(8ull << 30);
    auto tokenizer = Tokenizer::Load(ModelPath("smollm2-135m-instruct-q4_1.gguf"), *ledger_);
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    tokenizer_ = tokenizer->release();
  }
  static void TearDownTestSuite() {
    delete tokenizer_;
    delete ledger_;
  }
  void SetUp() override { Make({}); }

  void Make(SchedulerOptions options) {
    engine_.reset();
    executor_ = std::make_unique<FakeExecutor>(FakeExecutor::Limits{.vocab_size = tokenizer_->vocab_size()}, 16);
    if (options.sequences_max == 0) options.sequences_max = 8;
    options.step_rows_max = 64;
    options.shared_rows_max = 32;
    options.context_max = 1024;
    if (options.queue_requests_max == 0) options.queue_requests_max = 64;
    options.queue_tokens_max = 20000;
    KvCacheOptions cache_options{.geometry = executor_->geometry()};
    cache_options.slots = {400, 200};
    cache_options.sequences_max = options.sequences_max;
    cache_options.context_max = options.context_max;
    cache_options.in_flight_max = options.step_rows_max;
    cache_options.shuffle_seed = 3;
    auto cache = std::make_unique<KvCache>(cache_options, *ledger_);
    executor_->UseSlots(cache->group_views());
    engine_ = std::make_unique<TextEngine>(options, std::move(cache), *executor_, *tokenizer_, *ledger_);
    engine_->CheckEveryStep();
  }

  static GenerationRequest Request(std::vector<TokenId> prompt, uint32_t max_tokens) {
    GenerationRequest request{.prompt = std::move(prompt), .max_tokens = max_tokens};
    request.sampling.temperature = 0;
    request.ignore_eos = true;
    request.scope.tenant = "test";
    return request;
  }
  Reply Run(GenerationRequest request) {
    Collector collector;
    const auto submission = engine_->Submit(std::move(request), collector.Sink());
    EXPECT_FALSE(submission.error) << submission.error->message;
    return collector.Wait();
  }
  std::vector<TokenId> Expected(std::vector<TokenId> tokens, uint32_t count) {
    const size_t prompt = tokens.size();
    for (uint32_t i = 0; i < count; ++i) tokens.push_back(FakeNextToken(tokens, executor_->vocab_size()));
    return std::vector<TokenId>(tokens.begin() + prompt, tokens.end());
  }

  static Ledger* ledger_;
  static Tokenizer* tokenizer_;
  std::unique_ptr<FakeExecutor> executor_;
  std::unique_ptr<TextEngine> engine_;
};
Ledger* TextEngineTest::ledger_ = nullptr;
Tokenizer* TextEngineTest::tokenizer_ = nullptr;

TEST_F(TextEngineTest, AHitGivesTheSameReplyAndComputesOneToken) {
  const std::vector<TokenId> prompt = Tokens(200, 1);
  const Reply cold = Run(Request(prompt, 10));
  const Reply warm = Run(Request(prompt, 10));
  EXPECT_EQ(cold.tokens, Expected(prompt, 10));
  EXPECT_EQ(warm.tokens, cold.tokens);
  EXPECT_EQ(warm.text, cold.text);
  EXPECT_EQ(cold.last.timings.computed_n, 200u);
  EXPECT_EQ(warm.last.timings.computed_n, 1u);
  EXPECT_EQ(warm.last.timings.cached_pool, 199u);
  EXPECT_EQ(cold.last.finish, FinishReason::kLength);
  EXPECT_GE(cold.prefill_events, 2u);
}

TEST_F(TextEngineTest, SaltsAndTenantsDoNotShare) {
  const std::vector<TokenId> prompt = Tokens(100, 1);
  Run(Request(prompt, 1));
  GenerationRequest salted = Request(prompt, 1);
  salted.scope.salt = "";
  EXPECT_EQ(Run(salted).last.timings.cached_pool, 0u);
  EXPECT_EQ(Run(salted).last.timings.cached_pool, 99u);  // control: the same salt hits
  GenerationRequest other = Request(prompt, 1);
  other.scope.tenant = "other";
  EXPECT_EQ(Run(other).last.timings.cached_pool, 0u);
  EXPECT_EQ(Run(Request(prompt, 1)).last.timings.cached_pool, 99u);
}

TEST_F(TextEngineTest, ReadAndWriteAreObeyed) {
  const std::vector<TokenId> prompt = Tokens(100, 1);
  GenerationRequest no_write = Request(prompt, 1);
  no_write.cache_write = false;
  Run(no_write);
  EXPECT_EQ(Run(Request(prompt, 1)).last.timings.cached_pool, 0u);
  GenerationRequest no_read = Request(prompt, 1);
  no_read.cache_read = false;
  EXPECT_EQ(Run(no_read).last.timings.cached_pool, 0u);
  EXPECT_EQ(Run(Request(prompt, 1)).last.timings.cached_pool, 99u);
}

TEST_F(TextEngineTest, SixteenClientsWithCancelsGetTheRepliesOfLoneRuns) {
  constexpr uint32_t kRequests = 300;
  std::mt19937 random(11);
  const std::vector<TokenId> shared = Tokens(150, 1);
  std::vector<std::pair<std::vector<TokenId>, Collector>> running;
  std::vector<SequenceId> ids;
  uint32_t cancelled = 0, finished = 0;
  const auto settle = [&](size_t keep) {
    while (running.size() > keep) {
      const Reply reply = running.front().second.Wait();
      const std::vector<TokenId> expected = Expected(running.front().first, 20);
      ASSERT_LE(reply.tokens.size(), 20u);
      EXPECT_TRUE(std::equal(reply.tokens.begin(), reply.tokens.end(), expected.begin()));
      if (reply.last.finish == FinishReason::kCancelled) ++cancelled;
      if (reply.last.finish == FinishReason::kLength) {
        EXPECT_EQ(reply.tokens.size(), 20u);
        ++finished;
      }
      running.erase(running.begin());
      ids.erase(ids.begin());
    }
  };
  for (uint32_t i = 0; i < kRequests; ++i) {
    std::vector<TokenId> prompt(shared.begin(), shared.begin() + random() % shared.size());
    const std::vector<TokenId> more = Tokens(1 + random() % 200, random());
    prompt.insert(prompt.end(), more.begin(), more.end());
    Collector collector;
    const auto submission = engine_->Submit(Request(prompt, 20), collector.Sink());
    ASSERT_FALSE(submission.error);
    running.emplace_back(prompt, std::move(collector));
    ids.push_back(submission.id);
    if (random() % 3 == 0) engine_->Cancel(ids[random() % ids.size()]);
    settle(16);
  }
  settle(0);
  EXPECT_EQ(cancelled + finished, kRequests);
  EXPECT_GT(cancelled, 0u);
  EXPECT_GT(finished, kRequests / 2);
  engine_->Drain(1000);
  for (const auto& group : engine_->cache_stats().groups) EXPECT_EQ(group.slots_active, 0u);
}

TEST_F(TextEngineTest, NotANumberFailsThatRequestAndSealsNothing) {
  const std::vector<TokenId> prompt = Tokens(60, 1);
  executor_->poisoned_token = prompt[40];
  const Reply poisoned = Run(Request(prompt, 4));
  ASSERT_TRUE(poisoned.last.error);
  EXPECT_EQ(poisoned.last.error->code, "internal");
  executor_->poisoned_token = TokenId(-1);
  EXPECT_EQ(Run(Request(prompt, 4)).last.timings.cached_pool, 0u);
  EXPECT_EQ(Run(Request(prompt, 4)).last.timings.cached_pool, 59u);  // control
}

TEST_F(TextEngineTest, AFailingExecutorFailsRequestsNotTheEngine) {
  executor_->fail_runs = true;
  EXPECT_EQ(Run(Request(Tokens(10, 1), 4)).last.finish, FinishReason::kError);
  executor_->fail_runs = false;
  EXPECT_EQ(Run(Request(Tokens(10, 1), 4)).last.finish, FinishReason::kLength);
}

TEST_F(TextEngineTest, BadRequestsAreRefusedWithBothNumbers) {
  Collector unused;
  const auto submit = [&](GenerationRequest request) {
    return engine_->Submit(std::move(request), unused.Sink()).error;
  };
  auto error = submit(Request(Tokens(1000, 1), 100));
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code, "context_too_long");
  EXPECT_EQ(error->limit, 1024);
  EXPECT_EQ(error->got, 1100);
  EXPECT_EQ(submit(Request({}, 1))->code, "invalid_value");
  EXPECT_EQ(submit(Request({TokenId(-1)}, 1))->code, "invalid_value");
  EXPECT_EQ(submit(Request({TokenId(49152)}, 1))->code, "invalid_value");
}

TEST_F(TextEngineTest, AFullQueueIsRefusedWithRetryAfter) {
  Make({.sequences_max = 1, .queue_requests_max = 2});
  std::vector<Collector> collectors(40);
  uint32_t refused = 0;
  for (Collector& collector : collectors) {
    const auto submission = engine_->Submit(Request(Tokens(400, 1), 500), collector.Sink());
    if (!submission.error) continue;
    EXPECT_EQ(submission.error->code, "queue_full");
    EXPECT_EQ(submission.error->http_status, 429);
    EXPECT_GT(submission.error->retry_after_s, 0u);
    ++refused;
  }
  EXPECT_GT(refused, 30u);
}

TEST_F(TextEngineTest, StopStringsEndTheReply) {
  const std::vector<TokenId> prompt = Tokens(50, 1);
  const Reply whole = Run(Request(prompt, 30));
  ASSERT_GT(whole.text.size(), 12u);
  GenerationRequest request = Request(prompt, 30);
  request.stop = {whole.text.substr(8, 4)};
  const Reply stopped = Run(request);
  EXPECT_EQ(stopped.last.finish, FinishReason::kStop);
  EXPECT_EQ(stopped.text, whole.text.substr(0, whole.text.find(request.stop[0])));
}

TEST_F(TextEngineTest, DrainLetsRunningRequestsFinishAndRefusesNewOnes) {
  Collector running;
  ASSERT_FALSE(engine_->Submit(Request(Tokens(100, 1), 50), running.Sink()).error);
  std::thread drain([&] { engine_->Drain(10000); });
  EXPECT_EQ(running.Wait().last.finish, FinishReason::kLength);
  drain.join();
  Collector late;
  EXPECT_EQ(engine_->Submit(Request(Tokens(10, 1), 5), late.Sink()).error->code, "shutting_down");
}

}  // namespace
}  // namespace reprise
