#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "ggml-cpu.h"
#include "ggml.h"
#include "kernel/ops.h"

namespace reprise {
namespace {

std::vector<float> Values(size_t count) {
  std::mt19937_64 random(11);
  std::normal_distribution<float> normal;
  std::vector<float> out(count);
  for (float& value : out) value = normal(random);
  return out;
}

// The same rotation by ggml: x [n][heads][head_dim] at the given positions.
std::vector<float> ByGgml(const RopeParameters& rope, const std::vector<float>& x, std::vector<int32_t> positions,
                          uint32_t heads, uint32_t head_dim) {
  const auto n = static_cast<int64_t>(positions.size());
  const std::unique_ptr<ggml_context, void (*)(ggml_context*)> context(ggml_init({1 << 22, nullptr, false}), ggml_free);
  ggml_tensor* in = ggml_new_tensor_3d(context.get(), GGML_TYPE_F32, head_dim, heads, n);
  ggml_tensor* at = ggml_new_tensor_1d(context.get(), GGML_TYPE_I32, n);
  std::memcpy(in->data, x.data(), x.size() * sizeof(float));
  std::memcpy(at->data, positions.data(), positions.size() * sizeof(int32_t));
  ggml_tensor* factors = nullptr;
  if (!rope.factors.empty()) {
    factors = ggml_new_tensor_1d(context.get(), GGML_TYPE_F32, rope.dims / 2);
    std::memcpy(factors->data, rope.factors.data(), rope.factors.size_bytes());
  }
  const int mode = rope.type == RopeType::kNeox ? GGML_ROPE_TYPE_NEOX : GGML_ROPE_TYPE_NORMAL;
  ggml_tensor* out = ggml_rope_ext(context.get(), in, at, factors, static_cast<int>(rope.dims), mode,
                                   static_cast<int>(rope.original_context), rope.base, rope.scale, rope.ext_factor,
                                   rope.attn_factor, rope.beta_fast, rope.beta_slow);
  ggml_cgraph* graph = ggml_new_graph(context.get());
  ggml_build_forward_expand(graph, out);
  EXPECT_EQ(ggml_graph_compute_with_ctx(context.get(), graph, 1), GGML_STATUS_SUCCESS);
  const float* data = static_cast<const float*>(out->data);
  return {data, data + x.size()};
}

std::vector<float> Ours(const RopeParameters& rope, std::vector<float> x, const std::vector<int32_t>& positions,
                        uint32_t heads, uint32_t head_dim) {
  std::vector<float> tables(positions.size() * rope.dims);
  for (size_t i = 0; i < positions.size(); ++i) {
    RopeTable(rope, static_cast<uint32_t>(positions[i]), tables.data() + i * rope.dims);
  }
  Rope({}, rope, tables.data(), x.data(), static_cast<uint32_t>(positions.size()), heads, head_dim, heads * head_dim);
  return x;
}

void ExpectLikeGgml(const RopeParameters& rope, uint32_t head_dim) {
  // ggml multiplies its angles up in float: at larger positions the two drift apart, in proportion.
  const std::vector<int32_t> positions = {0, 1, 2, 7, 19};
  const uint32_t heads = 3;
  const std::vector<float> x = Values(positions.size() * heads * head_dim);
  const std::vector<float> expected = ByGgml(rope, x, positions, heads, head_dim);
  const std::vector<float> got = Ours(rope, x, positions, heads, head_dim);
  for (size_t i = 0; i < x.size(); ++i) ASSERT_NEAR(got[i], expected[i], 2e-5) << i;
}

TEST(RopeTest, AgreesWithGgml) {
  std::vector<float> factors(32);
  for (size_t i = 0; i < factors.size(); ++i) factors[i] = 1.0f + 0.25f * static_cast<float>(i);
  for (const RopeType type : {RopeType::kNormal, RopeType::kNeox}) {
    ExpectLikeGgml({.type = type, .dims = 64, .base = 10000.0f}, 64);
    ExpectLikeGgml({.type = type, .dims = 128, .base = 1000000.0f}, 128);
    ExpectLikeGgml({.type = type, .dims = 48, .base = 10000.0f}, 80);  // partial
    ExpectLikeGgml({.type = type, .dims = 64, .base = 500000.0f, .factors = factors}, 64);
    ExpectLikeGgml({.type = type, .dims = 64, .base = 10000.0f, .scale = 0.125f}, 64);
    ExpectLikeGgml({.type = type,
                    .dims = 128,
                    .base = 1000000.0f,
                    .scale = 0.25f,
                    .ext_factor = 1.0f,
                    .attn_factor = 1.0f,
                    .original_context = 32768},
                   128);
    ExpectLikeGgml({.type = type,
                    .dims = 64,
                    .base = 10000.0f,
                    .scale = 1.0f / 16,
                    .ext_factor = 0.7f,
                    .attn_factor = 1.2f,
                    .beta_fast = 24.0f,
                    .beta_slow = 2.0f,
                    .original_context = 4096},
                   64);
  }
}

TEST(RopeTest, TablesAreCloseToTheLibraryAtEveryPosition) {
  const RopeParameters rope{.type = RopeType::kNeox, .dims = 64, .base = 10000.0f};
  std::vector<float> table(rope.dims);
  for (uint32_t position : {0u, 1u, 3u, 1000u, 32767u, 131071u, 1000000u}) {
    RopeTable(rope, position, table.data());
    for (uint32_t i = 0; i < 32; ++i) {
      const double angle = position * std::pow(10000.0, -2.0 * i / 64.0);
      // The angle itself is a double: its last bit grows with the position.
      EXPECT_NEAR(table[2 * i], std::cos(angle), 1e-7) << position << " " << i;
      EXPECT_NEAR(table[2 * i + 1], std::sin(angle), 1e-7) << position << " " << i;
    }
  }
}

// What comes behind the rotated dimensions is copied, and positions matter (the control).
TEST(RopeTest, RotatesOnlyItsDimensions) {
  const RopeParameters rope{.type = RopeType::kNormal, .dims = 48, .base = 10000.0f};
  const std::vector<float> x = Values(2 * 80);
  const std::vector<float> got = Ours(rope, x, {5, 6}, 1, 80);
  for (uint32_t r = 0; r < 2; ++r) {
    for (uint32_t i = 0; i < 48; ++i) EXPECT_NE(got[r * 80 + i], x[r * 80 + i]);
    for (uint32_t i = 48; i < 80; ++i) EXPECT_EQ(got[r * 80 + i], x[r * 80 + i]);
  }
  EXPECT_NE(Ours(rope, x, {5, 7}, 1, 80), got);
}

TEST(RopeTest, ThreadsAndBatchesGiveTheSameBits) {
  const RopeParameters rope{.type = RopeType::kNeox, .dims = 64, .base = 10000.0f};
  const uint32_t rows = 100, heads = 6;
  std::vector<float> tables(rows * 64);
  for (uint32_t r = 0; r < rows; ++r) RopeTable(rope, 3 * r, tables.data() + r * 64);
  const std::vector<float> x = Values(rows * heads * 64);
  std::vector<float> one_by_one = x;
  for (uint32_t r = 0; r < rows; ++r) {
    Rope({}, rope, tables.data() + r * 64, one_by_one.data() + r * heads * 64, 1, heads, 64, heads * 64);
  }
  WorkerPool pool(3);
  std::vector<float> together = x;
  Rope({&pool, BestIsa()}, rope, tables.data(), together.data(), rows, heads, 64, heads * 64);
  EXPECT_EQ(std::memcmp(one_by_one.data(), together.data(), x.size() * sizeof(float)), 0);
}

TEST(RopeTest, NoneLeavesEverythingAsItIs) {
  const std::vector<float> x = Values(64);
  EXPECT_EQ(Ours({}, x, {9}, 1, 64), x);
}

}  // namespace
}  // namespace reprise
