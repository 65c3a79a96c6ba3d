#include "firkin/plan/cost_curve.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "firkin/base/error.h"
#include "firkin/stats/estimates.h"

namespace firkin {
namespace {

void check_points(const std::vector<CostPoint>& points) {
  if (points.empty()) throw InputError("a cost curve has no points; expected at least one measured size");
  for (const CostPoint& point : points) {
    if (point.bytes <= 0) throw InputError(fmt::format("a cost curve has a point at {} bytes; expected at least 1", point.bytes));
    if (!std::isfinite(point.seconds) || point.seconds <= 0) {
      throw InputError(fmt::format("a cost curve takes {} s at {} bytes; expected more than 0", point.seconds, point.bytes));
    }
  }
}

// Limits on the time per byte beyond an end, relative to that at the end.
constexpr double kLeastPart = 0.1, kMostPart = 2;
// How many times smaller than the largest size the sizes are that its slope is taken from, and checked with.
constexpr double kNearRatio = 1.5, kFarRatio = 16;
constexpr double kSameSize = 1.01;  // sizes closer than this count as one: any slope between them would be noise

double slope(const CostPoint& a, const CostPoint& b) {
  return (b.seconds - a.seconds) / static_cast<double>(b.bytes - a.bytes);
}

// Sorted by bytes; sizes within 1 % of one another are one, with the median of their times.
std::vector<CostPoint> merge_repeated_sizes(std::vector<CostPoint> points) {
  std::sort(points.begin(), points.end(), [](const CostPoint& a, const CostPoint& b) { return a.bytes < b.bytes; });
  std::vector<CostPoint> merged;
  for (auto first = points.begin(); first != points.end();) {
    const double limit = static_cast<double>(first->bytes) * kSameSize;
    const auto end = std::find_if(first, points.end(), [&](const CostPoint& point) { return static_cast<double>(point.bytes) > limit; });
    std::vector<double> seconds;
    for (auto point = first; point != end; ++point) seconds.push_back(point->seconds);
    merged.push_back({(first + (end - first) / 2)->bytes, median(seconds)});
    first = end;
  }
  return merged;
}

}  // namespace

CostCurve::CostCurve(std::vector<CostPoint> points) {
  check_points(points);
  points_ = merge_repeated_sizes(std::move(points));
  const CostPoint& first = points_.front();
  const CostPoint& last = points_.back();
  high_slope_ = last.seconds / static_cast<double>(last.bytes);
  if (points_.size() == 1) return;
  low_slope_ = std::clamp(slope(points_[0], points_[1]), 0.0, (1 - kLeastPart) * first.seconds / static_cast<double>(first.bytes));
  const auto slope_from = [&](double ratio) {
    const double limit = static_cast<double>(last.bytes) / ratio;
    const auto is_far = [&](const CostPoint& point) { return static_cast<double>(point.bytes) <= limit || &point == &first; };
    return slope(*std::find_if(points_.rbegin() + 1, points_.rend(), is_far), last);
  };
  const double least = std::max(slope_from(kFarRatio) / 2, kLeastPart * high_slope_), most = kMostPart * high_slope_;
  high_slope_ = std::clamp(slope_from(kNearRatio), std::min(least, most), most);
}

double CostCurve::operator()(double bytes) const {
  const auto smallest = static_cast<double>(points_.front().bytes);
  const auto largest = static_cast<double>(points_.back().bytes);
  if (bytes <= smallest) return points_.front().seconds - low_slope_ * (smallest - bytes);
  if (bytes >= largest) return points_.back().seconds + high_slope_ * (bytes - largest);
  const auto above = std::upper_bound(points_.begin(), points_.end(), bytes,
                                      [](double value, const CostPoint& point) { return value < static_cast<double>(point.bytes); });
  const CostPoint& below = *(above - 1);
  return below.seconds + slope(below, *above) * (bytes - static_cast<double>(below.bytes));
}

ShardedCosts halves_of(const CommCosts& all_reduce) {
  const CommCosts half = scaled(all_reduce, 0.5, 0.5);
  return {half, half};
}

CommCosts scaled(const CommCosts& costs, double latency_factor, double byte_factor) {
  if (latency_factor == 1 && byte_factor == 1) return costs;
  double s_per_byte = std::numeric_limits<double>::infinity();
  for (const CostPoint& point : costs.isolated.points())
    s_per_byte = std::min(s_per_byte, point.seconds / static_cast<double>(point.bytes));
  const auto scaled_curve = [&](const CostCurve& curve) {
    std::vector<CostPoint> points = curve.points();
    for (CostPoint& point : points) {
      const double of_bytes = std::min(s_per_byte * static_cast<double>(point.bytes), point.seconds);
      point.seconds = latency_factor * (point.seconds - of_bytes) + byte_factor * of_bytes;
    }
    return CostCurve(std::move(points));
  };
  return {scaled_curve(costs.isolated), scaled_curve(costs.gap)};
}

AlphaBeta fit_alpha_beta(const std::vector<CostPoint>& points) {
  check_points(points);
  // Least squares of (alpha + bytes * beta) / seconds against 1, in units of the largest size for good scaling.
  double unit = 0;
  for (const CostPoint& point : points) unit = std::max(unit, static_cast<double>(point.bytes));
  double uu = 0, uv = 0, vv = 0, u1 = 0, v1 = 0;
  for (const CostPoint& point : points) {
    const double u = 1 / point.seconds;
    const double v = static_cast<double>(point.bytes) / unit / point.seconds;
    uu += u * u;
    uv += u * v;
    vv += v * v;
    u1 += u;
    v1 += v;
  }
  const double determinant = uu * vv - uv * uv;
  const bool one_size = determinant <= 1e-12 * uu * vv;
  double alpha = one_size ? 0 : (u1 * vv - v1 * uv) / determinant;
  double beta = one_size ? v1 / vv : (v1 * uu - u1 * uv) / determinant;
  if (alpha < 0) {  // neither a latency nor a time per byte can be negative, so the best fit is on the boundary
    alpha = 0;
    beta = v1 / vv;
  } else if (beta < 0) {
    alpha = u1 / uu;
    beta = 0;
  }
  AlphaBeta fit{.alpha_s = alpha, .beta_s_per_byte = beta / unit};
  std::vector<double> errors;
  for (const CostPoint& point : points) {
    errors.push_back(std::abs((alpha + fit.beta_s_per_byte * static_cast<double>(point.bytes)) / point.seconds - 1));
  }
  fit.median_relative_error = median(errors);
  return fit;
}

}  // namespace firkin
