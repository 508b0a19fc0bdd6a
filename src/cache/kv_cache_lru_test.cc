// Eviction against a naive list: one full group, prefixes kept as whole lists of tokens, slots counted one by
// one, the oldest found by looking at all. Match lengths and slot counts must agree after every step, however
// much was evicted. REPRISE_SEED=n runs one seed, printed when something fails.
#include <algorithm>
#include <cstdlib>
#include <random>

#include "cache/cache_testing.h"

namespace reprise {
namespace {

constexpr uint32_t kBlock = 4;
constexpr size_t kTailsMax = 16;

using TokenList = std::vector<TokenId>;

bool StartsWith(const TokenList& longer, const TokenList& shorter) {
  return shorter.size() <= longer.size() && std::equal(shorter.begin(), shorter.end(), longer.begin());
}
TokenList Head(const TokenList& tokens, size_t count) { return {tokens.begin(), tokens.begin() + count}; }

class NaiveCache {
 public:
  struct Entry {
    TokenList prefix;  // all tokens up to its end
    bool tail = false;
    uint32_t pins = 0;
    uint64_t used = 0;  // when it was let go of
  };
  struct Sequence {
    TokenList tokens;   // committed
    size_t sealed = 0;  // blocks
    size_t own = 0;     // slots that nobody else sees
    bool write = true;
  };

  explicit NaiveCache(size_t slots) : slots_(slots) {}

  size_t Match(const TokenList& prompt, Entry** source = nullptr) {
    size_t blocks = 0;
    while ((blocks + 1) * kBlock < prompt.size() && Find(Head(prompt, (blocks + 1) * kBlock))) ++blocks;
    const TokenList whole = Head(prompt, blocks * kBlock);
    size_t best = 0;
    for (Entry* entry : Siblings(whole, Head(prompt, prompt.size() - 1))) {
      size_t run = 0;
      while (whole.size() + run + 1 < prompt.size() && whole.size() + run < entry->prefix.size() &&
             entry->prefix[whole.size() + run] == prompt[whole.size() + run])
        ++run;
      if (run <= best) continue;
      best = run;
      if (source != nullptr) *source = entry;
    }
    return whole.size() + best;
  }

  Sequence Admit(const TokenList& prompt, bool read, bool write) {
    Sequence made{.write = write};
    if (!read) return made;
    Entry* source = nullptr;
    const size_t match = Match(prompt, &source);
    made.sealed = match / kBlock;
    made.tokens = Head(prompt, match);
    for (size_t block = 0; block < made.sealed; ++block) ++Find(Head(prompt, (block + 1) * kBlock))->pins;
    if (match % kBlock == 0) return made;
    const TokenList prefix = source->prefix;
    const bool tail = source->tail;
    ++source->pins;
    const bool copied = MakeRoom();
    source = Find(prefix, tail);
    LetGo(*source);
    if (!copied) Erase(*source);  // its slot is the sequence's now
    made.own = 1;
    return made;
  }
  void Prepare(Sequence& sequence, size_t rows) {
    const size_t blocks = (sequence.tokens.size() + rows + kBlock - 1) / kBlock;
    while (sequence.sealed + sequence.own < blocks) {
      ASSERT_TRUE(MakeRoom());
      ++sequence.own;
    }
  }
  void Commit(Sequence& sequence, std::span<const TokenId> tokens) {
    sequence.tokens.insert(sequence.tokens.end(), tokens.begin(), tokens.end());
    while (sequence.write && (sequence.sealed + 1) * kBlock <= sequence.tokens.size()) {
      const TokenList prefix = Head(sequence.tokens, ++sequence.sealed * kBlock);
      --sequence.own;
      if (Entry* known = Find(prefix)) {
        ++known->pins;
        continue;
      }
      EraseTailsBefore(prefix);
      entries_.push_back({.prefix = prefix, .pins = 1});
    }
  }
  void Finish(Sequence& sequence) {
    if (sequence.write && sequence.tokens.size() % kBlock != 0) KeepTail(sequence);
    Release(sequence);
  }
  void Release(Sequence& sequence) {
    for (size_t block = sequence.sealed; block > 0; --block) LetGo(*Find(Head(sequence.tokens, block * kBlock)));
  }

