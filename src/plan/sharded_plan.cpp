#include "firkin/plan/sharded_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "firkin/base/error.h"
#include "firkin/base/units.h"
#include "simulator.h"

namespace firkin {
namespace {

// Uses the upper half of a wide interval: a cap far below the buckets it makes would suggest smaller buckets.
int64_t cap_of(const CapInterval& caps) {
  const bool limited = caps.highest_cap_bytes != std::numeric_limits<int64_t>::max();
  return roundest_cap(
      {limited ? std::max(caps.lowest_cap_bytes, caps.highest_cap_bytes / 2 + 1) : caps.lowest_cap_bytes, caps.highest_cap_bytes});
}

// The host's cost of a call is calibrated on all-reduces; each of the two collectives is half of one.
SimulationOptions of_half_calls(SimulationOptions simulation) {
  simulation.overhead_s /= 2;
  return simulation;
}

}  // namespace

ShardedCosts calibrated(const ShardedCosts& measured, const CommCosts& all_reduce, double latency_factor) {
  const auto with_gaps = [&](const CommCosts& costs) {
    std::vector<CostPoint> gaps = costs.gap.points();
    if (gaps != costs.isolated.points()) return scaled(costs, latency_factor);
    for (CostPoint& point : gaps) {
      const auto bytes = static_cast<double>(point.bytes);
      point.seconds *= std::min(1.0, all_reduce.gap(bytes) / all_reduce.isolated(bytes));
    }
    return scaled({costs.isolated, CostCurve(std::move(gaps))}, latency_factor);
  };
  return {with_gaps(measured.reduce_scatter), with_gaps(measured.all_gather)};
}

RankMemory plain_memory(const TrainedMemory& trained) {
  const int64_t bytes = trained.elements * trained.element_bytes;
  return {.parameters = bytes,
          .gradients = bytes,
          .optimizer = 2 * (trained.masters() ? kFloatBytes * trained.elements : bytes),
          .masters = trained.masters() ? kFloatBytes * trained.elements : 0};
}

RankMemory sharded_memory(const TrainedMemory& trained, int64_t ranks) {
  if (ranks < 1) throw InputError(fmt::format("memory of {} ranks; expected at least 1", ranks));
  TrainedMemory part = trained;
  part.elements = (trained.elements + ranks - 1) / ranks;
  RankMemory memory = plain_memory(part);
  memory.parameters = memory.gradients = trained.elements * trained.element_bytes;
  memory.received = std::max(ranks > 1 ? memory.gradients : 0, memory.masters);
  return memory;
}

ShardedCap find_sharded_cap(const TensorProfile& profile, const ShardedCosts& costs, const ShardedSearch& options) {
  constexpr int64_t kEffort = 1000000;  // buckets
  constexpr double kAThousandth = 1e-3;
  const SimulationOptions simulation = of_half_calls(options.search.simulation);
  check_options(simulation);
  std::vector<UniformCap> plans =
      distinct_plans(profile, options.rule, options.search, std::max<int64_t>(kEffort, 2 * std::ssize(profile.bytes))).plans;
  std::erase_if(plans, [&](const UniformCap& each) { return std::ssize(each.plan.buckets) > options.search.most_buckets; });
  if (plans.empty()) throw InputError(fmt::format("no cap makes at most {} buckets; expected more", options.search.most_buckets));
  Simulator simulator(profile, costs, options.ranks, simulation);
  std::vector<double> period_s;
  for (const UniformCap& each : plans) {
    simulator.set_buckets(each.plan.buckets);
    period_s.push_back(simulator.period_s(ready_order(each.plan.buckets.size())));
  }
  const UniformCap& best = best_of(plans, period_s, kAThousandth);
  return {best, cap_of(best.caps), simulate_sharded(profile, best.plan, costs, options.ranks, simulation)};
}

PredictedSharded predict_sharded(const TensorProfile& profile, const ShardedCosts& costs, const ShardedSearch& options,
                                 double bucketed_backward_s, TrainedMemory trained) {
  const ShardedCap best = find_sharded_cap(profile, costs, options);
  const double bucketed_period_s = profile.forward_s + bucketed_backward_s + profile.updates_s();
  const double bound_s = sharded_bound_s(profile, costs, options.ranks, of_half_calls(options.search.simulation));
  PredictedSharded result{{best.pipeline, bucketed_period_s, bound_s, options.search.simulation.agreement_s}};
  result.cap_bytes = best.cap_bytes;
  result.lowest_cap_bytes = best.caps.lowest_cap_bytes;
  result.highest_cap_bytes = best.caps.highest_cap_bytes;
  result.buckets = std::ssize(best.plan.buckets);
  trained.elements = profile.total_bytes() / trained.element_bytes;
  result.plain = plain_memory(trained);
  result.sharded = sharded_memory(trained, options.ranks);
  return result;
}

}  // namespace firkin
