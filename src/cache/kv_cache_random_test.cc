// Random programs against a naive model: lists of tokens searched one by one, and slots counted from the
// block tables. REPRISE_SEED=n runs one seed, printed when something fails.
#include <algorithm>
#include <cstdlib>
#include <map>
#include <random>
#include <set>

#include "base/bytes.h"
#include "cache/cache_testing.h"

namespace reprise {
namespace {

using Running = TestCache::Running;

constexpr int kSteps = 1000;  // of one program

BlockKey FewKeys(const Digest& previous, std::span<const TokenId> tokens) {
  BlockKey key;
  key.digest.bytes[0] = static_cast<uint8_t>((previous.bytes[0] + tokens[0].value()) % 7);
  return key;
}

struct Setting {
  const char* name;
  TestCache::Options options;
};

std::vector<Setting> Settings() {
  const Geometry full = SmallGeometry({FullGroup({0, 1})});
  const Geometry mixed = SmallGeometry({WindowGroup({0, 2}, 6), FullGroup({1, 3})});
  const Geometry full_first = SmallGeometry({FullGroup({0, 1}), WindowGroup({2}, 100)});
  const Geometry three = SmallGeometry({FullGroup({0}), WindowGroup({1}, 9), FullGroup({2}), WindowGroup({3}, 2)});
  const Geometry latent = SmallGeometry({LatentGroup({0, 1}), WindowGroup({2}, 5)});
  const Geometry recurrent = SmallGeometry({FullGroup({0, 1}), RecurrentGroup({2, 3})});
  const Geometry hybrid = SmallGeometry({FullGroup({0}), WindowGroup({1}, 6), RecurrentGroup({2})});
  const Geometry states = SmallGeometry({RecurrentGroup({0, 1})});
  const Geometry windows = SmallGeometry({WindowGroup({0, 1}, 7)});
  const auto with = [](const Geometry& geometry, std::vector<uint32_t> slots, uint32_t in_flight) {
    return TestCache::Options{.geometry = geometry,
                              .slots = std::move(slots),
                              .sequences_max = 5,
                              .context_max = 48,
                              .in_flight_max = in_flight,
                              .shuffle_seed = 3,
                              .soft_pin_blocks = 7};
  };
  std::vector<Setting> settings = {
      {"full, roomy", with(full, {500}, 8)},
      {"full, tight", with(full, {20}, 8)},
      {"full and window, roomy", with(mixed, {500, 500}, 8)},
      {"full and window, tight", with(mixed, {22, 24}, 8)},
      {"full before window, tight", with(full_first, {14, 13}, 8)},
      {"full and window, one slot each beyond a sequence", with(mixed, {6, 12}, 8)},
      {"two full and two windows", with(three, {30, 24, 28, 26}, 5)},
      {"latent and window", with(latent, {24, 26}, 8)},
      {"full and recurrent, roomy", with(recurrent, {500, 500}, 8)},
      {"full and recurrent, tight", with(recurrent, {24, 12}, 8)},
      {"full, window and recurrent", with(hybrid, {26, 26, 16}, 6)},
      {"recurrent only", with(states, {16}, 8)},
      {"window only", with(windows, {24}, 8)},
      {"forced collisions", with(mixed, {24, 24}, 8)},
  };
  settings.back().options.block_key = FewKeys;
  settings.push_back({"two full and two windows, own memory", with(three, {30, 24, 28, 26}, 5)});
  settings.back().options.own_memory = true;
  // One within another, one that parts from it, one shorter than a block.
  const std::vector<TokenId> house = Tokens({0, 1, 2, 0, 1, 2, 0, 0, 1, 2, 2, 1, 1, 0, 2, 0, 1});
  const std::vector<std::vector<TokenId>> declared = {
      {house.begin(), house.begin() + 8}, house, Tokens({0, 1, 2, 0, 1, 2, 1, 1}), Tokens({2, 2})};
  for (const auto& [name, slots] : {std::pair("shared, roomy", 500u), std::pair("shared, tight", 22u)}) {
    settings.push_back({name, with(full, {slots}, 8)});
    settings.back().options.shared_prefixes = declared;
  }
  settings.push_back({"expiring", with(three, {30, 24, 28, 26}, 5)});
  settings.back().options.reusable_ttl_s = 2;
  settings.push_back({"shared, window and full", with(mixed, {22, 24}, 8)});
  settings.push_back({"shared, window only", with(windows, {24}, 8)});
  settings.push_back({"shared, full and recurrent", with(recurrent, {24, 12}, 8)});
  settings.push_back({"shared, forced collisions", with(mixed, {24, 24}, 8)});
  settings.back().options.block_key = FewKeys;
  for (size_t i = settings.size() - 4; i < settings.size(); ++i) settings[i].options.shared_prefixes = declared;
  return settings;
}

// What was sealed so far, as plain lists of tokens.
class NaiveModel {
 public:
  // `shared`: how many tokens of its prompt are in the shared scope.
  void Sealed(const NamespaceDigests& name_space, uint32_t shared, std::span<const TokenId> tokens) {
    if (shared > 0) Add({*name_space.shared, 0}, tokens.first(std::min<size_t>(shared, tokens.size())));
    if (tokens.size() > shared) Add({name_space.id, shared}, tokens);
  }
  uint32_t Match(const NamespaceDigests& name_space, uint32_t shared, const std::vector<TokenId>& prompt) const {
    const size_t limit = prompt.size() - 1;
    size_t best = LongestRun({name_space.id, shared}, prompt, limit);
    if (shared > 0) best = std::max(best, LongestRun({*name_space.shared, 0}, prompt, std::min<size_t>(limit, shared)));
    return static_cast<uint32_t>(best);
  }
  void Clear() { lists_.clear(); }
  void Forget(const NamespaceId& name_space) {
    std::erase_if(lists_, [&](const auto& entry) { return entry.first.first == name_space; });
  }

