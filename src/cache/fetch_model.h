// What reading blocks from a tier and what computing them would take, learned from what both took before; and how long
// a read may be waited for, so that a wrong guess costs little.
//
//   read of one piece     latency + bytes / bandwidth, as one reader sees it beside the others
//   computing n rows      linear and quadratic term: n * a + (sum of their positions) * b
//
// Both are least squares over recent observations, of which older ones count for less, and over a guess made before the
// first.
//
// Ownership: a value. Threads: one. Errors: none; what is not a time (negative, not finite) is not learned.
// Design:    DESIGN 7.3
#pragma once

#include <cstdint>

namespace reprise {

// y = a * x1 + b * x2, a and b >= 0, from weighted observations.
class TwoTermFit {
 public:
  // The guess, and a common ratio of x2 to x1.
  TwoTermFit(double a, double b, double ratio) : guess_a_(a), guess_b_(b), ratio_(ratio) {}
  // x1 > 0; it also says how much more than another one an observation may be off.
  void Observe(double x1, double x2, double y);
  double Predict(double x1, double x2) const;

 private:
  void Solve();
  const double guess_a_, guess_b_, ratio_;
  double s11_ = 0, s12_ = 0, s22_ = 0, t1_ = 0, t2_ = 0;
  double a_ = guess_a_, b_ = guess_b_;
};

class FetchModel {
 public:
  explicit FetchModel(uint32_t readers) : readers_(readers) {}

  // One piece was read in so many seconds.
  void ObserveRead(uint64_t bytes, double seconds);
  // A step computed `rows` tokens, whose positions add up to `positions`, in so many seconds.
  void ObservePrefill(uint64_t rows, double positions, double seconds);

  // Until so many pieces are in place, with all readers at work and nobody else's reads.
  double ReadSeconds(uint64_t pieces, uint64_t bytes) const;
  // Of the rows at positions [from, to).
  double PrefillSeconds(uint64_t from, uint64_t to) const;
  // Enough reads were seen of late to believe ReadSeconds.
  bool knows_reads() const { return reads_seen_ >= kReadsKnown; }

  // How long after its beginning a fetch may still be waited for, when what is in place would take `saved` seconds to
  // compute, all of it `all`, and the rest is expected to take `rest` seconds more from now: with `elapsed` before it.
  // A probe is not believed to be worth it: it has what it earns.
  double Patience(double saved, double all, double elapsed, double rest, bool probe) const;

  // A fetch was decided against: true now and then, so that a tier that became faster is found out.
  bool WantsProbe();

 private:
  static constexpr uint32_t kReadsKnown = 8;
  const uint32_t readers_;
  TwoTermFit read_{0.5e-3, 2e-3, 1};      // per piece; per MB: 500 MB/s
  TwoTermFit prefill_{1e-3, 1e-7, 1000};  // per row; per row and position before it
  uint32_t reads_seen_ = 0;
  uint32_t refusals_ = 0;
};

}  // namespace reprise
