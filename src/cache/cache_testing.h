// For tests: small geometries, a cache with its ledger, and a stand-in for the forward pass that writes
// stamps into K and V and checks every row that a query would see.
//
// A stamp is a function of namespace, all tokens up to a position, layer, head and element. A row that
// was reused wrongly, overwritten, copied from another row or taken from another layer has another one.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/geometry.h"
#include "base/kv_view.h"
#include "cache/kv_cache.h"
#include "tier/tier.h"

namespace reprise {

inline LayerGroup FullGroup(std::vector<uint32_t> layers) {
  return {.kind = GroupKind::kFull, .layers = std::move(layers), .kv_heads = 1, .key_dim = 3, .value_dim = 2};
}
inline LayerGroup WindowGroup(std::vector<uint32_t> layers, uint32_t window) {
  return {.kind = GroupKind::kWindow,
          .layers = std::move(layers),
          .kv_heads = 2,
          .key_dim = 2,
          .value_dim = 1,
          .window = window};
}
inline LayerGroup LatentGroup(std::vector<uint32_t> layers) {
  return {.kind = GroupKind::kLatent, .layers = std::move(layers), .kv_heads = 1, .key_dim = 5, .value_dim = 0};
}
inline LayerGroup RecurrentGroup(std::vector<uint32_t> layers) {
  return {.kind = GroupKind::kRecurrent, .layers = std::move(layers), .kv_heads = 1, .key_dim = 3, .value_dim = 1};
}
inline Geometry SmallGeometry(std::vector<LayerGroup> groups, uint32_t block_tokens = 4) {
  return {.groups = std::move(groups), .block_tokens = block_tokens};
}

inline std::vector<TokenId> Tokens(std::initializer_list<int32_t> ids) {
  std::vector<TokenId> out;
  for (int32_t id : ids) out.push_back(TokenId(id));
  return out;
}
// first, first + 1, ...
inline std::vector<TokenId> Count(uint32_t count, int32_t first = 0) {
  std::vector<TokenId> out;
  for (uint32_t i = 0; i < count; ++i) out.push_back(TokenId(first + static_cast<int32_t>(i)));
  return out;
}
inline std::vector<TokenId> operator+(std::vector<TokenId> left, const std::vector<TokenId>& right) {
  left.insert(left.end(), right.begin(), right.end());
  return left;
}

inline uint64_t Mix(uint64_t state, uint64_t value) {
  state = (state ^ value) * 0x9E3779B97F4A7C15u;
  return state ^ (state >> 29);
}

// Stamps of the tokens of one sequence.
class Stamps {
 public:
  // The first `shared` tokens are computed for everyone, what follows for the namespace alone.
  Stamps(const Geometry& geometry, const NamespaceDigests& name_space, uint32_t shared = 0)
      : geometry_(geometry),
        shared_(shared),
        seed_(TableHash(name_space.id.digest)),
        shared_seed_(shared > 0 ? TableHash(name_space.shared->digest) : 0) {}

  // REQUIRES: called with longer and longer lists that go on from each other.
  void Cover(std::span<const TokenId> tokens) {
    while (states_.size() < tokens.size()) {
      uint64_t state = states_.empty() ? shared_seed_ : states_.back();
      if (states_.size() == shared_) state = Mix(state, seed_);
      states_.push_back(Mix(state, static_cast<uint32_t>(tokens[states_.size()].value()) + 1));
    }
  }
  void Write(std::span<const KvGroupView> views, std::span<const std::span<const SlotId>> tables, uint32_t position) {
    ForEachElement(views, tables, position, [](uint16_t& element, uint16_t stamp, uint32_t) {
      element = stamp;
      return true;
    });
  }
  // Every row that a query at `position` sees of the `below` first ones, in every group.
  bool Check(std::span<const KvGroupView> views, std::span<const std::span<const SlotId>> tables, uint32_t position,
             uint32_t below) {
    bool right = true;
    for (uint32_t row = 0; row < below; ++row)
      ForEachElement(views, tables, row, [&](uint16_t& element, uint16_t stamp, uint32_t window) {
        if (window != 0 && row + window <= position) return false;
        right = right && element == stamp;
        return right;
      });
    return right;
  }

