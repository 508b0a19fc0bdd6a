// Products are held against a definition written here from the rule alone (docs/format/numerics_products.md):
// GGUF blocks read one by one, inputs quantised in scalar code, integer sums, one chain per output.
#include "kernel/matmul.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "base/bytes.h"
#include "ggml.h"
#include "gtest/gtest.h"
#include "kernel/weight_row.h"

namespace reprise {
namespace {

constexpr WeightType kTypes[] = {WeightType::kF32,  WeightType::kF16,  WeightType::kBF16, WeightType::kQ4_0,
                                 WeightType::kQ4_1, WeightType::kQ5_0, WeightType::kQ5_1, WeightType::kQ8_0,
                                 WeightType::kQ4_K, WeightType::kQ5_K, WeightType::kQ6_K};
constexpr Isa kIsas[] = {Isa::kPortable, Isa::kAvx2, Isa::kAvx512};

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15ull + 1) {}
  uint32_t Bits() {
    state_ ^= state_ << 13, state_ ^= state_ >> 7, state_ ^= state_ << 17;
    return static_cast<uint32_t>(state_ >> 32);
  }
  float Uniform() { return static_cast<float>(Bits() >> 8) * 0x1p-24f; }
  float Gauss() { return (Uniform() + Uniform() + Uniform() + Uniform() - 2.0f) * 1.7320508f; }

 private:
  uint64_t state_;
};

std::vector<float> RandomFloats(size_t count, uint64_t seed, float scale) {
  Random random(seed);
  std::vector<float> values(count);
  for (float& value : values) value = random.Gauss() * scale;
  return values;
}

// A matrix in GGUF's bytes and packed.
struct Matrix {
  WeightType type;
  uint32_t rows, cols;
  std::vector<std::byte> gguf;
  std::vector<std::byte> packed_memory;
  PackedWeight packed;

  Matrix(WeightType type, uint32_t rows, uint32_t cols, uint64_t seed = 1) : type(type), rows(rows), cols(cols) {
    const std::vector<float> values = RandomFloats(size_t{rows} * cols, seed, 0.05f);
    gguf.resize(RowBytes(type, cols) * rows);
    if (type == WeightType::kF32) {
      std::memcpy(gguf.data(), values.data(), gguf.size());
    } else {
      ggml_quantize_chunk(static_cast<ggml_type>(type), values.data(), gguf.data(), 0, rows, cols, nullptr);
    }
    Pack();
  }
  void Pack() {
    packed_memory.assign(PackedBytes(type, rows, cols) + 64, std::byte{0xff});
    const auto address = reinterpret_cast<uintptr_t>(packed_memory.data());
    packed = {type, rows, cols, packed_memory.data() + (RoundUp(address, 64) - address)};
    const auto groups = static_cast<uint32_t>(CeilDiv(rows, 16));
    const uint32_t middle = groups / 2;  // in two calls, as several threads would
    PackGroups(packed, gguf.data() + middle * 16 * RowBytes(type, cols), middle, groups);
    PackGroups(packed, gguf.data(), 0, middle);
  }
};

// ---- The definition ----

struct QuantizedRow {
  std::vector<int> q;
  std::vector<float> d;  // per block
};
QuantizedRow Quantize(const float* x, uint32_t cols, uint32_t block) {
  QuantizedRow out{std::vector<int>(cols), std::vector<float>(cols / block)};
  for (uint32_t b = 0; b < cols / block; ++b) {
    float amax = 0.0f;
    bool finite = true;
    for (uint32_t k = b * block; k < (b + 1) * block; ++k) {
      amax = std::max(amax, std::fabs(x[k]));
      finite = finite && std::isfinite(x[k]);
    }
    if (!finite) {
      out.d[b] = std::numeric_limits<float>::quiet_NaN();
    } else if (amax >= 1e-30f) {
      out.d[b] = amax / 127.0f;
      const float inverse = 127.0f / amax;
      for (uint32_t k = b * block; k < (b + 1) * block; ++k)
        out.q[k] = static_cast<int>(std::nearbyint(x[k] * inverse));
    }
  }
  return out;
}

