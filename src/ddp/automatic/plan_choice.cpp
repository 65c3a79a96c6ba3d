// Chooses the plan that automatic buckets try: the one under which the performance model predicts the shortest steps.
#include "automatic.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "comm/across_ranks.h"
#include "firkin/base/units.h"
#include "firkin/plan/decision.h"
#include "firkin/plan/ordered_plan.h"

namespace firkin {
namespace {

// The gain, as a share of a step, for which a plan may replace the best cap.
constexpr double kWorthOverCap = 1e-3;
constexpr size_t kMostTensorsWithLaunches = 400;  // the exact search is cubic when a launch takes time
constexpr int64_t kMostBuckets = 256;

// Predicts steps of this training under any plan, by the performance model.
class Predictor {
 public:
  Predictor(const std::vector<NamedTensor>& parameters, const DataParallelOptions& options, const TrainingTimes& times,
            const AllReduceTable& table, int64_t world_size, const CommunicationPlan& in_use)
      : parameters_(parameters),
        times_(times),
        is_ordered_(options.strategy.wait == Wait::kAtFirstUse),
        costs_(comm_costs(table, world_size)) {
    none_step_s_ = times.step_s;  // too long by what in_use exposes, and so is the prediction below
    const double exposed_s = step_s(in_use) - times.step_s;
    none_step_s_ = std::max(times.step_s - exposed_s, times.backward_s);
  }

  StepModel model(const TensorProfile& profile) const {
    return {.profile = profile,
            .costs = costs_,
            .simulation = {.overhead_s = times_.launch_s},
            .none_step_s = std::max(none_step_s_, 1e-9),
            .bare_backward_s = profile.backward_s};
  }
  TensorProfile profile(const std::vector<int64_t>& order) const {
    TensorProfile result = profile_in_order(parameters_, order, times_.ready_s, times_.backward_s);
    if (!is_ordered_) return result;
    for (const int64_t parameter : order) result.needed_s.push_back(times_.needed_s[static_cast<size_t>(parameter)]);
    result.forward_s = std::max(times_.forward_s, std::ranges::max(result.needed_s));
    return result;
  }
  double step_s(const CommunicationPlan& plan) const {
    const TensorProfile in_order = profile(plan.order);
    return is_ordered_ ? predict_ordered_step(model(in_order), plan.plan) : predict_step(model(in_order), plan.plan);
  }
  // Launches first what forward needs first.
  void set_launch_order(CommunicationPlan& plan) const {
    if (!is_ordered_) return;
    const TensorProfile in_order = profile(plan.order);
    plan.plan.launch_order = launch_order_by_need(in_order, plan.plan, costs_, with_agreement(model(in_order).simulation, costs_));
  }
  bool is_ordered() const { return is_ordered_; }

 private:
  const std::vector<NamedTensor>& parameters_;
  const TrainingTimes& times_;
  bool is_ordered_;
  CommCosts costs_;
  double none_step_s_ = 0;
};

std::vector<int64_t> sizes_of(const std::vector<NamedTensor>& parameters, const std::vector<int64_t>& order) {
  std::vector<int64_t> sizes;
  for (const int64_t parameter : order) sizes.push_back(static_cast<int64_t>(parameters[static_cast<size_t>(parameter)].tensor.nbytes()));
  return sizes;
}

bool is_of_one_kind(const std::vector<NamedTensor>& parameters) {
  return std::ranges::all_of(parameters, [&](const NamedTensor& parameter) {
    return parameter.tensor.scalar_type() == parameters[0].tensor.scalar_type() &&
           parameter.tensor.device() == parameters[0].tensor.device();
  });
}

PlanChoice best_cap(const std::vector<NamedTensor>& parameters, DataParallelOptions options, const std::vector<int64_t>& order,
                    const Predictor& predictor) {
  const std::vector<int64_t> sizes = sizes_of(parameters, order);
  const int64_t total = std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
  std::vector<int64_t> caps;
  std::vector<double> step_s;
  std::vector<CommunicationPlan> plans;
  for (const int64_t cap : dense_caps(std::max<int64_t>(total / kMostBuckets, 4), total)) {
    options.cap.cap_bytes = cap;
    CommunicationPlan plan = plan_communication(parameters, order, options);
    predictor.set_launch_order(plan);
    if (!plans.empty() && plan == plans.back()) continue;
    caps.push_back(cap);
    step_s.push_back(predictor.step_s(plan));
    plans.push_back(std::move(plan));
  }
  const TensorProfile profile = predictor.profile(order);
  std::vector<PredictedCap> predictions = predict_steps(predictor.model(profile), options.cap, caps);
  const double best_s = std::ranges::min(step_s);
  const bool is_known = !predictor.is_ordered() && is_of_one_kind(parameters);
  for (size_t i = 0; i < caps.size(); ++i) {
    predictions[i].buckets = std::ssize(plans[i].plan.buckets);
    // predict_steps() knows neither that buckets are cut apart between several kinds of gradients, nor the strategy
    // ordered.
    if (!is_known) predictions[i].expected_regret = step_s[i] / best_s - 1;
  }
  const size_t best = weigh(predictions).choice;
  return {.plan = std::move(plans[best]), .name = fmt::format("{} caps", format_bytes(caps[best])), .step_s = step_s[best]};
}

}  // namespace

PlanChoice choose_plan(const std::vector<NamedTensor>& parameters, const DataParallelOptions& options, const TrainingTimes& times,
                       const AllReduceTable& table, int64_t world_size, const CommunicationPlan& in_use) {
  const Predictor predictor(parameters, options, times, table, world_size, in_use);
  const std::vector<int64_t> order = options.ready_order.empty() ? order_of_times(times.ready_s) : options.ready_order;
  PlanChoice cap = best_cap(parameters, options, order, predictor);
  cap.in_use_s = predictor.step_s(in_use);
  if (!is_of_one_kind(parameters)) return cap;
  const TensorProfile profile = predictor.profile(order);
  StepModel model = predictor.model(profile);
  if (parameters.size() > kMostTensorsWithLaunches) model.simulation.overhead_s = 0;
  BucketPlan best = predictor.is_ordered() ? ordered_candidates(model, kMostBuckets).front() : best_plan(model);
  PlanChoice any_sizes{.plan = {order, std::move(best)}, .name = "the best plan", .in_use_s = cap.in_use_s};
  any_sizes.step_s = predictor.step_s(any_sizes.plan);
  return any_sizes.step_s < cap.step_s * (1 - kWorthOverCap) ? any_sizes : cap;
}

std::string describe_buckets(const std::vector<NamedTensor>& parameters, const CommunicationPlan& plan) {
  const std::vector<int64_t> bytes = bucket_bytes(plan.plan, sizes_of(parameters, plan.order));
  return fmt::format("{} (largest {})", counted(std::ssize(bytes), "bucket"), format_bytes(std::ranges::max(bytes)));
}

std::optional<CommunicationPlan> plan_of_rank_0(const ProcessGroup& group, const std::optional<CommunicationPlan>& ours) {
  const CommunicationPlan plan = ours.value_or(CommunicationPlan{});
  CommunicationPlan of_rank_0;
  of_rank_0.order = list_of_rank(group, plan.order, 0);
  of_rank_0.plan = {list_of_rank(group, plan.plan.buckets, 0), list_of_rank(group, plan.plan.launch_order, 0)};
  return of_rank_0.order.empty() ? std::nullopt : std::optional(std::move(of_rank_0));
}

}  // namespace firkin
