// Engines over tiny models with a disk tier, for tests of what becomes of it.
//
// Ownership: a TinyCold owns its engine. Threads: one. Errors: of gtest.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <future>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/local_engine.h"
#include "tests/engine_client.h"
#include "tests/gguf_writer.h"
#include "tests/tiny_model.h"
#include "tier/disk_store.h"

namespace reprise {

// 2 KiB of state per token, 32 tokens a block; computing a block takes longer than reading it.
inline TinyOptions TinyOf(bool windows, uint64_t seed = 1) {
  TinyOptions tiny{.layers = 4, .context = 2048, .seed = seed};
  if (windows) {
    tiny.family = Family::kGemma3;
    tiny.window = 80;
    tiny.window_period = 2;
  }
  return tiny;
}

inline std::string WriteTiny(const TinyOptions& tiny, const std::string& name) {
  std::string path = TestPath(name);
  WriteFile(path, TinyModel(tiny).Bytes());
  return path;
}

inline LocalEngineOptions TinyEngine(const std::string& model, const DiskTierOptions& disk) {
  LocalEngineOptions options{.model_path = model, .memory_bytes = 400ull << 20, .context = 2048, .threads = 1};
  options.sequences_max = 8;
  options.step_rows_max = 128;
  options.shared_rows_max = 64;
  options.disk = disk;
  return options;
}

inline std::unique_ptr<LocalEngine> LoadEngine(const LocalEngineOptions& options) {
  auto engine = LocalEngine::Load(options, nullptr);
  EXPECT_TRUE(engine.ok()) << engine.status();
  return engine.ok() ? *std::move(engine) : nullptr;
}

inline GenerationRequest Asked(const std::vector<TokenId>& prompt, const Scope& scope) {
  GenerationRequest request = GreedyRequest(prompt, 5);
  request.logprobs = 0;
  request.receipt = true;
  request.scope = scope;
  return request;
}

inline Reply Answer(LocalEngine& local, GenerationRequest request) {
  Reply reply = PendingReply(local.engine(), std::move(request)).Wait();
  EXPECT_FALSE(reply.last.error) << reply.last.error->message;
  return reply;
}

inline std::vector<TokenId> Join(std::vector<TokenId> a, const std::vector<TokenId>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

inline PrefixReport ExplainPrompt(LocalEngine& local, const std::vector<TokenId>& prompt, const Scope& scope) {
  std::promise<PrefixReport> promise;
  const bool taken = local.engine().Explain({.prompt = prompt, .scope = scope, .adapters = {}},
                                            [&](PrefixReport report) { promise.set_value(std::move(report)); });
  EXPECT_TRUE(taken);
  return taken ? promise.get_future().get() : PrefixReport{};
}

// What ended before is on the disk now, unless it was declined or failed. False: not within a minute.
inline bool WaitStored(LocalEngine& local) {
  // The engine offers blocks to the tier once a step, between two tasks.
  for (int i = 0; i < 2; ++i) ExplainPrompt(local, {TokenId(0)}, {.tenant = "nobody"});
  const auto done = [](const TierStats& stats) { return stats.store.ok + stats.store.error; };
  TierStats stats = *local.engine().tier_stats();
  const uint64_t wanted = done(stats) + stats.stores_queued;
  const auto until = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (done(stats) < wanted) {
    if (std::chrono::steady_clock::now() > until) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(200));
    stats = *local.engine().tier_stats();
  }
  return true;
}

// What a model answers without any cache.
class TinyCold {
 public:
  explicit TinyCold(const std::string& model) : engine_(LoadEngine(TinyEngine(model, {}))) {}

  const Reply& Of(const std::vector<TokenId>& prompt) {
    const auto it = replies_.find(prompt);
    if (it != replies_.end()) return it->second;
    GenerationRequest request = Asked(prompt, {.tenant = "cold"});
    request.cache_read = request.cache_write = false;
    Reply reply = Answer(*engine_, std::move(request));
    EXPECT_EQ(reply.timings().cached(), 0u);
    return replies_.emplace(prompt, std::move(reply)).first->second;
  }
  uint32_t vocab_size() const { return engine_->model().vocab_size; }
  void ExpectSame(const Reply& reply, const std::vector<TokenId>& prompt) {
    const Reply& alone = Of(prompt);
    EXPECT_EQ(reply.tokens, alone.tokens);
    ASSERT_EQ(reply.logprobs.size(), alone.logprobs.size());
    EXPECT_EQ(std::memcmp(reply.logprobs.data(), alone.logprobs.data(), alone.logprobs.size() * sizeof(float)), 0);
  }

 private:
  std::unique_ptr<LocalEngine> engine_;
  std::map<std::vector<TokenId>, Reply> replies_;
};

// Removed with all that is in it.
class TestDirectory {
 public:
  TestDirectory() {
    static int count = 0;
    path_ = TestPath("disk-" + std::to_string(count++));
    std::filesystem::create_directories(path_);
  }
  ~TestDirectory() { std::filesystem::remove_all(path_); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace reprise
