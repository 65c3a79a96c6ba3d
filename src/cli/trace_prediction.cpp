#include "trace_prediction.h"

#include <algorithm>
#include <numeric>

#include "bench/allreduce_bench.h"
#include "firkin/plan/bucket_assignment.h"
#include "firkin/plan/timeline.h"

namespace firkin::cli {
namespace {

BucketPlan plan_of(const TensorProfile& profile, const DataParallelOptions& options) {
  CapOptions cap = options.cap;
  if (options.strategy.grouping == Grouping::kOneTensorPerBucket) cap = {.cap_bytes = 1, .rule = CapRule::kAtMost, .first_cap_bytes = {}};
  if (options.strategy.grouping == Grouping::kOneBucket)
    cap = {.cap_bytes = INT64_MAX / 2, .rule = CapRule::kAtMost, .first_cap_bytes = {}};
  return assign_buckets(profile.bytes, cap);
}

}  // namespace

ModelInputs measure_model_inputs(const ProcessGroup& group, Workload& workload, double seconds, uint64_t seed) {
  constexpr int kProfileSteps = 8;
  ModelInputs inputs;
  inputs.profile = measure_ready_profile(group, workload, {.steps = kProfileSteps, .seed = seed, .on_progress = {}}).tensors;
  const int64_t total = std::accumulate(inputs.profile.bytes.begin(), inputs.profile.bytes.end(), int64_t{0});
  inputs.allreduce = allreduce_table(
      measure_allreduce(group, {.sizes = allreduce_sizes(total), .seconds = seconds, .seed = seed, .on_progress = {}}), group.size);
  return inputs;
}

std::vector<BusyPeriod> predicted_timeline(const ModelInputs& inputs, int world_size, const DataParallelOptions& options,
                                           double backward_start_s) {
  TensorProfile profile = inputs.profile;
  CommCosts costs = comm_costs(inputs.allreduce, world_size);
  std::vector<BusyPeriod> periods = {{"compute", 0, backward_start_s + profile.backward_s}};
  if (options.strategy.launch == Launch::kNever) return periods;
  if (options.strategy.launch == Launch::kAfterBackward) {
    std::ranges::fill(profile.ready_s, profile.backward_s);
    costs.gap = costs.isolated;  // one blocking call after another
  }
  const Timeline timeline = simulate(profile, plan_of(profile, options), costs, {});
  for (const BucketSpan& span : timeline.buckets) {
    const double start_s = backward_start_s + span.start_s;
    if (periods.size() > 1 && start_s <= periods.back().end_s) {
      periods.back().end_s = std::max(periods.back().end_s, backward_start_s + span.end_s);
    } else {
      periods.push_back({"communication", start_s, backward_start_s + span.end_s});
    }
  }
  return periods;
}

}  // namespace firkin::cli
