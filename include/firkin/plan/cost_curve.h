// The time of an all-reduce as a function of its size, from measured points.
#pragma once

#include <cstdint>
#include <vector>

namespace firkin {

struct CostPoint {
  int64_t bytes = 0;
  double seconds = 0;
};

// A measured curve: log-log interpolation between the points, linear beyond both ends. Never assumed monotone or convex.
class CostCurve {
 public:
  // Points in any order; points of the same size are merged by their median. Throws InputError when there is no point, or a
  // point's bytes or seconds is not positive and finite.
  explicit CostCurve(std::vector<CostPoint> points);

  // Seconds for an all-reduce of `bytes` (at least 0).
  double operator()(double bytes) const;

  const std::vector<CostPoint>& points() const { return points_; }  // sorted by bytes, distinct

 private:
  std::vector<CostPoint> points_;
};

// The two curves of the performance model: a(x), one all-reduce on an idle link, and g(x), the time per call when many are
// queued back to back (latency and gap, as in LogGP, Alexandrov et al. 1995).
struct CommCosts {
  CostCurve isolated;  // a(x)
  CostCurve gap;       // g(x); the same as a(x) where it was not measured
};

// time = alpha_s + bytes * beta_s_per_byte, fitted with relative weights (an unweighted fit is far off at small sizes).
struct AlphaBeta {
  double alpha_s = 0;
  double beta_s_per_byte = 0;
  double median_relative_error = 0;
};

AlphaBeta fit_alpha_beta(const std::vector<CostPoint>& points);

}  // namespace firkin