 private:
  using Where = std::pair<NamespaceId, uint32_t>;  // and after how much of a shared prefix

  void Add(const Where& where, std::span<const TokenId> tokens) {
    auto& lists = lists_[where];
    std::vector<TokenId> list(tokens.begin(), tokens.end());
    if (std::find(lists.begin(), lists.end(), list) == lists.end()) lists.push_back(std::move(list));
  }
  size_t LongestRun(const Where& where, const std::vector<TokenId>& prompt, size_t limit) const {
    const auto found = lists_.find(where);
    if (found == lists_.end()) return 0;
    size_t best = 0;
    for (const std::vector<TokenId>& list : found->second) {
      size_t run = 0;
      while (run < list.size() && run < limit && list[run] == prompt[run]) ++run;
      if (run >= where.second) best = std::max(best, run);
    }
    return best;
  }

  std::map<Where, std::vector<std::vector<TokenId>>> lists_;
};

class Program {
 public:
  Program(const TestCache::Options& options, uint64_t seed)
      : cache_(options), block_tokens_(options.geometry.block_tokens), random_(seed) {
    name_spaces_ = {cache_->Namespace({.tenant = "t"}), cache_->Namespace({.tenant = "t", .epoch = 1}),
                    cache_->Namespace({.tenant = "t", .salt = ""}), cache_->Namespace({.tenant = "t"}, "an adapter"),
                    cache_->Namespace({.tenant = "other"})};
    known_ = options.shared_prefixes;
  }

  void Step() {
    switch (Below(16)) {
      case 0:
      case 1:
      case 2:
      case 3:
        Start();
        break;
      case 4:
        Rematch();
        break;
      case 5:
        End();
        break;
      case 6:
        if (Running* running = Any()) running->sequence.MarkCheckpoint();
        break;
      case 7:
        if (Below(400) == 0) Clear();
        if (Below(200) == 0) Purge(Below(2) == 0 ? "t" : "other");
        cache_->SetTime(now_ms_ += Below(200));
        SoftPin();
        break;
      default:
        Compute();
        break;
    }
    cache_->CheckIntegrity();
  }
  uint64_t checks_exact() const { return checks_exact_; }
  KvCache::Stats stats() { return cache_->stats(); }

 private:
  struct Live {
    Running running;
    uint32_t tokens_max = 0;
    uint32_t shared = 0;  // tokens of its prompt in the shared scope
    bool write = true;
    bool started = false;
    bool purged = false;
    uint32_t sealed_at_purge = 0;
    bool writes() const { return write && !purged; }
  };

  uint32_t Below(uint32_t limit) { return static_cast<uint32_t>(random_() % limit); }
  Live* AnyLive() { return live_.empty() ? nullptr : &live_[Below(static_cast<uint32_t>(live_.size()))]; }
  Running* Any() {
    Live* live = AnyLive();
    return live == nullptr ? nullptr : &live->running;
  }

