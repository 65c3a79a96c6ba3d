#include "firkin/plan/uncertainty.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <random>
#include <utility>

#include "firkin/base/error.h"
#include "simulator.h"

namespace firkin {
namespace {

constexpr int64_t kEffort = 8000000;  // buckets

// Uniform between 0 and 1, excluding both.
double random_uniform(std::mt19937_64& random) {
  constexpr int kDropped = 11;  // a double holds 53 of the 64 bits
  constexpr double kUnit = 0x1p-53;
  return (static_cast<double>(random() >> kDropped) + 0.5) * kUnit;
}

// Standard normal noise (Box and Muller 1958), the same on every standard library, unlike std::normal_distribution.
double random_normal(std::mt19937_64& random) {
  const double radius = std::sqrt(-2 * std::log(random_uniform(random)));
  return radius * std::cos(2 * std::numbers::pi * random_uniform(random));
}

// The standard error of the logarithm of a row's median; 0 if unknown. Without a stated error, samples count as
// independent and log-normal, so that one outlier a hundred times as long does not widen the interval by orders of
// magnitude.
double standard_error(const AllReduceRow& row) {
  constexpr double kOfMedian = 1.2533;  // a median's error over a mean's: sqrt(pi / 2)
  if (row.stderr_s) return std::log1p(*row.stderr_s / row.median_s);
  if (!row.stdev_s || !row.samples || *row.samples < 2) return 0;
  const double mean_s = row.mean_s.value_or(row.median_s);
  if (!(mean_s > 0)) return 0;
  const double variation = *row.stdev_s / mean_s;
  return kOfMedian * std::sqrt(std::log1p(variation * variation) / static_cast<double>(*row.samples));
}

// A factor on the median, drawn from its errors; the redrawn median stays within the range of the samples. unstated:
// the error of a row that states none.
double redrawn_factor(const AllReduceRow& row, double unstated, std::mt19937_64& random) {
  const double stated = standard_error(row);
  const double factor = std::exp((stated > 0 ? stated : unstated) * random_normal(random));
  const double least = row.min_s ? *row.min_s / row.median_s : 0;
  const double most = row.max_s ? *row.max_s / row.median_s : std::numeric_limits<double>::infinity();
  return std::clamp(factor, std::min(least, 1.0), std::max(most, 1.0));
}

constexpr std::array kFactors = {0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0};

CostCurve scale_curve(const CostCurve& curve, Influence influence, double factor) {
  std::vector<CostPoint> points = curve.points();
  const double latency_s = std::ranges::min_element(points, {}, &CostPoint::seconds)->seconds;
  for (CostPoint& point : points) {
    const double rest_s = point.seconds - latency_s;
    point.seconds = influence == Influence::kLatency ? factor * latency_s + rest_s : latency_s + rest_s / factor;
  }
  return CostCurve(std::move(points));
}

// The best of these plans under one set of inputs, and the caps around it within 1 %.
SensitivityPoint best_point(const ScaledInputs& inputs, const std::vector<UniformCap>& plans, double tolerance) {
  constexpr double kNear = 1.01;
  Simulator simulator(inputs.profile, inputs.costs, inputs.options);
  std::vector<double> end_s;
  for (const UniformCap& plan : plans) end_s.push_back(simulator.end_s(plan.plan.buckets));
  const double least_s = std::ranges::min(end_s), limit_s = least_s * (1 + tolerance);
  const size_t best = with_fewest_buckets(end_s, limit_s, [&](size_t p) { return plans[p].plan.buckets.size(); });
  size_t low = best, high = best;
  while (low > 0 && end_s[low - 1] <= kNear * least_s) --low;
  while (high + 1 < plans.size() && end_s[high + 1] <= kNear * least_s) ++high;
  const int64_t total = std::max<int64_t>(1, inputs.profile.total_bytes());
  return {.best = {.cap_bytes = roundest_cap(plans[best].caps),
                   .buckets = std::ssize(plans[best].plan.buckets),
                   .time_s = end_s[best],
                   .exposed_s = end_s[best] - inputs.profile.backward_s},
          .near_low_bytes = std::min(plans[low].caps.lowest_cap_bytes, total),
          .near_high_bytes = std::min(plans[high].caps.highest_cap_bytes, total)};
}

// The factor by which the draw errs for plans with buckets of this size. Between two sizes, the weights keep the
// variance.
double own_factor(const InputDraw& draw, const TensorProfile& profile, const BucketPlan& plan) {
  const double mean_bytes = static_cast<double>(profile.total_bytes()) / static_cast<double>(plan.buckets.size());
  const double size = std::log2(std::max(1.0, mean_bytes)), below = std::floor(size);
  const double angle = (size - below) * std::numbers::pi / 2;
  const auto first = static_cast<size_t>(below);  // at most 62
  return std::exp(std::cos(angle) * draw.by_bucket_bytes.at(first) + std::sin(angle) * draw.by_bucket_bytes.at(first + 1));
}

}  // namespace

std::vector<CommCosts> redraw_costs(const AllReduceTable& table, int64_t world_size, double unstated_error) {
  AllReduceTable rows = table;
  std::erase_if(rows, [&](const AllReduceRow& row) { return row.world_size != world_size; });
  if (std::ranges::none_of(rows, [&](const AllReduceRow& row) { return standard_error(row) + unstated_error > 0; })) return {};
  std::vector<CommCosts> draws;
  std::mt19937_64 random(0);
  for (int draw = 0; draw < kDraws; ++draw) {
    AllReduceTable drawn = rows;
    for (AllReduceRow& row : drawn) {
      const double factor = redrawn_factor(row, unstated_error, random);
      row.median_s *= factor;
      if (!row.gap_s) continue;
      *row.gap_s *= row.gap_stderr_s ? std::exp(std::log1p(*row.gap_stderr_s / *row.gap_s) * random_normal(random)) : factor;
    }
    draws.push_back(comm_costs(drawn, world_size));
  }
  return draws;
}

GrownCosts grown_costs(const AllReduceTable& table, int64_t world_size) {
  if (world_size < 2 || world_size > kLargestWorld) {
    throw InputError(fmt::format("the world size is {}; expected 2 to {}", world_size, kLargestWorld));
  }
  std::vector<int64_t> worlds = world_sizes(table);
  std::erase(worlds, 1);
  if (worlds.empty()) throw InputError("no all-reduce was measured on 2 ranks or more; expected one to extrapolate from");
  const auto log2_of = [](int64_t ranks) { return std::log2(static_cast<double>(ranks)); };
  const auto rank = [&](int64_t measured) { return std::pair(std::abs(log2_of(measured) - log2_of(world_size)), -measured); };
  const int64_t from = std::ranges::min(worlds, {}, rank);
  const double depth = log2_of(world_size) / log2_of(from), ring = static_cast<double>(world_size - 1) / static_cast<double>(from - 1);
  const CommCosts nearest = comm_costs(table, from);
  return {from,
          scaled(nearest, std::sqrt(depth) * std::pow(ring, 0.25), std::pow(depth, 0.25)),
          {nearest, scaled(nearest, ring), scaled(nearest, depth), scaled(nearest, depth, depth)}};
}

std::vector<InputDraw> draws_of(std::vector<CommCosts> costs, const SimulationOptions& simulation) {
  std::vector<InputDraw> draws;
  for (CommCosts& drawn : costs) draws.push_back({.costs = std::move(drawn), .simulation = simulation});
  return draws;
}

double model_range(const std::optional<double>& residual) {
  // Fitted to 36 configurations of two studies.
  constexpr double kQuantile = 2.74, kFloor = 0.02, kUncalibrated = 0.06;
  return std::exp(kQuantile * std::hypot(kFloor, residual.value_or(kUncalibrated)));
}

std::vector<InputDraw> with_model_errors(std::vector<InputDraw> draws, const InputDraw& nominal, const std::optional<double>& residual) {
  struct Error {
    double latency = 1, bytes = 1, compute = 1;
  };
  const double spread = residual ? 0.5 : 1;
  const double latency = std::exp2(spread), bytes = std::exp(0.15 * spread), compute = std::exp(0.1 * spread);
  const std::array<Error, 7> errors = {{{},
                                        {.latency = latency},
                                        {.latency = 1 / latency},
                                        {.bytes = bytes},
                                        {.bytes = 1 / bytes},
                                        {.compute = compute},
                                        {.compute = 1 / compute}}};
  if (draws.empty()) draws.assign(errors.size(), nominal);
  for (size_t draw = 0; draw < draws.size(); ++draw) {
    const Error& wrong = errors[draw % errors.size()];
    draws[draw].compute_factor *= wrong.compute;
    draws[draw].costs = scaled(draws[draw].costs, wrong.latency, wrong.bytes);
  }
  return draws;
}

std::vector<InputDraw> possible_inputs(const std::vector<CommCosts>& costs, const SimulationOptions& simulation, bool contention_known,
                                       bool compute_assumed) {
  if (costs.empty()) throw InputError("no all-reduce times to draw from; expected at least one curve");
  // Standard deviations of logarithms; of the slowdown, that of its excess over 1.
  constexpr double kOfLatency = 0.35, kOfBytes = 0.2, kOfCompute = 0.15, kOfBucketBytes = 0.02, kOfKnownSlowdown = 0.75, kOfSlowdown = 2;
  constexpr double kMiddleSlowdown = 0.3, kMostOverhead = 0.5;
  const bool knows_slowdown = contention_known || simulation.compute_slowdown != 1;
  const bool knows_overhead = contention_known || simulation.overhead_s > 0;
  std::vector<double> latency_s;  // of each of `costs`: what a line through it and its least time agree on
  for (const CommCosts& drawn : costs) {
    const double least_s = std::ranges::min_element(drawn.isolated.points(), {}, &CostPoint::seconds)->seconds;
    latency_s.push_back(std::min(least_s, fit_alpha_beta(drawn.isolated.points()).alpha_s));
  }
  std::vector<InputDraw> draws;
  std::mt19937_64 random(1);
  for (size_t draw = 0; draw < size_t{kDraws}; ++draw) {
    const size_t from = draw % costs.size();
    const double latency = std::exp(kOfLatency * random_normal(random)), bytes = std::exp(kOfBytes * random_normal(random));
    const double computing = random_normal(random);
    const double compute = std::exp((compute_assumed && computing > 0 ? kOfAssumedCompute : kOfCompute) * computing);
    const double slowdown = random_normal(random), overhead = random_uniform(random);
    InputDraw& wrong = draws.emplace_back(compute, scaled(costs[from], latency, bytes), simulation);
    wrong.simulation.compute_slowdown = 1 + (knows_slowdown ? (simulation.compute_slowdown - 1) * std::exp(kOfKnownSlowdown * slowdown)
                                                            : kMiddleSlowdown * std::exp(kOfSlowdown * slowdown));
    if (!knows_overhead) wrong.simulation.overhead_s = kMostOverhead * overhead * latency_s[from];
    for (double& of_size : wrong.by_bucket_bytes) of_size = kOfBucketBytes * random_normal(random);
  }
  return draws;
}

std::vector<double> drawn_times(const TensorProfile& profile, const BucketPlan& plan, const std::vector<InputDraw>& draws) {
  std::vector<double> end_s;
  TensorProfile nameless = profile;
  nameless.names.clear();
  for (const InputDraw& draw : draws) {
    end_s.push_back(simulate(slowed(nameless, draw.compute_factor), plan, draw.costs, draw.simulation).end_s *
                    own_factor(draw, profile, plan));
  }
  return end_s;
}

CapOdds::CapOdds(const TensorProfile& profile, std::vector<InputDraw> draws, const CapOptions& options, const SearchOptions& search)
    : draws_(std::move(draws)) {
  if (draws_.empty()) throw InputError("no draw of the inputs; expected at least one");
  const auto count = static_cast<int64_t>(draws_.size());
  const int64_t least_effort = 2 * static_cast<int64_t>(profile.bytes.size());
  caps_ = distinct_plans(profile, options, search, std::max(least_effort, kEffort / count));
  end_s_.resize(caps_.plans.size());
  TensorProfile nameless = profile;
  nameless.names.clear();
  for (const InputDraw& draw : draws_) {
    check_options(draw.simulation);
    const TensorProfile& drawn = profiles_.emplace_back(slowed(nameless, draw.compute_factor));
    Simulator simulator(drawn, draw.costs, draw.simulation);
    double best_s = std::numeric_limits<double>::infinity();
    for (size_t cap = 0; cap < caps_.plans.size(); ++cap) {
      const BucketPlan& plan = caps_.plans[cap].plan;
      end_s_[cap].push_back(simulator.end_s(plan.buckets) * own_factor(draw, drawn, plan));
      best_s = std::min(best_s, end_s_[cap].back());
    }
    best_s_.push_back(best_s);
  }
}

PlanOdds CapOdds::odds(const std::vector<double>& end_s) const {
  constexpr double kNear = 0.05;
  PlanOdds result;
  const auto count = static_cast<double>(end_s.size());
  int near = 0;
  for (size_t draw = 0; draw < end_s.size(); ++draw) {
    if (!(best_s_[draw] > 0)) continue;
    const double regret = end_s[draw] / best_s_[draw] - 1;
    result.expected_regret += std::max(0.0, regret) / count;
    if (regret <= kNear) ++near;
  }
  result.near_best = near / count;  // divided last: a sum of shares could exceed 1
  return result;
}

std::vector<double> CapOdds::times(const BucketPlan& plan) const {
  std::vector<double> end_s;
  for (size_t draw = 0; draw < draws_.size(); ++draw) {
    constexpr bool kManyPlans = false;
    Simulator simulator(profiles_[draw], draws_[draw].costs, draws_[draw].simulation, kManyPlans);
    end_s.push_back(simulator.end_s(plan.buckets) * own_factor(draws_[draw], profiles_[draw], plan));
  }
  return end_s;
}

PlanOdds CapOdds::of(const BucketPlan& plan) const {
  return odds(times(plan));
}

const UniformCap& CapOdds::least_regret(double same_share) const {
  constexpr double kNoDifference = 1e-3;
  std::vector<double> regret;
  for (const std::vector<double>& end_s : end_s_) regret.push_back(odds(end_s).expected_regret);
  const double least = std::ranges::min(regret), limit = least + std::max(kNoDifference, same_share * least);
  return caps_.plans[with_fewest_buckets(regret, limit, [&](size_t cap) { return caps_.plans[cap].plan.buckets.size(); })];
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
      scaled.profile = slowed(inputs.profile, factor);
      break;
    case Influence::kContention:
      scaled.options.compute_slowdown = 1 + (inputs.options.compute_slowdown - 1) * factor;
      break;
  }
  return scaled;
}

std::vector<SensitivityPoint> sensitivity_table(const TensorProfile& profile, const CommCosts& costs, const CapOptions& options,
                                                const SearchOptions& search) {
  check_options(search.simulation);
  const ScaledInputs inputs = {profile, costs, search.simulation};
  // Plans depend on the sizes alone, so all other influences can share them.
  const std::vector<UniformCap> plans = distinct_plans(profile, options, search).plans;
  const CapOptions kept = with_cap(options, best_point(inputs, plans, search.tolerance).best.cap_bytes);
  std::vector<SensitivityPoint> points;
  for (const Influence influence : kInfluences) {
    if (influence == Influence::kContention && search.simulation.compute_slowdown == 1) continue;
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
