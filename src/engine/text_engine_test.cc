#include "engine/text_engine.h"

#include <gtest/gtest.h>

#include <atomic>
#include <deque>
#include <future>
#include <random>
#include <thread>

#include "scheduler/fake_executor.h"
#include "tests/engine_client.h"
#include "tests/models.h"

namespace reprise {
namespace {

constexpr uint32_t kVocabSize = 49152;  // SmolLM2's

class TextEngineTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    ledger_ = new Ledger(8ull << 30);
    auto tokenizer = Tokenizer::Load(ModelPath(SmallModels()[0]), *ledger_);
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

  Reply Run(GenerationRequest request) { return PendingReply(*engine_, std::move(request)).Wait(); }
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
  const std::vector<TokenId> prompt = RandomTokens(200, kVocabSize, 1);
  const Reply cold = Run(GreedyRequest(prompt, 10));
  const Reply warm = Run(GreedyRequest(prompt, 10));
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
  const std::vector<TokenId> prompt = RandomTokens(100, kVocabSize, 1);
  Run(GreedyRequest(prompt, 1));
  GenerationRequest salted = GreedyRequest(prompt, 1);
  salted.scope.salt = "";
  EXPECT_EQ(Run(salted).last.timings.cached_pool, 0u);
  EXPECT_EQ(Run(salted).last.timings.cached_pool, 99u);  // control: the same salt hits
  GenerationRequest other = GreedyRequest(prompt, 1);
  other.scope.tenant = "other";
  EXPECT_EQ(Run(other).last.timings.cached_pool, 0u);
  EXPECT_EQ(Run(GreedyRequest(prompt, 1)).last.timings.cached_pool, 99u);
}

TEST_F(TextEngineTest, ReadAndWriteAreObeyed) {
  const std::vector<TokenId> prompt = RandomTokens(100, kVocabSize, 1);
  GenerationRequest no_write = GreedyRequest(prompt, 1);
  no_write.cache_write = false;
  Run(no_write);
  EXPECT_EQ(Run(GreedyRequest(prompt, 1)).last.timings.cached_pool, 0u);
  GenerationRequest no_read = GreedyRequest(prompt, 1);
  no_read.cache_read = false;
  EXPECT_EQ(Run(no_read).last.timings.cached_pool, 0u);
  EXPECT_EQ(Run(GreedyRequest(prompt, 1)).last.timings.cached_pool, 99u);
}

TEST_F(TextEngineTest, SixteenClientsWithCancelsGetTheRepliesOfLoneRuns) {
  constexpr uint32_t kRequests = 300;
  std::mt19937 random(11);
  const std::vector<TokenId> shared = RandomTokens(150, kVocabSize, 1);
  std::deque<std::pair<std::vector<TokenId>, PendingReply>> running;
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
      running.pop_front();
    }
  };
  for (uint32_t i = 0; i < kRequests; ++i) {
    std::vector<TokenId> prompt(shared.begin(), shared.begin() + random() % shared.size());
    const std::vector<TokenId> more = RandomTokens(1 + random() % 200, kVocabSize, random());
    prompt.insert(prompt.end(), more.begin(), more.end());
    running.emplace_back(prompt, PendingReply(*engine_, GreedyRequest(prompt, 20)));
    if (random() % 3 == 0) engine_->Cancel(running[random() % running.size()].second.id());
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
  const std::vector<TokenId> prompt = RandomTokens(60, kVocabSize, 1);
  executor_->poisoned_token = prompt[40];
  const Reply poisoned = Run(GreedyRequest(prompt, 4));
  ASSERT_TRUE(poisoned.last.error);
  EXPECT_EQ(poisoned.last.error->code, "internal");
  executor_->poisoned_token = TokenId(-1);
  EXPECT_EQ(Run(GreedyRequest(prompt, 4)).last.timings.cached_pool, 0u);
  EXPECT_EQ(Run(GreedyRequest(prompt, 4)).last.timings.cached_pool, 59u);  // control
}

