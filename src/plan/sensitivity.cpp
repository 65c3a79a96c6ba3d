#include "firkin/plan/sensitivity.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "firkin/base/error.h"
#include "simulator.h"

namespace firkin {
namespace {

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

// The best of these plans under one set of inputs, and the caps around it that are within 1 % of it.
SensitivityPoint best_point(const ScaledInputs& inputs, const std::vector<DistinctPlan>& plans, double tolerance) {
  constexpr double kNear = 1.01;
  Simulator simulator(inputs.profile, inputs.costs, {.simulation = inputs.options});
  std::vector<double> end_s;
  for (const DistinctPlan& plan : plans) end_s.push_back(simulator.end_s(plan.plan.buckets));
  const double least_s = std::ranges::min(end_s), limit_s = least_s * (1 + tolerance);
  size_t best = plans.size();
  for (size_t p = 0; p < plans.size(); ++p) {
    if (end_s[p] > limit_s) continue;
    if (best == plans.size() || plans[p].plan.buckets.size() < plans[best].plan.buckets.size()) best = p;
  }
  size_t low = best, high = best;
  while (low > 0 && end_s[low - 1] <= kNear * least_s) --low;
  while (high + 1 < plans.size() && end_s[high + 1] <= kNear * least_s) ++high;
  const int64_t total = std::max<int64_t>(1, inputs.profile.total_bytes());
  return {.cap_bytes = roundest_cap(plans[best].caps),
          .buckets = std::ssize(plans[best].plan.buckets),
          .backward_s = end_s[best],
          .exposed_s = end_s[best] - inputs.profile.backward_s,
          .near_low_bytes = std::min(plans[low].caps.lowest_cap_bytes, total),
          .near_high_bytes = std::min(plans[high].caps.highest_cap_bytes, total)};
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
  check_options(search.simulation);
  const ScaledInputs inputs = {profile, costs, search.simulation};
  const std::vector<DistinctPlan> plans = distinct_plans(profile, options, search).plans;  // they depend on the sizes alone
  CapOptions kept = options;
  kept.cap_bytes = best_point(inputs, plans, search.tolerance).cap_bytes;
  std::vector<SensitivityPoint> points;
  for (const Influence influence : kInfluences) {
    const bool is_contended = search.simulation.compute_slowdown > 1 || search.simulation.comm_slowdown > 1;
    if (influence == Influence::kContention && !is_contended) continue;
    for (const double factor : kFactors) {
      const ScaledInputs scaled = scale_inputs(inputs, influence, factor);
      const bool is_resized = influence == Influence::kTotalBytes;
      SensitivityPoint& point = points.emplace_back(
          best_point(scaled, is_resized ? distinct_plans(scaled.profile, options, search).plans : plans, search.tolerance));
      point.influence = influence;
      point.factor = factor;
      point.kept_backward_s = simulate(scaled.profile, assign_buckets(scaled.profile.bytes, kept), scaled.costs, scaled.options).end_s;
    }
  }
  return points;
}

}  // namespace firkin