  size_t reusable() const {
    return static_cast<size_t>(
        std::count_if(entries_.begin(), entries_.end(), [](const Entry& e) { return e.pins == 0; }));
  }
  size_t entries() const { return entries_.size(); }
  // What running sequences hold alone, told from outside before anything is taken.
  void set_own_total(size_t own) { own_total_ = own; }

 private:
  bool IsUnder(const Entry& entry, const TokenList& whole) const {
    return entry.prefix.size() > whole.size() && entry.prefix.size() <= whole.size() + kBlock &&
           (entry.prefix.size() - 1) / kBlock == whole.size() / kBlock && StartsWith(entry.prefix, whole);
  }
  // What is under `whole`, in the order in which it is preferred: blocks from the first on that does not come before
  // `wanted`, the ones before it from the last down, tails from the newest on.
  std::vector<Entry*> Siblings(const TokenList& whole, const TokenList& wanted) {
    std::vector<Entry*> before, after, tails;
    for (Entry& entry : entries_)
      if (IsUnder(entry, whole)) (entry.tail ? tails : entry.prefix < wanted ? before : after).push_back(&entry);
    const auto in_order = [](const Entry* a, const Entry* b) { return a->prefix < b->prefix; };
    std::sort(after.begin(), after.end(), in_order);
    std::sort(before.rbegin(), before.rend(), in_order);
    std::reverse(tails.begin(), tails.end());
    after.insert(after.end(), before.begin(), before.end());
    after.insert(after.end(), tails.begin(), tails.end());
    return after;
  }
  Entry* Find(const TokenList& prefix, bool tail = false) {
    for (Entry& entry : entries_)
      if (entry.tail == tail && entry.prefix == prefix) return &entry;
    return nullptr;
  }
  void LetGo(Entry& entry) {
    if (--entry.pins == 0) entry.used = ++clock_;
  }
  void Erase(const Entry& entry) { entries_.erase(entries_.begin() + (&entry - entries_.data())); }
  // A slot for a sequence alone: a free one, or that of the oldest that nobody uses.
  bool MakeRoom() {
    if (entries_.size() + own_total_ == slots_) {
      const Entry* oldest = nullptr;
      for (const Entry& entry : entries_)
        if (entry.pins == 0 && (oldest == nullptr || entry.used < oldest->used)) oldest = &entry;
      if (oldest == nullptr) return false;
      Erase(*oldest);
    }
    ++own_total_;
    return true;
  }
  void EraseTailsBefore(const TokenList& prefix) {
    std::erase_if(entries_, [&](const Entry& entry) {
      return entry.tail && (entry.prefix.size() - 1) / kBlock == (prefix.size() - 1) / kBlock &&
             StartsWith(prefix, entry.prefix);
    });
  }
  void KeepTail(Sequence& sequence) {
    const TokenList whole = Head(sequence.tokens, sequence.sealed * kBlock);
    for (Entry* entry : Siblings(whole, sequence.tokens)) {
      if (!StartsWith(entry->prefix, sequence.tokens)) continue;
      if (entry->pins == 0) entry->used = ++clock_;
      return;
    }
    EraseTailsBefore(sequence.tokens);
    const auto is_sibling = [&](const Entry& entry) { return entry.tail && IsUnder(entry, whole); };
    if (std::count_if(entries_.begin(), entries_.end(), is_sibling) == kTailsMax)
      entries_.erase(std::find_if(entries_.begin(), entries_.end(), is_sibling));
    entries_.push_back({.prefix = sequence.tokens, .tail = true, .used = ++clock_});
  }

