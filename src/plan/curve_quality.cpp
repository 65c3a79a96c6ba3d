#include "firkin/plan/curve_quality.h"

#include <algorithm>
#include <cmath>

#include "firkin/stats/summary.h"

namespace firkin {
namespace {

constexpr size_t kFewestSizes = 3;

// predict(others, bytes): the time at `bytes`, from the other points. The first and last `ends` points are not left out.
template <typename Predict>
std::optional<LeaveOneOut> leave_one_out(const std::vector<CostPoint>& points, size_t ends, const Predict& predict) {
  const std::vector<CostPoint> merged = CostCurve(points).points();
  if (merged.size() < kFewestSizes) return std::nullopt;
  LeaveOneOut result;
  std::vector<double> errors;
  for (size_t i = ends; i + ends < merged.size(); ++i) {
    std::vector<CostPoint> others = merged;
    others.erase(others.begin() + static_cast<std::ptrdiff_t>(i));
    errors.push_back(std::abs(predict(others, static_cast<double>(merged[i].bytes)) / merged[i].seconds - 1));
    if (errors.size() > 1 && errors.back() <= result.largest_relative_error) continue;
    result.largest_relative_error = errors.back();
    result.worst_bytes = merged[i].bytes;
  }
  result.median_relative_error = median(errors);
  return result;
}

}  // namespace

std::optional<LeaveOneOut> leave_one_out_of_curve(const std::vector<CostPoint>& points) {
  return leave_one_out(points, 1, [](const std::vector<CostPoint>& others, double bytes) { return CostCurve(others)(bytes); });
}

std::optional<LeaveOneOut> leave_one_out_of_alpha_beta(const std::vector<CostPoint>& points) {
  return leave_one_out(points, 0, [](const std::vector<CostPoint>& others, double bytes) {
    const AlphaBeta fit = fit_alpha_beta(others);
    return fit.alpha_s + bytes * fit.beta_s_per_byte;
  });
}

}  // namespace firkin
