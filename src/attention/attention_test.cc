// Attention against its scalar definition, bit for bit, over everything that must not matter; and the
// definition against float64.
#include "attention/attention.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "attention/attention_reference.h"
#include "kernel/half.h"
#include "tests/allocation_counter.h"
#include "tests/kernel_inputs.h"

namespace reprise {
namespace {

struct Model {
  uint32_t query_heads = 4;
  uint32_t kv_heads = 2;
  uint32_t dim = 64;
  uint32_t block_tokens = 32;
  ElementType key_type = ElementType::kF16;
  ElementType value_type = ElementType::kF16;
  uint32_t window = 0;
  float soft_cap = 0.0f;

  AttentionShape shape() const {
    return {query_heads, window, static_cast<float>(1.0 / std::sqrt(static_cast<double>(dim))), soft_cap};
  }
  uint32_t keys() const { return kv_heads * dim; }
  uint32_t queries() const { return query_heads * dim; }
  std::string name() const {
    return std::to_string(query_heads) + "/" + std::to_string(kv_heads) + "/" + std::to_string(dim) + " blocks of " +
           std::to_string(block_tokens) + " " + std::string(Name(key_type)) + "/" + std::string(Name(value_type)) +
           " window " + std::to_string(window) + " cap " + std::to_string(soft_cap);
  }
};

// A pool of slots in shuffled order, all NaN until written, with another layer behind each slot.
class Pool {
 public:
  Pool(const Model& model, uint32_t slots, uint64_t seed) {
    kv_ = {.kv_heads = model.kv_heads,
           .key_dim = model.dim,
           .value_dim = model.dim,
           .block_tokens = model.block_tokens,
           .key_type = model.key_type,
           .value_type = model.value_type};
    kv_.value_offset = uint64_t{model.keys()} * model.block_tokens * ElementBytes(model.key_type);
    const uint64_t layer =
        kv_.value_offset + uint64_t{model.keys()} * model.block_tokens * ElementBytes(model.value_type);
    kv_.slot_stride = 2 * layer;
    bytes_.assign(slots * kv_.slot_stride + 64, std::byte{0xff});  // NaN in every type
    kv_.base = bytes_.data();
    for (uint32_t i = 0; i < slots; ++i) free_.push_back(SlotId(i));
    std::shuffle(free_.begin(), free_.end(), std::mt19937_64(seed));
  }

  std::vector<SlotId> Table(uint32_t tokens) {
    std::vector<SlotId> table;
    for (uint32_t t = 0; t < tokens; t += kv_.block_tokens) {
      table.push_back(free_.back());
      free_.pop_back();
    }
    return table;
  }
  const KvLayerView& kv() const { return kv_; }
  std::vector<std::byte>& bytes() { return bytes_; }

 private:
  KvLayerView kv_;
  std::vector<std::byte> bytes_;
  std::vector<SlotId> free_;
};

// One sequence: its K and V rows from position 0 on, and queries for its last rows.
struct Sequence {
  std::vector<float> k, v, q;
  std::vector<SlotId> table;
  uint32_t tokens, rows;  // queries at [tokens - rows, tokens)

  Sequence(const Model& model, Pool& pool, uint32_t tokens_in, uint32_t rows_in, uint64_t seed)
      : k(Gauss(size_t{tokens_in} * model.keys(), 1.0f, seed)),
        v(Gauss(size_t{tokens_in} * model.keys(), 1.0f, seed + 1)),
        q(Gauss(size_t{rows_in} * model.queries(), 2.0f, seed + 2)),
        table(pool.Table(tokens_in)),
        tokens(tokens_in),
        rows(rows_in) {
    Write({}, model, pool, tokens);
  }

