#include "firkin/plan/step_prediction.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <deque>
#include <functional>
#include <numeric>
#include <set>
#include <stdexcept>
#include <utility>

#include "firkin/base/units.h"
#include "firkin/plan/best_plan.h"
#include "firkin/plan/ordered_plan.h"
#include "simulator.h"

namespace firkin {
namespace {

// [i]: a bucket ends between tensor i and the next.
using Cuts = std::vector<bool>;

Cuts cuts_of(const BucketPlan& plan) {
  if (plan.buckets.empty()) return {};
  Cuts cuts(static_cast<size_t>(plan.buckets.back().first + plan.buckets.back().count) - 1, false);
  for (size_t k = 1; k < plan.buckets.size(); ++k) cuts[static_cast<size_t>(plan.buckets[k].first) - 1] = true;
  return cuts;
}

BucketPlan plan_of(const Cuts& cuts) {
  BucketPlan plan{{{0, 1}}, {}};
  for (size_t i = 0; i < cuts.size(); ++i) {
    if (cuts[i]) {
      plan.buckets.push_back({static_cast<int64_t>(i) + 1, 1});
    } else {
      ++plan.buckets.back().count;
    }
  }
  return plan;
}

// `wanted`, or the plan that differs from it in the fewest cuts, for which `is_free` holds. Nothing when there is none (or, with more than
// a dozen tensors, none among several thousand).
std::optional<BucketPlan> nearest_plan(const BucketPlan& wanted, const std::function<bool(const BucketPlan&)>& is_free) {
  constexpr size_t kMostTried = 5000;
  if (wanted.buckets.empty()) return std::nullopt;
  std::set<Cuts> seen{cuts_of(wanted)};
  std::deque<Cuts> to_try{cuts_of(wanted)};
  for (size_t tried = 0; !to_try.empty() && tried < kMostTried; ++tried) {
    Cuts cuts = std::move(to_try.front());
    to_try.pop_front();
    if (BucketPlan plan = plan_of(cuts); is_free(plan)) return plan;
    const size_t middle = cuts.size() / 2;
    for (size_t step = 0; step < cuts.size() && seen.size() <= kMostTried; ++step) {  // the cuts in the middle first
      const size_t i = step % 2 == 0 ? middle + step / 2 : middle - 1 - step / 2;
      cuts[i].flip();
      if (seen.insert(cuts).second) to_try.push_back(cuts);
      cuts[i].flip();
    }
  }
  return std::nullopt;
}

// Of a step without communication, what is not backward: at least nothing, also where noise made the profiled backward longer than the
// step.
double rest_of_step_s(const StepModel& model, double backward_factor = 1) {
  return std::max(0.0, model.none_step_s - model.bare_backward_s * backward_factor);
}

double step_of_backward(const StepModel& model, double backward_s) {
  if (!(model.none_step_s > 0)) throw std::invalid_argument("predicted steps: expected the time of a step without communication");
  return rest_of_step_s(model) + backward_s;
}

}  // namespace

std::vector<ModelError> model_errors(const std::optional<double>& residual) {
  const double spread = residual ? 0.5 : 1;
  const double latency = std::exp2(spread), bytes = std::exp(0.15 * spread), compute = std::exp(0.1 * spread);
  return {{},
          {.latency = latency},
          {.latency = 1 / latency},
          {.bytes = bytes},
          {.bytes = 1 / bytes},
          {.compute = compute},
          {.compute = 1 / compute}};
}

double model_range(const std::optional<double>& residual) {
  // Of 36 regimes of two studies, each judged by the others.
  constexpr double kQuantile = 2.74, kFloor = 0.02, kUncalibrated = 0.06;
  return std::exp(kQuantile * std::hypot(kFloor, residual.value_or(kUncalibrated)));
}

double predict_step(const StepModel& model, const BucketPlan& plan) {
  return step_of_backward(model, simulate(model.profile, plan, model.costs, model.simulation).end_s);
}

std::vector<CapPrediction> predict_steps(const StepModel& model, const CapOptions& rule, std::span<const int64_t> caps) {
  std::vector<CapPrediction> predictions;
  std::vector<BucketPlan> plans;
  const double range = model_range(model.residual);
  for (const int64_t cap : caps) {
    const CapOptions options = with_cap(rule, cap);
    const BucketPlan& plan = plans.emplace_back(assign_buckets(model.profile.bytes, options));
    const CapInterval same = caps_with_same_buckets(model.profile.bytes, options, plan);
    const double step_s = predict_step(model, plan);
    predictions.push_back({.cap_bytes = cap,
                           .lowest_cap_bytes = same.lowest_cap_bytes,
                           .highest_cap_bytes = same.highest_cap_bytes,
                           .buckets = std::ssize(plan.buckets),
                           .step_s = step_s,
                           .low_s = step_s / range,
                           .high_s = step_s * range});
  }
  const std::vector<ModelError> errors = model_errors(model.residual);
  for (const ModelError& wrong : errors) {
    const TensorProfile profile = slowed(model.profile, wrong.compute);
    const CommCosts costs = scaled(model.costs, wrong.latency, wrong.bytes);
    Simulator evaluator(profile, costs, {.simulation = model.simulation});
    std::vector<double> step_s;
    for (const BucketPlan& plan : plans) {
      step_s.push_back(rest_of_step_s(model, wrong.compute) + evaluator.end_s(plan.buckets));
    }
    const double best_s = step_s.empty() ? 0 : std::ranges::min(step_s);
    for (size_t i = 0; i < step_s.size(); ++i) {
      predictions[i].expected_regret += (step_s[i] / best_s - 1) / static_cast<double>(errors.size());
    }
  }
  return predictions;
}

double predict_ordered_step(const StepModel& model, const BucketPlan& plan) {
  const PipelineOptions options = pipeline_options(model.costs, model.simulation);
  return step_of_period(model, simulate_pipeline(model.profile, plan, model.costs, options).period_s);
}

double step_of_period(const StepModel& model, double period_s) {
  return step_of_backward(model, period_s - model.profile.forward_s - model.profile.updates_s());
}

std::vector<BucketPlan> ordered_candidates(const StepModel& model, int64_t most_buckets) {
  constexpr size_t kMost = 3;
  constexpr double kNotTold = 1.05;
  const OrderedSearchOptions options = {.pipeline = pipeline_options(model.costs, model.simulation), .most_buckets = most_buckets};
  std::vector<BucketPlan> plans = {find_ordered_plan(model.profile, model.costs, options).plan};
  const int64_t total = model.profile.total_bytes();
  for (int64_t cap = kMiB / 4; cap < total; cap *= 2) {
    BucketPlan plan = assign_buckets(model.profile.bytes, {.cap_bytes = cap, .rule = CapRule::kCloseWhenFull, .first_cap_bytes = {}});
    if (static_cast<int64_t>(plan.buckets.size()) > most_buckets) continue;
    plan.launch_order = launch_order_by_need(model.profile, plan, model.costs, options.pipeline);
    if (std::ranges::find(plans, plan.buckets, &BucketPlan::buckets) == plans.end()) plans.push_back(std::move(plan));
  }
  std::ranges::stable_sort(plans, {}, [&](const BucketPlan& plan) { return predict_ordered_step(model, plan); });
  const double limit_s = kNotTold * predict_ordered_step(model, plans[0]);
  const auto told = std::ranges::find_if(plans, [&](const BucketPlan& plan) { return predict_ordered_step(model, plan) > limit_s; });
  plans.erase(told, plans.end());
  plans.resize(std::min(plans.size(), kMost));
  return plans;
}

std::vector<int64_t> default_caps(std::span<const int64_t> sizes, const CapOptions& rule) {
  constexpr int kCaps = 7;
  const auto total = std::accumulate(sizes.begin(), sizes.end(), uint64_t{0});
  std::vector<int64_t> caps;
  BucketPlan last;
  for (auto cap = static_cast<int64_t>(std::bit_ceil(total)); caps.size() < kCaps && cap > 0; cap /= 2) {
    BucketPlan plan = assign_buckets(sizes, with_cap(rule, cap));
    if (plan == last) continue;
    caps.push_back(cap);
    last = std::move(plan);
  }
  std::ranges::reverse(caps);
  return caps;
}

std::vector<int64_t> dense_caps(int64_t smallest_cap, int64_t total_bytes) {
  constexpr double kPerOctave = 8;
  std::vector<int64_t> caps;
  const double first = std::log2(static_cast<double>(smallest_cap)) - 2;
  const double last = std::log2(static_cast<double>(std::max(total_bytes, smallest_cap))) + 1;
  for (double exponent = std::max(first, 1.0); exponent <= last; exponent += 1 / kPerOctave) {
    caps.push_back(std::llround(std::exp2(exponent)));
  }
  return caps;
}

DistinctCaps distinct_caps(std::vector<int64_t> caps, std::span<const int64_t> sizes, const CapOptions& rule) {
  DistinctCaps result;
  std::ranges::sort(caps);
  for (const int64_t cap : caps) {
    const int64_t measured = add_cap(result.caps, cap, sizes, rule);
    if (measured == cap) continue;
    result.notes.push_back(fmt::format("{} makes the same buckets as {}: measured once, as {}", format_bytes(cap), format_bytes(measured),
                                       format_bytes(measured)));
  }
  return result;
}

int64_t add_cap(std::vector<int64_t>& caps, int64_t cap, std::span<const int64_t> sizes, const CapOptions& rule) {
  const auto plan_under = [&](int64_t bytes) { return assign_buckets(sizes, with_cap(rule, bytes)); };
  const auto same = std::ranges::find(caps, plan_under(cap), plan_under);
  if (same != caps.end()) return *same;
  caps.insert(std::ranges::upper_bound(caps, cap), cap);
  return cap;
}

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

BucketPlan best_plan(const StepModel& model) {
  constexpr double kNoDifference = 1e-3;
  return find_best_plan(model.profile, model.costs, {.tolerance = kNoDifference, .simulation = model.simulation}).plan;
}

}  // namespace firkin
