#include "firkin/plan/ordered_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <tuple>
#include <utility>

#include "firkin/base/error.h"
#include "firkin/stats/estimates.h"
#include "simulator.h"

namespace firkin {
namespace {

constexpr double kLeastImprovement = 1e-9;  // relative; less is rounding

struct OrderedCandidate {
  std::vector<Bucket> buckets;
  double period_s = 0;  // launched by need
};

class OrderedSearch {
 public:
  OrderedSearch(const TensorProfile& profile, const CommCosts& costs, const SearchOptions& options)
      : options_(options), run_(profile, costs, options.simulation) {}

  OrderedCandidate launched(std::vector<Bucket> buckets) {
    run_.set_buckets(buckets);
    const double period_s = run_.period_s(run_.order_by_need());
    return {std::move(buckets), period_s};
  }

  // Moves to better plans until no move improves, the plan takes at most `enough_s`, or enough moves were tried.
  void improve(OrderedCandidate& candidate, double enough_s) {
    constexpr int64_t kMostTries = 5000, kMostBuckets = 1000000;  // in all plans that are tried; each takes about 0.1 us
    tries_left_ = std::min(kMostTries, kMostBuckets / std::ssize(candidate.buckets));
    enough_s_ = enough_s;
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t k = 0; k < candidate.buckets.size(); ++k) {
        if (is_done(candidate)) return;
        if (merge(candidate, k)) moved = true;
        if (shift(candidate, k)) moved = true;
        if (cut(candidate, k)) moved = true;
      }
    }
  }

  // Whether the buckets are few enough, and no bucket of several tensors is too large.
  bool allowed(const std::vector<Bucket>& buckets) const {
    const auto small_enough = [&](const Bucket& bucket) {
      return bucket.count == 1 || run_.bytes(bucket) <= options_.largest_bucket_bytes;
    };
    return std::ssize(buckets) <= options_.most_buckets && std::ranges::all_of(buckets, small_enough);
  }

 private:
  bool is_done(const OrderedCandidate& candidate) const { return tries_left_ <= 0 || candidate.period_s <= enough_s_; }

  bool accept(std::vector<Bucket> buckets, OrderedCandidate& candidate) {
    if (is_done(candidate) || !allowed(buckets)) return false;
    --tries_left_;
    OrderedCandidate other = launched(std::move(buckets));
    if (other.period_s >= candidate.period_s * (1 - kLeastImprovement)) return false;
    candidate = std::move(other);
    return true;
  }

  // Merges bucket k with the next one.
  bool merge(OrderedCandidate& candidate, size_t k) {
    if (k + 1 >= candidate.buckets.size()) return false;
    std::vector<Bucket> merged = candidate.buckets;
    merged[k].count += merged[k + 1].count;
    merged.erase(merged.begin() + static_cast<std::ptrdiff_t>(k) + 1);
    return accept(std::move(merged), candidate);
  }

  // Moves 1, 2, 4, ... tensors across the boundary after bucket k, in either direction.
  bool shift(OrderedCandidate& candidate, size_t k) {
    bool moved = false;
    for (int64_t count = 1; k + 1 < candidate.buckets.size(); count *= 2) {
      if (count >= std::max(candidate.buckets[k].count, candidate.buckets[k + 1].count)) break;
      for (const int64_t shift : {count, -count}) {
        std::vector<Bucket> shifted = candidate.buckets;
        shifted[k].count -= shift;
        shifted[k + 1].first -= shift;
        shifted[k + 1].count += shift;
        if (shifted[k].count > 0 && shifted[k + 1].count > 0 && accept(std::move(shifted), candidate)) moved = true;
      }
    }
    return moved;
  }

  bool cut(OrderedCandidate& candidate, size_t k) {
    constexpr int64_t kMostCuts = 8;
    bool moved = false;
    const int64_t stride = std::max<int64_t>(1, candidate.buckets[k].count / kMostCuts);
    for (int64_t left = stride; left < candidate.buckets[k].count; left += stride) {
      std::vector<Bucket> cut = candidate.buckets;
      const Bucket right = {.first = cut[k].first + left, .count = cut[k].count - left};
      cut[k].count = left;
      cut.insert(cut.begin() + static_cast<std::ptrdiff_t>(k) + 1, right);
      if (accept(std::move(cut), candidate)) moved = true;
    }
    return moved;
  }

