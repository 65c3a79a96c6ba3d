#include "firkin/plan/calibration.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <deque>
#include <functional>
#include <numeric>
#include <set>
#include <utility>

#include "firkin/base/error.h"
#include "firkin/stats/estimates.h"

namespace firkin {
namespace {

using Vector = std::vector<double>;

// What may be fitted, searched from `least` to `limit`; 0 means no effect. The slowdown and the latency factor are
// logarithms. An overhead of 1 means that the launches alone take as long as the longest run.
struct Parameter {
  const char* name;
  double least, limit;
};
constexpr std::array kParameters = {Parameter{"the slowdown of computation", 0, 2.5}, Parameter{"the overhead per call", 0, 1},
                                    Parameter{"the latency factor", -3, 3}};

struct Fit {
  const TensorProfile& profile;
  const CommCosts& costs;
  const std::vector<MeasuredRun>& runs;
  size_t parameters;       // how many of kParameters are fitted, from the first on
  double overhead_unit_s;  // per call
  double error = 3e-3;     // relative, expected of each time

  Calibration at(const Vector& x) const {
    Calibration result;
    result.options.compute_slowdown = std::exp(x[0]);
    if (x.size() > 1) result.options.overhead_s = x[1] * overhead_unit_s;
    if (x.size() > 2) result.latency_factor = std::exp(x[2]);
    return result;
  }

  static double clamped(size_t i, double x) { return std::clamp(x, kParameters[i].least, kParameters[i].limit); }

  // log(predicted / measured) of every measured time.
  Vector residuals(const Vector& x) const {
    Vector result;
    const Calibration calibration = at(x);
    const CommCosts during_backward = scaled(costs, calibration.latency_factor);
    for (const MeasuredRun& run : runs) {
      const Timeline timeline = simulate(profile, run.plan, during_backward, calibration.options);
      result.push_back(std::log(timeline.end_s / run.end_s));
    }
    return result;
  }

