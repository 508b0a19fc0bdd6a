// Products are held against a definition written here from the rule alone (docs/format/numerics_products.md):
// GGUF blocks read one by one, inputs quantised in scalar code, integer sums, one chain per output.
#include "kernel/matmul.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "base/bytes.h"
#include "ggml-cpu.h"
#include "ggml.h"
#include "gmock/gmock.h"
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

TEST_P(ProductTest, ExtremeCodesScalesAndInputs) {
  if (type() == WeightType::kF32 || type() == WeightType::kF16 || type() == WeightType::kBF16) {
    GTEST_SKIP() << "no codes";
  }
  Matrix matrix(type(), 32, 768);
  Runner runner(isa(), 1);
  for (const int fill : {0x00, 0xff, -1}) {  // -1: random bytes
    Random random(17);
    for (std::byte& byte : matrix.gguf) byte = static_cast<std::byte>(fill >= 0 ? fill : random.Bits());
    VisitPacked(type(), [&](auto format) {
      using Packed = typename decltype(format)::type;
      if constexpr (!packed::kIsFloat<Packed>) {
        typename Packed::Gguf block;  // only the scales are kept finite
        for (size_t at = 0; at < matrix.gguf.size(); at += sizeof(block)) {
          std::memcpy(&block, &matrix.gguf[at], sizeof(block));
          block.d = static_cast<uint16_t>(0x2c00 + random.Bits() % 1024);
          if constexpr (requires { block.m; }) block.m = static_cast<uint16_t>(0xac00 + random.Bits() % 1024);
          if constexpr (requires { block.dmin; }) block.dmin = static_cast<uint16_t>(0x2c00 + random.Bits() % 1024);
          std::memcpy(&matrix.gguf[at], &block, sizeof(block));
        }
      }
    });
    matrix.Pack();
    std::vector<float> x(size_t{20} * 768);
    for (size_t k = 0; k < x.size(); ++k) {  // all inputs become +127, all -127, or a random mixture
      const size_t row = k / 768;
      x[k] = (row == 0 || (row > 1 && random.Bits() % 2 == 0)) ? 1.0f : -1.0f;
    }
    for (const uint32_t n : {3u, 20u}) {
      ASSERT_EQ(Differences(Multiplied(runner, matrix, x.data(), 768, n), Define(matrix, x.data(), 768, n, nullptr)),
                0u)
          << "fill " << fill << ", n " << n;
    }
  }
}

TEST_P(ProductTest, UnusualInputs) {
  const Matrix matrix(type(), 20, 512);
  Runner runner(isa(), 1);
  const std::vector<float> normal = RandomFloats(512, 9, 1.0f);
  for (const float scale : {0.0f, 1e-42f, 1e-31f, 1e-30f, 1e-20f, 1e20f, 3e38f}) {
    std::vector<float> x;
    for (int i = 0; i < 9; ++i) {
      for (const float value : normal)
        x.push_back(std::max(-1.0f, std::min(1.0f, value)) * (i % 2 == 0 ? scale : 1.0f));
    }
    ASSERT_EQ(Differences(Multiplied(runner, matrix, x.data(), 512, 9), Define(matrix, x.data(), 512, 9, nullptr)), 0u)
        << scale;
  }
}

TEST_P(ProductTest, NonFiniteInputPoisonsItsRowOnly) {
  const Matrix matrix(type(), 20, 512);
  Runner runner(isa(), 1);
  const std::vector<float> clean = RandomFloats(size_t{12} * 512, 9, 1.0f);
  const std::vector<float> expected = Multiplied(runner, matrix, clean.data(), 512, 12);
  for (const float poison : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                             -std::numeric_limits<float>::infinity()}) {
    std::vector<float> x = clean;
    x[5 * 512 + 300] = poison;
    const std::vector<float> y = Multiplied(runner, matrix, x.data(), 512, 12);
    for (size_t i = 0; i < y.size(); ++i) {
      if (i / 20 == 5) {
        ASSERT_FALSE(std::isfinite(y[i])) << i;
      } else {
        ASSERT_TRUE(SameBits(y[i], expected[i])) << i;
      }
    }
  }
}