TEST_F(TextEngineTest, AFailingExecutorFailsRequestsNotTheEngine) {
  executor_->fail_runs = true;
  EXPECT_EQ(Run(GreedyRequest(RandomTokens(10, kVocabSize, 1), 4)).last.finish, FinishReason::kError);
  executor_->fail_runs = false;
  EXPECT_EQ(Run(GreedyRequest(RandomTokens(10, kVocabSize, 1), 4)).last.finish, FinishReason::kLength);
}

TEST_F(TextEngineTest, BadRequestsAreRefusedWithBothNumbers) {
  const auto submit = [&](GenerationRequest request) { return Run(std::move(request)).last.error; };
  auto error = submit(GreedyRequest(RandomTokens(1000, kVocabSize, 1), 100));
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code, "context_too_long");
  EXPECT_EQ(error->limit, 1024);
  EXPECT_EQ(error->got, 1100);
  EXPECT_EQ(submit(GreedyRequest({}, 1))->code, "invalid_value");
  EXPECT_EQ(submit(GreedyRequest({TokenId(-1)}, 1))->code, "invalid_value");
  EXPECT_EQ(submit(GreedyRequest({TokenId(49152)}, 1))->code, "invalid_value");
}

TEST_F(TextEngineTest, AFullQueueIsRefusedWithRetryAfter) {
  Make({.sequences_max = 1, .queue_requests_max = 2});
  std::vector<PendingReply> replies;
  for (uint32_t i = 0; i < 40; ++i)
    replies.emplace_back(*engine_, GreedyRequest(RandomTokens(400, kVocabSize, 1), 500));
  uint32_t refused = 0;
  for (PendingReply& pending : replies) {
    const auto error = pending.Wait().last.error;
    if (!error) continue;
    EXPECT_EQ(error->code, "queue_full");
    EXPECT_EQ(error->http_status, 429);
    EXPECT_GT(error->retry_after_s, 0u);
    ++refused;
  }
  EXPECT_GT(refused, 30u);
}

TEST_F(TextEngineTest, WhoWaitsTooLongIsRefused) {
  Make({.sequences_max = 1, .queue_timeout_ms = 20});
  std::promise<void> began;
  std::promise<FinishReason> ended;
  bool begun = false;
  const auto submission =
      engine_->Submit(GreedyRequest(RandomTokens(20, kVocabSize, 1), 900), [&](GenerationEvent event) {
        if (!std::exchange(begun, true)) began.set_value();
        if (event.finish) ended.set_value(*event.finish);
      });
  ASSERT_FALSE(submission.error);
  began.get_future().wait();
  PendingReply waiting(*engine_, GreedyRequest(RandomTokens(400, kVocabSize, 2), 10));
  const Reply late = waiting.Wait();
  ASSERT_TRUE(late.last.error);
  EXPECT_EQ(late.last.error->http_status, 429);
  EXPECT_EQ(late.last.error->code, "queue_full");
  EXPECT_GE(*late.last.error->got, *late.last.error->limit);
  EXPECT_GE(late.last.error->retry_after_s, 1u);
  EXPECT_EQ(ended.get_future().get(), FinishReason::kLength);
  Make({.sequences_max = 1, .queue_timeout_ms = 0});  // control: without a limit it is served
  PendingReply first(*engine_, GreedyRequest(RandomTokens(400, kVocabSize, 1), 500));
  EXPECT_EQ(Run(GreedyRequest(RandomTokens(400, kVocabSize, 2), 10)).last.finish, FinishReason::kLength);
}

