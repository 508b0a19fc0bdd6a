// The contract of tiers and stores, over every one of them, sound and with faults; queues, deadlines and breakers.
#include "tier/tier.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <mutex>
#include <thread>

#include "env/memory_file_system.h"
#include "prefix/block_key.h"
#include "tier/disk_store.h"
#include "tier/faulty_store.h"
#include "tier/memory_store.h"
#include "tier/threaded_tier.h"

namespace reprise {
namespace {

using Clock = Tier::Clock;

Geometry SmallGeometry() {
  return {
      .groups = {{.kind = GroupKind::kFull, .layers = {0}, .kv_heads = 1, .key_dim = 3, .value_dim = 2},
                 {.kind = GroupKind::kWindow, .layers = {1}, .kv_heads = 1, .key_dim = 2, .value_dim = 2, .window = 6}},
      .block_tokens = 4};
}

NamespaceDigests NamespaceOf(const std::string& tenant, uint8_t salt = 0) {
  NamespaceDigests digests;
  digests.id = {Sha256::Of(tenant + static_cast<char>(salt))};
  digests.tags[7] = Sha256::Of(tenant);
  return digests;
}

// Blocks of one prompt: keys, tokens, and payloads made of key and group.
struct Prompt {
  Prompt(const NamespaceDigests& name_space, uint32_t blocks, int32_t first) : name_space(name_space) {
    BlockHasher hasher;
    Digest previous = name_space.id.digest;
    for (uint32_t b = 0; b < blocks; ++b) {
      for (uint32_t i = 0; i < 4; ++i) tokens.push_back(TokenId(first + static_cast<int32_t>(b * 4 + i)));
      keys.push_back(hasher.Next(previous, std::span(tokens).last(4)));
      previous = keys.back().digest;
    }
  }
  const Digest& parent(uint32_t block) const { return block == 0 ? name_space.id.digest : keys[block - 1].digest; }
  std::span<const TokenId> tokens_of(uint32_t block) const { return std::span(tokens).subspan(block * 4, 4); }

  NamespaceDigests name_space;
  std::vector<TokenId> tokens;
  std::vector<BlockKey> keys;
};

std::vector<std::byte> Payload(const Digest& of, uint32_t group, uint64_t bytes) {
  std::vector<std::byte> out(bytes);
  for (uint64_t i = 0; i < bytes; ++i) out[i] = static_cast<std::byte>(of.bytes[i % 32] + group * 7 + i / 32);
  return out;
}

struct Made {
  std::unique_ptr<MemoryFileSystem> files;  // of a disk
  std::unique_ptr<Ledger> ledger = std::make_unique<Ledger>(uint64_t{1} << 30);
  std::unique_ptr<TierStore> store;
};
struct Kind {
  std::string name;
  std::function<Made()> make;
  bool faulty = false;
};

Made MakeDisk(Codec codec) {
  Made made{.files = std::make_unique<MemoryFileSystem>()};
  auto opened = DiskStore::Open({.directory = "/cache",
                                 .geometry = SmallGeometry(),
                                 .bytes_max = 4 << 20,
                                 .segment_bytes = 64 << 10,
                                 .blocks_max = 1024,
                                 .codec = codec,
                                 .files = made.files.get()},
                                *made.ledger);
  EXPECT_TRUE(opened.ok()) << opened.status();
  made.store = std::move(opened->store);
  return made;
}
std::vector<Kind> Kinds() {
  const auto memory = [] {
    Made made;
    made.store = MakeMemoryStore(SmallGeometry(), 1 << 20);
    return made;
  };
  const auto faulty = [](auto make) {
    return [make] {
      Made made = make();
      made.store = std::make_unique<FaultyStore>(std::move(made.store), StoreFaults{.seed = 1, .one_in = 5});
      return made;
    };
  };
  const auto disk = [] { return MakeDisk(Codec::kRaw); };
  const auto packed = [] { return MakeDisk(Codec::kPlanes); };
  return {{"memory", memory},
          {"disk", disk},
          {"packed_disk", packed},
          {"memory_with_faults", faulty(memory), true},
          {"disk_with_faults", faulty(disk), true}};
}

class TierContract : public testing::TestWithParam<Kind> {
 protected:
  void SetUp() override {
    made_ = GetParam().make();
    tier_ = MakeThreadedTier({.slot_bytes_max = SlotBytes(SmallGeometry(), GroupId(0)),
                              .read_buffers = 3,
                              .reads_max = 64,
                              .store_bytes = 64 * SlotBytes(SmallGeometry(), GroupId(0)),
                              .failures_max = 1000},
                             std::move(made_.store), *made_.ledger);
  }
  bool faulty() const { return GetParam().faulty; }

