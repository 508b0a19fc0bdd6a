#include "kernel/ops.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "kernel/half.h"
#include "kernel/lanes_portable.h"
#include "kernel/ops_rows.h"
#include "tests/kernel_inputs.h"

namespace reprise {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// Distance from the double result in units in the last place of float.
double UlpError(float got, double expected) {
  const auto rounded = static_cast<float>(expected);
  if (got == rounded) return 0.0;
  const double ulp = std::max<double>(std::nextafter(std::fabs(rounded), kInfinity) - std::fabs(rounded), 0x1p-149);
  return std::fabs(got - expected) / ulp;
}

// Every 997th float: all exponents, both signs.
template <class F>
void ForFloats(float low, float high, F f) {
  for (uint64_t bits = 0; bits < (uint64_t{1} << 32); bits += 9973) {
    const auto x = std::bit_cast<float>(static_cast<uint32_t>(bits));
    if (x >= low && x <= high) f(x);
  }
}

TEST(OpsTest, ExpIsWithinOneUlp) {
  double worst = 0.0;
  ForFloats(-86.0f, 88.0f, [&](float x) { worst = std::max(worst, UlpError(ExpReference(x), std::exp(double{x}))); });
  EXPECT_LT(worst, 1.0);
  EXPECT_EQ(ExpReference(0.0f), 1.0f);
  EXPECT_EQ(ExpReference(89.0f), kInfinity);
  EXPECT_EQ(ExpReference(kInfinity), kInfinity);
  EXPECT_EQ(ExpReference(-110.0f), 0.0f);
  EXPECT_EQ(ExpReference(-kInfinity), 0.0f);
  EXPECT_TRUE(std::isnan(ExpReference(kNan)));
  EXPECT_NEAR(ExpReference(-100.0f), std::exp(-100.0), 2 * 0x1p-149);  // a denormal
}

TEST(OpsTest, TanhIsWithinTwoUlp) {
  double worst = 0.0;
  ForFloats(-20.0f, 20.0f, [&](float x) { worst = std::max(worst, UlpError(TanhReference(x), std::tanh(double{x}))); });
  EXPECT_LT(worst, 2.0);
  EXPECT_EQ(TanhReference(kInfinity), 1.0f);
  EXPECT_EQ(TanhReference(-kInfinity), -1.0f);
  EXPECT_TRUE(std::isnan(TanhReference(kNan)));
}

TEST(OpsTest, RmsNormIsCloseToDouble) {
  for (const uint32_t dim : {1u, 15u, 64u, 100u, 896u, 2048u}) {
    const std::vector<float> x = Gauss(dim, 3.0f, dim);
    const std::vector<float> weight = Gauss(dim, 1.0f, dim + 1);
    std::vector<float> out(dim);
    RmsNorm({}, x.data(), out.data(), 1, dim, dim, weight, 1e-6f);
    double sum = 0.0;
    for (const float value : x) sum += double{value} * value;
    const double scale = 1.0 / std::sqrt(sum / dim + 1e-6);
    for (uint32_t i = 0; i < dim; ++i) {
      EXPECT_NEAR(out[i], x[i] * scale * weight[i], std::fabs(x[i] * scale * weight[i]) * 4e-7) << dim;
    }
  }
}

TEST(OpsTest, GatesAreCloseToDouble) {
  const std::vector<float> x = Gauss(5000, 4.0f, 1);
  const std::vector<float> y = Gauss(5000, 1.0f, 2);
  std::vector<float> silu = x;
  std::vector<float> gelu = x;
  std::vector<float> capped = x;
  SiluMultiply({}, silu.data(), y.data(), x.size());
  GeluTanhMultiply({}, gelu.data(), y.data(), x.size());
  SoftCap({}, capped.data(), 3.0f, x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    const double v = x[i];
    EXPECT_LT(UlpError(silu[i], v / (1.0 + std::exp(-v)) * y[i]), 4.0) << v;
    const double u = std::sqrt(2.0 / M_PI) * (v + 0.044715 * v * v * v);
    // Relative to x y: where the gate is nearly closed, the error of u is multiplied by it.
    EXPECT_NEAR(gelu[i], v / (1.0 + std::exp(-2.0 * u)) * y[i], std::fabs(v * y[i]) * 4e-7) << v;
    EXPECT_LT(UlpError(capped[i], 3.0 * std::tanh(v / 3.0)), 3.0) << v;
  }
}

// One function of a buffer, run on every instruction set and thread count.
struct Operation {
  std::string name;
  std::function<void(const Compute&, std::vector<float>&)> run;
};

std::vector<Operation> Operations(uint32_t rows, uint32_t dim, const std::vector<float>& y,
                                  const std::vector<float>& weight) {
  return {
      {"rms",
       [=](const Compute& c, std::vector<float>& x) { RmsNorm(c, x.data(), x.data(), rows, dim, dim, weight, 1e-5f); }},
      {"heads",
       [=](const Compute& c, std::vector<float>& x) { RmsNormHeads(c, x.data(), rows, 1, dim, dim, weight, 1e-5f); }},
      {"add", [=](const Compute& c, std::vector<float>& x) { AddRows(c, x.data(), y.data(), x.size()); }},
      {"scale", [=](const Compute& c, std::vector<float>& x) { ScaleRows(c, x.data(), 1.7f, x.size()); }},
      {"add scaled",
       [=](const Compute& c, std::vector<float>& x) { AddScaledRows(c, x.data(), -0.3f, y.data(), x.size()); }},
      {"silu", [=](const Compute& c, std::vector<float>& x) { SiluMultiply(c, x.data(), y.data(), x.size()); }},
      {"gelu", [=](const Compute& c, std::vector<float>& x) { GeluTanhMultiply(c, x.data(), y.data(), x.size()); }},
      {"cap", [=](const Compute& c, std::vector<float>& x) { SoftCap(c, x.data(), 2.5f, x.size()); }},
  };
}

TEST(OpsTest, SameBitsOnEveryInstructionSetAndThreadCount) {
  for (const uint32_t dim : {1u, 16u, 33u, 576u, 1030u}) {
    for (const uint32_t rows : {1u, 3u, 70u}) {
      const std::vector<float> x = Gauss(size_t{rows} * dim, 5.0f, rows + dim);
      const std::vector<float> y = Gauss(x.size(), 1.0f, 7);
      for (const Operation& operation : Operations(rows, dim, y, Gauss(dim, 1.0f, 9))) {
        std::vector<float> expected = x;
        operation.run({nullptr, Isa::kPortable}, expected);
        EXPECT_FALSE(SameBits(expected, x)) << operation.name;  // it did something
        for (const Isa isa : Isas()) {
          for (const uint32_t threads : {1u, 3u}) {
            WorkerPool pool(threads);
            std::vector<float> got = x;
            operation.run({&pool, isa}, got);
            EXPECT_TRUE(SameBits(got, expected)) << operation.name << " " << Name(isa) << " " << rows << "x" << dim;
          }
        }
      }
    }
  }
}

// The value of a row does not depend on its company.
TEST(OpsTest, RowsAreIndependentOfTheBatch) {
  const uint32_t rows = 9, dim = 130;
  const std::vector<float> x = Gauss(size_t{rows} * dim, 2.0f, 3);
  const std::vector<float> y = Gauss(x.size(), 1.0f, 4);
  const std::vector<float> weight = Gauss(dim, 1.0f, 5);
  for (const Isa isa : Isas()) {
    for (size_t o = 0; o < Operations(rows, dim, y, weight).size(); ++o) {
      std::vector<float> together = x;
      Operations(rows, dim, y, weight)[o].run({nullptr, isa}, together);
      for (uint32_t r = 0; r < rows; ++r) {
        std::vector<float> alone(x.begin() + r * dim, x.begin() + (r + 1) * dim);
        const std::vector<float> other(y.begin() + r * dim, y.begin() + (r + 1) * dim);
        Operations(1, dim, other, weight)[o].run({nullptr, isa}, alone);
        EXPECT_TRUE(SameBits(alone, {together.begin() + r * dim, together.begin() + (r + 1) * dim})) << o << " " << r;
      }
    }
  }
}

TEST(OpsTest, APoisonedValueIsNotHidden) {
  const uint32_t dim = 40;
  for (const Isa isa : Isas()) {
    for (const Operation& operation : Operations(1, dim, Gauss(dim, 1.0f, 1), Gauss(dim, 1.0f, 2))) {
      std::vector<float> x = Gauss(dim, 1.0f, 3);
      x[37] = kNan;
      operation.run({nullptr, isa}, x);
      EXPECT_TRUE(std::isnan(x[37])) << operation.name;
      EXPECT_EQ(AllFinite(std::span(x).first(37)), operation.name != "rms" && operation.name != "heads");
    }
    std::vector<float> huge(dim, 1e30f);  // the sum of squares is beyond float
    RmsNorm({nullptr, isa}, huge.data(), huge.data(), 1, dim, dim, std::vector<float>(dim, 1.0f), 1e-5f);
    EXPECT_FALSE(AllFinite(huge));
  }
}

TEST(OpsTest, ArgMaxTakesTheFirstOfEquals) {
  EXPECT_EQ(ArgMax(std::vector<float>{1.0f, 3.0f, 3.0f, 2.0f}), 1u);
  EXPECT_EQ(ArgMax(std::vector<float>{-kInfinity, -kInfinity}), 0u);
  EXPECT_EQ(ArgMax(std::vector<float>{1.0f, kNan, 3.0f}), 3u);
  EXPECT_EQ(ArgMax(std::vector<float>{kNan}), 1u);
  EXPECT_EQ(ArgMax({}), 0u);
}

TEST(OpsTest, AllFiniteSeesEveryPlace) {
  std::vector<float> x(67, 1.0f);
  EXPECT_TRUE(AllFinite(x));
  EXPECT_TRUE(AllFinite({}));
  for (const float bad : {kNan, kInfinity, -kInfinity}) {
    for (float& value : x) {
      value = bad;
      EXPECT_FALSE(AllFinite(x));
      value = std::numeric_limits<float>::max();
      EXPECT_TRUE(AllFinite(x));
    }
  }
}

TEST(OpsTest, LogSumExpOfEqualsIsTheirCount) {
  EXPECT_NEAR(LogSumExp(std::vector<float>(1000, 80.0f)), 80.0 + std::log(1000.0), 1e-12);
  EXPECT_NEAR(LogSumExp(std::vector<float>{-1000.0f, 0.0f}), 0.0, 1e-12);
}

TEST(HalfTest, EveryF16SurvivesTheRoundTrip) {
  for (uint32_t half = 0; half < 0x10000; ++half) {
    const float value = FloatOfF16(static_cast<uint16_t>(half));
    if (std::isnan(value)) continue;
    EXPECT_EQ(F16OfFloat(value), half);
    EXPECT_EQ(Bf16OfFloat(FloatOfBf16(static_cast<uint16_t>(half & 0xff7f))), half & 0xff7f);
  }
}

TEST(HalfTest, RoundsToNearestEven) {
  EXPECT_EQ(F16OfFloat(1.0f + 0x1p-11f), F16OfFloat(1.0f));                // a tie, down to even
  EXPECT_EQ(F16OfFloat(1.0f + 3 * 0x1p-11f), F16OfFloat(1.0f + 0x1p-9f));  // a tie, up to even
  EXPECT_EQ(F16OfFloat(0x1p-25f), 0);                                      // a tie at half of the least denormal
  EXPECT_EQ(F16OfFloat(0x1.8p-25f), 1);
  EXPECT_EQ(Bf16OfFloat(1.0f + 0x1p-8f), Bf16OfFloat(1.0f));
  EXPECT_EQ(Bf16OfFloat(1.0f + 3 * 0x1p-8f), Bf16OfFloat(1.0f + 0x1p-6f));
  EXPECT_TRUE(std::isnan(FloatOfF16(F16OfFloat(kNan))));
  EXPECT_TRUE(std::isnan(FloatOfBf16(Bf16OfFloat(kNan))));
}

}  // namespace
}  // namespace reprise
