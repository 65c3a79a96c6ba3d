#include "firkin/plan/sensitivity.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "firkin/base/error.h"
#include "plan_evaluator.h"

namespace firkin {
namespace {

constexpr std::array kInfluences = {Influence::kTotalBytes, Influence::kLatency, Influence::kBandwidth, Influence::kBackward,
                                    Influence::kContention};
constexpr std::array kFactors = {0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0};

CostCurve scale_curve(const CostCurve& curve, Influence influence, double factor) {
  std::vector<CostPoint> points = curve.points();
  const auto least =
      std::min_element(points.begin(), points.end(), [](const CostPoint& a, const CostPoint& b) { return a.seconds < b.seconds; });
  const double latency_s = least->seconds;
  for (CostPoint& point : points) {
    const double rest_s = point.seconds - latency_s;
    point.seconds = influence == Influence::kLatency ? factor * latency_s + rest_s : latency_s + rest_s / factor;
  }
  return CostCurve(std::move(points));
}

bool has_contention(const SimulationOptions& options) {
  return options.compute_slowdown > 1 || options.comm_slowdown > 1;
}

// The best of the distinct plans under these inputs, and how far around it the time stays within 1 %.
SensitivityPoint best_point(const ScaledInputs& inputs, const std::vector<DistinctPlan>& plans, const SearchOptions& search) {
  constexpr double kNear = 0.01;
  PlanEvaluator evaluator(inputs.profile, inputs.costs, inputs.options);
  std::vector<double> end_s;
  for (const DistinctPlan& plan : plans) end_s.push_back(evaluator.end_s(plan.plan.buckets, std::numeric_limits<double>::infinity()));
  const double least = *std::min_element(end_s.begin(), end_s.end());
  size_t best = 0;
  for (size_t p = 0; p < plans.size(); ++p) {
    const bool fewer = plans[p].plan.buckets.size() < plans[best].plan.buckets.size();
    const double limit = least * (1 + search.tolerance);
    if (end_s[p] <= limit && (end_s[best] > limit || fewer)) best = p;
  }
  size_t low = best, high = best;
  while (low > 0 && end_s[low - 1] <= least * (1 + kNear)) --low;
  while (high + 1 < plans.size() && end_s[high + 1] <= least * (1 + kNear)) ++high;

  int64_t total = 1;
  for (const int64_t bytes : inputs.profile.bytes) total += bytes;
  SensitivityPoint point;
  point.cap_bytes = roundest_cap(plans[best].caps);
  point.buckets = static_cast<int64_t>(plans[best].plan.buckets.size());
  point.backward_s = end_s[best];
  point.exposed_s = end_s[best] - inputs.profile.backward_s;
  point.near_low_bytes = std::min(plans[low].caps.lowest_cap_bytes, total);
  point.near_high_bytes = std::min(plans[high].caps.highest_cap_bytes, total);
  return point;
}

// The plans depend on the sizes alone, so they are found once unless the sizes change.
class SensitivityStudy {
 public:
  SensitivityStudy(const TensorProfile& profile, const CommCosts& costs, const CapOptions& options, const SearchOptions& search)
      : inputs_{profile, costs, search.simulation}, options_(options), search_(search), plans_(distinct_plans(profile, options, search)) {
    check_options(search.simulation);
  }

  SensitivityPoint at(Influence influence, double factor) const {
    const ScaledInputs scaled = scale_inputs(inputs_, influence, factor);
    SensitivityPoint point = influence == Influence::kTotalBytes
                                 ? best_point(scaled, distinct_plans(scaled.profile, options_, search_), search_)
                                 : best_point(scaled, plans_, search_);
    point.influence = influence;
    point.factor = factor;
    return point;
  }

  SensitivityPoint at(double latency_factor, double bandwidth_factor) const {
    const ScaledInputs once = scale_inputs(inputs_, Influence::kLatency, latency_factor);
    SensitivityPoint point = best_point(scale_inputs(once, Influence::kBandwidth, bandwidth_factor), plans_, search_);
    point.influence = Influence::kLatency;
    point.factor = latency_factor;
    return point;
  }