  static uint64_t Bytes(uint32_t group) { return SlotBytes(SmallGeometry(), GroupId(group)); }
  Tier::StoreOutcome Store(const Prompt& prompt, uint32_t first, uint32_t blocks, uint32_t group) {
    std::vector<std::vector<std::byte>> payloads;
    std::vector<std::span<const std::byte>> views;
    for (uint32_t b = first; b < first + blocks; ++b)
      payloads.push_back(Payload(prompt.keys[b].digest, group, Bytes(group)));
    for (const auto& payload : payloads) views.push_back(payload);
    return tier_->Store({.name_space = prompt.name_space,
                         .group = GroupId(group),
                         .parent = prompt.parent(first),
                         .first_token = first * 4,
                         .keys = std::span(prompt.keys).subspan(first, blocks),
                         .tokens = std::span(prompt.tokens).subspan(first * 4, blocks * 4),
                         .payloads = views});
  }
  TierRead ReadOf(const Prompt& prompt, uint32_t block, uint32_t group) {
    return {.name_space = prompt.name_space.id,
            .group = GroupId(group),
            .parent = prompt.parent(block),
            .first_token = block * 4,
            .key = prompt.keys[block],
            .tokens = prompt.tokens_of(block)};
  }
  // What came of each read, in their order; a payload is checked by `check`.
  std::vector<TierOutcome> Fetch(std::span<const TierRead> reads,
                                 const std::function<void(uint32_t, std::span<const std::byte>)>& check) {
    std::vector<TierOutcome> outcomes(reads.size(), TierOutcome::kTimeout);
    if (!tier_->Fetch(TierTicket(++ticket_), 0, reads, Clock::now() + std::chrono::seconds(10))) return {};
    size_t seen = 0;
    while (seen < reads.size()) {
      tier_->Drain([&](const TierFetched& fetched) {
        ASSERT_EQ(fetched.ticket, TierTicket(ticket_));
        outcomes[fetched.index] = fetched.outcome;
        if (fetched.outcome == TierOutcome::kOk) check(fetched.index, fetched.payload);
        ++seen;
      });
      std::this_thread::yield();
    }
    return outcomes;
  }
  void Flush() {
    const bool flushed = tier_->Flush(Clock::now() + std::chrono::seconds(10));
    EXPECT_TRUE(flushed || faulty());
  }