 private:
  // f(element, stamp, window) for all elements of the row in group after group; false ends the group.
  template <class F>
  void ForEachElement(std::span<const KvGroupView> views, std::span<const std::span<const SlotId>> tables,
                      uint32_t position, F f) {
    const uint32_t row = position % geometry_.block_tokens;
    for (uint32_t g = 0; g < geometry_.groups.size(); ++g) {
      const LayerGroup& group = geometry_.groups[g];
      const SlotId slot = tables[g][position / geometry_.block_tokens];
      uint16_t unused = 0;
      if (slot == kNoSlot) {  // right only for a row that nobody sees
        f(unused, 1, group.kind == GroupKind::kRecurrent ? 2 : group.window);
        continue;
      }
      bool more = true;
      if (group.kind == GroupKind::kRecurrent) {  // the state after the row's token
        const uint64_t bytes = SlotBytes(geometry_, GroupId(g));
        uint16_t* state = reinterpret_cast<uint16_t*>(views[g].base + slot.value() * bytes);
        for (uint32_t i = 0; i < bytes / sizeof(uint16_t) && more; ++i)
          more = f(state[i], static_cast<uint16_t>(Mix(states_[position], 5000 + i)), 2);
        continue;
      }
      for (uint32_t layer = 0; layer < group.layers.size() && more; ++layer) {
        const KvLayerView view = LayerView(geometry_, GroupId(g), views[g], layer);
        uint16_t* keys = reinterpret_cast<uint16_t*>(view.Key(slot));
        uint16_t* values = reinterpret_cast<uint16_t*>(view.Value(slot));
        const uint64_t stamp = Mix(states_[position], group.layers[layer]);
        for (uint32_t i = 0; i < view.kv_heads * view.key_dim && more; ++i)
          more = f(keys[i * view.block_tokens + row], static_cast<uint16_t>(Mix(stamp, i)), group.window);
        for (uint32_t head = 0; head < view.kv_heads && more; ++head)
          for (uint32_t i = 0; i < view.value_dim && more; ++i)
            more = f(values[(head * view.block_tokens + row) * view.value_dim + i],
                     static_cast<uint16_t>(Mix(stamp, 1000 + head * 100 + i)), group.window);
      }
    }
  }

  const Geometry& geometry_;
  const uint32_t shared_;
  const uint64_t seed_, shared_seed_;
  std::vector<uint64_t> states_;  // [position]
};

// Slots in memory of the test's own. It does no more than it must: of what it copies only the rows asked for are
// right, the others become kOther.
class OwnMemory : public SlotMemory {
 public:
  static constexpr uint16_t kOther = 0x1234;

  OwnMemory(const Geometry& geometry, const std::vector<uint32_t>& slots) : geometry_(geometry) {
    for (uint32_t g = 0; g < slots.size(); ++g) {
      bytes_.emplace_back(slots[g] * SlotBytes(geometry, GroupId(g)));
      views_.push_back({.base = bytes_.back().data(), .slots = slots[g]});
    }
  }
  std::span<const KvGroupView> views() const { return views_; }

  void CopyRows(GroupId group, SlotId from, SlotId to, uint32_t rows) override {
    ASSERT_NE(from, to);
    ASSERT_TRUE(rows > 0 && rows <= geometry_.block_tokens);
    ++copies;
    ForEachElement(group, [&](const KvLayerView& view, uint64_t at, uint32_t row) {
      Element(view.Key(to) + at) = row < rows ? Element(view.Key(from) + at) : kOther;
    });
  }
  void ClearRows(GroupId group, SlotId slot, uint32_t first_row) override {
    ASSERT_LT(first_row, geometry_.block_tokens);
    ++clears;
    ForEachElement(group, [&](const KvLayerView& view, uint64_t at, uint32_t row) {
      if (row >= first_row) Element(view.Key(slot) + at) = 0;
    });
  }

  uint64_t copies = 0;
  uint64_t clears = 0;