  const SearchOptions& options_;
  Simulator run_;
  int64_t tries_left_ = 0;
  double enough_s_ = 0;
};

// Caps from all bytes down to a quarter of the mean tensor, about three for each factor of two.
std::vector<int64_t> start_caps(int64_t total_bytes, int64_t tensors) {
  constexpr double kRatio = 0.8;
  std::vector<int64_t> caps;
  const auto smallest = std::max<double>(1, static_cast<double>(total_bytes) / (4 * static_cast<double>(tensors)));
  for (auto cap = static_cast<double>(std::max<int64_t>(1, total_bytes)); cap >= smallest; cap *= kRatio) {
    caps.push_back(static_cast<int64_t>(cap));
  }
  return caps;
}

// The few best starting partitions, best first: `of_backward` and those of uniform caps. All within `enough_s` are
// equal.
std::vector<OrderedCandidate> ordered_starts(const TensorProfile& profile, BucketPlan of_backward, const SearchOptions& options,
                                             double enough_s, OrderedSearch& search) {
  constexpr size_t kStarts = 4;
  std::vector<BucketPlan> partitions = {std::move(of_backward)};
  for (const int64_t cap : start_caps(profile.total_bytes(), std::ssize(profile.bytes))) {
    for (const CapRule rule : {CapRule::kAtMost, CapRule::kCloseWhenFull}) {
      partitions.push_back(assign_buckets(profile.bytes, {.cap_bytes = cap, .rule = rule}));
    }
  }
  std::vector<OrderedCandidate> starts;
  for (BucketPlan& plan : partitions) {
    if (search.allowed(plan.buckets)) starts.push_back(search.launched(std::move(plan.buckets)));
  }
  if (starts.empty()) {
    throw InputError(fmt::format("no plan of at most {} buckets, of at most {} bytes; expected more", options.most_buckets,
                                 options.largest_bucket_bytes));
  }
  const auto rank = [&](const OrderedCandidate& start) { return std::pair(std::max(start.period_s, enough_s), start.buckets.size()); };
  std::ranges::stable_sort(starts, {}, rank);
  const auto same = std::ranges::unique(starts, {}, &OrderedCandidate::buckets);
  starts.erase(same.begin(), same.end());
  if (starts.size() > kStarts) starts.resize(kStarts);
  return starts;
}

Pipeline simulated(const TensorProfile& profile, const BucketPlan& plan, const InputDraw& draw) {
  return simulate_pipeline(slowed(profile, draw.compute_factor), plan, draw.costs, with_agreement(draw.simulation, draw.costs));
}

// Replaces the ready order with an empty one, which means the same.
std::vector<int64_t> plan_order(std::vector<int64_t> order) {
  if (std::ranges::is_sorted(order)) order.clear();
  return order;
}

}  // namespace

std::vector<int64_t> launch_order_by_need(const TensorProfile& profile, const BucketPlan& plan, const CommCosts& costs,
                                          const SimulationOptions& options) {
  check_options(options);
  Simulator run(profile, costs, options, /*many_plans=*/false);
  run.set_buckets(plan.buckets);
  return plan_order(run.order_by_need());
}