  Made made_;
  std::unique_ptr<Tier> tier_;
  uint64_t ticket_ = 0;
};

TEST_P(TierContract, WhatWasStoredComesBackBitForBitOrNotAtAll) {
  const Prompt prompt(NamespaceOf("a"), 12, 100);
  for (uint32_t group : {0u, 1u})
    for (uint32_t first = 0; first < 12; first += 3)
      EXPECT_EQ(Store(prompt, first, 3, group), Tier::StoreOutcome::kAccepted);
  Flush();
  std::vector<uint32_t> groups(12);
  tier_->Contains(prompt.name_space.id, prompt.keys, groups);
  if (!faulty()) {
    EXPECT_EQ(groups, std::vector<uint32_t>(12, 3u));
  }
  std::vector<TierRead> reads;
  for (uint32_t block = 0; block < 12; ++block)
    for (uint32_t group : {0u, 1u}) reads.push_back(ReadOf(prompt, block, group));
  uint32_t right = 0;
  const auto outcomes = Fetch(reads, [&](uint32_t index, std::span<const std::byte> payload) {
    const auto wanted = Payload(prompt.keys[index / 2].digest, index % 2, Bytes(index % 2));
    EXPECT_TRUE(std::equal(payload.begin(), payload.end(), wanted.begin(), wanted.end())) << index;
    ++right;
  });
  ASSERT_EQ(outcomes.size(), 24u);
  EXPECT_GE(right, faulty() ? 5u : 24u);
}

TEST_P(TierContract, NothingIsFoundUnderAnotherName) {
  const Prompt prompt(NamespaceOf("a"), 3, 100);
  Store(prompt, 0, 3, 0);
  Flush();
  const auto miss = [&](TierRead read, const char* what) {
    for (TierOutcome outcome : Fetch(std::span(&read, 1), [&](uint32_t, auto) { FAIL() << what; }))
      EXPECT_NE(outcome, TierOutcome::kOk) << what;
  };
  const NamespaceDigests other = NamespaceOf("a", 1);
  const Prompt others(other, 3, 100), different(NamespaceOf("a"), 3, 101);
  std::vector<uint32_t> groups(3);
  tier_->Contains(other.id, others.keys, groups);
  EXPECT_EQ(groups, std::vector<uint32_t>(3));
  tier_->Contains(other.id, prompt.keys, groups);
  EXPECT_EQ(groups, std::vector<uint32_t>(3)) << "the key alone is not enough";
  miss(ReadOf(others, 1, 0), "another namespace");
  TierRead read = ReadOf(prompt, 1, 0);
  read.name_space = other.id;
  miss(read, "another namespace, this one's key");
  read = ReadOf(prompt, 1, 0);
  read.tokens = different.tokens_of(1);
  miss(read, "other tokens under this key");
  read = ReadOf(prompt, 1, 0);
  read.parent = prompt.parent(2);
  miss(read, "another parent");
  read = ReadOf(prompt, 1, 0);
  read.key = prompt.keys[2];
  miss(read, "another key");
  miss(ReadOf(prompt, 1, 1), "another group");
  EXPECT_FALSE(tier_->FindRun(other.id, prompt.parent(1), prompt.tokens_of(1), 1, false));
}

TEST_P(TierContract, TheLongestRunOfATailOrBlockIsFound) {
  if (faulty()) GTEST_SKIP() << "a store with faults may lose what is looked for";
  const Prompt prompt(NamespaceOf("a"), 2, 100);
  Store(prompt, 0, 2, 0);
  const std::vector<TokenId> tail = {TokenId(104), TokenId(105), TokenId(7)};
  const auto payload = Payload(prompt.keys[0].digest, 5, Bytes(0));
  const std::span<const std::byte> view = payload;
  tier_->Store({.name_space = prompt.name_space,
                .group = GroupId(0),
                .parent = prompt.parent(1),
                .first_token = 4,
                .tokens = tail,
                .payloads = std::span(&view, 1)});
  Flush();
  const auto run = [&](std::vector<int32_t> ids, uint32_t groups, bool whole) {
    std::vector<TokenId> wanted;
    for (int32_t id : ids) wanted.push_back(TokenId(id));
    return tier_->FindRun(prompt.name_space.id, prompt.parent(1), wanted, groups, whole);
  };
  ASSERT_TRUE(run({104, 105, 106, 9}, 1, false));
  EXPECT_EQ(run({104, 105, 106, 9}, 1, false)->run, 3u);
  EXPECT_EQ(run({104, 105, 106, 9}, 1, false)->key, prompt.keys[1]);
  const auto found = run({104, 105, 7, 9}, 1, false);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->run, 3u);
  EXPECT_EQ(found->tokens, tail);
  EXPECT_EQ(found->key, std::nullopt);
  EXPECT_FALSE(run({104, 105, 7, 9}, 3, false)) << "group 1 has none";
  EXPECT_FALSE(run({9, 104}, 1, false));
  EXPECT_FALSE(run({104, 105, 106, 9}, 1, true)) << "a state that would have to be cut";
  EXPECT_TRUE(run({104, 105, 7, 9}, 1, true));
  const TierRead read{.name_space = prompt.name_space.id,
                      .group = GroupId(0),
                      .parent = prompt.parent(1),
                      .first_token = 4,
                      .tokens = tail};
  EXPECT_EQ(Fetch(std::span(&read, 1),
                  [&](uint32_t, std::span<const std::byte> bytes) {
                    EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), payload.begin(), payload.end()));
                  }),
            std::vector<TierOutcome>{TierOutcome::kOk});
}

