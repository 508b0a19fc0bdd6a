// Rotary positions (Su et al., 2021) with linear and YaRN scaling. Tables are computed in double by
// series of our own: a library's sin, cos and pow may differ between processors in the last bit, which
// at large angles would show in ours. Every step is an addition, multiplication, division or fused
// multiply-add of double, rounded to nearest.
#include <bit>
#include <cmath>
#include <cstdint>

#include "base/check.h"
#include "kernel/ops.h"
#include "kernel/run_pieces.h"

namespace reprise {
namespace {

constexpr double kLn2 = 0x1.62e42fefa39efp-1;

// ln x, x > 0 and normal: x = 2^e * m with m in [sqrt(1/2), sqrt(2)), ln m = 2 atanh((m - 1) / (m + 1)).
double Ln(double x) {
  int exponent = 0;
  double m = std::frexp(x, &exponent);  // in [1/2, 1), exact
  if (m < 0x1.6a09e667f3bcdp-1) {
    m *= 2.0;
    --exponent;
  }
  const double s = (m - 1.0) / (m + 1.0);
  const double square = s * s;  // at most 0.0295: the term left out is below 1e-19
  double sum = 1.0 / 25.0;
  for (int k = 23; k >= 1; k -= 2) sum = std::fma(sum, square, 1.0 / k);
  return std::fma(static_cast<double>(exponent), kLn2, 2.0 * s * sum);
}

// e^x for |x| < 700, by its Taylor series around multiples of ln 2.
double Exp(double x) {
  const double n = std::nearbyint(x / kLn2);
  const double r = std::fma(n, -0x1.abc9e3b39803fp-56, std::fma(n, -kLn2, x));
  double sum = 1.0;
  for (int k = 14; k >= 1; --k) sum = std::fma(sum, r / k, 1.0);
  return std::ldexp(sum, static_cast<int>(n));
}

struct SinCos {
  double sin, cos;
};

// |angle| up to 2^20 times pi: the multiple of pi/2 is taken off in three parts.
SinCos SinCosOf(double angle) {
  const double n = std::nearbyint(angle * 0x1.45f306dc9c883p-1);
  double r = std::fma(n, -0x1.921fb40000000p+0, angle);
  r = std::fma(n, -0x1.4442d00000000p-24, r);
  r = std::fma(n, -0x1.8469898cc5170p-48, r);
  const double square = r * r;
  // Taylor on |r| <= pi/4; what is left out is below 1e-18.
  double sin = 1.0;
  double cos = 1.0;
  for (int k = 18; k >= 2; k -= 2) {
    sin = std::fma(sin, -square / (k * (k + 1)), 1.0);
    cos = std::fma(cos, -square / (k * (k - 1)), 1.0);
  }
  sin *= r;
  switch (static_cast<int64_t>(n) & 3) {
    case 0:
      return {sin, cos};
    case 1:
      return {cos, -sin};
    case 2:
      return {-sin, -cos};
    default:
      return {-cos, sin};
  }
}

// YaRN's band: pairs below `low` keep their angle, pairs above `high` are interpolated.
struct Band {
  double low, high;
};

Band YarnBand(const RopeParameters& rope) {
  constexpr double kTwoPi = 0x1.921fb54442d18p+2;
  const auto pair_of = [&](double turns) {  // the pair that turns so often in the original context
    return rope.dims * Ln(rope.original_context / (turns * kTwoPi)) / (2.0 * Ln(rope.base));
  };
  const double low = std::floor(pair_of(rope.beta_fast));
  const double high = std::ceil(pair_of(rope.beta_slow));
  return {low > 0.0 ? low : 0.0, high < rope.dims - 1.0 ? high : rope.dims - 1.0};
}

}  // namespace

void RopeTable(const RopeParameters& rope, uint32_t position, float* out) {
  if (rope.type == RopeType::kNone) return;
  const uint32_t pairs = rope.dims / 2;
  CHECK(rope.factors.empty() || rope.factors.size() == pairs);
  const bool yarn = rope.ext_factor != 0.0f;
  const Band band = yarn ? YarnBand(rope) : Band{};
  const double magnitude = yarn ? rope.attn_factor * (1.0 + 0.1 * Ln(1.0 / rope.scale)) : double{rope.attn_factor};
  const double step = -2.0 * Ln(rope.base) / rope.dims;
  for (uint32_t i = 0; i < pairs; ++i) {
    double extrapolated = position * Exp(step * i);
    if (!rope.factors.empty()) extrapolated /= rope.factors[i];
    double angle = rope.scale * extrapolated;
    if (yarn) {
      const double width = band.high - band.low > 0.001 ? band.high - band.low : 0.001;
      const double along = (i - band.low) / width;
      const double mix = (1.0 - (along < 0.0 ? 0.0 : along > 1.0 ? 1.0 : along)) * rope.ext_factor;
      angle = angle * (1.0 - mix) + extrapolated * mix;
    }
    const SinCos turn = SinCosOf(angle);
    out[2 * i] = static_cast<float>(turn.cos * magnitude);
    out[2 * i + 1] = static_cast<float>(turn.sin * magnitude);
  }
}

void Rope(const Compute& compute, const RopeParameters& rope, const float* tables, float* x, uint32_t n, uint32_t heads,
          uint32_t head_dim, uint32_t row_stride) {
  if (rope.type == RopeType::kNone) return;
  CHECK_LE(rope.dims, head_dim);
  const uint32_t pairs = rope.dims / 2;
  const bool neox = rope.type == RopeType::kNeox;
  const uint32_t next_pair = neox ? 1 : 2;
  const uint32_t partner = neox ? pairs : 1;
  constexpr uint32_t kPieceFloats = 1 << 14;
  const uint32_t piece_rows = kPieceFloats / (heads * head_dim) + 1;
  RunPieces(compute, (n + piece_rows - 1) / piece_rows, [&](uint32_t piece, uint32_t) {
    const uint32_t last = (piece + 1) * piece_rows < n ? (piece + 1) * piece_rows : n;
    for (uint32_t r = piece * piece_rows; r < last; ++r) {
      const float* table = tables + uint64_t{r} * rope.dims;
      for (uint32_t h = 0; h < heads; ++h) {
        float* head = x + uint64_t{r} * row_stride + h * head_dim;
        for (uint32_t i = 0; i < pairs; ++i) {
          const float a = head[i * next_pair];
          const float b = head[i * next_pair + partner];
          const float cos = table[2 * i];
          const float sin = table[2 * i + 1];
          head[i * next_pair] = a * cos - b * sin;
          head[i * next_pair + partner] = a * sin + b * cos;
        }
      }
    }
  });
}

}  // namespace reprise