OrderedPlan find_ordered_plan(const TensorProfile& profile, const CommCosts& costs, const SearchOptions& options,
                              std::optional<BucketPlan> of_backward) {
  check_profile(profile);
  check_search(options);
  OrderedPlan result;
  result.bound_s = pipeline_bound_s(profile, costs, options.simulation);
  if (!profile.bytes.empty()) {
    constexpr double kNotNoticed = 1e-4;  // relative: no measurement would show it
    const double enough_s = result.bound_s * (1 + std::max(options.tolerance, kNotNoticed));
    if (!of_backward) {
      of_backward = exact_plan(profile, costs, {.largest_bucket_bytes = options.largest_bucket_bytes, .simulation = options.simulation});
    }
    OrderedSearch search(profile, costs, options);
    std::vector<OrderedCandidate> candidates = ordered_starts(profile, *std::move(of_backward), options, enough_s, search);
    for (OrderedCandidate& candidate : candidates) {
      search.improve(candidate, enough_s);
      if (candidate.period_s <= enough_s) break;
    }
    const double least_s = std::ranges::min_element(candidates, {}, &OrderedCandidate::period_s)->period_s;
    const double limit = std::max(least_s * (1 + options.tolerance), enough_s);
    const auto rank = [&](const OrderedCandidate& c) { return std::pair(c.period_s > limit, c.buckets.size()); };
    result.plan.buckets = std::ranges::min_element(candidates, {}, rank)->buckets;
    result.plan.launch_order = launch_order_by_need(profile, result.plan, costs, options.simulation);
  }
  result.pipeline = simulate_pipeline(profile, result.plan, costs, options.simulation);
  return result;
}

SimulationOptions with_agreement(SimulationOptions options, const CommCosts& costs) {
  constexpr double kAgreementBytes = 64;
  options.agreement_s = std::max(0.0, costs.isolated(kAgreementBytes));
  return options;
}

std::vector<double> drawn_periods(const TensorProfile& profile, const BucketPlan& plan, const std::vector<InputDraw>& draws) {
  std::vector<double> periods;
  for (const InputDraw& draw : draws) periods.push_back(simulated(profile, plan, draw).period_s);
  return periods;
}

BucketPlan with_robust_order(const TensorProfile& profile, BucketPlan plan, const std::vector<InputDraw>& draws) {
  if (!profile.knows_forward() || draws.empty()) return plan;
  const size_t count = plan.buckets.size();
  double period_s = 0;  // the mean in the plan's own order
  ObservedTraining training;
  training.transfer_s.resize(count);
  training.forward_s = profile.forward_s;
  for (const InputDraw& draw : draws) {
    const Pipeline step = simulated(profile, plan, draw);
    ObservedStep& observed = training.steps.emplace_back();
    observed.backward_s = step.backward_end_s - step.forward_end_s;
    period_s += step.period_s / static_cast<double>(draws.size());
    observed.ready_s.resize(count);
    for (const BucketSpan& span : step.buckets) {
      const auto bucket = static_cast<size_t>(span.bucket);
      observed.ready_s[bucket] = span.ready_s - step.forward_end_s;
      training.transfer_s[bucket] += draw.costs.gap(static_cast<double>(span.bytes)) / static_cast<double>(draws.size());
    }
  }
  for (const Bucket& bucket : plan.buckets) training.needed_s.push_back(first_need_s(profile, bucket));
  BucketPlan robust = {plan.buckets, plan_order(robust_launch_order(training).order)};
  return robust != plan && mean(drawn_periods(profile, robust, draws)) < period_s ? robust : plan;
}

PredictedOrdered predict_ordered(const TensorProfile& profile, const CommCosts& costs, double bucketed_backward_s, SearchOptions options,
                                 const std::vector<InputDraw>& draws, std::optional<BucketPlan> of_backward) {
  options.simulation = with_agreement(options.simulation, costs);
  OrderedPlan best = find_ordered_plan(profile, costs, options, std::move(of_backward));
  best.plan = with_robust_order(profile, std::move(best.plan), draws);
  const Pipeline step = simulate_pipeline(profile, best.plan, costs, options.simulation);
  const double bucketed_period_s = profile.forward_s + bucketed_backward_s + profile.updates_s();
  PredictedOrdered result{{step, bucketed_period_s, best.bound_s, options.simulation.agreement_s}};
  for (BucketSpan span : step.buckets) {
    for (double* seconds : {&span.ready_s, &span.start_s, &span.end_s}) *seconds -= step.forward_end_s;  // from there on
    const Bucket& bucket = best.plan.buckets[static_cast<size_t>(span.bucket)];
    const auto names = profile.names.begin() + bucket.first;
    result.buckets.push_back({{span, {names, names + bucket.count}}, bucket.first, first_need_s(profile, bucket)});
  }
  result.plan = std::move(best.plan);
  return result;
}

