#include "firkin/plan/scaling.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <tuple>
#include <utility>

#include "firkin/base/error.h"
#include "firkin/stats/estimates.h"

namespace firkin {
namespace {

using Matrix = std::vector<std::vector<double>>;

// Gaussian elimination with partial pivoting; nothing when the system is singular.
std::optional<std::vector<double>> solve(Matrix a, std::vector<double> b) {
  constexpr double kSingular = 1e-12;  // relative to the diagonal, which is 1
  const size_t n = b.size();
  for (size_t k = 0; k < n; ++k) {
    size_t pivot = k;
    for (size_t i = k + 1; i < n; ++i) {
      if (std::abs(a[i][k]) > std::abs(a[pivot][k])) pivot = i;
    }
    if (std::abs(a[pivot][k]) < kSingular) return std::nullopt;
    std::swap(a[k], a[pivot]);
    std::swap(b[k], b[pivot]);
    for (size_t i = k + 1; i < n; ++i) {
      const double factor = a[i][k] / a[k][k];
      for (size_t j = k; j < n; ++j) a[i][j] -= factor * a[k][j];
      b[i] -= factor * b[k];
    }
  }
  for (size_t k = n; k-- > 0;) {
    for (size_t j = k + 1; j < n; ++j) b[k] -= a[k][j] * b[j];
    b[k] /= a[k][k];
  }
  return b;
}

// The x >= 0 that minimises the sum over equations of (equation . x - 1)^2. Exact: every subset of the terms is solved
// without the bound, and the best solution that respects it is taken. At most 8 terms. A term that no equation
// determines gets 0.
std::vector<double> fit_nonnegative_to_one(const std::vector<std::vector<double>>& equations) {
  const size_t term_count = equations.empty() ? 0 : equations[0].size();
  std::vector<double> scale(term_count, 0);  // for each term, so that the normal equations have a unit diagonal
  for (const auto& equation : equations) {
    for (size_t t = 0; t < term_count; ++t) scale[t] += equation[t] * equation[t];
  }
  for (double& s : scale) s = std::sqrt(s);

  Matrix normal(term_count, std::vector<double>(term_count, 0));
  std::vector<double> right(term_count, 0);
  for (const auto& equation : equations) {
    for (size_t i = 0; i < term_count; ++i) {
      const double term = equation[i] / scale[i];
      right[i] += term;
      for (size_t j = 0; j < term_count; ++j) normal[i][j] += term * equation[j] / scale[j];
    }
  }

  std::vector<double> best(term_count, 0);
  double best_loss = std::numeric_limits<double>::infinity();
  for (uint32_t subset = 1; subset < uint32_t{1} << term_count; ++subset) {
    std::vector<size_t> used;
    for (size_t t = 0; t < term_count; ++t) {
      if ((subset >> t & 1) != 0) used.push_back(t);
    }
    if (std::ranges::any_of(used, [&](size_t t) { return !(scale[t] > 0); })) continue;
    Matrix left;
    std::vector<double> wanted;
    for (const size_t i : used) {
      wanted.push_back(right[i]);
      left.emplace_back();
      for (const size_t j : used) left.back().push_back(normal[i][j]);
    }
    const auto x = solve(std::move(left), std::move(wanted));
    if (!x || std::ranges::any_of(*x, [](double value) { return !(value >= 0); })) continue;
    std::vector<double> candidate(term_count, 0);
    for (size_t i = 0; i < used.size(); ++i) candidate[used[i]] = (*x)[i] / scale[used[i]];
    double loss = 0;
    for (const auto& equation : equations) {
      const double error = std::inner_product(equation.begin(), equation.end(), candidate.begin(), -1.0);
      loss += error * error;
    }
    if (loss < best_loss) {
      best_loss = loss;
      best = std::move(candidate);
    }
  }
  return best;
}

constexpr int64_t kLeastBytes = 4096;  // smaller calls are all latency, tables have many, and buckets are larger

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
    case ScalingForm::kTwoTrees:
      return {1, depth, bytes};
  }
  return {};
}

double evaluate(const FormFit& fit, int64_t world, double bytes) {
  const std::vector<double> values = terms(fit.form, world, bytes);
  return std::inner_product(values.begin(), values.end(), fit.coefficients.begin(), 0.0);
}

std::vector<int64_t> worlds_to_fit(const AllReduceTable& table, WorldRange range) {
  constexpr size_t kWorlds = 3;
  std::vector<int64_t> worlds = world_sizes(table);
  std::erase_if(worlds, [&](int64_t world) { return world < range.smallest || world > range.largest; });
  if (worlds.empty()) {
    const std::string wanted = range.largest < kLargestWorld ? fmt::format("{} to {} ranks", range.smallest, range.largest)
                                                             : fmt::format("{} ranks or more", range.smallest);
    throw InputError(fmt::format("no all-reduce was measured on {}; expected one to extrapolate from", wanted));
  }
  if (worlds.size() > kWorlds) worlds.erase(worlds.begin(), worlds.end() - static_cast<std::ptrdiff_t>(kWorlds));
  return worlds;
}