// While a long prompt is computed, at most shared_rows_max of its rows come between two tokens of a running reply.
TEST_F(TextEngineTest, LongPromptsDoNotStopRunningReplies) {
  constexpr uint32_t kShared = 32;  // Make's
  std::vector<uint64_t> rows;       // computed when each token of the running reply came
  std::atomic<bool> begun = false;
  std::promise<void> ended;
  const auto submission =
      engine_->Submit(GreedyRequest(RandomTokens(20, kVocabSize, 1), 600), [&](GenerationEvent event) {
        if (event.prefilled == 0) rows.push_back(executor_->rows_computed);
        begun = true;
        if (event.finish) ended.set_value();
      });
  ASSERT_FALSE(submission.error);
  while (!begun) std::this_thread::yield();
  std::vector<PendingReply> prompts;
  for (uint32_t i = 0; i < 3; ++i)
    prompts.emplace_back(*engine_, GreedyRequest(RandomTokens(900, kVocabSize, 10 + i), 2));
  for (PendingReply& prompt : prompts) EXPECT_EQ(prompt.Wait().last.finish, FinishReason::kLength);
  ended.get_future().wait();
  uint64_t widest = 0;
  for (size_t i = 1; i < rows.size(); ++i) widest = std::max(widest, rows[i] - rows[i - 1]);
  EXPECT_LE(widest, kShared + 4);  // and a row for each running reply
  EXPECT_GT(widest, 4u);           // control: the prompts were computed meanwhile
  // Control: alone, a prompt takes whole steps.
  executor_->rows_in_batch_max = 0;
  Run(GreedyRequest(RandomTokens(900, kVocabSize, 99), 1));
  EXPECT_EQ(executor_->rows_in_batch_max, 64u);
}

TEST_F(TextEngineTest, PenaltiesAndBiasesReachTheDraw) {
  const std::vector<TokenId> prompt = RandomTokens(50, kVocabSize, 1);
  const TokenId first = Run(GreedyRequest(prompt, 1)).tokens.at(0);
  GenerationRequest request = GreedyRequest(prompt, 6);
  request.logit_bias = {{first, -100}};
  EXPECT_NE(Run(request).tokens.at(0), first);
  request.logit_bias = {{TokenId(77), 100}};
  EXPECT_EQ(Run(request).tokens, std::vector<TokenId>(6, TokenId(77)));
  request.logit_bias = {{TokenId(77), 11}};  // the fake's favourite has a logit of 10, all others 0
  request.sampling.frequency_penalty = 2;    // so it comes once
  const std::vector<TokenId> penalized = Run(request).tokens;
  EXPECT_EQ(std::count(penalized.begin(), penalized.end(), TokenId(77)), 1);
  request.logit_bias = {{TokenId(-1), 1}};
  EXPECT_EQ(Run(request).last.error->param, "logit_bias");
  request.logit_bias.assign(kLogitBiasMax + 1, {TokenId(1), 1});
  EXPECT_EQ(Run(request).last.error->param, "logit_bias");
}

TEST_F(TextEngineTest, RepliesFollowTheirGrammar) {
  const auto grammar = Grammar::FromGbnf(*tokenizer_, R"(root ::= "[" [0-9]+ ("," [0-9]+)* "]")", {});
  ASSERT_TRUE(grammar.ok()) << grammar.status();
  GenerationRequest request = GreedyRequest(RandomTokens(50, kVocabSize, 1), 40);
  request.grammar = *grammar;
  request.sampling.temperature = 1;
  for (uint64_t seed = 0; seed < 5; ++seed) {
    request.sampling.seed = seed;
    const Reply reply = Run(request);
    ASSERT_FALSE(reply.last.error) << reply.last.error->message;
    EXPECT_EQ(reply.text[0], '[');
    EXPECT_EQ(reply.text.find_first_not_of("[]0123456789,"), std::string::npos) << reply.text;
    EXPECT_EQ(reply.last.finish == FinishReason::kStop, reply.text.ends_with(']'));
    EXPECT_EQ(Run(request).text, reply.text);
  }
}

TEST_F(TextEngineTest, WrittenTokensShowInTheText) {
  const TokenId start = tokenizer_->Encode("<|im_start|>", false, true).at(0);
  GenerationRequest request = GreedyRequest(RandomTokens(50, kVocabSize, 1), 2);
  request.logit_bias = {{start, 100}};
  EXPECT_EQ(Run(request).text, "");
  request.written_tokens = {start};
  EXPECT_EQ(Run(request).text, "<|im_start|><|im_start|>");
}

