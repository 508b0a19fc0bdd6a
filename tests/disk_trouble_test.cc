// A disk that is full, slow, failing, read-only, deleted or not there from the start, under an engine that answers: no
// request fails or gets other bits, none waits long, the breakers open and close again, and the log says so once. And
// what lies in the directory for somebody else is never given to this one.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <mutex>
#include <span>

#include "env/faulty_file_system.h"
#include "tests/tiny_disk.h"
#include "tier/segment.h"
#include "tier/threaded_tier.h"

namespace reprise {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr uint64_t kCap = 256ull << 20;
constexpr double kAddedMsMax = 500;
const Scope kScope{.tenant = "test"};

bool Long() { return std::getenv("REPRISE_LONG") != nullptr; }

class Log {
 public:
  std::function<void(const std::string&)> sink() {
    return [this](const std::string& line) {
      const std::lock_guard lock(mutex_);
      lines_.push_back(line);
    };
  }
  size_t Count(const std::string& part) const {
    const std::lock_guard lock(mutex_);
    return static_cast<size_t>(std::count_if(
        lines_.begin(), lines_.end(), [&](const std::string& line) { return line.find(part) != std::string::npos; }));
  }
  size_t size() const {
    const std::lock_guard lock(mutex_);
    return lines_.size();
  }
  std::string Text() const {
    const std::lock_guard lock(mutex_);
    std::string text;
    for (const std::string& line : lines_) text += "  " + line + "\n";
    return text;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<std::string> lines_;
};

constexpr char kStopsReading[] = "stopped to read", kReadsAgain[] = "tier reads again";
constexpr char kStopsWriting[] = "stopped to write", kWritesAgain[] = "tier writes again";

struct Trouble {
  const char* name;
  Faults faults;
  bool stops_reading;  // what it must do
  bool stops_writing;
  bool fast_steady, fast_changing;  // whether it is in the short form of the suite
  bool deletes = false;             // the directory itself, without a fault
};
void PrintTo(const Trouble& trouble, std::ostream* out) { *out << trouble.name; }

class DiskTrouble : public testing::TestWithParam<Trouble> {
 protected:
  static void SetUpTestSuite() {
    model_ = new std::string(WriteTiny(TinyOf(true), "trouble.gguf"));
    cold_ = new TinyCold(*model_);
  }
  static void TearDownTestSuite() {
    delete cold_;
    delete model_;
  }

  std::vector<TokenId> Prompt(uint64_t seed, uint32_t tokens = 300) {
    return RandomTokens(tokens, cold_->vocab_size(), seed);
  }
  std::unique_ptr<LocalEngine> Load() {
    return LoadEngine(TinyEngine(
        *model_, {.directory = directory_.path(), .bytes_max = kCap, .files = &faulty_, .log = log_.sink()}));
  }
  // How much later than without a tier the first token came.
  double Ask(LocalEngine& engine, const std::vector<TokenId>& prompt) {
    const Reply& alone = cold_->Of(prompt);
    const Reply reply = Answer(engine, Asked(prompt, kScope));
    cold_->ExpectSame(reply, prompt);
    from_disk_ = reply.timings().cached_disk;
    reason_ = Name(reply.last.prefix->match.reason);
    return reply.timings().first_token_ms - alone.timings().first_token_ms;
  }
  // All but the last token of each is there, and is brought; on a busy machine not in time, perhaps, for one or
  // another.
  void ExpectThere(LocalEngine& engine, std::span<const std::vector<TokenId>> prompts) {
    uint32_t came = 0;
    std::string reasons;
    for (const auto& prompt : prompts) {
      EXPECT_EQ(ExplainPrompt(engine, prompt, kScope).match.tokens, prompt.size() - 1);
      Ask(engine, prompt);
      came += from_disk_ > 0;
      reasons += std::string(reason_) + " ";
    }
    EXPECT_GT(came, 0u) << reasons;
  }
  // Until both breakers are closed, with requests that give them something to try.
  void WaitClosed(LocalEngine& engine, uint64_t first_seed, std::span<const std::vector<TokenId>> stored) {
    const auto until = Clock::now() + std::chrono::seconds(40);
    for (uint64_t i = 0; Clock::now() < until; ++i) {
      const TierStats stats = *engine.engine().tier_stats();
      if (stats.fetch_breaker == TierStats::Breaker::kClosed && stats.store_breaker == TierStats::Breaker::kClosed)
        return;
      if (i < stored.size()) Ask(engine, stored[i]);
      Ask(engine, Prompt(first_seed + i, 40));
      std::this_thread::sleep_for(milliseconds(100));
    }
    ADD_FAILURE() << "a breaker did not close";
  }