// A control: if any of these changes went unseen, the tests above would prove nothing.
TEST_P(ProductTest, OneFlippedBitOrASplitChainIsSeen) {
  constexpr uint32_t kRows = 32, kCols = 1536, kInputs = 9;
  const Matrix matrix(type(), kRows, kCols);
  Runner runner(isa(), 1);
  const std::vector<float> x = RandomFloats(size_t{kInputs} * kCols, 11, 1.0f);
  std::vector<float> terms;
  const std::vector<float> expected = Define(matrix, x.data(), kCols, kInputs, nullptr, &terms);

  size_t split_differs = 0;  // two chains, one over even and one over odd blocks, instead of one
  const size_t blocks = terms.size() / expected.size();
  for (size_t i = 0; i < expected.size(); ++i) {
    float even = 0.0f, odd = 0.0f;
    for (size_t b = 0; b < blocks; ++b) (b % 2 == 0 ? even : odd) += terms[i * blocks + b];
    split_differs += !SameBits(even + odd, expected[i]);
  }
  EXPECT_GT(split_differs, 0u);

  const size_t middle = PackedBytes(type(), kRows, kCols) / 4 * 3 - 5;  // a code of some row of the second group
  matrix.packed.data[middle] ^= std::byte{4};
  size_t inputs_changed = 0;
  const std::vector<float> y = Multiplied(runner, matrix, x.data(), kCols, kInputs);
  for (uint32_t i = 0; i < kInputs; ++i) {
    size_t rows_changed = 0;
    for (uint32_t r = 0; r < kRows; ++r) rows_changed += !SameBits(y[i * kRows + r], expected[i * kRows + r]);
    EXPECT_LE(rows_changed, 1u);
    inputs_changed += rows_changed;
  }
  EXPECT_GT(inputs_changed, kInputs / 2);
}

TEST_P(ProductTest, ProductsOfOneInputShareIt) {
  const Matrix first(type(), 40, 512, 1), second(WeightType::kQ6_K, 24, 512, 2), third(WeightType::kQ4_0, 17, 512, 3),
      fourth(WeightType::kF16, 16, 512, 4);
  const std::vector<float> x = RandomFloats(size_t{10} * 512, 12, 1.0f), bias = RandomFloats(40, 13, 1.0f);
  for (const uint32_t n : {1u, 10u}) {
    std::vector<float> out[4];
    std::vector<Product> products;
    for (const Matrix* matrix : {&first, &second, &third, &fourth}) {
      std::vector<float>& y = out[products.size()];
      y.resize(size_t{n} * matrix->rows);
      products.push_back({&matrix->packed, products.empty() ? bias.data() : nullptr, y.data(), matrix->rows});
    }
    Runner runner(isa(), 3);
    runner.Multiply(x.data(), 512, n, products);
    EXPECT_EQ(Differences(out[0], Define(first, x.data(), 512, n, bias.data())), 0u);
    EXPECT_EQ(Differences(out[1], Define(second, x.data(), 512, n, nullptr)), 0u);
    EXPECT_EQ(Differences(out[2], Define(third, x.data(), 512, n, nullptr)), 0u);
    EXPECT_EQ(Differences(out[3], Define(fourth, x.data(), 512, n, nullptr)), 0u);
  }
}

class FormatTest : public testing::TestWithParam<WeightType> {};
INSTANTIATE_TEST_SUITE_P(Formats, FormatTest, testing::ValuesIn(kTypes),
                         [](const auto& info) { return std::string(Name(info.param)); });

// ||a - b|| / ||b||
double RelativeError(const std::vector<float>& a, const std::vector<double>& b) {
  double error = 0.0, size = 0.0;
  for (size_t i = 0; i < a.size(); ++i) error += (a[i] - b[i]) * (a[i] - b[i]), size += b[i] * b[i];
  return std::sqrt(error / size);
}

// Rounding inputs to 8 bits is what both do; ours must not lose more than ggml's dot product.
TEST_P(FormatTest, AsAccurateAsGgml) {
  constexpr uint32_t kRows = 64, kCols = 1536, kInputs = 8;
  const Matrix matrix(GetParam(), kRows, kCols);
  const std::vector<float> x = RandomFloats(size_t{kInputs} * kCols, 15, 1.0f);
  std::vector<float> weights(size_t{kRows} * kCols);
  for (uint32_t r = 0; r < kRows; ++r) {
    DequantizeRow(GetParam(), &matrix.gguf[r * RowBytes(GetParam(), kCols)],
                  std::span(weights).subspan(size_t{r} * kCols, kCols));
  }
  std::vector<double> exact(size_t{kInputs} * kRows);
  for (uint32_t i = 0; i < kInputs; ++i) {
    for (uint32_t r = 0; r < kRows; ++r) {
      for (uint32_t k = 0; k < kCols; ++k) {
        exact[i * kRows + r] += static_cast<double>(weights[size_t{r} * kCols + k]) * x[size_t{i} * kCols + k];
      }
    }
  }
  Runner runner(BestIsa(), 1);
  const double ours = RelativeError(Multiplied(runner, matrix, x.data(), kCols, kInputs), exact);

  const ggml_type_traits_cpu* traits = ggml_get_type_traits_cpu(static_cast<ggml_type>(GetParam()));
  std::vector<std::byte> row(ggml_row_size(traits->vec_dot_type, kCols));
  std::vector<float> theirs(exact.size());
  ggml_cpu_init();
  for (uint32_t i = 0; i < kInputs; ++i) {
    ggml_get_type_traits_cpu(traits->vec_dot_type)->from_float(&x[size_t{i} * kCols], row.data(), kCols);
    for (uint32_t r = 0; r < kRows; ++r) {
      traits->vec_dot(kCols, &theirs[i * kRows + r], 0, &matrix.gguf[r * RowBytes(GetParam(), kCols)], 0, row.data(), 0,
                      1);
    }
  }
  const double ggml = RelativeError(theirs, exact);
  RecordProperty("ours", std::to_string(ours));
  RecordProperty("ggml", std::to_string(ggml));
  EXPECT_LT(ours, std::max(1.05 * ggml, 2e-6)) << "ggml: " << ggml;
}

