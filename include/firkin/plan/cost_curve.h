// The time of an all-reduce as a function of its size, from measured points.
//
//   const CostCurve curve({{.bytes = 4, .seconds = 50e-6}, {.bytes = 25 * kMiB, .seconds = 20e-3}});
//   curve(10.0 * kMiB);  // 8.03e-3: seconds, between the points
#pragma once

#include <cstdint>
#include <vector>

namespace firkin {

struct CostPoint {
  int64_t bytes = 0;
  double seconds = 0;

  bool operator==(const CostPoint&) const = default;
};

// A measured curve, linear between the points. Never assumed monotone or convex.
//
// It continues beyond both ends, within bounds that keep one noisy point from making calls free or endless:
// - Above the largest size it follows the line through that size and the next smaller one of at most two thirds of it. A
//   byte there costs at least half of what it costs on the line from a sixteenth of the largest size, and between a tenth
//   and twice the largest size's time per byte.
// - Below the smallest size it follows the first segment, but takes at least a tenth of that size's time, and at most all
//   of it.
// - A single point extends as a constant below and proportionally above.
class CostCurve {
 public:
  // Points in any order; sizes within 1 % of one another are one, with the median of their times. Throws InputError
  // when there is no point, or a point's bytes or seconds is not positive and finite.
  explicit CostCurve(std::vector<CostPoint> points);

  // Seconds for an all-reduce of `bytes` (at least 0).
  double operator()(double bytes) const;

  const std::vector<CostPoint>& points() const { return points_; }  // sorted by bytes, distinct

 private:
  std::vector<CostPoint> points_;
  double low_slope_ = 0;   // seconds per byte below the first point
  double high_slope_ = 0;  // above the last point
};

// a(x), one all-reduce on an idle link, and g(x), the time per call when many are queued (latency and gap of LogGP,
// Alexandrov et al. 1995).
struct CommCosts {
  CostCurve isolated;  // a(x)
  CostCurve gap;       // g(x); equal to a(x) if it was not measured
};

// The same costs with latency multiplied by `latency_factor` and the time per byte by `byte_factor`. The bytes' part of
// a time is what they take at the best rate of any point of a(x); the rest of a(x) and g(x) is latency.
CommCosts scaled(const CommCosts& costs, double latency_factor, double byte_factor = 1);

// The collectives of the strategy `sharded`, as functions of a whole bucket's bytes: the parts of all ranks together.
struct ShardedCosts {
  CommCosts reduce_scatter;
  CommCosts all_gather;
};

// Half an all-reduce each, as in a ring (Thakur, Rabenseifner, Gropp 2005): an assumption, for when the two were not
// measured.
ShardedCosts halves_of(const CommCosts& all_reduce);

// time = alpha_s + bytes * beta_s_per_byte, fitted with relative weights (an unweighted fit is far off at small sizes).
struct AlphaBeta {
  double alpha_s = 0;          // at least 0
  double beta_s_per_byte = 0;  // at least 0
  double median_relative_error = 0;
};

// Minimises the sum of ((alpha + bytes * beta) / seconds - 1)^2. Points of a single size are taken as proportional
// (alpha = 0). Throws InputError as CostCurve's constructor.
AlphaBeta fit_alpha_beta(const std::vector<CostPoint>& points);

}  // namespace firkin