  size_t slots_;
  std::vector<Entry> entries_;  // in the order in which they were made
  size_t own_total_ = 0;
  uint64_t clock_ = 0;
};

struct Live {
  TestCache::Running running;
  NaiveCache::Sequence naive;
  uint32_t tokens_max = 0;
};

void RunProgram(uint32_t slots, uint64_t seed, uint64_t& evicted, uint64_t& reused) {
  std::mt19937_64 random(seed);
  const auto below = [&](uint32_t limit) { return static_cast<uint32_t>(random() % limit); };
  TestCache::Options options;
  options.slots = {slots};
  options.eviction = EvictionPolicy::kLruWithTenantQuota;
  options.sequences_max = 4;
  options.context_max = 40;
  TestCache cache(options);
  NaiveCache naive(slots);
  std::vector<Live> live;
  std::vector<TokenList> known = {Count(1)};
  const auto tell_own = [&] {
    size_t own = 0;
    for (const Live& each : live) own += each.naive.own;
    naive.set_own_total(own);
    return own;
  };
  for (int step = 0; step < 600 && !testing::Test::HasFatalFailure(); ++step) {
    tell_own();
    const uint32_t what = below(10);
    const size_t chosen = live.empty() ? 0 : below(static_cast<uint32_t>(live.size()));
    if (what < 3 || live.empty()) {
      TokenList prompt = known[below(static_cast<uint32_t>(known.size()))];
      prompt.resize(below(static_cast<uint32_t>(prompt.size()) + 1));
      for (uint32_t more = 1 + below(9); more > 0 && prompt.size() < 36; --more)
        prompt.push_back(TokenId(static_cast<int32_t>(below(3))));
      ASSERT_EQ(cache.Lookup(prompt).tokens, naive.Match(prompt));
      Live made;
      const TestCache::How how{.output = below(5), .read = below(8) != 0, .write = below(8) != 0};
      if (cache.TryAdmit(prompt, how, cache.name_space(), made.running) != KvCache::Outcome::kAdmitted) continue;
      made.tokens_max = static_cast<uint32_t>(prompt.size()) + how.output;
      made.naive = naive.Admit(prompt, how.read, how.write);
      ASSERT_EQ(made.running.sequence.length(), made.naive.tokens.size());
      live.push_back(std::move(made));
    } else if (what < 8 && live[chosen].naive.tokens.size() < live[chosen].tokens_max) {
      Live& each = live[chosen];
      const uint32_t start = each.running.sequence.length();
      const uint32_t rows = 1 + below(std::min(each.tokens_max - start, options.in_flight_max));
      while (each.running.tokens.size() < start + rows)
        each.running.tokens.push_back(TokenId(static_cast<int32_t>(below(3))));
      naive.Prepare(each.naive, rows);
      naive.Commit(each.naive, std::span(each.running.tokens).subspan(start, rows));
      cache.Step(each.running, rows);
    } else {
      Live& each = live[chosen];
      known.push_back(each.running.tokens);
      if (known.size() > 12) known.erase(known.begin());
      if (below(4) == 0) {
        naive.Release(each.naive);
      } else {
        naive.Finish(each.naive);
        each.running.sequence.Finish();
      }
      std::swap(each, live.back());
      live.pop_back();
    }
    cache->CheckIntegrity();
    const size_t own = tell_own();
    const KvCache::GroupStats stats = cache->stats().groups[0];
    ASSERT_EQ(stats.slots_reusable, naive.reusable());
    ASSERT_EQ(stats.slots_free, slots - naive.entries() - own);
  }
  evicted += cache->stats().evicted_blocks;
  reused += cache->stats().tokens_reused;
}

TEST(KvCacheLruRandom, EvictsWhatTheNaiveListEvicts) {
  const char* chosen = std::getenv("REPRISE_SEED");
  const uint64_t first = chosen != nullptr ? std::strtoull(chosen, nullptr, 10) : 1;
  const uint64_t seeds = chosen != nullptr ? 1 : 20;
  for (uint32_t slots : {10, 14, 20, 40}) {
    uint64_t evicted = 0, reused = 0;
    for (uint64_t seed = first; seed < first + seeds; ++seed) {
      SCOPED_TRACE(testing::Message() << slots << " slots, REPRISE_SEED=" << seed);
      RunProgram(slots, seed, evicted, reused);
      ASSERT_FALSE(testing::Test::HasFatalFailure());
    }
    std::printf("%u slots: evicted %llu, tokens reused %llu\n", slots, static_cast<unsigned long long>(evicted),
                static_cast<unsigned long long>(reused));
    EXPECT_GT(reused, 50 * seeds);
  }
}

}  // namespace
}  // namespace reprise