 private:
  static uint16_t& Element(std::byte* at) { return *reinterpret_cast<uint16_t*>(at); }
  // f(view of a layer, offset of an element in a slot's layer, its row)
  template <class F>
  void ForEachElement(GroupId group, F f) const {
    for (uint32_t layer = 0; layer < geometry_.group(group).layers.size(); ++layer) {
      const KvLayerView view = LayerView(geometry_, group, views_[group.value()], layer);
      for (uint64_t i = 0; i < uint64_t{view.kv_heads} * view.key_dim * view.block_tokens; ++i)
        f(view, i * 2, static_cast<uint32_t>(i % view.block_tokens));
      for (uint64_t i = 0; i < uint64_t{view.kv_heads} * view.block_tokens * view.value_dim; ++i)
        f(view, view.value_offset + i * 2, static_cast<uint32_t>(i / view.value_dim % view.block_tokens));
    }
  }

  const Geometry geometry_;
  std::vector<std::vector<std::byte>> bytes_;  // [groups][slots][SlotBytes]
  std::vector<KvGroupView> views_;
};

// A cache, and one call per thing that a test does with it.
class TestCache {
 public:
  struct Options {
    Geometry geometry = SmallGeometry({FullGroup({0, 1})});
    std::vector<uint32_t> slots = {64};
    uint32_t sequences_max = 8;
    uint32_t context_max = 256;
    uint32_t in_flight_max = 16;
    uint64_t shuffle_seed = 1;
    BlockKeyFunction block_key = nullptr;
    EvictionPolicy eviction = EvictionPolicy::kValuePerByte;
    uint32_t reusable_ttl_s = 0;
    uint32_t soft_pin_blocks = 0;
    std::vector<TenantQuota> quotas;
    std::vector<std::vector<TokenId>> shared_prefixes;
    bool own_memory = false;  // K and V in an OwnMemory
    Tier* tier = nullptr;
    std::function<Tier::Clock::time_point()> tier_now;
    uint32_t tier_patience_ms = 10'000;  // however busy the machine is
  };
  TestCache() : TestCache(Options()) {}
  explicit TestCache(const Options& options)
      : memory_(options.own_memory ? std::make_unique<OwnMemory>(options.geometry, options.slots) : nullptr),
        options_(FullOptions(options, memory_.get())),
        ledger_(uint64_t{1} << 30),
        cache_(std::make_unique<KvCache>(options_, ledger_)),
        name_space_(cache_->Namespace({.tenant = "test"})) {}

  KvCache& operator*() { return *cache_; }
  KvCache* operator->() { return cache_.get(); }
  const KvCacheOptions& options() const { return options_; }
  const Ledger& ledger() const { return ledger_; }
  OwnMemory* memory() { return memory_.get(); }
  std::span<const KvGroupView> views() const { return memory_ ? memory_->views() : cache_->group_views(); }
  NamespaceDigests name_space() const { return name_space_; }

  // A running sequence with the tokens it was fed.
  struct Running {
    CacheSequence sequence;
    NamespaceDigests name_space;
    std::vector<TokenId> tokens;  // the prompt, then what was generated
    std::unique_ptr<Stamps> stamps;
  };
  struct How {
    uint32_t output = 0;  // tokens beyond the prompt
    bool read = true;
    bool write = true;
  };

  KvCache::Outcome TryAdmit(const std::vector<TokenId>& prompt, const How& how, const NamespaceDigests& name_space,
                            Running& running) {
    const KvCache::AdmitRequest request{.name_space = name_space,
                                        .prompt = prompt,
                                        .tokens_max = static_cast<uint32_t>(prompt.size()) + how.output,
                                        .read = how.read,
                                        .write = how.write};
    const KvCache::Outcome outcome = cache_->Admit(request, running.sequence);
    running.name_space = name_space;
    running.tokens = prompt;
    running.stamps = std::make_unique<Stamps>(options_.geometry, name_space, SharedTokens(name_space, prompt));
    if (outcome == KvCache::Outcome::kAdmitted) CheckRows(running);
    return outcome;
  }
  Running Admit(const std::vector<TokenId>& prompt, const How& how) {
    Running running;
    EXPECT_EQ(TryAdmit(prompt, how, name_space_, running), KvCache::Outcome::kAdmitted);
    return running;
  }
  Running Admit(const std::vector<TokenId>& prompt) { return Admit(prompt, How()); }