namespace {

void check_training(const ObservedTraining& training) {
  if (training.steps.empty()) throw InputError("launch order: no step was observed; expected at least one");
  const size_t buckets = training.transfer_s.size();
  const bool agree = training.needed_s.size() == buckets &&
                     std::ranges::all_of(training.steps, [&](const auto& step) { return step.ready_s.size() == buckets; });
  if (!agree) throw InputError(fmt::format("launch order: expected {} ready times per step and {} first uses", buckets, buckets));
}

std::vector<int64_t> order_of_slack(const std::vector<double>& ready_s, const ObservedTraining& training) {
  std::vector<int64_t> order;
  std::vector<size_t> unlaunched(ready_s.size());
  std::iota(unlaunched.begin(), unlaunched.end(), size_t{0});
  double now = 0;
  while (!unlaunched.empty()) {
    const auto rank = [&](size_t i) { return std::tuple(std::max(now, ready_s[i]), training.needed_s[i], ready_s[i], i); };
    const auto best = std::ranges::min_element(unlaunched, {}, rank);
    order.push_back(static_cast<int64_t>(*best));
    now = std::max(now, ready_s[*best]) + training.transfer_s[*best];
    unlaunched.erase(best);
  }
  return order;
}

// The time of backward and the forward after it. by_need: buckets in the order in which forward uses them.
double observed_period_s(const ObservedStep& step, const ObservedTraining& training, const std::vector<int64_t>& order,
                         const std::vector<size_t>& by_need, std::vector<double>& arrival_s) {
  double link_free = 0;
  for (const int64_t bucket : order) {  // launches keep this order, even if a later bucket is ready first
    const auto i = static_cast<size_t>(bucket);
    link_free = std::max(link_free, step.ready_s[i]) + training.transfer_s[i];
    arrival_s[i] = link_free;
  }
  double waited = 0;
  for (const size_t i : by_need) {
    const double use = step.backward_s + training.needed_s[i] + waited;
    waited += std::max(0.0, arrival_s[i] - use);
  }
  return step.backward_s + training.forward_s + waited;
}

}  // namespace

std::vector<LaunchOrder> launch_orders(const ObservedTraining& training, std::vector<double> slacks) {
  check_training(training);
  // About a fifth apart where it matters.
  if (slacks.empty()) slacks = {0.0, 0.25, 0.5, 0.7, 0.85, 1.0, 1.2, 1.4, 1.7, 2.0, 2.5, 3.0, 4.0, 8.0};
  std::vector<std::vector<double>> of_steps;
  for (const ObservedStep& step : training.steps) of_steps.push_back(step.ready_s);
  const std::vector<double> ready_s = column_medians(of_steps);
  std::vector<size_t> by_need(ready_s.size());
  std::iota(by_need.begin(), by_need.end(), size_t{0});
  std::ranges::stable_sort(by_need, {}, [&](size_t i) { return training.needed_s[i]; });
  std::vector<double> arrival_s(ready_s.size());
  std::vector<LaunchOrder> result;
  for (const double slack : slacks) {
    std::vector<double> expected_s = ready_s;
    for (double& time : expected_s) time *= slack;
    LaunchOrder& each = result.emplace_back(LaunchOrder{.order = order_of_slack(expected_s, training), .slack = slack});
    for (const ObservedStep& step : training.steps) each.period_s += observed_period_s(step, training, each.order, by_need, arrival_s);
    each.period_s /= static_cast<double>(training.steps.size());
  }
  return result;
}

LaunchOrder robust_launch_order(const ObservedTraining& training) {
  constexpr double kEqual = 1.005;
  const std::vector<LaunchOrder> orders = launch_orders(training);
  const auto best = std::ranges::min_element(orders, {}, &LaunchOrder::period_s);
  const auto is_equal = [&](const LaunchOrder& order) { return order.period_s <= best->period_s * kEqual; };
  auto first = best;
  while (first != orders.begin() && is_equal(*(first - 1))) --first;
  auto last = best;
  while (last + 1 != orders.end() && is_equal(*(last + 1))) ++last;
  return *(first + (last - first) / 2);
}

}  // namespace firkin
