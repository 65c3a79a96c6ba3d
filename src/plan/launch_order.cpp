#include "firkin/plan/launch_order.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <span>
#include <tuple>

#include "firkin/base/error.h"
#include "firkin/stats/estimates.h"

namespace firkin {
namespace {

// About a fifth apart where it matters.
constexpr std::array kSlacks = {0.0, 0.25, 0.5, 0.7, 0.85, 1.0, 1.2, 1.4, 1.7, 2.0, 2.5, 3.0, 4.0, 8.0};

void check_training(const ObservedTraining& training) {
  if (training.steps.empty()) throw InputError("launch order: no step was observed; expected at least one");
  const size_t buckets = training.transfer_s.size();
  const bool agree = training.needed_s.size() == buckets &&
                     std::ranges::all_of(training.steps, [&](const auto& step) { return step.ready_s.size() == buckets; });
  if (!agree) throw InputError(fmt::format("launch order: expected {} ready times per step and {} first uses", buckets, buckets));
}

std::vector<int64_t> order_of_slack(const std::vector<double>& ready_s, const ObservedTraining& training) {
  std::vector<int64_t> order;
  std::vector<size_t> left(ready_s.size());
  std::iota(left.begin(), left.end(), size_t{0});
  double now = 0;
  while (!left.empty()) {
    const auto rank = [&](size_t i) { return std::tuple(std::max(now, ready_s[i]), training.needed_s[i], ready_s[i], i); };
    const auto best = std::ranges::min_element(left, {}, rank);
    order.push_back(static_cast<int64_t>(*best));
    now = std::max(now, ready_s[*best]) + training.transfer_s[*best];
    left.erase(best);
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

std::vector<LaunchOrder> orders_of(const ObservedTraining& training, std::span<const double> slacks) {
  check_training(training);
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

}  // namespace

LaunchOrder launch_order_with_slack(const ObservedTraining& training, double slack) {
  return orders_of(training, {&slack, 1}).front();
}

std::vector<LaunchOrder> launch_orders(const ObservedTraining& training) {
  return orders_of(training, kSlacks);
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
