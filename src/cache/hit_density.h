// How much a block of some class and age is worth: the hits that keeping it is expected to bring for each request
// that it is kept, learned from what happened to a sample of blocks. A class is what is known of a block's life so
// far; an age is the number of requests since it was used last.
//
// Some blocks of every request are watched: a block that is used again counts a hit at its age, one that never is
// counts nothing for as long as it was watched. From these the value of a class at an age is the best ratio of
// hits to requests waited over all horizons from that age on, so that a block that will be used late, but surely,
// is not thrown away a moment before (Beckmann et al., "LHD: Improving cache hit rate by maximizing hit density",
// NSDI 2018, has the idea; the horizons are those of a Gittins index). Old observations fade.
//
// Ownership: all memory from the ledger, in the constructor.
// Threads:   one thread. Nothing allocates after construction; Request looks at
//            all that is watched, one time in four: 20 us where 32,768 blocks are.
// Errors:    none. Deterministic: the same calls give the same values.
// Design:    DESIGN 6, docs/decisions/0010-eviction.md
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "base/carver.h"
#include "base/ledger.h"

namespace reprise {

// Of a block. Uses: how often it was used again, and that of a block under the same key that was evicted before.
// Ending: it is among the last tokens of the request that used it last, where requests part. Reply: how much that
// request generated; short answers come from programs that ask the same thing often.
struct BlockClass {
  static constexpr uint8_t kUsesMax = 15;
  uint8_t uses = 0;    // at most kUsesMax
  uint8_t ending = 0;  // 0 or 1
  uint8_t reply = 2;   // ReplyClass

  static uint8_t ReplyClass(uint32_t tokens) { return tokens < 32 ? 0 : tokens < 128 ? 1 : 2; }
  static constexpr uint32_t kPerUse = 6;
  static constexpr uint32_t kUseClasses = 5;  // 0, 1, 2-3, 4-7, 8 and more
  static constexpr uint32_t kCount = kUseClasses * kPerUse;
  uint32_t index() const {
    const uint32_t use = uses < 2 ? uses : uses < 4 ? 2 : uses < 8 ? 3 : 4;
    return use * kPerUse + ending * 3u + reply;
  }
};

class HitDensity {
 public:
  static uint64_t FootprintBytes(uint32_t blocks_max);
  HitDensity(uint32_t blocks_max, Ledger& ledger);

  // One more request: what ages are counted in.
  void Request();
  uint32_t now() const { return now_; }

  // Watches the block `key`, which stands for `weight` blocks. A watch may be given up for a later one.
  void Watch(uint64_t key, BlockClass which, float weight);
  // The block `key` is used again, cached or not.
  void Met(uint64_t key);

  // Expected hits per request kept. `last`: a value of now().
  float Value(BlockClass which, uint32_t last) const { return values_[which.index()][Bucket(now_ - last)]; }

 private:
  static constexpr uint32_t kBuckets = 32;  // of ages: 0, 1, 2-3, 4-7, ...
  using Row = std::array<float, kBuckets>;
  using Table = std::array<Row, BlockClass::kCount>;
  struct Watched {
    uint64_t key;  // 0: nobody
    uint32_t since;
    float weight;
    uint32_t which;
  };
  struct Layout {
    std::span<Watched> ring;
    std::span<uint32_t> index;  // open addressing by key: place in the ring + 1, 0 is empty
    Layout(uint32_t blocks_max, Carver& carver);
  };

  static uint32_t Bucket(uint32_t age);
  static double FirstAge(uint32_t bucket);
  static Row Index(const Row& hits, const Row& ends, const Row& prior);
  void LearnPiece();
  void Fit(uint32_t use_class);
  size_t Home(uint64_t key) const { return (key * 0x9E3779B97F4A7C15u >> 32) & (index_.size() - 1); }
  uint32_t* Find(uint64_t key);
  void Forget(uint32_t place);

  Region region_;
  std::span<Watched> ring_;
  std::span<uint32_t> index_;
  uint32_t next_ = 0;  // place in the ring
  uint32_t now_ = 0;
  Table hits_{}, ends_{};  // weight of watches that ended with a hit, and of all that ended, by the age at their end
  Table values_{};
};

}  // namespace reprise