// The rows that forms are fitted to.
AllReduceTable of_bucket_sizes(const AllReduceTable& rows) {
  AllReduceTable large = rows;
  std::erase_if(large, [](const AllReduceRow& row) { return row.bytes < kLeastBytes; });
  return large.empty() ? rows : large;
}

FormFit fit_form(ScalingForm form, const AllReduceTable& rows, bool one_world) {
  std::vector<std::vector<double>> equations;  // relative: each row divided by its measured time
  for (const AllReduceRow& row : of_bucket_sizes(rows)) {
    equations.push_back(terms(form, row.world_size, static_cast<double>(row.bytes)));
    // From one world, constant and growing parts cannot be told apart: all of it grows.
    if (one_world) equations.back()[0] = 0;
    for (double& term : equations.back()) term /= row.median_s;
  }
  return {.form = form, .coefficients = fit_nonnegative_to_one(equations)};
}

double doublings(int64_t from, int64_t to) {
  return std::abs(std::log2(static_cast<double>(to) / static_cast<double>(from)));
}

// The row of this size whose world is nearest to `world`; null if there is none.
const AllReduceRow* nearest_row(const AllReduceTable& rows, int64_t bytes, int64_t world) {
  const auto rank = [&](const AllReduceRow& row) {
    return std::tuple(row.bytes != bytes, doublings(row.world_size, world), -row.world_size);
  };
  const auto nearest = std::ranges::min_element(rows, {}, rank);
  return nearest != rows.end() && nearest->bytes == bytes ? &*nearest : nullptr;
}

double anchored_s(const FormFit& fit, const AllReduceRow& row, int64_t world) {
  const auto bytes = static_cast<double>(row.bytes);
  return row.median_s * evaluate(fit, world, bytes) / evaluate(fit, row.world_size, bytes);
}

}  // namespace

WorldRange worlds_alike(int64_t world, int64_t ranks_per_node) {
  if (ranks_per_node == 0) return {};
  if (ranks_per_node < 0) throw InputError(fmt::format("a node has {} ranks; expected at least 1", ranks_per_node));
  if (world > ranks_per_node && world % ranks_per_node != 0) {
    throw InputError(fmt::format("the world size is {}; expected a multiple of the {} ranks of a node, or fewer", world, ranks_per_node));
  }
  return world > ranks_per_node ? WorldRange{.smallest = ranks_per_node + 1} : WorldRange{.largest = ranks_per_node};
}

ScalingModel::ScalingModel(const AllReduceTable& table, WorldRange range) : fitted_worlds_(worlds_to_fit(table, range)) {
  std::map<int64_t, std::vector<double>> gap_ratios;  // gaps are limited as in comm_costs()
  std::vector<double> all_gap_ratios;
  for (const int64_t world : fitted_worlds_) {
    const CommCosts costs = comm_costs(table, world);
    const bool has_gaps =
        std::ranges::any_of(table, [&](const AllReduceRow& row) { return row.world_size == world && row.gap_s.has_value(); });
    for (const CostPoint& point : costs.isolated.points()) {
      rows_.push_back({.bytes = point.bytes, .world_size = world, .median_s = point.seconds});
      auto& ratios = gap_ratios[point.bytes];
      if (!has_gaps) continue;
      ratios.push_back(costs.gap(static_cast<double>(point.bytes)) / point.seconds);
      all_gap_ratios.push_back(ratios.back());
    }
  }
  const double usual_gap_ratio = all_gap_ratios.empty() ? 1 : median(all_gap_ratios);
  for (const auto& [bytes, ratios] : gap_ratios) {
    sizes_.push_back(bytes);
    gap_ratio_.push_back(ratios.empty() ? usual_gap_ratio : median(ratios));
  }
  for (const ScalingForm form : kScalingForms) fits_.push_back(fit_form(form, rows_, fitted_worlds_.size() == 1));
}

std::vector<double> ScalingModel::seconds_at_sizes(const FormFit& fit, int64_t world) const {
  if (world < 2 || world > kLargestWorld) throw InputError(fmt::format("the world size is {}; expected 2 to {}", world, kLargestWorld));
  std::vector<double> seconds;
  for (const int64_t bytes : sizes_) seconds.push_back(anchored_s(fit, *nearest_row(rows_, bytes, world), world));
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
  return curves(seconds_at_sizes(fits_[static_cast<size_t>(form)], world));
}

CommCosts ScalingModel::costs(int64_t world) const {
  std::vector<double> seconds(sizes_.size(), 1);
  for (const FormFit& fit : fits_) {
    const std::vector<double> of_form = seconds_at_sizes(fit, world);
    for (size_t i = 0; i < seconds.size(); ++i) seconds[i] *= std::pow(of_form[i], 1.0 / static_cast<double>(fits_.size()));
  }
  return curves(seconds);
}

}  // namespace firkin
