// Killed at any moment, and asked again: a process that answers, stores, reclaims and purges is ended by SIGKILL, and
// what comes after it on the same directory gives the bits of a run without any cache, finds what was acknowledged as
// stored, and nothing of what was purged.
//
// The parent starts itself as the child, which walks through a script that both make from the same seed, and writes
// what it has to a pipe, a line each:
//
//   begin I, asked I      an item's prompt, before it is submitted and after its reply
//   stored I              all that the engine had to store after that reply is written
//   purging I, purged I   an item's tenant, before the purge and after it
//   usage B E             pieces that the tier holds, and how many it evicted so far
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <mutex>
#include <random>
#include <set>
#include <sstream>

#include "tests/tiny_disk.h"

extern char** environ;

namespace reprise {
namespace {

constexpr char kChildFlag[] = "--child";

uint32_t CommonTokens(const std::vector<TokenId>& a, const std::vector<TokenId>& b) {
  const size_t most = std::min(a.size(), b.size());
  return static_cast<uint32_t>(std::mismatch(a.begin(), a.begin() + most, b.begin()).first - a.begin());
}

// What is asked and purged, one item after the other; the same for the same seed.
class Script {
 public:
  struct Item {
    std::string tenant;
    std::vector<TokenId> prompt;  // empty: the tenant is purged
    bool purge() const { return prompt.empty(); }
  };

  Script(uint64_t seed, uint32_t vocab_size) : random_(seed), vocab_size_(vocab_size) {
    for (uint32_t tokens : {97, 240}) systems_.push_back(Tokens(tokens));
  }
  const Item& at(size_t index) {
    while (items_.size() <= index) items_.push_back(Next());
    return items_[index];
  }

 private:
  static constexpr size_t kPromptMax = 600;

  std::vector<TokenId> Tokens(uint32_t count) { return RandomTokens(count, vocab_size_, random_()); }

  // A late one of this tenant, or now and then of any; null: there is none.
  const Item* Earlier(const std::string& tenant) {
    const bool any = random_() % 5 == 0;
    for (int attempt = 0; attempt < 10 && !items_.empty(); ++attempt) {
      const Item& item = items_[items_.size() - 1 - random_() % std::min<size_t>(items_.size(), 16)];
      if (!item.purge() && (any || item.tenant == tenant)) return &item;
    }
    return nullptr;
  }

  Item Next() {
    Item item{.tenant = std::string(1, static_cast<char>('a' + random_() % 3)), .prompt = {}};
    const uint64_t kind = random_() % 100;
    if (kind < 8 && items_.size() > 4) return item;
    const Item* earlier = Earlier(item.tenant);
    if (earlier == nullptr || kind >= 80) {
      item.prompt = Join(systems_[random_() % systems_.size()], Tokens(20 + random_() % 130));
    } else if (kind < 45) {  // a next turn
      item.prompt = Join(earlier->prompt, Tokens(20 + random_() % 130));
    } else if (kind < 65) {  // a fork
      item.prompt = earlier->prompt;
      item.prompt.resize(1 + random_() % item.prompt.size());
      item.prompt = Join(item.prompt, Tokens(1 + random_() % 100));
    } else {
      item.prompt = earlier->prompt;
    }
    if (item.prompt.size() > kPromptMax) item.prompt.resize(kPromptMax - random_() % 64);
    return item;
  }

  std::mt19937_64 random_;
  const uint32_t vocab_size_;
  std::vector<std::vector<TokenId>> systems_;
  std::deque<Item> items_;
};

// ---------------------------------------------------------------- the child

struct ChildArguments {
  std::string model;
  std::string directory;
  uint64_t bytes_max = 0;
  uint64_t seed = 0;
  uint64_t first_item = 0;
};

class Child {
 public:
  Child(const ChildArguments& arguments, int out)
      : engine_(LoadEngine(
            TinyEngine(arguments.model, {.directory = arguments.directory, .bytes_max = arguments.bytes_max}))),
        script_(arguments.seed, engine_->model().vocab_size),
        next_(arguments.first_item),
        out_(out),
        acknowledging_([this] { Acknowledge(); }),
        watching_([this] { Watch(); }) {}
  ~Child() {
    ended_ = true;
    acknowledging_.join();
    watching_.join();
  }