TEST_P(TierContract, ATenantThatIsErasedIsGoneAndOthersStay) {
  const Prompt mine(NamespaceOf("a"), 4, 100), salted(NamespaceOf("a", 1), 4, 100), theirs(NamespaceOf("b"), 4, 100);
  for (const Prompt* prompt : {&mine, &salted, &theirs}) Store(*prompt, 0, 4, 0);
  std::promise<absl::StatusOr<TierErased>> erased;
  tier_->Erase(*mine.name_space.tag(NamespaceTag::kTenant),
               [&](absl::StatusOr<TierErased> result) { erased.set_value(std::move(result)); });
  const absl::StatusOr<TierErased> result = erased.get_future().get();
  if (!result.ok()) {
    EXPECT_TRUE(faulty()) << result.status();
    return;
  }
  if (!faulty()) {
    EXPECT_EQ(result->blocks, 8u);
  }
  std::vector<uint32_t> groups(4);
  for (const Prompt* prompt : {&mine, &salted}) {
    tier_->Contains(prompt->name_space.id, prompt->keys, groups);
    EXPECT_EQ(groups, std::vector<uint32_t>(4));
  }
  tier_->Contains(theirs.name_space.id, theirs.keys, groups);
  if (!faulty()) {
    EXPECT_EQ(groups, std::vector<uint32_t>(4, 1u));
  }
}

TEST_P(TierContract, NothingOfACancelledTicketIsShown) {
  const Prompt prompt(NamespaceOf("a"), 12, 100);
  Store(prompt, 0, 12, 0);
  Flush();
  std::vector<TierRead> reads;
  for (uint32_t block = 0; block < 12; ++block) reads.push_back(ReadOf(prompt, block, 0));
  for (int round = 0; round < 50; ++round) {
    ASSERT_TRUE(tier_->Fetch(TierTicket(1000 + round), 0, reads, Clock::now() + std::chrono::seconds(10)));
    if (round % 2 == 0) std::this_thread::yield();
    size_t shown = 0;
    if (round % 3 == 0)  // in the middle of a visit
      tier_->Drain([&](const TierFetched&) {
        ++shown;
        tier_->Cancel(TierTicket(1000 + round));
      });
    EXPECT_LE(shown, 1u);
    tier_->Cancel(TierTicket(1000 + round));
    EXPECT_EQ(tier_->Drain([](const TierFetched&) { FAIL(); }), 0u);
  }
  EXPECT_EQ(Fetch(reads, [](uint32_t, auto) {}).size(), 12u) << "control: buffers and queue are free again";
}

TEST_P(TierContract, AFullQueueIsAnOutcome) {
  const Prompt prompt(NamespaceOf("a"), 100, 100);
  std::vector<TierRead> reads;
  for (uint32_t block = 0; block < 65; ++block) reads.push_back(ReadOf(prompt, block, 0));
  EXPECT_FALSE(tier_->Fetch(TierTicket(1), 0, reads, Clock::now() + std::chrono::seconds(1)));
  EXPECT_EQ(tier_->Drain([](const TierFetched&) { FAIL(); }), 0u);
  EXPECT_EQ(tier_->stats().fetch.declined, 65u);
  reads.pop_back();
  EXPECT_EQ(Fetch(reads, [](uint32_t, auto) { FAIL(); }).size(), 64u) << "control";
}

