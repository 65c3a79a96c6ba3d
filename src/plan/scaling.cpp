#include "firkin/plan/scaling.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <map>

#include "firkin/base/error.h"
#include "firkin/stats/summary.h"
#include "nonnegative_fit.h"

namespace firkin {
namespace {

// The terms that a form adds up, each times its coefficient.
std::vector<double> terms(ScalingForm form, int64_t world, double bytes) {
  const auto ranks = static_cast<double>(world);
  const auto depth = static_cast<double>(std::bit_width(static_cast<uint64_t>(world - 1)));  // ceil(log2 world)
  switch (form) {
    case ScalingForm::kRing:
      return {1, ranks - 1, bytes * (ranks - 1) / ranks};
    case ScalingForm::kTree:
      return {1, depth, bytes * depth};
    case ScalingForm::kPipelinedTree:
      return {1, depth, bytes, std::sqrt(depth * bytes)};
  }
  return {};
}

double evaluate(const FormFit& fit, int64_t world, double bytes) {
  const std::vector<double> values = terms(fit.form, world, bytes);
  double seconds = 0;
  for (size_t t = 0; t < values.size(); ++t) seconds += fit.coefficients[t] * values[t];
  return seconds;
}

std::vector<int64_t> worlds_to_fit(const AllReduceTable& table, int64_t smallest_world) {
  constexpr size_t kWorlds = 3;
  std::vector<int64_t> worlds = world_sizes(table);
  std::erase_if(worlds, [&](int64_t world) { return world < std::max<int64_t>(smallest_world, 2) || world > kLargestWorld; });
  if (worlds.empty()) {
    throw InputError(fmt::format("no all-reduce was measured on {} to {} ranks; expected one to extrapolate from",
                                 std::max<int64_t>(smallest_world, 2), kLargestWorld));
  }
  if (smallest_world == 0 && worlds.size() > kWorlds) worlds.erase(worlds.begin(), worlds.end() - static_cast<std::ptrdiff_t>(kWorlds));
  return worlds;
}

FormFit fit_form(ScalingForm form, const AllReduceTable& rows, bool one_world) {
  std::vector<std::vector<double>> equations;  // relative: each row divided by its measured time
  for (const AllReduceRow& row : rows) {
    equations.push_back(terms(form, row.world_size, static_cast<double>(row.bytes)));
    if (one_world) equations.back()[0] = 0;  // one world cannot tell what is constant from what grows: all of it grows
    for (double& term : equations.back()) term /= row.median_s;
  }
  FormFit fit = {.form = form, .coefficients = fit_nonnegative_to_one(equations)};
  std::vector<double> errors;
  for (const AllReduceRow& row : rows) {
    errors.push_back(std::abs(evaluate(fit, row.world_size, static_cast<double>(row.bytes)) / row.median_s - 1));
  }
  fit.median_relative_error = median(errors);
  return fit;
}

}  // namespace

std::string name_of(ScalingForm form) {
  switch (form) {
    case ScalingForm::kRing:
      return "ring";
    case ScalingForm::kTree:
      return "tree";
    case ScalingForm::kPipelinedTree:
      return "pipelined tree";
  }
  return "";
}

ScalingModel::ScalingModel(const AllReduceTable& table, int64_t smallest_world) : fitted_worlds_(worlds_to_fit(table, smallest_world)) {
  AllReduceTable rows;
  std::map<int64_t, std::vector<double>> gap_ratios;
  std::vector<double> all_gap_ratios;
  for (const AllReduceRow& row : table) {
    if (std::find(fitted_worlds_.begin(), fitted_worlds_.end(), row.world_size) == fitted_worlds_.end()) continue;
    rows.push_back(row);
    auto& ratios = gap_ratios[row.bytes];
    if (!row.gap_s) continue;
    ratios.push_back(*row.gap_s / row.median_s);
    all_gap_ratios.push_back(ratios.back());
  }
  const double usual_gap_ratio = all_gap_ratios.empty() ? 1 : median(all_gap_ratios);
  for (const auto& [bytes, ratios] : gap_ratios) {
    sizes_.push_back(bytes);
    gap_ratio_.push_back(ratios.empty() ? usual_gap_ratio : median(ratios));
  }
  for (const ScalingForm form : kScalingForms) {
    fits_.push_back(fit_form(form, rows, fitted_worlds_.size() == 1));
    std::map<int64_t, std::vector<double>> missed;
    for (const AllReduceRow& row : rows) {
      missed[row.bytes].push_back(row.median_s / evaluate(fits_.back(), row.world_size, static_cast<double>(row.bytes)));
    }
    correction_.emplace_back();
    for (const auto& [bytes, ratios] : missed) correction_.back().push_back(median(ratios));
  }
}

std::vector<double> ScalingModel::seconds_at_sizes(size_t form, int64_t world) const {
  if (world < 2 || world > kLargestWorld) throw InputError(fmt::format("the world size is {}; expected 2 to {}", world, kLargestWorld));
  std::vector<double> seconds;
  for (size_t i = 0; i < sizes_.size(); ++i)
    seconds.push_back(evaluate(fits_[form], world, static_cast<double>(sizes_[i])) * correction_[form][i]);
  return seconds;
}

CommCosts ScalingModel::curves(const std::vector<double>& seconds) const {
  std::vector<CostPoint> isolated, gap;
  for (size_t i = 0; i < sizes_.size(); ++i) {
    isolated.push_back({sizes_[i], seconds[i]});
    gap.push_back({sizes_[i], seconds[i] * gap_ratio_[i]});
  }
  return {CostCurve(std::move(isolated)), CostCurve(std::move(gap))};
}

CommCosts ScalingModel::costs(ScalingForm form, int64_t world) const {
  return curves(seconds_at_sizes(static_cast<size_t>(form), world));
}

CommCosts ScalingModel::median_costs(int64_t world) const {
  std::vector<std::vector<double>> by_form;
  for (size_t form = 0; form < fits_.size(); ++form) by_form.push_back(seconds_at_sizes(form, world));
  std::vector<double> seconds;
  for (size_t i = 0; i < sizes_.size(); ++i) {
    std::vector<double> values;
    for (const std::vector<double>& form : by_form) values.push_back(form[i]);
    seconds.push_back(median(values));
  }
  return curves(seconds);
}

TimeRange ScalingModel::range(int64_t world, double bytes) const {
  std::vector<double> seconds;
  for (const ScalingForm form : kScalingForms) seconds.push_back(costs(form, world).isolated(bytes));
  return {*std::min_element(seconds.begin(), seconds.end()), median(seconds), *std::max_element(seconds.begin(), seconds.end())};
}

MinimaxRegretCap find_minimax_regret_cap(const TensorProfile& profile, const std::vector<CommCosts>& costs, const CapOptions& options,
                                         const SearchOptions& search) {
  if (costs.empty()) throw InputError("no model to choose a cap under; expected at least one");
  const std::vector<DistinctPlan> plans = distinct_plans(profile, options, search).plans;
  std::vector<std::vector<double>> end_s(plans.size(), std::vector<double>(costs.size()));
  std::vector<double> best(costs.size(), std::numeric_limits<double>::infinity());
  for (size_t c = 0; c < costs.size(); ++c) {
    for (size_t p = 0; p < plans.size(); ++p) {
      end_s[p][c] = simulate(profile, plans[p].plan, costs[c], search.simulation).end_s;
      best[c] = std::min(best[c], end_s[p][c]);
    }
  }
  std::vector<double> regrets;
  for (size_t p = 0; p < plans.size(); ++p) {
    double regret = 0;
    for (size_t c = 0; c < costs.size(); ++c) regret = std::max(regret, end_s[p][c] / best[c] - 1);
    regrets.push_back(regret);
  }
  const double limit = *std::min_element(regrets.begin(), regrets.end()) + search.tolerance;
  size_t chosen = plans.size();
  for (size_t p = 0; p < plans.size(); ++p) {
    if (regrets[p] > limit) continue;
    if (chosen == plans.size() || plans[p].plan.buckets.size() < plans[chosen].plan.buckets.size()) chosen = p;
  }
  const CapInterval& caps = plans[chosen].caps;
  return {.cap_bytes = roundest_cap(caps),
          .lowest_cap_bytes = caps.lowest_cap_bytes,
          .highest_cap_bytes = caps.highest_cap_bytes,
          .plan = plans[chosen].plan,
          .largest_regret = regrets[chosen],
          .end_s = end_s[chosen]};
}

}  // namespace firkin