  // The residuals, and a penalty that keeps parameters without influence at 0 and interchangeable ones small.
  Vector terms(const Vector& x) const {
    Vector result = residuals(x);
    for (const double value : x) result.push_back(error * value);
    return result;
  }
};

double dot(const Vector& a, const Vector& b) {
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
}

// Solves a few linear equations with a symmetric positive definite matrix by Gaussian elimination.
Vector solve(std::vector<Vector> matrix, Vector right) {
  const size_t n = right.size();
  for (size_t k = 0; k < n; ++k) {
    for (size_t i = k + 1; i < n; ++i) {
      const double factor = matrix[i][k] / matrix[k][k];
      for (size_t j = k; j < n; ++j) matrix[i][j] -= factor * matrix[k][j];
      right[i] -= factor * right[k];
    }
  }
  for (size_t k = n; k-- > 0;) {
    for (size_t j = k + 1; j < n; ++j) right[k] -= matrix[k][j] * right[j];
    right[k] /= matrix[k][k];
  }
  return right;
}

struct Point {
  Vector x, terms;
  double loss = 0;
};

Point point_at(const Fit& fit, const Vector& x) {
  Point point{.x = x, .terms = fit.terms(x)};
  point.loss = dot(point.terms, point.terms);
  return point;
}

// Levenberg-Marquardt steps (Marquardt 1963) until none improves. Derivatives are one-sided differences: the loss has
// kinks where a bucket starts to wait for another, and parameters have bounds.
Point descend(const Fit& fit, Point point) {
  constexpr double kDifference = 1e-6, kFirstDamping = 1e-3, kMostDamping = 1e8, kLeastGain = 1e-9;
  constexpr int kMostSteps = 100;
  const size_t n = point.x.size();
  double damping = kFirstDamping;
  for (int step = 0; step < kMostSteps; ++step) {
    std::vector<Vector> slopes;  // of every term, for each parameter
    std::vector<bool> held;      // whether the parameter is at a bound beyond which the loss would fall
    for (size_t i = 0; i < n; ++i) {
      Vector moved = point.x;
      const double difference = point.x[i] + kDifference > kParameters[i].limit ? -kDifference : kDifference;
      moved[i] += difference;
      Vector& slope = slopes.emplace_back(fit.terms(moved));
      for (size_t t = 0; t < slope.size(); ++t) slope[t] = (slope[t] - point.terms[t]) / difference;
    }
    for (size_t i = 0; i < n; ++i) {
      const double ahead = point.x[i] - dot(slopes[i], point.terms);
      held.push_back(fit.clamped(i, ahead) == point.x[i] && ahead != point.x[i]);
    }
    const double before = point.loss;
    for (; damping <= kMostDamping; damping *= 10) {
      std::vector<Vector> matrix(n, Vector(n, 0));
      Vector right(n, 0);
      for (size_t i = 0; i < n; ++i) {
        if (held[i]) {
          matrix[i][i] = 1;
          continue;
        }
        for (size_t j = 0; j < n; ++j) matrix[i][j] = held[j] ? 0 : dot(slopes[i], slopes[j]);
        matrix[i][i] *= 1 + damping;
        right[i] = -dot(slopes[i], point.terms);
      }
      Vector next = solve(matrix, right);
      for (size_t i = 0; i < n; ++i) next[i] = fit.clamped(i, point.x[i] + next[i]);
      Point tried = point_at(fit, next);
      if (tried.loss >= point.loss) continue;
      point = std::move(tried);
      damping /= 10;
      break;
    }
    if (point.loss >= before * (1 - kLeastGain)) break;
  }
  return point;
}

// Descends from the best few points of a coarse grid.
Vector minimize(const Fit& fit) {
  constexpr std::array kGrid = {0.0, 0.05, 0.2, 0.6};  // a parameter that may be negative gets -0.6 instead of 0.2
  constexpr size_t kStarts = 12;
  std::vector<Point> starts;
  size_t combinations = 1;
  for (size_t i = 0; i < fit.parameters; ++i) combinations *= kGrid.size();
  for (size_t c = 0; c < combinations; ++c) {
    Vector x;
    size_t rest = c;
    for (size_t i = 0; i < fit.parameters; ++i, rest /= kGrid.size()) {
      const size_t at = rest % kGrid.size();
      x.push_back(at == 2 && kParameters[i].least < 0 ? -kGrid[3] : kGrid[at]);
    }
    starts.push_back(point_at(fit, x));
  }
  std::ranges::stable_sort(starts, {}, &Point::loss);
  starts.resize(std::min(kStarts, starts.size()));
  for (Point& start : starts) start = descend(fit, std::move(start));
  return std::ranges::min_element(starts, {}, &Point::loss)->x;
}

void check_runs(const TensorProfile& profile, const std::vector<MeasuredRun>& runs) {
  if (runs.empty()) throw InputError("calibration has no measured run; expected at least one");
  for (size_t r = 0; r < runs.size(); ++r) {
    check_plan(runs[r].plan, static_cast<int64_t>(profile.bytes.size()));
    if (runs[r].plan.buckets.empty()) throw InputError(fmt::format("run {} of the calibration communicates nothing", r));
    if (!std::isfinite(runs[r].end_s) || runs[r].end_s <= 0) {
      throw InputError(fmt::format("run {} of the calibration took {} s; expected more than 0", r, runs[r].end_s));
    }
  }
}

// [i]: a bucket ends between tensor i and the next.
using Cuts = std::vector<bool>;

Cuts cuts_of(const BucketPlan& plan) {
  if (plan.buckets.empty()) return {};
  Cuts cuts(static_cast<size_t>(plan.buckets.back().first + plan.buckets.back().count) - 1, false);
  for (size_t k = 1; k < plan.buckets.size(); ++k) cuts[static_cast<size_t>(plan.buckets[k].first) - 1] = true;
  return cuts;
}

BucketPlan plan_of(const Cuts& cuts) {
  std::vector<int64_t> counts = {1};
  for (const bool cut : cuts) {
    if (cut) counts.push_back(0);
    ++counts.back();
  }
  return plan_of_counts(counts);
}

// `wanted`, or the plan nearest to it (fewest changed cuts) for which `is_free` holds. None if there is none or, with
// more than a dozen tensors, none among several thousand.
std::optional<BucketPlan> nearest_plan(const BucketPlan& wanted, const std::function<bool(const BucketPlan&)>& is_free) {
  constexpr size_t kMostTried = 5000;
  if (wanted.buckets.empty()) return std::nullopt;
  std::set<Cuts> queued{cuts_of(wanted)};
  std::deque<Cuts> to_try{cuts_of(wanted)};
  for (size_t tried = 0; !to_try.empty() && tried < kMostTried; ++tried) {
    Cuts cuts = std::move(to_try.front());
    to_try.pop_front();
    if (BucketPlan plan = plan_of(cuts); is_free(plan)) return plan;
    const size_t middle = cuts.size() / 2;
    for (size_t step = 0; step < cuts.size() && queued.size() <= kMostTried; ++step) {  // the cuts in the middle first
      const size_t i = step % 2 == 0 ? middle + step / 2 : middle - 1 - step / 2;
      cuts[i].flip();
      if (queued.insert(cuts).second) to_try.push_back(cuts);
      cuts[i].flip();
    }
  }
  return std::nullopt;
}

}  // namespace

Calibration calibrate(const TensorProfile& profile, const CommCosts& costs, const std::vector<MeasuredRun>& runs) {
  check_profile(profile);
  check_runs(profile, runs);
  double longest_s = 0;
  size_t most_buckets = 1;
  for (const MeasuredRun& run : runs) {
    longest_s = std::max(longest_s, run.end_s);
    most_buckets = std::max(most_buckets, run.plan.buckets.size());
  }
  // One parameter fewer than there are runs, but at least one.
  const size_t parameters = std::clamp<size_t>(runs.size() - 1, 1, kParameters.size());
  Fit fit{profile, costs, runs, parameters, longest_s / static_cast<double>(most_buckets)};
  Vector x = minimize(fit);
  const auto residual = [&] {
    const Vector residuals = fit.residuals(x);
    return std::sqrt(dot(residuals, residuals) / static_cast<double>(residuals.size() - x.size()));
  };
  const bool has_residual = runs.size() > x.size();
  constexpr double kAtBound = 1e-3;
  constexpr double kMostError = 0.01;  // what is left beyond it is the model's own error
  if (has_residual && residual() > fit.error) {
    fit.error = std::min(residual(), kMostError);
    x = minimize(fit);
  }
  Calibration result = fit.at(x);
  Vector errors = fit.residuals(x);
  for (double& error : errors) error = std::abs(std::expm1(error));
  result.median_relative_error = median(errors);
  for (size_t i = 0; i < parameters; ++i) {
    result.fitted.emplace_back(kParameters[i].name);
    const auto& [name, least, limit] = kParameters[i];
    if (x[i] >= limit - kAtBound || (least < 0 && x[i] <= least + kAtBound)) result.at_bound.emplace_back(name);
  }
  if (has_residual) result.residual = residual();
  return result;
}

bool is_doubtful(const Calibration& calibration) {
  constexpr double kMostResidual = 0.15;
  return !calibration.at_bound.empty() || calibration.residual.value_or(0) > kMostResidual;
}

// One plan more than parameters, because as many plans as parameters always fit: with three plans, predicted steps of 3
// to 5 buckets were 6 to 15 % too short.
std::vector<BucketPlan> calibration_plans(std::span<const int64_t> sizes, const CapOptions& rule, const std::vector<BucketPlan>& verified) {
  const int64_t total = std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
  std::vector<BucketPlan> plans;
  for (const int64_t parts : {60, 20, 6, 3}) {
    const BucketPlan wanted = assign_buckets(sizes, with_cap(rule, std::max<int64_t>(total / parts, 1)));
    const auto is_free = [&](const BucketPlan& plan) {
      return !calibrated_on(verified, plan) && !calibrated_on(plans, plan) && !is_made_by_a_cap(plan, sizes, rule);
    };
    plans.push_back(nearest_plan(wanted, is_free).value_or(wanted));
  }
  return plans;
}

int64_t most_calibrated_buckets(const std::vector<BucketPlan>& calibration) {
  size_t most = 0;
  for (const BucketPlan& plan : calibration) most = std::max(most, plan.buckets.size());
  return static_cast<int64_t>(most);
}

bool calibrated_on(const std::vector<BucketPlan>& calibration, const BucketPlan& plan) {
  return std::ranges::find(calibration, plan) != calibration.end();
}

}  // namespace firkin