  // Goes on from the head of something known, or of nothing; few different tokens, so that forks share.
  std::vector<TokenId> Prompt() {
    std::vector<TokenId> prompt;
    if (!known_.empty() && Below(4) != 0) {
      prompt = known_[Below(static_cast<uint32_t>(known_.size()))];
      if (Below(2) == 0) prompt.resize(Below(static_cast<uint32_t>(prompt.size()) + 1));
    }
    const uint32_t room = cache_.options().context_max - static_cast<uint32_t>(prompt.size());
    for (uint32_t more = std::min(room, Below(4) == 0 ? 0 : Below(12)); more > 0; --more)
      prompt.push_back(TokenId(static_cast<int32_t>(Below(3))));
    if (prompt.empty()) prompt.push_back(TokenId(1));
    return prompt;
  }
  void Know(const std::vector<TokenId>& tokens) {
    if (known_.size() < 40)
      known_.push_back(tokens);
    else
      known_[Below(40)] = tokens;
  }

  void Start() {
    const std::vector<TokenId> prompt = Prompt();
    const NamespaceDigests& name_space = name_spaces_[Below(3) == 0 ? Below(5) : 0];
    Live live{.write = Below(8) != 0};
    const bool read = Below(8) != 0;
    const uint32_t room = cache_.options().context_max - static_cast<uint32_t>(prompt.size());
    const uint32_t output = std::min(room, Below(12));
    live.tokens_max = static_cast<uint32_t>(prompt.size()) + output;
    const PrefixMatch lookup = cache_->Lookup(name_space, prompt);
    CheckMatch(name_space, prompt, lookup.tokens);
    live.shared = cache_.SharedTokens(name_space, prompt);
    ASSERT_EQ(cache_->SharedTokens(name_space, prompt), live.shared);
    const KvCache::Outcome expected = ExpectedOutcome(name_space, prompt, read ? lookup.tokens : 0, live.tokens_max);
    const TestCache::How how{.output = output, .read = read, .write = live.write};
    ASSERT_EQ(cache_.TryAdmit(prompt, how, name_space, live.running), expected);
    if (expected != KvCache::Outcome::kAdmitted) return;
    ASSERT_EQ(live.running.sequence.length(), read ? lookup.tokens : 0);
    ASSERT_EQ(live.running.sequence.match().reason, read ? lookup.reason : MissReason::kReadDisabled);
    ASSERT_NE(lookup.reason, MissReason::kNone);
    live_.push_back(std::move(live));
  }

  // States are where steps ended, not at every token: a match may be shorter than what was sealed.
  bool HasStates() const {
    for (const LayerGroup& group : cache_.options().geometry.groups)
      if (group.kind == GroupKind::kRecurrent) return true;
    return false;
  }
  void CheckMatch(const NamespaceDigests& name_space, const std::vector<TokenId>& prompt, uint32_t tokens) {
    const uint32_t naive = model_.Match(name_space, cache_.SharedTokens(name_space, prompt), prompt);
    ASSERT_LE(tokens, naive);
    if (cache_->stats().evicted_blocks != evicted_before_ || cache_.options().reusable_ttl_s > 0 ||
        cache_.options().block_key != nullptr || HasStates())
      return;
    ASSERT_EQ(tokens, naive);  // nothing was evicted: exact to the token
    ++checks_exact_;
  }

