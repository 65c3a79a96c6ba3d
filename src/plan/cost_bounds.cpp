#include "cost_bounds.h"

#include <algorithm>
#include <cmath>

namespace firkin {
namespace {

struct Line {
  double base = 0;
  double slope = 0;
};

// A line below the curve on [begin, end].
Line line_below(const CostCurve& curve, double begin, double end) {
  constexpr double kMargin = 1e-12;  // for rounding
  const double first = curve(begin), last = curve(end);
  const auto& points = curve.points();
  const auto inside = std::upper_bound(points.begin(), points.end(), begin,
                                       [](double value, const CostPoint& point) { return value < static_cast<double>(point.bytes); });
  if (inside != points.end() && static_cast<double>(inside->bytes) < end) {  // a kink: bounded by the least value
    double least = std::min(first, last);
    for (auto p = inside; p != points.end() && static_cast<double>(p->bytes) < end; ++p) least = std::min(least, p->seconds);
    return {least * (1 - kMargin), 0};
  }
  const double slope = (last - first) / (end - begin);
  return {first - slope * begin - 3 * kMargin * (std::max(first, last) + std::abs(slope) * begin), slope};
}

}  // namespace

CostBounds::CostBounds(const CommCosts& costs, double largest_bytes) {
  cells_.resize(index(std::max(largest_bytes, 1.0)) + 1);
  cells_[0].isolated_base = std::min(costs.isolated(0), costs.isolated(1)) * (1 - 1e-12);
  cells_[0].gap_base = std::min(costs.gap(0), costs.gap(1)) * (1 - 1e-12);
  cells_[0].least_isolated_from_here = cells_[0].isolated_base;
  for (size_t i = 1; i < cells_.size(); ++i) {
    const double begin = cell_begin(i), end = cell_begin(i + 1);
    const Line isolated = line_below(costs.isolated, begin, end);
    const Line gap = line_below(costs.gap, begin, end);
    cells_[i] = {isolated.base, isolated.slope, gap.base, gap.slope, 0};
    cells_[i].least_isolated_from_here = std::min(cells_[i].isolated(begin), cells_[i].isolated(end));
  }
  for (size_t i = cells_.size() - 1; i-- > 0;) {
    cells_[i].least_isolated_from_here = std::min(cells_[i].least_isolated_from_here, cells_[i + 1].least_isolated_from_here);
  }
}

}  // namespace firkin