  // Runs one slice of `rows` tokens of running.tokens as an engine would.
  void Step(Running& running, uint32_t rows) {
    const uint32_t start = running.sequence.length();
    running.sequence.Prepare(rows);
    CheckRows(running);
    WriteRows(running, start, rows);
    running.sequence.Commit(std::span(running.tokens).subspan(start, rows));
    CheckRows(running);
  }
  void WriteRows(Running& running, uint32_t start, uint32_t rows) {
    running.stamps->Cover(std::span(running.tokens).first(start + rows));
    for (uint32_t i = 0; i < rows; ++i) running.stamps->Write(views(), running.sequence.tables(), start + i);
  }
  void StepTo(Running& running, size_t length) {
    while (running.sequence.length() < length)
      Step(running, std::min({static_cast<uint32_t>(length) - running.sequence.length(), options_.in_flight_max,
                              running.sequence.rows_to_edge()}));
  }
  void Generate(Running& running, const std::vector<TokenId>& output) {
    running.tokens = running.tokens + output;
    StepTo(running, running.tokens.size());
  }
  // Brings what the tier has; polls until the fetch has ended.
  void Fetch(Running& running) {
    running.sequence.BeginFetch();
    while (running.sequence.fetching()) {
      cache_->CheckIntegrity();
      cache_->Poll(0);
      std::this_thread::yield();
    }
    cache_->CheckIntegrity();
    CheckRows(running);
  }
  // Admits, computes and finishes. Returns the match.
  PrefixMatch Run(const std::vector<TokenId>& prompt, const std::vector<TokenId>& output = {}) {
    Running running = Admit(prompt, {.output = static_cast<uint32_t>(output.size())});
    if (options_.tier != nullptr) Fetch(running);
    const PrefixMatch match = running.sequence.match();
    StepTo(running, prompt.size());
    running.sequence.MarkCheckpoint();
    Generate(running, output);
    running.sequence.Finish();
    cache_->Poll(UINT64_MAX);
    cache_->CheckIntegrity();
    return match;
  }
  // By the definition: of the declared prefixes, cut to whole blocks, the longest that the prompt begins with.
  uint32_t SharedTokens(const NamespaceDigests& name_space, const std::vector<TokenId>& prompt) const {
    size_t longest = 0;
    if (!name_space.shared) return 0;
    for (std::vector<TokenId> declared : options_.shared_prefixes) {
      declared.resize(declared.size() - declared.size() % options_.geometry.block_tokens);
      if (declared.size() <= prompt.size() && std::equal(declared.begin(), declared.end(), prompt.begin()))
        longest = std::max(longest, declared.size());
    }
    return static_cast<uint32_t>(longest);
  }
  PrefixMatch Lookup(const std::vector<TokenId>& prompt) const { return cache_->Lookup(name_space_, prompt); }

  // Every committed row that the next query sees has its stamp.
  void CheckRows(Running& running) {
    const uint32_t length = running.sequence.length();
    running.stamps->Cover(std::span(running.tokens).first(length));
    ASSERT_TRUE(running.stamps->Check(views(), running.sequence.tables(), length, length))
        << "a reused row is not what this prefix computes, length " << length;
  }

 private:
  static KvCacheOptions FullOptions(const Options& options, SlotMemory* memory) {
    KvCacheOptions full;
    full.memory = memory;
    full.geometry = options.geometry;
    full.slots = options.slots;
    full.sequences_max = options.sequences_max;
    full.context_max = options.context_max;
    full.in_flight_max = options.in_flight_max;
    full.shuffle_seed = options.shuffle_seed;
    full.block_key = options.block_key;
    full.eviction = options.eviction;
    full.reusable_ttl_s = options.reusable_ttl_s;
    full.soft_pin_blocks = options.soft_pin_blocks;
    full.quotas = options.quotas;
    full.tier = options.tier;
    full.tiered = options.tier != nullptr;
    full.tier_now = options.tier_now;
    full.tier_patience_ms = options.tier_patience_ms;
    full.shared_prefixes = options.shared_prefixes;
    return full;
  }

  const std::unique_ptr<OwnMemory> memory_;
  const KvCacheOptions options_;
  Ledger ledger_;
  std::unique_ptr<KvCache> cache_;
  NamespaceDigests name_space_;
};

}  // namespace reprise