  // Admission, from nothing but the tables of what runs.
  KvCache::Outcome ExpectedOutcome(const NamespaceDigests& name_space, const std::vector<TokenId>& prompt,
                                   uint32_t match, uint32_t tokens_max) {
    const Geometry& geometry = cache_.options().geometry;
    const uint32_t in_flight = cache_.options().in_flight_max;
    bool wait = live_.size() == cache_.options().sequences_max;
    for (uint32_t g = 0; g < geometry.groups.size(); ++g) {
      const GroupId group(g);
      const uint64_t total = cache_.options().slots[g];
      const uint64_t need = ResidentBlocks(geometry, group, tokens_max, in_flight);
      if (need > total) return KvCache::Outcome::kNever;
      std::set<SlotId> pinned;
      uint64_t still = 0, worst = 0;
      for (const Live& live : live_) {
        const uint64_t other = ResidentBlocks(geometry, group, live.tokens_max, in_flight);
        uint64_t has = 0;
        for (SlotId slot : live.running.sequence.tables()[g]) {
          if (slot == kNoSlot) continue;
          pinned.insert(slot);
          ++has;
        }
        worst += other;
        still += other - has;
      }
      if (!IsKeptWhole(geometry.groups[g].kind)) {
        wait |= worst + need > total;
        continue;
      }
      const uint64_t whole = match / block_tokens_;
      uint64_t fresh = 0;  // matched blocks that nobody pins yet
      for (uint64_t block = 0; block < whole; ++block)
        fresh += !PinnedByOther(name_space, prompt, (block + 1) * block_tokens_);
      wait |= total - pinned.size() - fresh < still + need - whole;
    }
    return wait ? KvCache::Outcome::kWait : KvCache::Outcome::kAdmitted;
  }
  // Whether the block of the prompt that ends at `tokens` is another's.
  bool PinnedByOther(const NamespaceDigests& name_space, const std::vector<TokenId>& prompt, uint64_t tokens) {
    const uint32_t shared = cache_.SharedTokens(name_space, prompt);
    for (const Live& live : live_) {
      const NamespaceDigests& other = live.running.name_space;
      const bool same = tokens > shared ? other.id == name_space.id && live.shared == shared && !live.purged
                                        : live.shared >= tokens && other.shared == name_space.shared;
      if (same && Sealed(live) >= tokens &&
          std::equal(prompt.begin(), prompt.begin() + tokens, live.running.tokens.begin()))
        return true;
    }
    return false;
  }

  // Tokens of its path that others find, or found before it was purged.
  uint32_t Sealed(const Live& live) const {
    const uint32_t length = live.running.sequence.length();
    return live.purged ? live.sealed_at_purge : live.write ? length : live.running.sequence.match().tokens;
  }

  // Changes what is evicted, and no answer.
  void SoftPin() {
    const NamespaceDigests& name_space = name_spaces_[Below(3) == 0 ? Below(5) : 0];
    const std::vector<TokenId> prefix = Prompt();
    const uint32_t kept = cache_->SoftPin(name_space, prefix, Below(1000));
    ASSERT_LE(kept, model_.Match(name_space, cache_.SharedTokens(name_space, prefix), prefix + Tokens({9})));
    ASSERT_LE(kept, cache_.options().soft_pin_blocks * block_tokens_);
  }

  void Rematch() {
    Live* live = AnyLive();
    if (live == nullptr || live->started) return;
    const uint32_t before = live->running.sequence.length();
    const bool read = live->running.sequence.match().reason != MissReason::kReadDisabled;
    const uint32_t lookup = cache_->Lookup(live->running.name_space, live->running.tokens).tokens;
    const uint32_t gained = live->running.sequence.Rematch();
    ASSERT_EQ(live->running.sequence.length(), before + gained);
    ASSERT_EQ(before + gained, !read ? 0 : live->purged ? before : std::max(before, lookup));
    cache_.CheckRows(live->running);
  }

  void Compute() {
    Live* live = AnyLive();
    if (live == nullptr) return;
    Running& running = live->running;
    const uint32_t start = running.sequence.length();
    const uint32_t rows = std::min(
        {live->tokens_max - start, 1 + Below(cache_.options().in_flight_max), running.sequence.rows_to_edge()});
    if (rows == 0) return End(live);
    while (running.tokens.size() < start + rows) running.tokens.push_back(TokenId(static_cast<int32_t>(Below(3))));
    live->started = true;
    running.sequence.Prepare(rows);
    cache_.CheckRows(running);
    cache_.WriteRows(running, start, rows);
    if (Below(100) == 0) return Drop(live);  // NaN: nothing of this step is committed
    const uint32_t committed = Below(10) == 0 && !HasStates() ? Below(rows) + 1 : rows;
    running.sequence.Commit(std::span(running.tokens).subspan(start, committed));
    cache_.CheckRows(running);
    if (live->writes())
      model_.Sealed(running.name_space, live->shared,
                    std::span(running.tokens).first(running.sequence.length() / block_tokens_ * block_tokens_));
  }

