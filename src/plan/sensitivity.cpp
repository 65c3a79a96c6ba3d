#include "firkin/plan/sensitivity.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "firkin/base/error.h"
#include "firkin/base/units.h"
#include "plan_evaluator.h"

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

bool has_contention(const SimulationOptions& options) {
  return options.compute_slowdown > 1 || options.comm_slowdown > 1;
}

// The times of the distinct plans under one set of inputs.
class PlanTimes {
 public:
  PlanTimes(const ScaledInputs& inputs, const std::vector<DistinctPlan>& plans, const SearchOptions& search)
      : plans_(plans), backward_s_(inputs.profile.backward_s) {
    PlanEvaluator evaluator(inputs.profile, inputs.costs, inputs.options);
    for (const DistinctPlan& plan : plans) end_s_.push_back(evaluator.end_s(plan.plan.buckets, std::numeric_limits<double>::infinity()));
    for (const int64_t bytes : inputs.profile.bytes) total_bytes_ += bytes;
    least_s_ = *std::min_element(end_s_.begin(), end_s_.end());
    const double limit = least_s_ * (1 + search.tolerance);
    for (size_t p = 0; p < plans.size(); ++p) {
      const bool fewer = plans[p].plan.buckets.size() < plans[best_].plan.buckets.size();
      if (end_s_[p] <= limit && (end_s_[best_] > limit || fewer)) best_ = p;
    }
  }

  SensitivityPoint point(Influence influence, double factor) const {
    const CapInterval near = caps_around_best(near_limit_s());
    return {.influence = influence,
            .factor = factor,
            .cap_bytes = roundest_cap(plans_[best_].caps),
            .buckets = static_cast<int64_t>(plans_[best_].plan.buckets.size()),
            .backward_s = end_s_[best_],
            .exposed_s = end_s_[best_] - backward_s_,
            .near_low_bytes = near.lowest_cap_bytes,
            .near_high_bytes = near.highest_cap_bytes};
  }

  // All caps within 1 % of the best, ascending.
  std::vector<CapInterval> near_caps() const {
    std::vector<CapInterval> caps;
    for (size_t p = 0; p < plans_.size(); ++p) {
      if (end_s_[p] > near_limit_s()) continue;
      const CapInterval interval = cut(plans_[p].caps);
      if (!caps.empty() && interval.lowest_cap_bytes <= caps.back().highest_cap_bytes + 1) {
        caps.back().highest_cap_bytes = interval.highest_cap_bytes;
      } else {
        caps.push_back(interval);
      }
    }
    return caps;
  }

  // log2 of the middle of the caps around the best that expose at most a tenth more.
  double log_best_cap() const {
    constexpr double kMoreExposed = 0.1;
    const CapInterval caps = caps_around_best(least_s_ + kMoreExposed * (least_s_ - backward_s_));
    return (std::log2(static_cast<double>(caps.lowest_cap_bytes)) + std::log2(static_cast<double>(caps.highest_cap_bytes))) / 2;
  }

 private:
  double near_limit_s() const { return least_s_ * 1.01; }

  CapInterval cut(const CapInterval& caps) const {
    return {std::min(caps.lowest_cap_bytes, total_bytes_), std::min(caps.highest_cap_bytes, total_bytes_)};
  }

  CapInterval caps_around_best(double limit_s) const {
    size_t low = best_, high = best_;
    while (low > 0 && end_s_[low - 1] <= limit_s) --low;
    while (high + 1 < plans_.size() && end_s_[high + 1] <= limit_s) ++high;
    return cut({plans_[low].caps.lowest_cap_bytes, plans_[high].caps.highest_cap_bytes});
  }

  const std::vector<DistinctPlan>& plans_;
  double backward_s_;
  std::vector<double> end_s_;
  int64_t total_bytes_ = 1;
  double least_s_ = 0;
  size_t best_ = 0;
};

std::vector<CapInterval> common(const std::vector<CapInterval>& a, const std::vector<CapInterval>& b) {
  std::vector<CapInterval> result;
  for (const CapInterval& x : a) {
    for (const CapInterval& y : b) {
      const int64_t low = std::max(x.lowest_cap_bytes, y.lowest_cap_bytes);
      const int64_t high = std::min(x.highest_cap_bytes, y.highest_cap_bytes);
      if (low <= high) result.push_back({low, high});
    }
  }
  return result;
}

// The plans depend on the sizes alone, so they are found once unless the sizes change.
class SensitivityStudy {
 public:
  SensitivityStudy(const TensorProfile& profile, const CommCosts& costs, const CapOptions& options, const SearchOptions& search)
      : inputs_{profile, costs, search.simulation},
        options_(options),
        kept_(options),
        search_(search),
        plans_(distinct_plans(profile, options, search).plans) {
    check_options(search.simulation);
    kept_.cap_bytes = PlanTimes(inputs_, plans_, search_).point(Influence::kLatency, 1).cap_bytes;
  }