template <class Packed>
float Dot(const typename Packed::Gguf* w, const float* x, const QuantizedRow& quantized, uint32_t cols,
          std::vector<float>* terms) {
  constexpr uint32_t kColumns = Packed::kColumns;
  float sum = 0.0f;
  for (uint32_t b = 0; b < cols / kColumns; ++b) {
    float factor, term;
    if constexpr (packed::kIsFloat<Packed>) {
      factor = x[b], term = ToFloat(w[b]);
    } else {
      BlockRow row;
      Read(w[b], row);
      int64_t isum = 0, msum = 0;
      for (uint32_t k = 0; k < kColumns; ++k) {
        const int q = quantized.q[b * kColumns + k];
        isum += int64_t{row.scales[k / Packed::kSub]} * (row.codes[k] - Packed::kOffset) * q;
        if constexpr (Packed::kMin) msum += int64_t{row.mins[k / Packed::kSub]} * q;
      }
      factor = quantized.d[b];
      term = row.d * static_cast<float>(isum);
      if constexpr (Packed::kMin) term = std::fma(-row.min, static_cast<float>(msum), term);
    }
    if (terms != nullptr) terms->push_back(factor * term);
    sum = std::fma(factor, term, sum);
  }
  return sum;
}

// y [n][rows] of x [n][stride].
std::vector<float> Define(const Matrix& matrix, const float* x, uint32_t stride, uint32_t n, const float* bias,
                          std::vector<float>* terms = nullptr) {
  std::vector<float> y(size_t{n} * matrix.rows);
  VisitPacked(matrix.type, [&](auto format) {
    using Packed = typename decltype(format)::type;
    using Gguf = typename Packed::Gguf;
    const uint32_t blocks = matrix.cols / Packed::kColumns;
    std::vector<Gguf> weights(size_t{blocks} * matrix.rows);
    std::memcpy(weights.data(), matrix.gguf.data(), matrix.gguf.size());
    for (uint32_t i = 0; i < n; ++i) {
      const float* row = x + size_t{i} * stride;
      QuantizedRow quantized;
      if constexpr (!packed::kIsFloat<Packed>) quantized = Quantize(row, matrix.cols, Packed::kColumns);
      for (uint32_t r = 0; r < matrix.rows; ++r) {
        const float sum = Dot<Packed>(&weights[size_t{r} * blocks], row, quantized, matrix.cols, terms);
        y[size_t{i} * matrix.rows + r] = bias != nullptr ? sum + bias[r] : sum;
      }
    }
  });
  return y;
}

bool SameBits(float a, float b) {
  return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b) || (std::isnan(a) && std::isnan(b));
}

// ---- Running ----

struct Runner {
  std::unique_ptr<WorkerPool> pool;
  Compute compute;
  std::vector<std::byte> memory;

  Runner(Isa isa, uint32_t threads) {
    if (threads > 1) pool = std::make_unique<WorkerPool>(threads);
    compute = {pool.get(), isa};
  }
  void Multiply(const float* x, uint32_t stride, uint32_t n, std::span<const Product> products) {
    const uint32_t cols = products[0].weight->cols;
    const uint64_t bytes = MultiplyScratchBytes(n, cols, pool != nullptr ? pool->threads() : 1);
    memory.assign(bytes + 64, std::byte{0xff});
    const auto address = reinterpret_cast<uintptr_t>(memory.data());
    reprise::Multiply(compute, x, stride, n, products,
                      std::span(memory).subspan(RoundUp(address, 64) - address, bytes));
  }
};

std::vector<float> Multiplied(Runner& runner, const Matrix& matrix, const float* x, uint32_t stride, uint32_t n,
                              const float* bias = nullptr) {
  const uint32_t out_stride = matrix.rows + 3;
  std::vector<float> padded(size_t{n} * out_stride, -77.0f);
  const Product product{&matrix.packed, bias, padded.data(), out_stride};
  runner.Multiply(x, stride, n, {&product, 1});
  std::vector<float> y;
  for (uint32_t i = 0; i < n; ++i) {
    const float* row = &padded[size_t{i} * out_stride];
    y.insert(y.end(), row, row + matrix.rows);
    for (uint32_t r = matrix.rows; r < out_stride; ++r) EXPECT_EQ(row[r], -77.0f) << "wrote past its rows";
  }
  return y;
}

