#include "plan_choice.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

#include "firkin/base/units.h"
#include "firkin/plan/tune_choice.h"
#include "ready_times.h"

namespace firkin {
namespace {

constexpr double kWorthUnequal = 1e-3;            // of a step
constexpr size_t kMostTensorsWithLaunches = 400;  // the exact search is cubic when a launch takes time
constexpr int64_t kSmallestCapPart = 256;         // of all bytes

// One way to cut, with its profile in that order: what the model predicts from.
class Predictor {
 public:
  Predictor(const std::vector<NamedTensor>& parameters, const TrainingTimes& times, const AllReduceTable& table, int64_t world_size,
            const CommunicationPlan& in_use)
      : parameters_(parameters), times_(times), costs_(comm_costs(table, world_size)) {
    none_step_s_ = times.step_s;  // then what is predicted of the plan in use is by how much it is too long
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
    return profile_in_order(parameters_, order, times_.ready_s, times_.backward_s);
  }
  double step_s(const CommunicationPlan& plan) const {
    const TensorProfile in_order = profile(plan.order);
    return predict_step(model(in_order), plan.plan);
  }

 private:
  const std::vector<NamedTensor>& parameters_;
  const TrainingTimes& times_;
  CommCosts costs_;
  double none_step_s_ = 0;
};

std::vector<int64_t> sizes_of(const std::vector<NamedTensor>& parameters, const std::vector<int64_t>& order) {
  std::vector<int64_t> sizes;
  for (const int64_t parameter : order) sizes.push_back(static_cast<int64_t>(parameters[static_cast<size_t>(parameter)].tensor.nbytes()));
  return sizes;
}

PlanChoice best_cap(const std::vector<NamedTensor>& parameters, DataParallelOptions options, const std::vector<int64_t>& order,
                    const Predictor& predictor) {
  const std::vector<int64_t> sizes = sizes_of(parameters, order);
  const int64_t total = std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
  std::vector<CapPrediction> predictions;
  std::vector<CommunicationPlan> plans;
  for (const int64_t cap : dense_caps(std::max<int64_t>(total / kSmallestCapPart, 4), total)) {
    options.cap.cap_bytes = cap;
    CommunicationPlan plan = plan_communication(parameters, order, options);
    if (!plans.empty() && plan == plans.back()) continue;
    predictions.push_back({cap, static_cast<int64_t>(plan.plan.buckets.size()), predictor.step_s(plan)});
    plans.push_back(std::move(plan));
  }
  const size_t best = best_prediction(predictions);
  return {.plan = std::move(plans[best]),
          .name = fmt::format("{} caps", format_bytes(predictions[best].cap_bytes)),
          .step_s = predictions[best].step_s};
}

bool is_of_one_kind(const std::vector<NamedTensor>& parameters) {
  return std::ranges::all_of(parameters, [&](const NamedTensor& parameter) {
    return parameter.tensor.scalar_type() == parameters[0].tensor.scalar_type() &&
           parameter.tensor.device() == parameters[0].tensor.device();
  });
}

}  // namespace

PlanChoice choose_plan(const std::vector<NamedTensor>& parameters, const DataParallelOptions& options, const TrainingTimes& times,
                       const AllReduceTable& table, int64_t world_size, const CommunicationPlan& in_use) {
  const Predictor predictor(parameters, times, table, world_size, in_use);
  const std::vector<int64_t> order = options.ready_order.empty() ? order_of_times(times.ready_s) : options.ready_order;
  PlanChoice cap = best_cap(parameters, options, order, predictor);
  cap.in_use_s = predictor.step_s(in_use);
  if (!is_of_one_kind(parameters)) return cap;
  const TensorProfile profile = predictor.profile(order);
  StepModel model = predictor.model(profile);
  if (parameters.size() > kMostTensorsWithLaunches) model.simulation.overhead_s = 0;
  PlanChoice unequal{.plan = {order, best_plan(model, {})}, .name = "of unequal size", .in_use_s = cap.in_use_s};
  unequal.step_s = predictor.step_s(unequal.plan);
  return unequal.step_s < cap.step_s * (1 - kWorthUnequal) ? unequal : cap;
}

std::string describe_buckets(const std::vector<NamedTensor>& parameters, const CommunicationPlan& plan) {
  const std::vector<int64_t> bytes = bucket_bytes(plan.plan, sizes_of(parameters, plan.order));
  return fmt::format("{} bucket{} (largest {})", bytes.size(), bytes.size() == 1 ? "" : "s", format_bytes(std::ranges::max(bytes)));
}

}  // namespace firkin