  // Until it is killed, or its parent is gone.
  void Walk() {
    std::mt19937_64 random(next_);
    while (!ended_) {
      const Script::Item& item = script_.at(next_);
      if (item.purge()) {
        Purge(next_++, item.tenant);
        continue;
      }
      Say("begin", next_);
      running_.emplace_back(next_++, PendingReply(engine_->engine(), Asked(item.prompt, {.tenant = item.tenant})));
      const size_t at_once = random() % 3;
      while (running_.size() > at_once) {
        const uint64_t index = running_.front().first;
        if (running_.front().second.Wait().last.error) _exit(3);
        running_.pop_front();
        Say("asked", index);
        const std::lock_guard lock(mutex_);
        asked_.push_back(index);
      }
    }
  }

 private:
  void Purge(uint64_t index, const std::string& tenant) {
    Say("purging", index);
    std::promise<bool> done;
    engine_->engine().Purge(tenant,
                            [&](EngineInterface::Purged purged) { done.set_value(purged.tier && purged.tier->ok()); });
    if (done.get_future().get()) Say("purged", index);
  }

  void Acknowledge() {
    while (!ended_) {
      std::deque<uint64_t> asked;
      {
        const std::lock_guard lock(mutex_);
        asked.swap(asked_);
      }
      if (!asked.empty() && !WaitStored(*engine_)) _exit(4);
      for (uint64_t index : asked) Say("stored", index);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }

  void Watch() {
    TierUsage said;
    while (!ended_) {
      const TierUsage usage = engine_->engine().tier_stats()->usage;
      if (usage.blocks != said.blocks || usage.evicted_blocks != said.evicted_blocks)
        Say("usage", usage.blocks, usage.evicted_blocks);
      said = usage;
      std::this_thread::sleep_for(std::chrono::microseconds(500));
    }
  }

  template <class... Numbers>
  void Say(const char* what, Numbers... numbers) {
    std::ostringstream line;
    line << what;
    ((line << ' ' << numbers), ...);
    line << '\n';
    const std::string text = line.str();  // short: written at once or not at all
    if (write(out_, text.data(), text.size()) != static_cast<ssize_t>(text.size())) ended_ = true;
  }

  const std::unique_ptr<LocalEngine> engine_;  // its counts from any thread
  Script script_;
  uint64_t next_;
  const int out_;
  std::deque<std::pair<uint64_t, PendingReply>> running_;
  std::atomic<bool> ended_ = false;
  std::mutex mutex_;
  std::deque<uint64_t> asked_;  // replied, not acknowledged as stored; guarded by mutex_
  std::thread acknowledging_, watching_;
};

int RunChild(char** argv) {
  signal(SIGPIPE, SIG_IGN);
  const ChildArguments arguments{.model = argv[0],
                                 .directory = argv[1],
                                 .bytes_max = std::strtoull(argv[2], nullptr, 10),
                                 .seed = std::strtoull(argv[3], nullptr, 10),
                                 .first_item = std::strtoull(argv[4], nullptr, 10)};
  Child(arguments, STDOUT_FILENO).Walk();
  return 0;
}

// ---------------------------------------------------------------- the parent

struct Line {
  std::string what;
  uint64_t first = 0, second = 0;
};

// Starts a child, kills it so long after its first acknowledgement, and gives what it said.
std::vector<Line> RunAndKill(const ChildArguments& arguments, std::chrono::microseconds after) {
  using Clock = std::chrono::steady_clock;
  int ends[2];
  EXPECT_EQ(pipe2(ends, O_CLOEXEC), 0);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  std::vector<std::string> words = {"/proc/self/exe",
                                    kChildFlag,
                                    arguments.model,
                                    arguments.directory,
                                    std::to_string(arguments.bytes_max),
                                    std::to_string(arguments.seed),
                                    std::to_string(arguments.first_item)};
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  pid_t child = 0;
  EXPECT_EQ(posix_spawn(&child, words[0].c_str(), &actions, nullptr, argv.data(), environ), 0);
  posix_spawn_file_actions_destroy(&actions);
  close(ends[1]);

  constexpr auto kFirstWithin = std::chrono::seconds(60);
  Clock::time_point until = Clock::now() + kFirstWithin;
  std::string text;
  bool acknowledged = false, killed = false;
  while (true) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now()).count();
    pollfd waiting{.fd = ends[0], .events = POLLIN, .revents = 0};
    if (!killed && (left <= 0 || poll(&waiting, 1, static_cast<int>(left)) == 0)) {
      kill(child, SIGKILL);
      killed = true;
    }
    char buffer[4096];
    if (!killed && waiting.revents == 0) continue;
    const ssize_t got = read(ends[0], buffer, sizeof(buffer));
    if (got <= 0) break;
    text.append(buffer, static_cast<size_t>(got));
    if (!acknowledged && text.find("stored ") != std::string::npos) {
      acknowledged = true;
      until = Clock::now() + after;
    }
  }
  close(ends[0]);
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << "the child ended by itself: " << status;
  EXPECT_TRUE(acknowledged) << "nothing was stored in time";