  static std::string* model_;
  static TinyCold* cold_;
  const TestDirectory directory_;
  FaultyFileSystem faulty_{RealFileSystem()};
  Log log_;
  uint32_t from_disk_ = 0;
  std::string_view reason_;
};
std::string* DiskTrouble::model_ = nullptr;
TinyCold* DiskTrouble::cold_ = nullptr;

TEST_P(DiskTrouble, RequestsAreServedAndItWorksAgainAfterwards) {
  const Trouble& trouble = GetParam();
  if (!Long() && !trouble.fast_steady) GTEST_SKIP() << "in the long form";
  constexpr uint64_t kControl = 3, kAsked = 10, kStored = 30;
  std::vector<std::vector<TokenId>> stored, later;
  for (uint64_t i = 0; i < 5; ++i) later.push_back(Prompt(3000 + i));
  {
    const auto engine = Load();
    ASSERT_NE(engine, nullptr);
    ASSERT_EQ(engine->disk().error, "");
    for (uint64_t i = 0; i < kStored; ++i) {
      stored.push_back(Prompt(i));
      Ask(*engine, stored.back());
    }
    ASSERT_TRUE(WaitStored(*engine));
  }
  {
    const auto engine = Load();
    ASSERT_NE(engine, nullptr);
    ExpectThere(*engine, std::span(stored).first(kControl));
    faulty_.Set(trouble.faults);
    if (trouble.deletes) std::filesystem::remove_all(directory_.path());
    double added = 0;
    uint32_t came = 0;
    for (uint64_t i = 0; i < kAsked; ++i) {
      added = std::max(added, Ask(*engine, stored[kControl + i]));
      came += from_disk_ > 0;
      added = std::max(added, Ask(*engine, Prompt(1000 + i)));
    }
    TierStats stats = *engine->engine().tier_stats();
    std::printf(
        "%s: at most %.1f ms added; %u of %u from the disk; reads %lu ok %lu errors %lu timeouts, "
        "writes %lu ok %lu errors %lu declined; log of %zu lines\n",
        trouble.name, added, came, static_cast<unsigned>(kAsked), stats.fetch.ok, stats.fetch.error,
        stats.fetch.timeout, stats.store.ok, stats.store.error, stats.store.declined, log_.size());
    EXPECT_LT(added, kAddedMsMax);
    if (trouble.stops_reading) {
      EXPECT_EQ(log_.Count(kStopsReading), 1u) << log_.Text();
    }
    if (trouble.stops_writing) {
      const auto until = Clock::now() + std::chrono::seconds(10);
      while (log_.Count(kStopsWriting) == 0 && Clock::now() < until) std::this_thread::sleep_for(milliseconds(20));
      EXPECT_EQ(log_.Count(kStopsWriting), 1u) << log_.Text();
    }
    faulty_.Set({});
    // A disk that was full is believed to be so for half a minute.
    const bool full = trouble.faults.room_bytes.has_value();
    if (full && !Long()) return;
    WaitClosed(*engine, 2000, std::span(stored).subspan(kControl + kAsked));
    EXPECT_EQ(log_.Count(kReadsAgain), log_.Count(kStopsReading)) << log_.Text();
    EXPECT_EQ(log_.Count(kWritesAgain), log_.Count(kStopsWriting)) << log_.Text();
    if (trouble.faults.fail_share == 0 || trouble.faults.fail_share == 1) {  // else it works in between
      EXPECT_LE(log_.size(), 4u) << log_.Text();
    }
    if (trouble.faults.flip_share == 0) {
      EXPECT_EQ(engine->engine().tier_stats()->usage.damaged, 0u);
    }
    // A directory that went away is noticed when the disk is synced.
    if (trouble.deletes) std::this_thread::sleep_for(milliseconds(4500));
    for (const auto& prompt : later) Ask(*engine, prompt);
    ASSERT_TRUE(WaitStored(*engine));
  }
  const auto engine = Load();
  ASSERT_NE(engine, nullptr);
  EXPECT_EQ(engine->disk().error, "");
  ExpectThere(*engine, later);
}

// On and off again while several clients ask.
TEST_P(DiskTrouble, ComesAndGoesWhileRequestsRun) {
  const Trouble& trouble = GetParam();
  if (trouble.deletes) GTEST_SKIP() << "it does not come back";
  if (!Long() && !trouble.fast_changing) GTEST_SKIP() << "in the long form";
  const uint64_t rounds = Long() ? 40 : 6;
  constexpr uint64_t kKept = 20;  // for afterwards
  std::vector<std::vector<TokenId>> prompts;
  for (uint64_t i = 0; i < 3 * rounds + kKept; ++i)
    prompts.push_back(Prompt(i, 150 + static_cast<uint32_t>(i % 3) * 75));
  for (const auto& prompt : prompts) cold_->Of(prompt);
  {
    const auto engine = Load();
    ASSERT_NE(engine, nullptr);
    for (const auto& prompt : prompts) Ask(*engine, prompt);
    ASSERT_TRUE(WaitStored(*engine));
  }
  {
    const auto engine = Load();
    ASSERT_NE(engine, nullptr);
    std::atomic<bool> ended = false;
    std::thread switching([&] {
      for (uint32_t i = 0; !ended; ++i) {
        faulty_.Set(i % 2 == 0 ? trouble.faults : Faults{});
        std::this_thread::sleep_for(milliseconds(80));
      }
      faulty_.Set({});
    });
    for (uint64_t round = 0; round < rounds; ++round) {
      std::vector<PendingReply> pending;
      for (uint64_t i = 0; i < 3; ++i) pending.emplace_back(engine->engine(), Asked(prompts[3 * round + i], kScope));
      for (uint64_t i = 0; i < 3; ++i) {
        const Reply reply = pending[i].Wait();
        ASSERT_FALSE(reply.last.error) << reply.last.error->message;
        cold_->ExpectSame(reply, prompts[3 * round + i]);
      }
    }
    ended = true;
    switching.join();
    const size_t stops = log_.Count(kStopsReading) + log_.Count(kStopsWriting);
    const TierStats stats = *engine->engine().tier_stats();
    EXPECT_LE(stops * ThreadedTierOptions().failures_max, stats.fetch.error + stats.fetch.timeout + stats.store.error)
        << "not a line for each";
    WaitClosed(*engine, 5000, std::span(prompts).last(kKept));
    EXPECT_EQ(log_.Count(kReadsAgain) + log_.Count(kWritesAgain), log_.Count(kStopsReading) + log_.Count(kStopsWriting))
        << log_.Text();
  }
  std::string directory;
  {
    const auto engine = Load();
    ASSERT_NE(engine, nullptr);
    directory = engine->disk().directory;
    for (const auto& prompt : prompts) Ask(*engine, prompt);
  }
  // What could be neither written nor removed was cut when it was opened again.
  const auto report = VerifyDisk(RealFileSystem(), directory, nullptr);
  ASSERT_TRUE(report.ok()) << report.status();
  for (const auto& problem : report->problems)
    ADD_FAILURE() << problem.file << " at " << problem.offset << ": " << problem.what;
}

INSTANTIATE_TEST_SUITE_P(
    Disks, DiskTrouble,
    testing::Values(Trouble{"FullAfterAWhile", {.room_bytes = 200'000}, false, true, true, false},
                    Trouble{"ReadsFail", {.fail_share = 1, .fail_changes = false}, true, false, false, false},
                    Trouble{"WritesFail", {.fail_share = 1, .fail_reads = false}, false, true, false, false},
                    Trouble{"AllFails", {.fail_share = 1}, true, true, true, false},
                    Trouble{"SomeFails", {.fail_share = 0.3}, false, false, false, true},
                    Trouble{"Slow", {.delay = milliseconds(1000)}, true, false, true, false},
                    Trouble{"ReadOnly", {.read_only = true}, false, true, true, false},
                    Trouble{"NamesAreGone", {.deleted = true}, false, false, false, true},
                    Trouble{"Deleted", {}, false, false, true, false, true},
                    Trouble{"BitsFlip", {.flip_share = 0.5}, false, false, false, true}),
    [](const auto& info) { return std::string(info.param.name); });

// ---------------------------------------------------------------- at the start

TEST(DiskTroubleAtTheStart, IsServedWithoutAndSaysWhy) {
  const std::string model = WriteTiny(TinyOf(false), "start.gguf");
  TinyCold cold(model);
  const std::vector<TokenId> prompt = RandomTokens(200, cold.vocab_size(), 1);
  const TestDirectory directory;
  const std::string file = directory.path() + "/file";
  std::ofstream(file) << "not a directory";
  struct Case {
    const char* name;
    std::string directory;
    Faults faults;
    bool works;
  };
  for (const Case& each : {Case{"it works", directory.path() + "/a", {}, true},
                           Case{"no permission", directory.path() + "/b", {.read_only = true}, false},
                           Case{"input/output errors", directory.path() + "/c", {.fail_share = 1}, false},
                           Case{"a file", file, {}, false}, Case{"in a file", file + "/below", {}, false}}) {
    SCOPED_TRACE(each.name);
    FaultyFileSystem faulty(RealFileSystem());
    faulty.Set(each.faults);
    const auto engine =
        LoadEngine(TinyEngine(model, {.directory = each.directory, .bytes_max = kCap, .files = &faulty}));
    ASSERT_NE(engine, nullptr);
    EXPECT_EQ(engine->disk().error.empty(), each.works) << engine->disk().error;
    EXPECT_EQ(engine->engine().tier_stats().has_value(), each.works);
    if (!each.works) {
      EXPECT_NE(engine->disk().error.find(each.directory), std::string::npos) << engine->disk().error;
      EXPECT_NE(engine->disk().error.find("--cache-dir"), std::string::npos) << engine->disk().error;
    }
    for (int i = 0; i < 2; ++i) cold.ExpectSame(Answer(*engine, Asked(prompt, kScope)), prompt);
  }
}

// ---------------------------------------------------------------- what is somebody else's

class Planted : public testing::Test {
 protected:
  Planted() : cold_(model_) {}

  std::unique_ptr<LocalEngine> Load(const std::string& model, const std::string& directory) {
    auto engine = LoadEngine(TinyEngine(model, {.directory = directory, .bytes_max = kCap}));
    EXPECT_EQ(engine->disk().error, "");
    return engine;
  }
  // What there is for this scope, brought or left because the machine was busy.
  uint32_t FromDisk(LocalEngine& engine, const std::vector<TokenId>& prompt, const Scope& scope) {
    const uint32_t found = ExplainPrompt(engine, prompt, scope).match.tokens;
    const Reply reply = Answer(engine, Asked(prompt, scope));
    cold_.ExpectSame(reply, prompt);
    EXPECT_LE(reply.timings().cached_disk, found);
    brought_ += reply.timings().cached_disk;
    return found;
  }
  // Asks as this scope in a directory of its own; gives the directory of the segments.
  std::string Fill(const std::string& model, const TestDirectory& directory, const std::vector<TokenId>& prompt,
                   const Scope& scope) {
    const auto engine = Load(model, directory.path());
    Answer(*engine, Asked(prompt, scope));
    EXPECT_TRUE(WaitStored(*engine));
    return engine->disk().directory;
  }
  static std::vector<std::filesystem::path> Segments(const std::string& directory) {
    std::vector<std::filesystem::path> segments;
    for (const auto& entry : std::filesystem::directory_iterator(directory))
      if (SegmentNumber(entry.path().filename().string())) segments.push_back(entry.path());
    return segments;
  }
  // The same bytes, but for the number in the header that belongs to its name.
  static void Renumber(const std::string& path, uint32_t number) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    std::vector<std::byte> bytes(kSegmentHeaderBytes);
    file.read(reinterpret_cast<char*>(bytes.data()), kSegmentHeaderBytes);
    auto header = DecodeSegmentHeader(bytes);
    ASSERT_TRUE(header.ok()) << header.status();
    header->number = number;
    const auto encoded = EncodeSegmentHeader(*header);
    file.seekp(0);
    file.write(reinterpret_cast<const char*>(encoded.data()), kSegmentHeaderBytes);
  }

  const std::string model_ = WriteTiny(TinyOf(false), "planted.gguf");
  TinyCold cold_;
  uint64_t brought_ = 0;
};

TEST_F(Planted, RecordsOfAnotherScopeAreNeverRestored) {
  const Scope mine{.tenant = "me", .epoch = 1, .salt = "salt"};
  const std::vector<TokenId> prompt = RandomTokens(250, cold_.vocab_size(), 1);
  const std::vector<TokenId> other = RandomTokens(250, cold_.vocab_size(), 2);
  std::vector<Scope> owners(4, mine);
  owners[0].tenant = "you";
  owners[1].epoch = 2;
  owners[2].salt = "another";
  owners[3].salt.reset();
  enum class How { kInstead, kMoreNames, kMoreNumbers };
  for (size_t i = 0; i < owners.size(); ++i) {
    for (const How how : {How::kInstead, How::kMoreNames, How::kMoreNumbers}) {
      SCOPED_TRACE(testing::Message() << "owner " << i << ", planted as " << static_cast<int>(how));
      const TestDirectory theirs, ours;
      const std::string from = Fill(model_, theirs, prompt, owners[i]);
      const std::string to = Fill(model_, ours, other, mine);
      const auto segments = Segments(from);
      ASSERT_EQ(segments.size(), 1u);
      ASSERT_EQ(Segments(to), std::vector<std::filesystem::path>{to + "/" + SegmentName(1)});
      for (uint32_t number : {1u, 2u, 7u, 4'000'000'000u}) {
        if ((how == How::kInstead) != (number == 1)) continue;
        const std::string name = to + "/" + SegmentName(number);
        std::filesystem::copy_file(segments[0], name, std::filesystem::copy_options::overwrite_existing);
        if (how == How::kMoreNumbers) Renumber(name, number);
      }
      const auto engine = Load(model_, ours.path());
      EXPECT_EQ(FromDisk(*engine, prompt, mine), 0u);
      // Control: whose they are gets them, unless they are under a name that is not their own.
      EXPECT_EQ(FromDisk(*engine, prompt, owners[i]), how == How::kMoreNames ? 0 : prompt.size() - 1);
      EXPECT_EQ(FromDisk(*engine, other, mine), how == How::kInstead ? 0 : other.size() - 1);
    }
  }
  EXPECT_GT(brought_, 0u);
}

// Two models of one shape, whose directories are swapped.
TEST_F(Planted, RecordsOfAnotherModelAreNeverRestored) {
  const std::string model = WriteTiny(TinyOf(false, 2), "another.gguf");
  const std::vector<TokenId> prompt = RandomTokens(250, cold_.vocab_size(), 1);
  const TestDirectory directory;
  const std::string first = Fill(model_, directory, prompt, kScope);
  const std::string second = Fill(model, directory, prompt, kScope);
  ASSERT_NE(first, second);
  const auto swap = [&] {
    std::filesystem::rename(first, first + ".moving");
    std::filesystem::rename(second, first);
    std::filesystem::rename(first + ".moving", second);
  };
  swap();
  GenerationRequest request = Asked(prompt, kScope);
  {
    const auto engine = Load(model_, directory.path());
    EXPECT_GT(engine->engine().tier_stats()->usage.records, 0u) << "control: they are read";
    request.cache_write = false;
    const Reply reply = Answer(*engine, request);
    cold_.ExpectSame(reply, prompt);
    EXPECT_EQ(reply.timings().cached_disk, 0u);
  }
  swap();
  EXPECT_EQ(FromDisk(*Load(model_, directory.path()), prompt, kScope), prompt.size() - 1);
  EXPECT_EQ(ExplainPrompt(*Load(model, directory.path()), prompt, kScope).match.tokens, prompt.size() - 1);
}

}  // namespace
}  // namespace reprise