INSTANTIATE_TEST_SUITE_P(Stores, TierContract, testing::ValuesIn(Kinds()),
                         [](const auto& info) { return info.param.name; });

// ---------------------------------------------------------------- time

struct Slow : testing::Test {
  Slow() {
    auto faulty = std::make_unique<FaultyStore>(MakeMemoryStore(SmallGeometry(), 1 << 20), StoreFaults{});
    store = faulty.get();
    tier = MakeThreadedTier({.slot_bytes_max = SlotBytes(SmallGeometry(), GroupId(0)),
                             .failures_max = 3,
                             .open_ms = 50,
                             .log =
                                 [this](const std::string& line) {
                                   const std::lock_guard lock(mutex);
                                   lines.push_back(line);
                                 }},
                            std::move(faulty), ledger);
    tier->SetWake([this] { ++wakes; });
    const std::vector<std::byte> payload(SlotBytes(SmallGeometry(), GroupId(0)));
    const std::span<const std::byte> view = payload;
    EXPECT_EQ(tier->Store({.name_space = prompt.name_space,
                           .group = GroupId(0),
                           .parent = prompt.parent(0),
                           .keys = prompt.keys,
                           .tokens = prompt.tokens,
                           .payloads = std::span(&view, 1)}),
              Tier::StoreOutcome::kAccepted);
    EXPECT_TRUE(tier->Flush(Clock::now() + std::chrono::seconds(5)));
  }
  ~Slow() override { tier->SetWake(nullptr); }
  // The outcome of reading the one block with this deadline; nullopt: refused.
  std::optional<TierOutcome> Read(std::chrono::milliseconds deadline) {
    const TierRead read{.name_space = prompt.name_space.id,
                        .group = GroupId(0),
                        .parent = prompt.parent(0),
                        .key = prompt.keys[0],
                        .tokens = prompt.tokens};
    if (!tier->Fetch(TierTicket(++ticket), 7, std::span(&read, 1), Clock::now() + deadline)) return std::nullopt;
    std::optional<TierOutcome> outcome;
    while (!outcome) {
      tier->Drain([&](const TierFetched& fetched) {
        EXPECT_EQ(fetched.ticket, TierTicket(ticket));
        EXPECT_EQ(fetched.index, 7u);
        outcome = fetched.outcome;
      });
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return outcome;
  }
  bool Sees() {
    uint32_t groups = 0;
    tier->Contains(prompt.name_space.id, prompt.keys, std::span(&groups, 1));
    return groups != 0;
  }

  // One block of another prompt, written or not when this returns.
  Tier::StoreOutcome StoreOther(int32_t which) {
    const std::vector<std::byte> payload(SlotBytes(SmallGeometry(), GroupId(0)));
    const std::span<const std::byte> view = payload;
    const Prompt other(NamespaceOf("a"), 1, 1000 + 10 * which);
    const auto outcome = tier->Store({.name_space = other.name_space,
                                      .group = GroupId(0),
                                      .parent = other.parent(0),
                                      .keys = other.keys,
                                      .tokens = other.tokens,
                                      .payloads = std::span(&view, 1)});
    while (tier->stats().stores_queued > 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return outcome;
  }

  Ledger ledger{1 << 30};
  std::mutex mutex;
  std::vector<std::string> lines;
  std::atomic<int> wakes{0};
  FaultyStore* store = nullptr;
  std::unique_ptr<Tier> tier;
  Prompt prompt{NamespaceOf("a"), 1, 100};
  uint64_t ticket = 0;
};
using TierTime = Slow;

TEST_F(TierTime, AReadThatHangsIsShownAtItsDeadlineAndItsThreadComesBack) {
  using std::chrono::milliseconds;
  EXPECT_EQ(Read(milliseconds(5000)), TierOutcome::kOk);
  EXPECT_GT(wakes, 0);
  store->SetFaults({.delay = milliseconds(300)});
  const Clock::time_point start = Clock::now();
  EXPECT_EQ(Read(milliseconds(30)), TierOutcome::kTimeout);
  EXPECT_LT(Clock::now() - start, milliseconds(250));
  store->SetFaults({});
  EXPECT_EQ(Read(milliseconds(5000)), TierOutcome::kOk);
  EXPECT_EQ(tier->stats().fetch.timeout, 1u);
}

TEST_F(TierTime, TheBreakerOpensAfterFailuresInARowAndClosesWhenATryWorks) {
  using std::chrono::milliseconds;
  store->SetFaults({.one_in = 1});
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(Sees());
    EXPECT_EQ(Read(milliseconds(5000)), TierOutcome::kError);
  }
  EXPECT_EQ(tier->stats().fetch_breaker, TierStats::Breaker::kOpen);
  EXPECT_FALSE(Sees());
  EXPECT_EQ(Read(milliseconds(5000)), std::nullopt);
  // One try after a while, which fails; then twice as long.
  std::this_thread::sleep_for(milliseconds(60));
  EXPECT_EQ(Read(milliseconds(5000)), TierOutcome::kError);
  EXPECT_EQ(Read(milliseconds(5000)), std::nullopt);
  store->SetFaults({});
  const Clock::time_point start = Clock::now();
  std::optional<TierOutcome> outcome;
  while (!(outcome = Read(milliseconds(5000)))) std::this_thread::sleep_for(milliseconds(5));
  EXPECT_EQ(outcome, TierOutcome::kOk);
  EXPECT_GE(Clock::now() - start, milliseconds(80)) << "100 ms after the try that failed";
  EXPECT_EQ(tier->stats().fetch_breaker, TierStats::Breaker::kClosed);
  EXPECT_TRUE(Sees());
  const std::lock_guard lock(mutex);
  EXPECT_EQ(lines.size(), 2u) << "once when it opened, once when it closed";
}

TEST_F(TierTime, ReadsThatAreLateAgainAndAgainOpenTheBreaker) {
  store->SetFaults({.delay = std::chrono::milliseconds(40)});
  for (int i = 0; i < 3; ++i) EXPECT_EQ(Read(std::chrono::milliseconds(5)), TierOutcome::kTimeout);
  EXPECT_EQ(Read(std::chrono::milliseconds(5)), std::nullopt);
}

TEST_F(TierTime, WritesHaveABreakerOfTheirOwn) {
  store->SetFaults({.one_in = 1, .reads = false});
  Tier::StoreOutcome last = Tier::StoreOutcome::kAccepted;
  for (int32_t i = 0; i < 100 && last == Tier::StoreOutcome::kAccepted; ++i) last = StoreOther(i);
  EXPECT_EQ(last, Tier::StoreOutcome::kDeclined);
  EXPECT_FALSE(tier->HasRoomFor(1));
  EXPECT_EQ(Read(std::chrono::milliseconds(5000)), TierOutcome::kOk) << "what is there can be read";
}

TEST_F(TierTime, WhatIsThereAlreadyTellsNothingOfWrites) {
  EXPECT_EQ(StoreOther(0), Tier::StoreOutcome::kAccepted);
  store->SetFaults({.one_in = 1, .reads = false});
  for (int32_t i = 1; i < 100 && StoreOther(i) == Tier::StoreOutcome::kAccepted;) ++i;
  store->SetFaults({});
  while (!tier->HasRoomFor(1)) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_EQ(StoreOther(0), Tier::StoreOutcome::kAccepted);
  EXPECT_EQ(tier->stats().store_breaker, TierStats::Breaker::kTrying);
  EXPECT_EQ(tier->stats().store.ok, 3u) << "with that of the beginning";
  EXPECT_EQ(StoreOther(200), Tier::StoreOutcome::kAccepted) << "and keeps no other one from being tried";
  EXPECT_EQ(tier->stats().store_breaker, TierStats::Breaker::kClosed);
}

}  // namespace
}  // namespace reprise
