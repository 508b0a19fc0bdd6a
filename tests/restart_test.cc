// What a restart remembers, with real models of all three families: replies have the bits of a run without any cache,
// and what was computed before is not computed again.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "engine/local_engine.h"
#include "tests/engine_client.h"
#include "tests/models.h"
#include "tests/random_lora.h"
#include "tier/codec.h"

namespace reprise {
namespace {

class Directory {
 public:
  Directory() {
    std::string name = testing::TempDir() + "/reprise_restart_XXXXXX";
    EXPECT_NE(mkdtemp(name.data()), nullptr);
    path_ = name;
  }
  ~Directory() { std::filesystem::remove_all(path_); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

struct Setting {
  std::string model;
  Codec codec;
};
void PrintTo(const Setting& setting, std::ostream* out) { *out << setting.model << " " << Name(setting.codec); }

LocalEngineOptions OptionsOf(const Setting& setting, const Directory& directory) {
  LocalEngineOptions options{.model_path = ModelPath(setting.model), .memory_bytes = 3ull << 30, .context = 4096};
  options.shuffle_seed = 5;
  options.tier_patience_ms = 10'000;  // however busy the machine is
  options.disk = {.directory = directory.path(), .bytes_max = 4ull << 30, .codec = setting.codec};
  return options;
}

std::unique_ptr<LocalEngine> Load(const LocalEngineOptions& options) {
  auto engine = LocalEngine::Load(options, nullptr);
  EXPECT_TRUE(engine.ok()) << engine.status();
  if (!engine.ok()) return nullptr;
  EXPECT_EQ((*engine)->disk().error, "");
  return *std::move(engine);
}

std::vector<TokenId> Join(std::vector<TokenId> a, const std::vector<TokenId>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

GenerationRequest Asked(const std::vector<TokenId>& prompt) {
  GenerationRequest request = GreedyRequest(prompt, 8);
  request.logprobs = 0;
  request.receipt = true;
  return request;
}

// The reply, checked against one of the same engine without any cache.
Reply Ask(LocalEngine& local, GenerationRequest request) {
  GenerationRequest cold = request;
  cold.cache_read = cold.cache_write = false;
  const Reply reply = PendingReply(local.engine(), std::move(request)).Wait();
  EXPECT_FALSE(reply.last.error) << reply.last.error->message;
  const Reply alone = PendingReply(local.engine(), cold).Wait();
  EXPECT_EQ(reply.tokens, alone.tokens);
  EXPECT_EQ(reply.logprobs, alone.logprobs);
  EXPECT_EQ(alone.timings().cached(), 0u);
  return reply;
}

class Restart : public testing::TestWithParam<Setting> {};

// A conversation far past the window: at every turn's end, and at the end of each prompt, work is taken up again.
TEST_P(Restart, AConversationGoesOnWhereItWas) {
  const Directory directory;
  const LocalEngineOptions options = OptionsOf(GetParam(), directory);
  std::vector<std::vector<TokenId>> prompts, ends;
  {
    const auto local = Load(options);
    ASSERT_NE(local, nullptr);
    std::vector<TokenId> conversation;
    for (uint32_t turn = 0; turn < 3; ++turn) {
      conversation = Join(conversation, RandomTokens(310, local->model().vocab_size, turn));
      prompts.push_back(conversation);
      const Reply reply = Ask(*local, Asked(conversation));
      EXPECT_EQ(reply.timings().cached_disk, 0u);
      conversation = Join(conversation, reply.tokens);
      ends.push_back(conversation);
    }
  }
  for (size_t turn = 0; turn < prompts.size(); ++turn) {
    SCOPED_TRACE(turn);
    const auto local = Load(options);
    ASSERT_NE(local, nullptr);
    // The same question, then the next one.
    Reply reply = Ask(*local, Asked(prompts[turn]));
    EXPECT_EQ(reply.timings().cached_disk, prompts[turn].size() - 1);
    EXPECT_EQ(reply.timings().computed_n, 1u);
    EXPECT_GT(reply.timings().load_ms, 0);
    EXPECT_EQ(reply.last.prefix->tier.tokens, prompts[turn].size() - 1);
    reply = Ask(*local, Asked(Join(ends[turn], RandomTokens(20, local->model().vocab_size, 77 + turn))));
    EXPECT_GE(reply.timings().cached(), ends[turn].size() - 1)
        << "the last sampled token is computed by a next turn only";
    if (std::getenv("REPRISE_LONG") == nullptr) turn += 1;
  }
}

// Shorter than four blocks, and not a multiple of one.
TEST_P(Restart, ASystemPromptOf240TokensIsThereForAnotherQuestion) {
  const Directory directory;
  const LocalEngineOptions options = OptionsOf(GetParam(), directory);
  std::vector<TokenId> system;
  {
    const auto local = Load(options);
    ASSERT_NE(local, nullptr);
    system = RandomTokens(240, local->model().vocab_size, 9);
    Ask(*local, Asked(Join(system, RandomTokens(50, local->model().vocab_size, 10))));
    Ask(*local, Asked(Join(system, RandomTokens(50, local->model().vocab_size, 11))));  // the fork is seen
  }
  const auto local = Load(options);
  ASSERT_NE(local, nullptr);
  const Reply reply = Ask(*local, Asked(Join(system, RandomTokens(50, local->model().vocab_size, 12))));
  EXPECT_EQ(reply.timings().cached_disk, 240u);
  GenerationRequest other = Asked(Join(system, RandomTokens(50, local->model().vocab_size, 12)));
  other.scope.tenant = "other";
  EXPECT_EQ(Ask(*local, other).timings().cached(), 0u) << "another tenant's";
}

// 30,000 tokens of a model with a sliding window: the window's slots of the end, and all of the full layers.
TEST(RestartLong, AConversationOf30000TokensOfAWindowModel) {
  if (std::getenv("REPRISE_LONG") == nullptr) GTEST_SKIP() << "minutes of computing";
  const Directory directory;
  LocalEngineOptions options = OptionsOf({SmallModels()[1], Codec::kRaw}, directory);
  options.context = 32768;
  std::vector<TokenId> conversation;
  {
    const auto local = Load(options);
    ASSERT_NE(local, nullptr);
    conversation = RandomTokens(30'000, local->model().vocab_size, 1);
    const Reply reply = PendingReply(local->engine(), Asked(conversation)).Wait();
    ASSERT_FALSE(reply.last.error) << reply.last.error->message;
    conversation = Join(conversation, reply.tokens);
  }
  const auto local = Load(options);
  ASSERT_NE(local, nullptr);
  const Reply reply = Ask(*local, Asked(Join(conversation, RandomTokens(20, local->model().vocab_size, 2))));
  EXPECT_EQ(reply.timings().cached_disk, conversation.size() - 1);
  std::printf("30,000 tokens: first token after %.0f ms, of which %.0f ms reading\n", reply.timings().first_token_ms,
              reply.timings().load_ms);
}

INSTANTIATE_TEST_SUITE_P(Models, Restart, testing::ValuesIn([] {
                           std::vector<Setting> settings;
                           for (const std::string& model : SmallModels()) settings.push_back({model, Codec::kRaw});
                           settings.push_back({SmallModels()[0], Codec::kPlanes});
                           return settings;
                         }()),
                         [](const auto& info) { return std::to_string(info.index); });

// Another adapter, or another scale of it, is another computation.
TEST(RestartIdentity, AnAdapterFindsItsOwnOnly) {
  const Directory directory;
  const LocalEngineOptions plain = OptionsOf({SmallModels()[0], Codec::kRaw}, directory);
  std::vector<TokenId> prompt;
  {
    const auto local = Load(plain);
    ASSERT_NE(local, nullptr);
    prompt = RandomTokens(300, local->model().vocab_size, 3);
    Ask(*local, Asked(prompt));
  }
  LocalEngineOptions adapted = plain;
  const auto model = ModelDescription::Read(plain.model_path, {});
  ASSERT_TRUE(model.ok()) << model.status();
  const std::string adapter = WriteRandomLora(**model, {}, "restart.gguf");
  adapted.adapters = {{.path = adapter}};
  {
    const auto local = Load(adapted);
    ASSERT_NE(local, nullptr);
    const Reply reply = Ask(*local, Asked(prompt));
    EXPECT_EQ(reply.timings().cached(), 0u);
    EXPECT_EQ(reply.last.prefix->match.reason, MissReason::kAdapterDiffers);
  }
  const auto local = Load(adapted);
  ASSERT_NE(local, nullptr);
  EXPECT_EQ(Ask(*local, Asked(prompt)).timings().cached_disk, 299u);
}

}  // namespace
}  // namespace reprise
