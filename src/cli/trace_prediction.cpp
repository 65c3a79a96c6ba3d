#include "trace_prediction.h"

#include <algorithm>

#include "bench/allreduce_bench.h"
#include "firkin/plan/bucket_assignment.h"
#include "firkin/plan/ordered_prediction.h"
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

// Periods of one activity that overlap or touch become one.
void add_period(const char* activity, double start_s, double end_s, std::vector<BusyPeriod>& periods) {
  if (end_s <= start_s) return;
  if (!periods.empty() && periods.back().activity == activity && start_s <= periods.back().end_s) {
    periods.back().end_s = std::max(periods.back().end_s, end_s);
  } else {
    periods.push_back({activity, start_s, end_s});
  }
}

// What ends after the step has its end at the next one's start, and so at this one's.
std::vector<BusyPeriod> ordered_timeline(const TensorProfile& profile, const CommCosts& costs, BucketPlan plan) {
  const PipelineOptions options = pipeline_options(costs, {});
  plan.launch_order = launch_order_by_need(profile, plan, costs, options);
  const Pipeline step = simulate_pipeline(profile, plan, costs, options);
  std::vector<BusyPeriod> periods;
  double computed_until_s = 0;
  for (const PipelineWait& wait : step.waits) {
    add_period(kComputeActivity, computed_until_s, wait.start_s, periods);
    computed_until_s = wait.end_s;
  }
  add_period(kComputeActivity, computed_until_s, step.backward_end_s, periods);
  for (const PipelineWait& wait : step.waits) add_period(kForwardWaitActivity, wait.start_s, wait.end_s, periods);
  for (const PipelineUpdate& update : step.updates) add_period(kOptimizerActivity, update.start_s, update.end_s, periods);
  for (const BucketSpan& span : step.buckets) {
    add_period(kCommunicationActivity, std::max(0.0, span.start_s - step.period_s), span.end_s - step.period_s, periods);
  }
  for (const BucketSpan& span : step.buckets) {
    add_period(kCommunicationActivity, span.start_s, std::min(span.end_s, step.period_s), periods);
  }
  return periods;
}

}  // namespace

ModelInputs measure_model_inputs(const ProcessGroup& group, Workload& workload, double seconds, uint64_t seed) {
  constexpr int kProfileSteps = 8;
  ModelInputs inputs;
  inputs.profile = measure_ready_profile(group, workload, {.steps = kProfileSteps, .on_progress = {}}).profile.tensors;
  const int64_t total = inputs.profile.total_bytes();
  inputs.allreduce = allreduce_table(
      measure_allreduce(group, {.sizes = allreduce_sizes(total), .seconds = seconds, .seed = seed, .on_progress = {}}), group.size);
  return inputs;
}

std::vector<BusyPeriod> predicted_timeline(const ModelInputs& inputs, int world_size, const DataParallelOptions& options,
                                           double backward_start_s) {
  TensorProfile profile = inputs.profile;
  CommCosts costs = comm_costs(inputs.allreduce, world_size);
  if (options.strategy.wait == Wait::kAtFirstUse && profile.knows_forward()) {
    return ordered_timeline(profile, costs, plan_of(profile, options));
  }
  std::vector<BusyPeriod> periods = {{kComputeActivity, 0, backward_start_s + profile.backward_s}};
  if (options.strategy.launch == Launch::kNever) return periods;
  if (options.strategy.launch == Launch::kAfterBackward) {
    std::ranges::fill(profile.ready_s, profile.backward_s);
    costs.gap = costs.isolated;  // one blocking call after another
  }
  const Timeline timeline = simulate(profile, plan_of(profile, options), costs, {});
  for (const BucketSpan& span : timeline.buckets) {
    add_period(kCommunicationActivity, backward_start_s + span.start_s, backward_start_s + span.end_s, periods);
  }
  return periods;
}

}  // namespace firkin::cli
