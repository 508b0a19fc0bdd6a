// The index beside a list of everything that was put into it.
#include "tier/disk_index.h"

#include <algorithm>
#include <list>
#include <random>

#include "gtest/gtest.h"
#include "tier/disk_store_testing.h"

namespace reprise {
namespace {

using disk_testing::Namespace;

constexpr uint32_t kTokens = 4, kGroups = 3;

struct Piece {
  NamespaceDigests name_space;
  Digest parent;
  std::optional<BlockKey> key;
  std::vector<TokenId> tokens;
  std::array<DiskLocation, kGroups> places;
  uint32_t used = 0;

  PieceName name() const { return {name_space.id, parent, key ? &*key : nullptr, tokens}; }
  uint32_t groups() const {
    uint32_t bits = 0;
    for (uint32_t g = 0; g < kGroups; ++g) bits |= (places[g].segment != 0 ? 1u : 0u) << g;
    return bits;
  }
};

uint32_t CommonRun(std::span<const TokenId> a, std::span<const TokenId> b) {
  const size_t most = std::min(a.size(), b.size());
  return static_cast<uint32_t>(std::mismatch(a.begin(), a.begin() + most, b.begin()).first - a.begin());
}

// Newest first; every question is answered by looking at all of it.
class Naive {
 public:
  explicit Naive(size_t entries_max) : entries_max_(entries_max) {}

  std::list<Piece>::iterator Find(const Piece& like) {
    return std::find_if(pieces_.begin(), pieces_.end(), [&](const Piece& each) {
      return each.name_space.id == like.name_space.id && each.parent == like.parent && each.key == like.key &&
             each.tokens == like.tokens;
    });
  }
  void Put(const Piece& piece, GroupId group, const DiskLocation& place) {
    auto it = Find(piece);
    if (it == pieces_.end()) {
      if (pieces_.size() == entries_max_) {
        evicted_ += static_cast<uint64_t>(std::popcount(pieces_.back().groups()));
        pieces_.pop_back();
      }
      pieces_.push_front(piece);
      it = pieces_.begin();
    }
    it->places[group.value()] = place;
  }
  void Forget(const Piece& piece, GroupId group) {
    const auto it = Find(piece);
    if (it == pieces_.end()) return;
    it->places[group.value()] = {};
    if (it->groups() == 0) pieces_.erase(it);
  }
  void Touch(const Piece& piece) { pieces_.splice(pieces_.begin(), pieces_, Find(piece)); }
  uint32_t LongestRun(const Piece& like, uint32_t groups, bool whole) const {
    uint32_t best = 0;
    for (const Piece& each : pieces_) {
      if (each.name_space.id != like.name_space.id || each.parent != like.parent) continue;
      if ((each.groups() & groups) != groups) continue;
      const uint32_t run = CommonRun(each.tokens, like.tokens);
      if (whole && (each.key || run != each.tokens.size())) continue;
      best = std::max(best, run);
    }
    return best;
  }
  std::set<Digest> NamespacesWith(std::span<const TokenId> tokens) const {
    std::set<Digest> found;
    for (const Piece& each : pieces_) {
      if (each.parent == each.name_space.id.digest && CommonRun(each.tokens, tokens) == tokens.size()) {
        found.insert(each.name_space.id.digest);
      }
    }
    return found;
  }
  const std::list<Piece>& pieces() const { return pieces_; }
  uint64_t evicted() const { return evicted_; }

