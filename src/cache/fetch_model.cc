#include "cache/fetch_model.h"

#include <algorithm>
#include <cmath>

namespace reprise {
namespace {

// What an observation counts for after the next one: about the last 20 matter.
constexpr double kKept = 0.95;
constexpr double kGuessWeight = 0.01;
// Of computing all of it, what a wrong guess may cost.
constexpr double kRisk = 0.06;
// A read that takes so much longer than expected is not going as expected.
constexpr double kSlack = 1.3;
// Of decisions against a fetch, one in so many is tried all the same.
constexpr uint32_t kProbeEvery = 32;
// Pieces lie apart in size; their bytes are counted in MB so that both terms are of a size.
constexpr double kBytesUnit = 1e6;

}  // namespace

void TwoTermFit::Observe(double x1, double x2, double y) {
  if (!std::isfinite(y) || y < 0) return;
  const double weight = 1 / (x1 * x1);
  s11_ = s11_ * kKept + weight * x1 * x1;
  s12_ = s12_ * kKept + weight * x1 * x2;
  s22_ = s22_ * kKept + weight * x2 * x2;
  t1_ = t1_ * kKept + weight * x1 * y;
  t2_ = t2_ * kKept + weight * x2 * y;
  Solve();
}

void TwoTermFit::Solve() {
  // The guess stays, as an observation of either term alone that counts for little.
  const double p1 = kGuessWeight, p2 = kGuessWeight * ratio_ * ratio_;
  const double s11 = s11_ + p1, s22 = s22_ + p2, t1 = t1_ + p1 * guess_a_, t2 = t2_ + p2 * guess_b_;
  const double determinant = s11 * s22 - s12_ * s12_;
  a_ = (t1 * s22 - t2 * s12_) / determinant;
  b_ = (t2 * s11 - t1 * s12_) / determinant;
  if (!(a_ >= 0)) {
    a_ = 0;
    b_ = t2 / s22;
  } else if (!(b_ >= 0)) {
    b_ = 0;
    a_ = t1 / s11;
  }
}

double TwoTermFit::Predict(double x1, double x2) const { return a_ * x1 + b_ * x2; }

void FetchModel::ObserveRead(uint64_t bytes, double seconds) {
  read_.Observe(1, static_cast<double>(bytes) / kBytesUnit, seconds);
  if (reads_seen_ < kReadsKnown) ++reads_seen_;
}

void FetchModel::ObservePrefill(uint64_t rows, double positions, double seconds) {
  if (rows > 0) prefill_.Observe(static_cast<double>(rows), positions, seconds);
}

double FetchModel::ReadSeconds(uint64_t pieces, uint64_t bytes) const {
  if (pieces == 0) return 0;
  const double each = read_.Predict(1, static_cast<double>(bytes) / static_cast<double>(pieces) / kBytesUnit);
  return each * std::ceil(static_cast<double>(pieces) / readers_);
}

double FetchModel::PrefillSeconds(uint64_t from, uint64_t to) const {
  const auto rows = static_cast<double>(to - from);
  return prefill_.Predict(rows, rows * static_cast<double>(from + to) / 2);
}

double FetchModel::Patience(double saved, double all, double elapsed, double rest, bool probe) const {
  const double risk = saved + kRisk * all;
  return knows_reads() && !probe ? std::max(risk, elapsed + kSlack * rest + kRisk * all) : risk;
}

bool FetchModel::WantsProbe() { return ++refusals_ % kProbeEvery == 0; }

}  // namespace reprise
