#include "firkin/plan/sharded_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string>
#include <tuple>
#include <utility>

#include "firkin/base/error.h"
#include "firkin/base/units.h"
#include "simulator.h"

namespace firkin {
namespace {

PipelineOptions pipeline_options(const ShardedSearch& options) {
  return {.simulation = options.search.simulation, .agreement_s = options.agreement_s};
}

}  // namespace

ShardedCosts with_gaps_like(const ShardedCosts& measured, const CommCosts& all_reduce) {
  const auto with_gaps = [&](const CostCurve& isolated) {
    std::vector<CostPoint> gaps = isolated.points();
    for (CostPoint& point : gaps) {
      const auto bytes = static_cast<double>(point.bytes);
      point.seconds *= std::min(1.0, all_reduce.gap(bytes) / all_reduce.isolated(bytes));
    }
    return CommCosts{isolated, CostCurve(std::move(gaps))};
  };
  return {with_gaps(measured.reduce_scatter.isolated), with_gaps(measured.all_gather.isolated)};
}

int64_t optimizer_states(std::string_view optimizer) {
  static const std::map<std::string_view, int64_t> kStates = {{"adam", 2},    {"adamw", 2},   {"sgd-momentum", 1},
                                                              {"rmsprop", 1}, {"adagrad", 1}, {"sgd", 0}};
  const auto found = kStates.find(optimizer);
  if (found != kStates.end()) return found->second;
  throw InputError(fmt::format("optimizer {}: expected adamw, adam, sgd-momentum, rmsprop, adagrad or sgd", optimizer));
}

RankMemory plain_memory(const TrainedMemory& trained) {
  const int64_t bytes = trained.elements * trained.element_bytes;
  return {.parameters = bytes,
          .gradients = bytes,
          .optimizer = trained.states * (trained.masters ? kFloatBytes * trained.elements : bytes),
          .masters = trained.masters ? kFloatBytes * trained.elements : 0};
}

RankMemory sharded_memory(const TrainedMemory& trained, int64_t ranks) {
  if (ranks < 1) throw InputError(fmt::format("memory of {} ranks; expected at least 1", ranks));
  TrainedMemory part = trained;
  part.elements = (trained.elements + ranks - 1) / ranks;
  const RankMemory of_part = plain_memory(part);
  const int64_t bytes = trained.elements * trained.element_bytes;
  return {.parameters = bytes,
          .gradients = bytes,
          .received = std::max(ranks > 1 ? bytes : 0, of_part.masters),
          .optimizer = of_part.optimizer,
          .masters = of_part.masters};
}

UniformCap find_sharded_cap(const TensorProfile& profile, const ShardedCosts& costs, const ShardedSearch& options) {
  constexpr int64_t kEffort = 1000000;  // buckets
  const PipelineOptions pipeline = pipeline_options(options);
  check_options(pipeline);
  DistinctPlans distinct = distinct_plans(profile, options.rule, options.search, std::max(kEffort, 2 * std::ssize(profile.bytes)));
  std::erase_if(distinct.plans, [&](const UniformCap& each) { return std::ssize(each.plan.buckets) > options.most_buckets; });
  if (distinct.plans.empty()) throw InputError(fmt::format("no cap makes at most {} buckets; expected more", options.most_buckets));
  Simulator simulator(profile, costs, options.ranks, pipeline);
  std::vector<double> period_s;
  for (const UniformCap& each : distinct.plans) {
    simulator.set_buckets(each.plan.buckets);
    period_s.push_back(simulator.period_s(order_of(each.plan)));
  }
  return best_of(std::move(distinct.plans), period_s, options.search.tolerance);
}

PredictedSharded predict_sharded(const TensorProfile& profile, const ShardedCosts& costs, const ShardedSearch& options,
                                 double bucketed_backward_s, TrainedMemory trained) {
  const UniformCap best = find_sharded_cap(profile, costs, options);
  const UniformCap under_backward = find_best_uniform_cap(profile, costs.reduce_scatter, options.rule, options.search);
  const Pipeline step = simulate_sharded(profile, best.plan, costs, options.ranks, pipeline_options(options));
  const auto elements = [&](int64_t bytes) { return std::max<int64_t>(1, bytes / trained.element_bytes); };
  trained.elements = profile.total_bytes() / trained.element_bytes;
  PredictedSharded result{.cap_bytes = roundest_cap(best.caps),
                          .lowest_cap_bytes = best.caps.lowest_cap_bytes,
                          .highest_cap_bytes = best.caps.highest_cap_bytes,
                          .buckets = std::ssize(best.plan.buckets),
                          .bound_s = sharded_bound_s(profile, costs, options.ranks, pipeline_options(options)),
                          .waited_s = step.waited_s,
                          .computation_s = step.computation_s,
                          .communication_s = step.communication_s,
                          .agreement_s = options.agreement_s,
                          .ddp_bucket_size = elements(roundest_cap(best.caps)),
                          .reduce_bucket_size = elements(roundest_cap(under_backward.caps)),
                          .allgather_bucket_size = elements(profile.total_bytes()),
                          .plain = plain_memory(trained),
                          .sharded = sharded_memory(trained, options.ranks)};
  set_period(step.period_s, profile.forward_s + bucketed_backward_s + profile.updates_s(), std::nullopt, result);
  return result;
}

void set_period(double period_s, double bucketed_period_s, const std::optional<double>& ordered_period_s, PredictedSharded& sharded) {
  const auto gain_over = [&](double other_s) { return other_s > 0 ? 1 - period_s / other_s : 0; };
  sharded.period_s = period_s;
  sharded.bucketed_period_s = bucketed_period_s;
  sharded.gain = gain_over(bucketed_period_s);
  if (ordered_period_s) sharded.gain_over_ordered = gain_over(*ordered_period_s);
}

}  // namespace firkin