  // What `measure` says about the plans' times with one influence multiplied.
  template <typename Measure>
  auto at(Influence influence, double factor, const Measure& measure) const {
    const ScaledInputs scaled = scale_inputs(inputs_, influence, factor);
    if (influence != Influence::kTotalBytes) return measure(PlanTimes(scaled, plans_, search_));
    const std::vector<DistinctPlan> plans = distinct_plans(scaled.profile, options_, search_).plans;
    return measure(PlanTimes(scaled, plans, search_));
  }

  SensitivityPoint point(Influence influence, double factor) const {
    SensitivityPoint point = at(influence, factor, [&](const PlanTimes& times) { return times.point(influence, factor); });
    point.kept_backward_s = kept_s(scale_inputs(inputs_, influence, factor));
    return point;
  }

  SensitivityPoint point(double latency_factor, double bandwidth_factor) const {
    const ScaledInputs once = scale_inputs(inputs_, Influence::kLatency, latency_factor);
    const ScaledInputs twice = scale_inputs(once, Influence::kBandwidth, bandwidth_factor);
    SensitivityPoint point = PlanTimes(twice, plans_, search_).point(Influence::kLatency, latency_factor);
    point.kept_backward_s = kept_s(twice);
    return point;
  }

  bool applies(Influence influence) const { return influence != Influence::kContention || has_contention(inputs_.options); }

 private:
  double kept_s(const ScaledInputs& inputs) const {
    return simulate(inputs.profile, assign_buckets(inputs.profile.bytes, kept_), inputs.costs, inputs.options).end_s;
  }

  ScaledInputs inputs_;
  CapOptions options_;
  CapOptions kept_;  // with the cap that is best for these inputs
  const SearchOptions& search_;
  std::vector<DistinctPlan> plans_;
};

std::string elasticity_words(const SensitivityStudy& study, const Elasticity& elasticity) {
  const std::string name = name_of(elasticity.influence);
  if (elasticity.common_low_bytes > 0) {
    return fmt::format("from half to twice the {}: caps of {} to {} stay within 1 % of the best", name,
                       format_bytes(elasticity.common_low_bytes), format_bytes(elasticity.common_high_bytes));
  }
  const auto best = [&](double factor) { return format_bytes(study.point(elasticity.influence, factor).cap_bytes); };
  return fmt::format("from half to twice the {}: the best cap goes from {} over {} to {} (slope {:.2f})", name, best(0.5), best(1), best(2),
                     elasticity.value);
}

Elasticity elasticity_of(const SensitivityStudy& study, Influence influence) {
  constexpr std::array kLogFactors = {-1.0, -0.5, 0.0, 0.5, 1.0};  // base 2
  Elasticity result;
  result.influence = influence;
  std::vector<CapInterval> near = {{1, std::numeric_limits<int64_t>::max()}};
  double xy = 0, xx = 0;  // the x are symmetric about 0, so the slope needs no means
  for (const double x : kLogFactors) {
    study.at(influence, std::exp2(x), [&](const PlanTimes& times) {
      near = common(near, times.near_caps());
      xy += x * times.log_best_cap();
      xx += x * x;
      return 0;
    });
  }
  result.value = xy / xx;
  for (const CapInterval& caps : near) {  // the widest, as a ratio
    const auto ratio = [](int64_t low, int64_t high) { return static_cast<double>(high) / static_cast<double>(low); };
    if (result.common_low_bytes > 0 &&
        ratio(caps.lowest_cap_bytes, caps.highest_cap_bytes) <= ratio(result.common_low_bytes, result.common_high_bytes)) {
      continue;
    }
    result.common_low_bytes = caps.lowest_cap_bytes;
    result.common_high_bytes = caps.highest_cap_bytes;
  }
  result.words = elasticity_words(study, result);
  return result;
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
    for (const double factor : kFactors) points.push_back(study.point(influence, factor));
  }
  return points;
}

SensitivityMap sensitivity_map(const TensorProfile& profile, const CommCosts& costs, const CapOptions& options,
                               const SearchOptions& search) {
  const SensitivityStudy study(profile, costs, options, search);
  SensitivityMap map = {.factors = {kFactors.begin(), kFactors.end()}, .cells = {}};
  for (const double latency : kFactors) {
    for (const double bandwidth : kFactors) map.cells.push_back(study.point(latency, bandwidth));
  }
  return map;
}

std::vector<Elasticity> elasticities(const TensorProfile& profile, const CommCosts& costs, const CapOptions& options,
                                     const SearchOptions& search) {
  const SensitivityStudy study(profile, costs, options, search);
  std::vector<Elasticity> result;
  for (const Influence influence : kInfluences) {
    if (study.applies(influence)) result.push_back(elasticity_of(study, influence));
  }
  return result;
}

}  // namespace firkin