  void End() {
    if (Live* live = AnyLive()) End(live);
  }
  void End(Live* live) {
    Know(live->running.tokens);
    if (Below(3) == 0) return Drop(live);
    if (live->writes())
      model_.Sealed(live->running.name_space, live->shared,
                    std::span(live->running.tokens).first(live->running.sequence.length()));
    live->running.sequence.Finish();
    ASSERT_FALSE(live->running.sequence);
    Drop(live);
  }
  void Drop(Live* live) {
    std::swap(*live, live_.back());
    live_.pop_back();
  }

  void Clear() {
    cache_->Clear();
    model_.Clear();
    evicted_before_ = cache_->stats().evicted_blocks;
    for (const KvCache::GroupStats& group : cache_->stats().groups) ASSERT_EQ(group.slots_reusable, 0u);
    for (const Live& live : live_) {
      for (const LayerGroup& group : cache_.options().geometry.groups)
        if (group.kind == GroupKind::kWindow)
          evicted_before_ = UINT64_MAX;  // blocks behind the window: inexact from now
      if (live.purged && live.shared == 0) continue;
      const uint32_t found = live.purged ? std::min(Sealed(live), live.shared) : Sealed(live);
      model_.Sealed(live.running.name_space, live.shared,
                    std::span(live.running.tokens).first(found / block_tokens_ * block_tokens_));
    }
  }

  // What runs goes on, is found by nobody and leaves nothing.
  void Purge(const std::string& tenant) {
    const auto theirs = [&](const NamespaceDigests& name_space) {
      return name_space.tag(NamespaceTag::kTenant) == cache_->Namespace({.tenant = tenant}).tag(NamespaceTag::kTenant);
    };
    cache_->Purge(tenant);
    for (const NamespaceDigests& name_space : name_spaces_) {
      if (!theirs(name_space)) continue;
      model_.Forget(name_space.id);
      const std::vector<TokenId> prompt = Prompt();
      ASSERT_LE(cache_->Lookup(name_space, prompt).tokens, cache_.SharedTokens(name_space, prompt));
    }
    for (Live& live : live_)
      if (theirs(live.running.name_space) && !live.purged) {
        live.sealed_at_purge = Sealed(live);
        live.purged = true;
      }
  }

  TestCache cache_;
  const uint32_t block_tokens_;
  std::mt19937_64 random_;
  std::vector<NamespaceDigests> name_spaces_;
  std::vector<std::vector<TokenId>> known_;
  std::vector<Live> live_;
  NaiveModel model_;
  uint64_t now_ms_ = 0;
  uint64_t evicted_before_ = 0;
  uint64_t checks_exact_ = 0;
};

// REPRISE_STEPS: how many in all, for long runs.
uint64_t Seeds() {
  const char* steps = std::getenv("REPRISE_STEPS");
  return steps == nullptr ? 25
                          : std::max<uint64_t>(std::strtoull(steps, nullptr, 10) / (kSteps * Settings().size()), 1);
}

TEST(KvCacheRandom, AgreesWithTheNaiveModel) {
  const char* chosen = std::getenv("REPRISE_SEED");
  const uint64_t first = chosen != nullptr ? std::strtoull(chosen, nullptr, 10) : 1;
  const uint64_t seeds = chosen != nullptr ? 1 : Seeds();
  for (const Setting& setting : Settings()) {
    uint64_t exact = 0, reused = 0, evicted = 0, duplicates = 0, collisions = 0;
    for (uint64_t seed = first; seed < first + seeds; ++seed) {
      SCOPED_TRACE(testing::Message() << setting.name << ", REPRISE_SEED=" << seed);
      Program program(setting.options, seed);
      for (int step = 0; step < kSteps && !testing::Test::HasFatalFailure(); ++step) program.Step();
      ASSERT_FALSE(testing::Test::HasFatalFailure());
      exact += program.checks_exact();
      reused += program.stats().tokens_reused;
      evicted += program.stats().evicted_blocks;
      duplicates += program.stats().duplicate_seals;
      collisions += program.stats().key_collisions;
    }
    std::printf("%-50s exact checks %llu, tokens reused %llu, evicted %llu, duplicates %llu, collisions %llu\n",
                setting.name, static_cast<unsigned long long>(exact), static_cast<unsigned long long>(reused),
                static_cast<unsigned long long>(evicted), static_cast<unsigned long long>(duplicates),
                static_cast<unsigned long long>(collisions));
    EXPECT_GT(reused, 0u);
  }
}

}  // namespace
}  // namespace reprise