  std::vector<Line> lines;
  std::istringstream in(text);
  for (std::string each; std::getline(in, each) && !in.eof();) {
    Line line;
    std::istringstream(each) >> line.what >> line.first >> line.second;
    lines.push_back(line);
  }
  return lines;
}

struct Setting {
  const char* name;
  uint64_t bytes_max;
  bool exact;  // the cap is never reached
};

struct Counts {
  uint64_t kills = 0, kills_in_purges = 0, kills_while_full = 0, torn = 0, torn_bytes = 0;
  uint64_t prompts = 0, purges = 0, asked_again = 0, fetched_tokens = 0, slower = 0;
  uint64_t blocks = 0, blocks_found = 0;  // of prompts that were acknowledged
  uint64_t pieces = 0, pieces_found = 0;  // of the tier, by its own count
  uint64_t evicted = 0;
  void Print(const char* name) const {
    std::printf("%s: %" PRIu64 " kills (%" PRIu64 " within a purge, %" PRIu64 " after evictions), %" PRIu64
                " torn ends of %" PRIu64 " bytes; %" PRIu64 " prompts acknowledged, %" PRIu64 " purges, %" PRIu64
                " pieces evicted; whole blocks found again: %" PRIu64 " of %" PRIu64 "; pieces: %" PRIu64 " of %" PRIu64
                "; asked again: %" PRIu64 " prompts, %" PRIu64 " tokens from the disk; %" PRIu64
                " times reading was not worth it\n",
                name, kills, kills_in_purges, kills_while_full, torn, torn_bytes, prompts, purges, evicted,
                blocks_found, blocks, pieces_found, pieces, asked_again, fetched_tokens, slower);
  }
};

// A directory over several lives.
class Chain {
 public:
  Chain(const std::string& model, const Setting& setting, TinyCold& cold, uint64_t seed, Counts& counts)
      : model_(model), setting_(setting), cold_(cold), seed_(seed), counts_(counts), random_(seed) {}