 private:
  const size_t entries_max_;
  std::list<Piece> pieces_;
  uint64_t evicted_ = 0;
};

Piece RandomPiece(std::mt19937& random) {
  Piece piece{.name_space = Namespace(random() % 3)};
  piece.parent = random() % 2 == 0 ? piece.name_space.id.digest : Sha256::Of("parent " + std::to_string(random() % 3));
  const size_t count = random() % 2 == 0 ? kTokens : 1 + random() % (kTokens - 1);
  for (size_t i = 0; i < count; ++i) piece.tokens.push_back(TokenId(random() % 3));
  if (count == kTokens) piece.key = disk_testing::KeyOf(piece.parent, piece.tokens);
  return piece;
}

void Compare(const DiskIndex& index, Naive& naive, std::mt19937& random) {
  index.CheckIntegrity();
  uint64_t pieces = 0, bytes = 0;
  for (const Piece& each : naive.pieces()) {
    const EntryId id = index.Find(each.name());
    ASSERT_NE(id, kNoEntry);
    ASSERT_EQ(index.groups(id), each.groups());
    ASSERT_TRUE(!each.key || index.FindKey(each.name_space.id, *each.key) == id);
    for (uint32_t g = 0; g < kGroups; ++g) {
      ASSERT_EQ(index.location(id, GroupId(g)), each.places[g]);
      pieces += each.places[g].segment != 0;
      bytes += each.places[g].bytes;
    }
  }
  ASSERT_EQ(index.pieces(), pieces);
  ASSERT_EQ(index.live_bytes(), bytes);
  ASSERT_EQ(index.evicted_pieces(), naive.evicted());
  for (int i = 0; i < 20; ++i) {
    const Piece like = RandomPiece(random);
    const uint32_t groups = random() % 8;
    for (const bool whole : {false, true}) {
      const EntryId id = index.FindRun(like.name_space.id, like.parent, like.tokens, groups, whole);
      ASSERT_EQ(id == kNoEntry ? 0 : CommonRun(index.tokens(id), like.tokens), naive.LongestRun(like, groups, whole));
      if (id == kNoEntry) continue;
      ASSERT_EQ(index.groups(id) & groups, groups);
      ASSERT_TRUE(!whole || index.IsTail(id));
    }
    std::set<Digest> found;
    for (const NamespaceDigests& each : index.NamespacesWith(like.tokens)) found.insert(each.id.digest);
    ASSERT_EQ(found, naive.NamespacesWith(like.tokens));
  }
}

TEST(DiskIndexTest, AnswersAsAListOfEverythingDoes) {
  for (uint32_t seed = 0; seed < 10; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    Ledger ledger(uint64_t{1} << 30);
    const uint32_t entries_max = seed % 2 == 0 ? 1000 : 40;
    DiskIndex index({.block_tokens = kTokens, .groups = kGroups, .entries_max = entries_max, .namespaces_max = 8},
                    ledger);
    Naive naive(entries_max);
    for (int step = 0; step < 2000; ++step) {
      const Piece piece = RandomPiece(random);
      const GroupId group(random() % kGroups);
      const EntryId id = index.Find(piece.name());
      ASSERT_EQ(id == kNoEntry, naive.Find(piece) == naive.pieces().end());
      switch (random() % 4) {
        case 0:
        case 1: {
          const DiskLocation place{.offset = random(),
                                   .segment = 1 + static_cast<uint32_t>(random() % 4),
                                   .bytes = static_cast<uint32_t>(random() % 100),
                                   .header_bytes = 1,
                                   .piece = 2};
          ASSERT_TRUE(index.Put(piece.name_space, piece.name(), group, place, 0));
          naive.Put(piece, group, place);
          break;
        }
        case 2:
          if (id != kNoEntry) index.Forget(id, group);
          naive.Forget(piece, group);
          break;
        default:
          if (id == kNoEntry) break;
          index.Touch(id, static_cast<uint32_t>(step));
          naive.Touch(piece);
      }
      if (step % 50 == 0) Compare(index, naive, random);
    }
    Compare(index, naive, random);
  }
}

TEST(DiskIndexTest, AFullTableOfNamespacesGivesUpTheLeastUsedAndNoMoreThanItMay) {
  Ledger ledger(uint64_t{1} << 30);
  DiskIndex index({.block_tokens = kTokens, .groups = 1, .entries_max = 8192, .namespaces_max = 2}, ledger);
  const auto put = [&](uint32_t tenant, int token) {
    Piece piece{.name_space = Namespace(tenant)};
    piece.parent = piece.name_space.id.digest;
    piece.tokens = {TokenId(token), TokenId(token / 1000)};
    return index.Put(piece.name_space, piece.name(), GroupId(0), {.segment = 1, .bytes = 1}, 0);
  };
  ASSERT_TRUE(put(1, 0));
  ASSERT_TRUE(put(2, 0));
  ASSERT_TRUE(put(3, 0));  // the first one's only entry was the oldest
  EXPECT_EQ(index.namespaces(), 2u);
  EXPECT_EQ(index.NamespacesWith(std::vector<TokenId>{TokenId(0)}).size(), 2u);
  for (int i = 1; i < 3000; ++i) ASSERT_TRUE(put(2, i) && put(3, i));
  EXPECT_FALSE(put(4, 0));
  EXPECT_EQ(index.evicted_pieces(), 1u + 1024u);
  index.CheckIntegrity();
}

// A key that came with another name before: the later one counts.
TEST(DiskIndexTest, AKeyIsHeldOnce) {
  Ledger ledger(uint64_t{1} << 30);
  DiskIndex index({.block_tokens = kTokens, .groups = 1, .entries_max = 8}, ledger);
  std::mt19937 random(1);
  Piece piece{.name_space = Namespace(1), .parent = Sha256::Of("a"), .key = BlockKey{Sha256::Of("key")}};
  piece.tokens.assign(kTokens, TokenId(1));
  Piece other = piece;
  other.tokens[2] = TokenId(9);
  ASSERT_TRUE(index.Put(piece.name_space, piece.name(), GroupId(0), {.segment = 1, .bytes = 1}, 0));
  ASSERT_TRUE(index.Put(other.name_space, other.name(), GroupId(0), {.segment = 2, .bytes = 1}, 0));
  EXPECT_EQ(index.Find(piece.name()), kNoEntry);
  EXPECT_NE(index.Find(other.name()), kNoEntry);
  EXPECT_EQ(index.pieces(), 1u);
  EXPECT_EQ(index.live(1).pieces, 0u);
  index.CheckIntegrity();
}

}  // namespace
}  // namespace reprise