size_t Differences(const std::vector<float>& a, const std::vector<float>& b) {
  EXPECT_EQ(a.size(), b.size());
  size_t count = 0;
  for (size_t i = 0; i < a.size(); ++i) count += !SameBits(a[i], b[i]);
  return count;
}

class ProductTest : public testing::TestWithParam<std::tuple<WeightType, Isa>> {
 protected:
  void SetUp() override {
    if (!Supported(isa())) GTEST_SKIP() << "this machine has no " << Name(isa());
  }
  WeightType type() const { return std::get<0>(GetParam()); }
  Isa isa() const { return std::get<1>(GetParam()); }
};

INSTANTIATE_TEST_SUITE_P(Formats, ProductTest, testing::Combine(testing::ValuesIn(kTypes), testing::ValuesIn(kIsas)),
                         [](const auto& info) {
                           return std::string(Name(std::get<0>(info.param))) + "_" +
                                  std::string(Name(std::get<1>(info.param)));
                         });

TEST_P(ProductTest, SameBitsForEveryBatchPositionAndThreadCount) {
  constexpr uint32_t kRows = 72, kCols = 768, kStride = kCols + 5, kInputs = 70;
  const Matrix matrix(type(), kRows, kCols);
  const std::vector<float> x = RandomFloats(size_t{kInputs} * kStride, 5, 1.0f);
  const std::vector<float> expected = Define(matrix, x.data(), kStride, kInputs, nullptr);
  for (const uint32_t threads : {1u, 2u, 4u, 8u}) {
    Runner runner(isa(), threads);
    for (const uint32_t n : {1u, 2u, 3u, 4u, 5u, 6u, 7u, 8u, 9u, 16u, 17u, 33u, 64u}) {
      for (const uint32_t start : {0u, 1u, 5u}) {
        const std::vector<float> y = Multiplied(runner, matrix, &x[size_t{start} * kStride], kStride, n);
        const std::vector<float> part(expected.begin() + start * kRows, expected.begin() + (start + n) * kRows);
        ASSERT_EQ(Differences(y, part), 0u) << "n " << n << ", start " << start << ", threads " << threads;
      }
    }
  }
}

TEST_P(ProductTest, SameBitsFor512InputsAndMore) {
  if (isa() == Isa::kPortable) GTEST_SKIP() << "is the definition, and slow";
  constexpr uint32_t kRows = 48, kCols = 512, kInputs = 600;
  const Matrix matrix(type(), kRows, kCols);
  const std::vector<float> x = RandomFloats(size_t{kInputs} * kCols, 6, 1.0f);
  const std::vector<float> expected = Define(matrix, x.data(), kCols, kInputs, nullptr);
  for (const uint32_t threads : {1u, 4u}) {
    Runner runner(isa(), threads);
    for (const uint32_t n : {511u, 512u, 600u}) {
      const std::vector<float> part(expected.begin(), expected.begin() + size_t{n} * kRows);
      ASSERT_EQ(Differences(Multiplied(runner, matrix, x.data(), kCols, n), part), 0u) << n << " inputs, " << threads;
    }
  }
}

TEST_P(ProductTest, OddShapesAndBias) {
  Runner runner(isa(), 2);
  for (const uint32_t rows : {1u, 15u, 16u, 17u, 100u}) {
    for (const uint32_t cols : {1u, 7u, 32u, 64u, 256u, 576u, 896u, 1536u}) {
      if (!Multipliable(type(), cols)) continue;
      const Matrix matrix(type(), rows, cols, rows + cols);
      const std::vector<float> x = RandomFloats(size_t{11} * cols, 7, 2.0f), bias = RandomFloats(rows, 8, 1.0f);
      for (const uint32_t n : {1u, 11u}) {
        ASSERT_EQ(Differences(Multiplied(runner, matrix, x.data(), cols, n, bias.data()),
                              Define(matrix, x.data(), cols, n, bias.data())),
                  0u)
            << rows << " x " << cols << ", n " << n;
      }
    }
  }
}

}  // namespace
}  // namespace reprise