  bool applies(Influence influence) const { return influence != Influence::kContention || has_contention(inputs_.options); }

 private:
  ScaledInputs inputs_;
  CapOptions options_;
  const SearchOptions& search_;
  std::vector<DistinctPlan> plans_;
};

std::string elasticity_words(Influence influence, double value) {
  constexpr double kNothing = 0.05;
  if (std::abs(value) < kNothing) return fmt::format("twice the {}: the best cap stays about the same", name_of(influence));
  return fmt::format("twice the {}: the best cap {} by a factor of {:.2f}", name_of(influence), value > 0 ? "grows" : "shrinks",
                     std::exp2(std::abs(value)));
}

}  // namespace

std::string name_of(Influence influence) {
  switch (influence) {
    case Influence::kTotalBytes:
      return "total bytes";
    case Influence::kLatency:
      return "latency";
    case Influence::kBandwidth:
      return "bandwidth";
    case Influence::kBackward:
      return "backward time";
    case Influence::kContention:
      return "contention";
  }
  return "";
}

ScaledInputs scale_inputs(const ScaledInputs& inputs, Influence influence, double factor) {
  if (!std::isfinite(factor) || factor <= 0) throw InputError(fmt::format("a sensitivity factor is {}; expected more than 0", factor));
  ScaledInputs scaled = inputs;
  switch (influence) {
    case Influence::kTotalBytes:
      for (int64_t& bytes : scaled.profile.bytes) bytes = std::llround(static_cast<double>(bytes) * factor);
      break;
    case Influence::kLatency:
    case Influence::kBandwidth:
      scaled.costs = {scale_curve(inputs.costs.isolated, influence, factor), scale_curve(inputs.costs.gap, influence, factor)};
      break;
    case Influence::kBackward:
      for (double& ready : scaled.profile.ready_s) ready *= factor;
      scaled.profile.backward_s *= factor;
      break;
    case Influence::kContention:
      scaled.options.compute_slowdown = 1 + (inputs.options.compute_slowdown - 1) * factor;
      scaled.options.comm_slowdown = 1 + (inputs.options.comm_slowdown - 1) * factor;
      break;
  }
  return scaled;
}

std::vector<SensitivityPoint> sensitivity_table(const TensorProfile& profile, const CommCosts& costs, const CapOptions& options,
                                                const SearchOptions& search) {
  const SensitivityStudy study(profile, costs, options, search);
  std::vector<SensitivityPoint> points;
  for (const Influence influence : kInfluences) {
    if (!study.applies(influence)) continue;
    for (const double factor : kFactors) points.push_back(study.at(influence, factor));
  }
  return points;
}

SensitivityMap sensitivity_map(const TensorProfile& profile, const CommCosts& costs, const CapOptions& options,
                               const SearchOptions& search) {
  const SensitivityStudy study(profile, costs, options, search);
  SensitivityMap map = {.factors = {kFactors.begin(), kFactors.end()}, .cells = {}};
  for (const double latency : kFactors) {
    for (const double bandwidth : kFactors) map.cells.push_back(study.at(latency, bandwidth));
  }
  return map;
}

std::vector<Elasticity> elasticities(const TensorProfile& profile, const CommCosts& costs, const CapOptions& options,
                                     const SearchOptions& search) {
  constexpr std::array kLogFactors = {-1.0, -0.5, 0.0, 0.5, 1.0};  // base 2
  const SensitivityStudy study(profile, costs, options, search);
  std::vector<Elasticity> result;
  for (const Influence influence : kInfluences) {
    if (!study.applies(influence)) continue;
    double xy = 0, xx = 0;  // the x are symmetric about 0, so the slope needs no means
    for (const double x : kLogFactors) {
      const SensitivityPoint point = study.at(influence, std::exp2(x));
      const double low = std::log2(static_cast<double>(std::max<int64_t>(point.near_low_bytes, 1)));
      const double high = std::log2(static_cast<double>(std::max<int64_t>(point.near_high_bytes, 1)));
      xy += x * (low + high) / 2;
      xx += x * x;
    }
    result.push_back({influence, xy / xx, elasticity_words(influence, xy / xx)});
  }
  return result;
}

}  // namespace firkin