TEST_P(FormatTest, DequantizesToGgmlsBits) {
  constexpr uint32_t kCols = 768;
  const Matrix matrix(GetParam(), 19, kCols);
  std::vector<float> expected(kCols), row(kCols), from_packed(kCols);
  for (uint32_t r = 0; r < 19; ++r) {
    const std::byte* gguf = &matrix.gguf[r * RowBytes(GetParam(), kCols)];
    const auto to_float = ggml_get_type_traits(static_cast<ggml_type>(GetParam()))->to_float;
    if (to_float != nullptr) {
      to_float(gguf, expected.data(), kCols);
    } else {
      std::memcpy(expected.data(), gguf, kCols * sizeof(float));  // F32
    }
    DequantizeRow(GetParam(), gguf, row);
    DequantizePackedRow(matrix.packed, r, from_packed);
    ASSERT_EQ(Differences(row, expected), 0u) << r;
    ASSERT_EQ(Differences(from_packed, expected), 0u) << r;
  }
}

// Types without a kernel of ours.
TEST(OtherFormats, RunThroughGgmlTheSameForEveryBatch) {
  for (const ggml_type type : {GGML_TYPE_Q3_K, GGML_TYPE_Q2_K, GGML_TYPE_IQ4_NL, GGML_TYPE_IQ4_XS}) {
    const auto weight_type = static_cast<WeightType>(type);
    EXPECT_FALSE(HasKernel(weight_type));
    ASSERT_TRUE(Multipliable(weight_type, 512));
    EXPECT_FALSE(Multipliable(weight_type, 500));
    const Matrix matrix(weight_type, 37, 512);
    const std::vector<float> x = RandomFloats(size_t{12} * 512, 16, 1.0f), bias = RandomFloats(37, 17, 1.0f);
    Runner alone(BestIsa(), 1), several(BestIsa(), 3);
    const std::vector<float> together = Multiplied(several, matrix, x.data(), 512, 12, bias.data());
    std::vector<float> weights(512);
    for (uint32_t i = 0; i < 12; ++i) {
      const std::vector<float> y = Multiplied(alone, matrix, &x[i * 512], 512, 1, bias.data());
      for (uint32_t r = 0; r < 37; ++r) {
        ASSERT_TRUE(SameBits(y[r], together[i * 37 + r]));
        DequantizePackedRow(matrix.packed, r, weights);
        double exact = bias[r];
        for (int k = 0; k < 512; ++k) exact += static_cast<double>(weights[k]) * x[i * 512 + k];
        ASSERT_NEAR(y[r], exact, 0.1) << ggml_type_name(type);
      }
    }
  }
}

TEST(WeightTypes, KnowWhatTheyCanMultiply) {
  EXPECT_TRUE(Multipliable(WeightType::kQ4_K, 512));
  EXPECT_FALSE(Multipliable(WeightType::kQ4_K, 576));
  EXPECT_TRUE(Multipliable(WeightType::kQ5_0, 576));
  EXPECT_FALSE(Multipliable(WeightType::kQ5_0, 16));
  EXPECT_TRUE(Multipliable(WeightType::kF16, 7));
  EXPECT_FALSE(Multipliable(WeightType::kF32, 0));
  EXPECT_FALSE(Multipliable(static_cast<WeightType>(GGML_TYPE_I32), 64));
  EXPECT_FALSE(Multipliable(static_cast<WeightType>(4), 64));  // a number that GGUF has retired
  EXPECT_FALSE(Multipliable(static_cast<WeightType>(100000), 64));
  EXPECT_EQ(Name(WeightType::kQ4_K), "Q4_K");
  EXPECT_EQ(RowBytes(WeightType::kQ6_K, 512), 420u);
  EXPECT_EQ(PackedBytes(WeightType::kQ8_0, 17, 64), 32u * 68);
}

TEST(Isa, IsParsedByItsName) {
  for (const Isa isa : kIsas) {
    const absl::StatusOr<Isa> parsed = ParseIsa(Name(isa));
    ASSERT_EQ(parsed.ok(), Supported(isa));
    if (parsed.ok()) {
      EXPECT_EQ(*parsed, isa);
    }
  }
  EXPECT_TRUE(Supported(BestIsa()));
  EXPECT_THAT(std::string(ParseIsa("sse9").status().message()), testing::HasSubstr("portable"));
}

}  // namespace
}  // namespace reprise
