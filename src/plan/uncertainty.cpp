#include "firkin/plan/uncertainty.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <utility>

#include "firkin/base/error.h"
#include "firkin/plan/step_prediction.h"
#include "firkin/stats/summary.h"
#include "random_normal.h"
#include "simulator.h"

namespace firkin {
namespace {

constexpr int64_t kEffort = 4000000;          // buckets
constexpr int64_t kContendedEffort = 400000;  // buckets of timelines

// Without names, which no time depends on.
TensorProfile scaled_profile(const TensorProfile& measured, double factor) {
  TensorProfile profile{.names = {}, .bytes = measured.bytes, .ready_s = measured.ready_s, .backward_s = measured.backward_s};
  for (double& ready : profile.ready_s) ready *= factor;
  profile.backward_s *= factor;
  return profile;
}

// Of the logarithm of a row's median; 0 where nothing is known. Samples are taken for log-normal: one call that took a hundred times as
// long as the others makes a wide interval, not one of many orders of magnitude.
double standard_error(const AllReduceRow& row) {
  constexpr double kOfMedian = 1.2533;  // sqrt(pi / 2), over that of a mean
  if (!row.stdev_s || !row.samples || *row.samples < 2) return 0;
  const double mean_s = row.mean_s.value_or(row.median_s);
  if (!(mean_s > 0)) return 0;
  const double variation = *row.stdev_s / mean_s;
  return kOfMedian * std::sqrt(std::log1p(variation * variation) / static_cast<double>(*row.samples));
}

// A median as it might have come out; it lies among the samples.
double redrawn_factor(const AllReduceRow& row, std::mt19937_64& random) {
  const double factor = std::exp(standard_error(row) * random_normal(random));
  const double least = row.min_s ? *row.min_s / row.median_s : 0;
  const double most = row.max_s ? *row.max_s / row.median_s : std::numeric_limits<double>::infinity();
  return std::clamp(factor, std::min(least, 1.0), std::max(most, 1.0));
}

}  // namespace

std::vector<CommCosts> redraw_costs(const AllReduceTable& table, int64_t world_size) {
  AllReduceTable rows = table;
  std::erase_if(rows, [&](const AllReduceRow& row) { return row.world_size != world_size; });
  if (std::ranges::none_of(rows, [](const AllReduceRow& row) { return standard_error(row) > 0; })) return {};
  std::vector<CommCosts> draws;
  std::mt19937_64 random(0);
  for (int draw = 0; draw < kDraws; ++draw) {
    AllReduceTable drawn = rows;
    for (AllReduceRow& row : drawn) {
      const double factor = redrawn_factor(row, random);
      row.median_s *= factor;
      if (row.gap_s) *row.gap_s *= factor;
    }
    draws.push_back(comm_costs(drawn, world_size));
  }
  return draws;
}

std::vector<InputDraw> redraw(std::vector<CommCosts> costs, const SimulationOptions& simulation, double compute_error) {
  std::mt19937_64 random(1);  // not the numbers that the costs were drawn from
  std::vector<InputDraw> draws;
  for (CommCosts& drawn : costs) draws.push_back({std::exp(compute_error * random_normal(random)), std::move(drawn), simulation});
  return draws;
}

std::vector<InputDraw> with_model_errors(std::vector<InputDraw> draws, const InputDraw& nominal, const std::optional<double>& residual) {
  const std::vector<ModelError> errors = model_errors(residual);
  if (draws.empty()) draws.assign(errors.size(), nominal);
  for (size_t draw = 0; draw < draws.size(); ++draw) {
    const ModelError& wrong = errors[draw % errors.size()];
    draws[draw].compute_factor *= wrong.compute;
    draws[draw].costs = scaled(draws[draw].costs, wrong.latency, wrong.bytes);
  }
  return draws;
}

Interval drawn_times(const TensorProfile& profile, const std::vector<InputDraw>& draws, const BucketPlan& plan) {
  constexpr double kOutside = 0.025;  // on either side
  std::vector<double> end_s;
  for (const InputDraw& draw : draws) {
    end_s.push_back(simulate(scaled_profile(profile, draw.compute_factor), plan, draw.costs, draw.simulation).end_s);
  }
  return {quantile(end_s, kOutside), quantile(end_s, 1 - kOutside)};
}

CapOdds::CapOdds(const TensorProfile& profile, std::vector<InputDraw> draws, const CapOptions& options, const SearchOptions& search)
    : draws_(std::move(draws)) {
  if (draws_.empty()) throw InputError("no draw of the inputs; expected at least one");
  const auto count = static_cast<int64_t>(draws_.size());
  const bool contended = std::ranges::any_of(
      draws_, [](const InputDraw& draw) { return draw.simulation.compute_slowdown != 1 || draw.simulation.comm_slowdown != 1; });
  const int64_t least_effort = 2 * static_cast<int64_t>(profile.bytes.size());
  caps_ = distinct_plans(profile, options, search, std::max(least_effort, (contended ? kContendedEffort : kEffort) / count));
  end_s_.resize(caps_.plans.size());
  for (const InputDraw& draw : draws_) {
    check_options(draw.simulation);
    const TensorProfile& drawn = profiles_.emplace_back(scaled_profile(profile, draw.compute_factor));
    Simulator simulator(drawn, draw.costs, {.simulation = draw.simulation});
    double best_s = std::numeric_limits<double>::infinity();
    for (size_t cap = 0; cap < caps_.plans.size(); ++cap) {
      end_s_[cap].push_back(simulator.end_s(caps_.plans[cap].plan.buckets));
      best_s = std::min(best_s, end_s_[cap].back());
    }
    best_s_.push_back(best_s);
  }
}

PlanOdds CapOdds::odds(const std::vector<double>& end_s) const {
  constexpr double kNear = 0.01;
  PlanOdds result;
  const auto count = static_cast<double>(end_s.size());
  for (size_t draw = 0; draw < end_s.size(); ++draw) {
    if (!(best_s_[draw] > 0)) continue;
    const double regret = end_s[draw] / best_s_[draw] - 1;
    result.expected_regret += std::max(0.0, regret) / count;
    if (regret <= kNear) result.near_best += 1 / count;
  }
  return result;
}

PlanOdds CapOdds::of(const BucketPlan& plan) const {
  std::vector<double> end_s;
  for (size_t draw = 0; draw < draws_.size(); ++draw) {
    end_s.push_back(simulate(profiles_[draw], plan, draws_[draw].costs, draws_[draw].simulation).end_s);
  }
  return odds(end_s);
}

const DistinctPlan& CapOdds::least_regret() const {
  constexpr double kNoDifference = 1e-3;
  std::vector<double> regret;
  for (const std::vector<double>& end_s : end_s_) regret.push_back(odds(end_s).expected_regret);
  const double limit = std::ranges::min(regret) + kNoDifference;
  size_t chosen = regret.size();
  for (size_t cap = 0; cap < regret.size(); ++cap) {
    if (regret[cap] > limit) continue;
    if (chosen == regret.size() || caps_.plans[cap].plan.buckets.size() < caps_.plans[chosen].plan.buckets.size()) chosen = cap;
  }
  return caps_.plans[chosen];
}

}  // namespace firkin