  void Write(const Compute& compute, const Model& model, const Pool& pool, uint32_t slice_rows) const {
    for (uint32_t at = 0; at < tokens; at += slice_rows) {
      const AttentionSlice slice{0, std::min(slice_rows, tokens - at), at, table};
      WriteKv(compute, pool.kv(), {&slice, 1}, k.data() + size_t{at} * model.keys(), model.keys(),
              v.data() + size_t{at} * model.keys(), model.keys());
    }
  }
};

std::vector<float> Reference(const Model& model, const Pool& pool, const Sequence& sequence,
                             uint32_t partition_tokens = 256) {
  std::vector<float> out(sequence.q.size());
  for (uint32_t r = 0; r < sequence.rows; ++r) {
    for (uint32_t h = 0; h < model.query_heads; ++h) {
      const size_t at = size_t{r} * model.queries() + h * model.dim;
      AttendReferencePartitions(model.shape(), pool.kv(), sequence.table, sequence.tokens - sequence.rows + r, h,
                                partition_tokens, &sequence.q[at], &out[at]);
    }
  }
  return out;
}

// Attends over sequences in one call, each cut into slices of up to `slice_rows` queries.
std::vector<std::vector<float>> AttendAll(const Compute& compute, const Model& model, const Pool& pool,
                                          const std::vector<const Sequence*>& sequences, uint32_t slice_rows,
                                          uint64_t shared_bytes_less = 0) {
  std::vector<AttentionSlice> slices;
  std::vector<float> q;
  uint32_t rows = 0;
  uint32_t positions = 1;
  for (const Sequence* sequence : sequences) {
    for (uint32_t at = 0; at < sequence->rows; at += slice_rows) {
      const uint32_t count = std::min(slice_rows, sequence->rows - at);
      slices.push_back({rows + at, count, sequence->tokens - sequence->rows + at, sequence->table});
    }
    rows += sequence->rows;
    positions = std::max(positions, sequence->tokens);
    q.insert(q.end(), sequence->q.begin(), sequence->q.end());
  }
  const uint32_t threads = compute.pool == nullptr ? 1 : compute.pool->threads();
  const uint64_t bytes = AttendScratchBytes(model.shape(), model.dim, model.dim, rows, positions, threads);
  std::vector<std::byte> memory(bytes + 64, std::byte{0xff});  // NaN: nothing may be taken for granted
  auto* aligned = reinterpret_cast<std::byte*>((reinterpret_cast<uintptr_t>(memory.data()) + 63) / 64 * 64);
  std::vector<float> out(q.size(), 12345.0f);
  Attend(compute, model.shape(), pool.kv(), slices, q.data(), model.queries(), out.data(), model.queries(),
         {aligned, bytes - std::min(bytes / 2, shared_bytes_less)});
  std::vector<std::vector<float>> by_sequence;
  const float* at = out.data();
  for (const Sequence* sequence : sequences) {
    by_sequence.emplace_back(at, at + sequence->q.size());
    at += sequence->q.size();
  }
  return by_sequence;
}

uint32_t SlotsFor(const Model& model, uint32_t tokens) { return tokens / model.block_tokens + 8; }

// The reference's bits, whatever the instruction set, threads, slices, tiles and slots.
void ExpectTheBitsOfTheReference(const Model& model, uint32_t tokens, uint32_t rows) {
  SCOPED_TRACE(model.name() + ", " + std::to_string(tokens) + " tokens");
  ASSERT_TRUE(AttentionSupported(model.shape(), Pool(model, 1, 1).kv()).ok());
  Pool pool(model, SlotsFor(model, tokens), tokens);
  const Sequence sequence(model, pool, tokens, std::min(rows, tokens), 17 * tokens);
  const std::vector<float> expected = Reference(model, pool, sequence);
  ASSERT_TRUE(std::none_of(expected.begin(), expected.end(), [](float x) { return std::isnan(x); }));
  for (const Isa isa : Isas()) {
    for (const uint32_t threads : {1u, 2u, 4u, 8u}) {
      if (isa == Isa::kPortable && threads != 1 && threads != 4) continue;  // it is slow
      WorkerPool workers(threads);
      for (const uint32_t slice_rows : {1u, 7u, rows}) {
        const auto got = AttendAll({&workers, isa}, model, pool, {&sequence}, slice_rows);
        EXPECT_TRUE(SameBits(got[0], expected)) << Name(isa) << " threads " << threads << " slices of " << slice_rows;
      }
    }
  }
}

TEST(AttentionTest, HeadsAndGroupsHaveTheBitsOfTheReference) {
  for (const auto& [query_heads, kv_heads, dim] : std::vector<std::array<uint32_t, 3>>{{14, 2, 64},
                                                                                       {12, 2, 128},
                                                                                       {9, 3, 64},
                                                                                       {4, 1, 256},
                                                                                       {8, 2, 128},
                                                                                       {3, 3, 80},
                                                                                       {8, 1, 96},
                                                                                       {5, 1, 16},
                                                                                       {30, 1, 64},
                                                                                       {2, 2, 112}}) {
    ExpectTheBitsOfTheReference({.query_heads = query_heads, .kv_heads = kv_heads, .dim = dim}, 300, 9);
  }
}

TEST(AttentionTest, ContextsHaveTheBitsOfTheReference) {
  for (const uint32_t tokens : {1u, 2u, 37u, 255u, 256u, 257u, 513u, 1000u}) {
    ExpectTheBitsOfTheReference({.query_heads = 4, .kv_heads = 2, .dim = 64}, tokens, 40);
  }
}

TEST(AttentionTest, TypesAndBlocksHaveTheBitsOfTheReference) {
  for (const ElementType key : {ElementType::kF32, ElementType::kF16, ElementType::kBf16}) {
    for (const ElementType value : {ElementType::kF32, ElementType::kF16, ElementType::kBf16}) {
      for (const uint32_t block_tokens : {16u, 32u, 64u}) {
        ExpectTheBitsOfTheReference({.query_heads = 6,
                                     .kv_heads = 2,
                                     .dim = 80,
                                     .block_tokens = block_tokens,
                                     .key_type = key,
                                     .value_type = value},
                                    290, 5);
      }
    }
  }
}

TEST(AttentionTest, WindowsAndCapsHaveTheBitsOfTheReference) {
  for (const uint32_t window : {1u, 33u, 256u, 300u, 512u}) {
    for (const float cap : {0.0f, 3.0f}) {
      ExpectTheBitsOfTheReference({.query_heads = 4, .kv_heads = 1, .dim = 64, .window = window, .soft_cap = cap}, 700,
                                  30);
    }
  }
}

// Blocks that a window has left behind are gone.
TEST(AttentionTest, BlocksOutOfReachAreNotRead) {
  const Model model{.window = 100};
  Pool pool(model, SlotsFor(model, 600), 1);
  Sequence sequence(model, pool, 600, 20, 2);
  const std::vector<float> expected = Reference(model, pool, sequence);
  const uint32_t reach = (600 - 20 + 1 - 100) / model.block_tokens;
  std::fill(sequence.table.begin(), sequence.table.begin() + reach, kNoSlot);
  for (const Isa isa : Isas()) {
    EXPECT_TRUE(SameBits(AttendAll({nullptr, isa}, model, pool, {&sequence}, 20)[0], expected)) << Name(isa);
  }
  sequence.table[reach] = kNoSlot;
  EXPECT_DEATH(AttendAll({}, model, pool, {&sequence}, 20), "CHECK failed");
}

TEST(AttentionTest, BatchMatesDoNotMatter) {
  const Model model{.query_heads = 14, .kv_heads = 2, .dim = 64};
  Pool pool(model, 400, 3);
  std::vector<std::unique_ptr<Sequence>> owned;
  std::vector<const Sequence*> all;
  for (const auto& [tokens, rows] : std::vector<std::pair<uint32_t, uint32_t>>{
           {2500, 1}, {1, 1}, {70, 70}, {900, 1}, {257, 33}, {31, 2}, {520, 1}}) {
    owned.push_back(std::make_unique<Sequence>(model, pool, tokens, rows, tokens));
    all.push_back(owned.back().get());
  }
  for (const Isa isa : Isas()) {
    for (const uint32_t threads : {1u, 2u, 3u}) {
      WorkerPool workers(threads);
      const auto together = AttendAll({&workers, isa}, model, pool, all, 1000);
      const auto backwards = AttendAll({&workers, isa}, model, pool, {all.rbegin(), all.rend()}, 16);
      for (size_t i = 0; i < all.size(); ++i) {
        const auto alone = AttendAll({nullptr, isa}, model, pool, {all[i]}, 1000)[0];
        EXPECT_TRUE(SameBits(together[i], alone)) << Name(isa) << " " << threads << " " << i;
        EXPECT_TRUE(SameBits(backwards[all.size() - 1 - i], alone)) << Name(isa) << " " << threads << " " << i;
      }
    }
  }
}

// One decode at a long context is split over partitions, with less scratch in several waves.
TEST(AttentionTest, WavesGiveTheSameBits) {
  const Model model{.query_heads = 8, .kv_heads = 2, .dim = 64};
  Pool pool(model, SlotsFor(model, 9000), 4);
  const Sequence sequence(model, pool, 9000, 3, 5);
  WorkerPool workers(4);
  const auto expected = AttendAll({}, model, pool, {&sequence}, 3)[0];
  for (const uint64_t less : {uint64_t{0}, uint64_t{1} << 17, uint64_t{1} << 30}) {
    EXPECT_TRUE(SameBits(AttendAll({&workers, BestIsa()}, model, pool, {&sequence}, 3, less)[0], expected));
  }
}

TEST(AttentionTest, SlotsDoNotMatter) {
  const Model model;
  std::vector<float> first;
  for (uint64_t seed = 1; seed < 4; ++seed) {
    Pool pool(model, 40, seed);
    const Sequence sequence(model, pool, 300, 20, 77);
    const auto got = AttendAll({nullptr, BestIsa()}, model, pool, {&sequence}, 20)[0];
    if (first.empty()) first = got;
    EXPECT_TRUE(SameBits(got, first));
  }
}

// --- controls: what must change the bits does ---

TEST(AttentionTest, AnotherPartitionSizeChangesBits) {
  const Model model;
  Pool pool(model, 40, 1);
  const Sequence sequence(model, pool, 1000, 8, 6);
  const auto expected = Reference(model, pool, sequence);
  const auto other = Reference(model, pool, sequence, 128);
  size_t different = 0;
  for (size_t i = 0; i < expected.size(); ++i) different += expected[i] != other[i];
  EXPECT_GT(different, expected.size() / 2);
}

TEST(AttentionTest, OneFlippedBitOfKIsSeenByLaterRowsOnly) {
  const Model model;
  for (const Isa isa : Isas()) {
    Pool pool(model, 40, 1);
    const Sequence sequence(model, pool, 300, 4, 6);
    const auto before = AttendAll({nullptr, isa}, model, pool, {&sequence}, 4)[0];
    const uint32_t position = 298;  // the third of four rows
    std::byte* key = pool.kv().Key(sequence.table[position / model.block_tokens]);
    key[position % model.block_tokens * 2 + 1] ^= std::byte{0x02};  // a mantissa bit of dimension 0, head 0
    const auto after = AttendAll({nullptr, isa}, model, pool, {&sequence}, 4)[0];
    const auto rows = [&](const std::vector<float>& x, uint32_t first, uint32_t last) {
      return std::vector<float>(x.begin() + first * model.queries(), x.begin() + last * model.queries());
    };
    EXPECT_TRUE(SameBits(rows(before, 0, 2), rows(after, 0, 2)));
    EXPECT_FALSE(SameBits(rows(before, 2, 3), rows(after, 2, 3)));
    EXPECT_FALSE(SameBits(rows(before, 3, 4), rows(after, 3, 4)));
  }
}

TEST(AttentionTest, AWindowThatIsOneOffIsSeen) {
  Model model{.window = 64};
  Pool pool(model, 40, 1);
  const Sequence sequence(model, pool, 300, 4, 6);
  const auto expected = AttendAll({nullptr, BestIsa()}, model, pool, {&sequence}, 4)[0];
  for (const uint32_t window : {63u, 65u}) {
    model.window = window;
    const auto other = AttendAll({nullptr, BestIsa()}, model, pool, {&sequence}, 4)[0];
    for (uint32_t r = 0; r < 4; ++r) {
      EXPECT_NE(std::memcmp(&other[r * model.queries()], &expected[r * model.queries()], 16), 0) << window;
    }
  }
}

TEST(AttentionTest, NanInAQueryOrInKReachesTheOutput) {
  const Model model{.query_heads = 2, .kv_heads = 1};
  for (const Isa isa : Isas()) {
    Pool pool(model, 40, 1);
    Sequence sequence(model, pool, 600, 2, 6);
    sequence.q[3] = NAN;  // row 0, head 0
    auto got = AttendAll({nullptr, isa}, model, pool, {&sequence}, 2)[0];
    for (uint32_t i = 0; i < got.size(); ++i) EXPECT_EQ(std::isnan(got[i]), i < model.dim) << i;
    sequence.q[3] = 0.0f;
    sequence.k[300 * model.keys()] = NAN;  // one element of one row
    sequence.Write({nullptr, isa}, model, pool, 600);
    got = AttendAll({nullptr, isa}, model, pool, {&sequence}, 2)[0];
    for (const float value : got) EXPECT_TRUE(std::isnan(value));
  }
}

// --- accuracy ---

// Softmax attention in float64 over what the cache stores.
std::vector<double> InDouble(const Model& model, const Sequence& s, uint32_t row, uint32_t head) {
  const auto stored = [](float x, ElementType type) -> double {
    if (type == ElementType::kF16) return FloatOfF16(F16OfFloat(x));
    return type == ElementType::kBf16 ? FloatOfBf16(Bf16OfFloat(x)) : x;
  };
  const uint32_t position = s.tokens - s.rows + row;
  const uint32_t first = model.window != 0 && position + 1 > model.window ? position + 1 - model.window : 0;
  const size_t kv_at = head / (model.query_heads / model.kv_heads) * model.dim;
  std::vector<double> scores, out(model.dim, 0.0);
  for (uint32_t t = first; t <= position; ++t) {
    double score = 0.0;
    for (uint32_t d = 0; d < model.dim; ++d) {
      score += double{s.q[row * model.queries() + head * model.dim + d]} *
               stored(s.k[t * model.keys() + kv_at + d], model.key_type);
    }
    score /= std::sqrt(static_cast<double>(model.dim));
    scores.push_back(model.soft_cap == 0.0f ? score : model.soft_cap * std::tanh(score / model.soft_cap));
  }
  const double most = *std::max_element(scores.begin(), scores.end());
  double sum = 0.0;
  for (uint32_t t = first; t <= position; ++t) {
    const double weight = std::exp(scores[t - first] - most);
    sum += weight;
    for (uint32_t d = 0; d < model.dim; ++d)
      out[d] += weight * stored(s.v[t * model.keys() + kv_at + d], model.value_type);
  }
  for (double& value : out) value /= sum;
  return out;
}

TEST(AttentionTest, IsCloseToFloat64) {
  for (const Model& model : {Model{.query_heads = 14, .kv_heads = 2, .dim = 64},
                             Model{.query_heads = 4, .kv_heads = 1, .dim = 256, .window = 400},
                             Model{.query_heads = 3,
                             .kv_heads = 3,
                             .dim = 80,
                             .key_type = ElementType::kBf16,
                             .value_type = ElementType::kF32,
                             .soft_cap = 5.0f}}) {
    Pool pool(model, 60, 1);
    const Sequence sequence(model, pool, 1000, 6, 8);
    const auto got = AttendAll({nullptr, BestIsa()}, model, pool, {&sequence}, 6)[0];
    for (uint32_t r = 0; r < sequence.rows; ++r) {
      for (uint32_t h = 0; h < model.query_heads; ++h) {
        const std::vector<double> expected = InDouble(model, sequence, r, h);
        for (uint32_t d = 0; d < model.dim; ++d)
          ASSERT_NEAR(got[r * model.queries() + h * model.dim + d], expected[d], 5e-6) << model.name();
      }
    }
  }
}

// How a textbook calls it: Q [batch, heads, 1, head_dim], one length per sequence.
TEST(AttentionTest, OneQueryPerSequenceWithLengthsThatDiffer) {
  const Model model{.query_heads = 8, .kv_heads = 2, .dim = 64, .block_tokens = 16};
  Pool pool(model, 200, 9);
  std::vector<std::unique_ptr<Sequence>> batch;
  std::vector<const Sequence*> views;
  for (const uint32_t length : {1u, 5u, 16u, 17u, 300u, 1024u}) {
    batch.push_back(std::make_unique<Sequence>(model, pool, length, 1, length));
    views.push_back(batch.back().get());
  }
  WorkerPool workers(2);
  const auto got = AttendAll({&workers, BestIsa()}, model, pool, views, 1);
  for (size_t b = 0; b < batch.size(); ++b) {
    for (uint32_t h = 0; h < model.query_heads; ++h) {
      const std::vector<double> expected = InDouble(model, *batch[b], 0, h);
      for (uint32_t d = 0; d < model.dim; ++d) EXPECT_NEAR(got[b][h * model.dim + d], expected[d], 5e-6);
    }
  }
}

// --- limits ---

TEST(AttentionTest, WhatIsNotSupportedIsRefusedByName) {
  const Model model;
  KvLayerView kv = Pool(model, 1, 1).kv();
  const auto message = [&](const AttentionShape& shape, const KvLayerView& view) {
    const absl::Status status = AttentionSupported(shape, view);
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
    return std::string(status.message());
  };
  EXPECT_TRUE(AttentionSupported(model.shape(), kv).ok());
  KvLayerView wrong = kv;
  wrong.key_dim = wrong.value_dim = 72;
  EXPECT_THAT(message(model.shape(), wrong), testing::HasSubstr("head dimension 72"));
  wrong.key_dim = wrong.value_dim = 512;
  EXPECT_THAT(message(model.shape(), wrong), testing::HasSubstr("up to 256"));
  wrong = kv;
  wrong.value_dim = 128;
  EXPECT_THAT(message(model.shape(), wrong), testing::HasSubstr("must be equal"));
  wrong = kv;
  wrong.block_tokens = 48;
  EXPECT_THAT(message(model.shape(), wrong), testing::HasSubstr("blocks of 48"));
  wrong = kv;
  wrong.key_type = static_cast<ElementType>(9);
  EXPECT_THAT(message(model.shape(), wrong), testing::HasSubstr("element type 9"));
  AttentionShape shape = model.shape();
  shape.query_heads = 5;
  EXPECT_THAT(message(shape, kv), testing::HasSubstr("5 query heads over 2"));
}

TEST(AttentionTest, AllocatesNothing) {
  const Model model{.query_heads = 8, .kv_heads = 2};
  Pool pool(model, SlotsFor(model, 3000), 1);
  const Sequence sequence(model, pool, 3000, 40, 2);
  WorkerPool workers(3);
  const Compute compute{&workers, BestIsa()};
  const uint64_t bytes = AttendScratchBytes(model.shape(), 64, 64, 40, 3000, 3);
  std::vector<std::byte> memory(bytes);
  std::vector<float> out(sequence.q.size());
  const AttentionSlice slices[] = {{0, 39, 2960, sequence.table}, {39, 1, 2999, sequence.table}};
  const uint64_t before = AllocationCount();
  WriteKv(compute, pool.kv(), slices, sequence.k.data(), model.keys(), sequence.v.data(), model.keys());
  Attend(compute, model.shape(), pool.kv(), slices, sequence.q.data(), model.queries(), out.data(), model.queries(),
         memory);
  EXPECT_EQ(AllocationCount(), before);
}

}  // namespace
}  // namespace reprise