TEST_F(TextEngineTest, StopStringsEndTheReply) {
  const std::vector<TokenId> prompt = RandomTokens(50, kVocabSize, 1);
  const Reply whole = Run(GreedyRequest(prompt, 30));
  ASSERT_GT(whole.text.size(), 12u);
  GenerationRequest request = GreedyRequest(prompt, 30);
  request.stop = {whole.text.substr(8, 4)};
  const Reply stopped = Run(request);
  EXPECT_EQ(stopped.last.finish, FinishReason::kStop);
  EXPECT_EQ(stopped.last.stop_string, request.stop[0]);
  EXPECT_EQ(stopped.text, whole.text.substr(0, whole.text.find(request.stop[0])));
}

// The tokens that came spell what the text shows, or less by one that the stop string begins in; a prefix of the
// reply's.
TEST_F(TextEngineTest, TokensOfAStopStringAreNotNamed) {
  const std::vector<TokenId> prompt = RandomTokens(50, kVocabSize, 1);
  const Reply whole = Run(GreedyRequest(prompt, 30));
  for (size_t start = 4; start + 9 < whole.text.size(); ++start) {
    GenerationRequest request = GreedyRequest(prompt, 30);
    request.stop = {whole.text.substr(start, 9)};
    const Reply stopped = Run(request);
    ASSERT_EQ(stopped.last.stop_string, request.stop[0]);
    ASSERT_LT(stopped.tokens.size(), stopped.last.timings.predicted_n);
    ASSERT_TRUE(std::equal(stopped.tokens.begin(), stopped.tokens.end(), whole.tokens.begin()));
    std::string spelled;
    for (const TokenId token : stopped.tokens) spelled += tokenizer_->Piece(token, /*special=*/false);
    ASSERT_TRUE(stopped.text.starts_with(spelled)) << spelled;
    spelled += tokenizer_->Piece(whole.tokens[stopped.tokens.size()], /*special=*/false);
    ASSERT_GT(spelled.size(), stopped.text.size()) << "one more belongs to the text alone: it should have come";
  }
  GenerationRequest control = GreedyRequest(prompt, 30);
  control.stop = {"not in the reply"};
  EXPECT_EQ(Run(control).tokens, whole.tokens);
}

TEST_F(TextEngineTest, ReceiptsAndExplainSayWhatTheCacheHad) {
  std::vector<TokenId> prompt = RandomTokens(100, kVocabSize, 1);
  GenerationRequest request = GreedyRequest(prompt, 1);
  EXPECT_EQ(Run(request).last.prefix->match.reason, MissReason::kNeverSeen) << "the match, asked for or not";
  prompt[70] = TokenId(17);
  request.prompt = prompt;
  request.receipt = true;
  const Reply reply = Run(request);
  ASSERT_TRUE(reply.last.prefix.has_value());
  EXPECT_EQ(reply.last.prefix->match.tokens, reply.last.timings.cached_pool);
  EXPECT_EQ(reply.last.prefix->match.reason, MissReason::kTokensDiffer);
  EXPECT_EQ(reply.last.prefix->fork, 70u);

  std::promise<PrefixReport> explained;
  ASSERT_TRUE(engine_->Explain({.prompt = prompt, .scope = request.scope},
                               [&](PrefixReport report) { explained.set_value(report); }));
  EXPECT_EQ(explained.get_future().get().match.tokens, 99u) << "by now it is all there";
  std::promise<EngineInterface::Purged> purged;
  ASSERT_TRUE(engine_->Purge("test", [&](EngineInterface::Purged all) { purged.set_value(std::move(all)); }));
  EXPECT_GT(purged.get_future().get().memory.blocks, 0u);
  EXPECT_EQ(Run(request).last.timings.cached_pool, 0u);
  engine_->Drain(1000);
  EXPECT_FALSE(engine_->Purge("test", [](EngineInterface::Purged) { FAIL(); }));
}

TEST_F(TextEngineTest, DrainLetsRunningRequestsFinishAndRefusesNewOnes) {
  PendingReply running(*engine_, GreedyRequest(RandomTokens(100, kVocabSize, 1), 50));
  std::thread drain([&] { engine_->Drain(10000); });
  EXPECT_EQ(running.Wait().last.finish, FinishReason::kLength);
  drain.join();
  EXPECT_EQ(Run(GreedyRequest(RandomTokens(10, kVocabSize, 1), 5)).last.error->code, "shutting_down");
}

}  // namespace
}  // namespace reprise