  void Live() {
    ++counts_.kills;
    const auto after = std::chrono::microseconds(1000 + random_() % 399'000);
    Learn(RunAndKill({model_, directory_.path(), setting_.bytes_max, seed_, next_}, after));
    VerifyFiles();
    const auto engine =
        LoadEngine(TinyEngine(model_, {.directory = directory_.path(), .bytes_max = setting_.bytes_max}));
    ASSERT_NE(engine, nullptr);
    const LocalEngine::DiskStatus& disk = engine->disk();
    EXPECT_EQ(disk.error, "");
    EXPECT_FALSE(disk.opened.read_only);
    EXPECT_EQ(disk.opened.damaged_records, 0u);
    EXPECT_EQ(disk.opened.foreign_records, 0u);
    Script script(seed_, engine->model().vocab_size);
    CountPieces(*engine);
    LookForPurged(*engine, script);
    LookForStored(*engine, script);
    AskAgain(*engine, script);
    EXPECT_EQ(engine->engine().tier_stats()->usage.damaged, 0u);
    if (setting_.exact) {
      EXPECT_EQ(engine->engine().tier_stats()->usage.evicted_blocks, 0u);
    }
  }

 private:
  // What became of an item of the script.
  struct Known {
    bool whole = false;  // began after its tenant's last purge had ended
    bool asked = false;
    bool stored = false;
    bool purged = false;  // by a purge that ended, and began after its reply
    bool purging = false;
  };

  void Learn(const std::vector<Line>& lines) {
    pieces_.reset();
    bool full = false, purging = false;
    Script script(seed_, cold_.vocab_size());
    for (const Line& line : lines) {
      if (line.what == "usage") {
        pieces_ = line.first;
        full = line.second > 0;
        last_evicted_ = line.second;
        continue;
      }
      next_ = std::max(next_, line.first + 1);
      const std::string& tenant = script.at(line.first).tenant;
      const auto of_tenant = [&](auto change) {
        for (auto& [index, known] : known_)
          if (script.at(index).tenant == tenant) change(known);
      };
      if (line.what == "begin") {
        known_[line.first] = {.whole = true};
      } else if (line.what == "asked") {
        known_[line.first].asked = true;
      } else if (line.what == "stored") {
        known_[line.first].stored = true;
        ++counts_.prompts;
      } else if (line.what == "purging") {
        purging = true;
        pieces_.reset();
        of_tenant([](Known& known) {
          known.whole = false;
          known.purging = known.asked;  // one that is still running may be taken up after the purge, as a new one is
        });
      } else if (line.what == "purged") {
        purging = false;
        ++counts_.purges;
        of_tenant([](Known& known) { known.purged = known.purging; });
      }
    }
    counts_.kills_in_purges += purging;
    counts_.kills_while_full += full;
    counts_.evicted += last_evicted_;
  }

  void VerifyFiles() {
    const auto directories = RealFileSystem().ListDirectories(directory_.path());
    ASSERT_TRUE(directories.ok()) << directories.status();
    ASSERT_EQ(directories->size(), 1u);
    const auto report = VerifyDisk(RealFileSystem(), directory_.path() + "/" + directories->front(), nullptr);
    ASSERT_TRUE(report.ok()) << report.status();
    for (const auto& problem : report->problems)
      ADD_FAILURE() << problem.file << " at " << problem.offset << ": " << problem.what;
    counts_.torn += report->torn_bytes > 0;
    counts_.torn_bytes += report->torn_bytes;
    if (setting_.exact) {
      EXPECT_GT(report->records, 0u);
    }
  }

  // What the tier said it holds, before the end, and what the next one holds.
  void CountPieces(LocalEngine& engine) {
    if (!pieces_) return;
    const TierUsage usage = engine.engine().tier_stats()->usage;
    counts_.pieces += *pieces_;
    counts_.pieces_found += std::min(*pieces_, usage.blocks + usage.evicted_blocks);
  }

  // A prompt of which all was purged: no more of it than what was asked since.
  void LookForPurged(LocalEngine& engine, Script& script) {
    for (const auto& [index, known] : known_) {
      if (!known.purged) continue;
      const Script::Item& item = script.at(index);
      uint32_t since = 0;
      for (const auto& [other, its] : known_)
        if (!its.purged && script.at(other).tenant == item.tenant)
          since = std::max(since, CommonTokens(item.prompt, script.at(other).prompt));
      const PrefixReport report = ExplainPrompt(engine, item.prompt, {.tenant = item.tenant});
      EXPECT_LE(report.match.tokens, since) << "item " << index << " of a tenant that was purged";
    }
  }

  void LookForStored(LocalEngine& engine, Script& script) {
    const uint32_t block = engine.model().geometry.block_tokens;
    for (const auto& [index, known] : known_) {
      if (!known.whole || !known.stored) continue;
      const Script::Item& item = script.at(index);
      const PrefixReport report = ExplainPrompt(engine, item.prompt, {.tenant = item.tenant});
      const uint64_t blocks = (item.prompt.size() - 1) / block;
      const uint64_t found = std::min<uint64_t>(blocks, report.match.tokens / block);
      if (found < blocks && report.match.reason == MissReason::kTierSlowerThanRecompute) {
        ++counts_.slower;
        continue;
      }
      counts_.blocks += blocks;
      counts_.blocks_found += found;
      if (setting_.exact) {
        EXPECT_EQ(found, blocks) << "item " << index << ": " << Name(report.match.reason);
      }
    }
  }

  void AskAgain(LocalEngine& engine, Script& script) {
    for (auto& [index, known] : known_) {
      const Script::Item& item = script.at(index);
      const Reply reply = Answer(engine, Asked(item.prompt, {.tenant = item.tenant}));
      cold_.ExpectSame(reply, item.prompt);
      counts_.fetched_tokens += reply.timings().cached_disk;
      ++counts_.asked_again;
    }
    ASSERT_TRUE(WaitStored(engine));
    for (auto& [index, known] : known_) known = {.whole = true, .asked = true, .stored = true};
  }

  const std::string model_;
  const Setting setting_;
  TinyCold& cold_;
  const uint64_t seed_;
  Counts& counts_;
  std::mt19937_64 random_;
  const TestDirectory directory_;
  uint64_t next_ = 0;
  std::map<uint64_t, Known> known_;  // of all items that began
  std::optional<uint64_t> pieces_;   // of the tier, when it last said it and nothing was purged since
  uint64_t last_evicted_ = 0;
};

class Kill : public testing::TestWithParam<Setting> {};

TEST_P(Kill, WhatComesAfterIsRightAndFindsWhatWasStored) {
  const bool all = std::getenv("REPRISE_LONG") != nullptr;
  const uint32_t chains = all ? 13 : 1, lives = all ? 4 : 2;
  const char* wanted = std::getenv("REPRISE_SEED");
  const uint64_t seed = wanted != nullptr ? std::strtoull(wanted, nullptr, 10) : std::random_device()();
  SCOPED_TRACE("REPRISE_SEED=" + std::to_string(seed));
  for (const bool windows : {false, true}) {
    if (!all && windows == GetParam().exact) continue;
    const std::string model = WriteTiny(TinyOf(windows), windows ? "windows.gguf" : "full.gguf");
    TinyCold cold(model);
    Counts counts;
    for (uint32_t chain = 0; chain < chains; ++chain) {
      Chain directory(model, GetParam(), cold, seed + chain, counts);
      for (uint32_t life = 0; life < lives && !HasFatalFailure(); ++life) directory.Live();
    }
    counts.Print(
        (std::string(GetParam().name) + (windows ? ", windows" : ", full attention") + ", seed " + std::to_string(seed))
            .c_str());
    EXPECT_GT(counts.fetched_tokens, 0u);
    if (all) {  // of a few runs, one that ended just after an eviction is too many
      EXPECT_GE(counts.pieces_found * 100, counts.pieces * 95);
    }
    if (GetParam().exact) {
      EXPECT_EQ(counts.pieces_found, counts.pieces);
      EXPECT_GT(counts.blocks, 0u);
    } else if (all) {
      EXPECT_GT(counts.evicted, 0u);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Caps, Kill,
                         testing::Values(Setting{"small cap", 8ull << 20, false},
                                         Setting{"large cap", 256ull << 20, true}),
                         [](const auto& info) { return std::string(info.param.exact ? "Large" : "Small"); });

}  // namespace
}  // namespace reprise

int main(int argc, char** argv) {
  if (argc == 7 && std::string(argv[1]) == reprise::kChildFlag) return reprise::RunChild(argv + 2);
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
