#include "bench/step_trace.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <iterator>

#include "bench/allreduce_bench.h"
#include "bench/ready_profile.h"
#include "comm/across_ranks.h"
#include "comm/connections.h"
#include "firkin/base/error.h"
#include "firkin/plan/bucket_plan.h"
#include "firkin/plan/launch_order.h"
#include "firkin/plan/ordered_plan.h"
#include "firkin/plan/timeline.h"

namespace firkin {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Span, name, activity, thread, start_ns, end_ns, elements)

namespace {

std::vector<Period> steps_in(const std::vector<Span>& spans) {
  std::vector<Period> steps;
  for (const Span& span : spans) {
    if (span.activity == Activity::kPhase && span.name == kStepPhase) steps.push_back({span.start_ns, span.end_ns});
  }
  return steps;
}

std::vector<Span> record_steps(const ProcessGroup& group, Workload& workload, const DataParallelOptions& options,
                               const StepTraceOptions& trace, std::vector<BucketStats>& buckets) {
  StepRunner runner(group, workload, options);
  int64_t step = 0;
  for (int i = 0; i < trace.warmup_steps + steps_to_learn(options); ++i) runner.step(step++);
  TraceRecorder recorder(device_of(workload).type());
  for (int i = 0; i < trace.steps; ++i) {
    if (options.strategy.wait == Wait::kAtStepEnd) barrier(group);
    runner.step(step++);
  }
  runner.drain();  // no collective may be under way when recording stops
  buckets = runner.buckets();
  return recorder.stop();
}

}  // namespace

StepTrace trace_steps(const ProcessGroup& group, Workload& workload, const DataParallelOptions& options, const StepTraceOptions& trace) {
  if (trace.warmup_steps < 1 || trace.steps < 1) throw InputError("trace: expected at least one step and one warm-up step");
  StepTrace result;
  const std::vector<Span> recorded = record_steps(group, workload, options, trace, result.buckets);
  const auto is_in_a_step = [steps = steps_in(recorded)](const Span& span) {  // and no barrier between steps
    return std::ranges::any_of(steps, [&](const Period& step) { return span.start_ns >= step.start_ns && span.start_ns < step.end_ns; });
  };
  std::vector<Span> ours;
  std::ranges::copy_if(recorded, std::back_inserter(ours), is_in_a_step);
  for (const std::string& text : gather_texts(group, nlohmann::json(ours).dump())) {
    result.ranks.push_back(nlohmann::json::parse(text).get<std::vector<Span>>());
  }
  return result;
}

std::vector<TracedStep> traced_steps(const std::vector<Span>& spans) {
  std::vector<TracedStep> steps;
  for (const Period& period : steps_in(spans)) {
    steps.push_back({period, overlap_of(spans_cut_to(spans, period.start_ns, period.end_ns))});
  }
  return steps;
}

// ---- A trace as a row of a result.

namespace {

// The share of backward in which the link was idle although a bucket was ready and had not been launched: the price of
// a launch order that expects gradients too early. None if no bucket says when it was ready (the strategy torch).
std::optional<double> idle_though_ready(const std::vector<BucketStats>& buckets) {
  const auto times = [&](double BucketStats::*time) {
    std::vector<double> of_buckets;
    for (const BucketStats& bucket : buckets) of_buckets.push_back(bucket.*time);
    return of_buckets;
  };
  const std::vector<double> ready_s = times(&BucketStats::ready_s);
  const double backward_s = ready_s.empty() ? 0 : std::ranges::max(ready_s);
  if (backward_s <= 0) return std::nullopt;
  return idle_though_ready_s(ready_s, times(&BucketStats::launch_s), times(&BucketStats::end_s), backward_s) / backward_s;
}

// Seconds of a step's agreement. None if ranks have nothing to agree on: one rank, the strategy torch.
std::optional<double> agreement_of(const std::vector<Span>& spans) {
  std::optional<double> seconds;
  for (const Span& span : spans) {
    if (span.name == kAgreementCollective) seconds = seconds.value_or(0) + seconds_of({span.start_ns, span.end_ns});
  }
  return seconds;
}

TraceFigures figures_of(const std::vector<Span>& spans) {
  TraceFigures figures;
  for (const TracedStep& step : traced_steps(spans)) {
    figures.step_s.push_back(seconds_of(step.period));
    figures.compute_s.push_back(step.overlap.compute_s);
    figures.communication_s.push_back(step.overlap.communication_s);
    figures.overlapped_s.push_back(step.overlap.overlapped_s);
  }
  return figures;
}

// When a step computed, communicated, waited in forward and ran the optimiser, in seconds since it began. Gaps too
// short to be seen are closed.
std::vector<BusyPeriod> timeline_of(const std::vector<Span>& spans, const Period& step) {
  constexpr int64_t kGapsPerStep = 500;  // shorter ones are closed
  const int64_t least_gap_ns = (step.end_ns - step.start_ns) / kGapsPerStep;
  const auto since_start = [&step](int64_t time_ns) { return seconds_of({step.start_ns, time_ns}); };
  std::vector<BusyPeriod> timeline;
  const auto add = [&](const std::vector<Span>& of, Activity activity, const char* name) {
    for (const Period& period : busy_periods(of, activity, least_gap_ns)) {
      timeline.push_back({name, since_start(period.start_ns), since_start(period.end_ns)});
    }
  };
  add(spans, Activity::kOperator, kComputeActivity);
  add(spans, Activity::kCollective, kCommunicationActivity);
  for (const auto& [phase, name] : {std::pair{kForwardWaitPhase, kForwardWaitActivity}, {kOptimizerPhase, kOptimizerActivity}}) {
    std::vector<Span> of_phase;
    std::ranges::copy_if(spans, std::back_inserter(of_phase), [&](const Span& span) { return span.name == phase; });
    add(of_phase, Activity::kPhase, name);
  }
  return timeline;
}

// When the last step's backward began, in seconds since the step did.
double backward_start(const std::vector<Span>& spans) {
  const auto is_backward = [](const Span& span) { return span.activity == Activity::kPhase && span.name == kBackwardPhase; };
  const auto last = std::find_if(spans.rbegin(), spans.rend(), is_backward);
  return last == spans.rend() ? 0 : seconds_of({steps_in(spans).back().start_ns, last->start_ns});
}

}  // namespace

TraceRow row_of(const StepTrace& trace, const StepSetting& setting) {
  TraceRow row{.strategy = std::string(setting.options.strategy.name), .name = setting.name, .cap_mib = setting.cap_mib, .file = {}};
  for (const auto& rank : trace.ranks) row.ranks.push_back(figures_of(rank));
  const Period step = steps_in(trace.ranks[0]).back();
  const std::vector<Span> last = spans_cut_to(trace.ranks[0], step.start_ns, step.end_ns);
  row.timeline = timeline_of(last, step);
  row.agreement_s = agreement_of(last);
  if (setting.options.strategy.launch == Launch::kWhenReady) row.idle_share = idle_though_ready(trace.buckets);
  return row;
}

// ---- The same step as the model sees it.

namespace {

BucketPlan plan_of(const TensorProfile& profile, const DataParallelOptions& options) {
  if (options.strategy.grouping == Grouping::kOneTensorPerBucket) return one_tensor_per_bucket(profile.bytes.size());
  if (options.strategy.grouping == Grouping::kOneBucket) return one_bucket(profile.bytes.size());
  return assign_buckets(profile.bytes, options.cap);
}

// Adds a period; periods of one activity that overlap or touch become one.
void add_period(const char* activity, double start_s, double end_s, std::vector<BusyPeriod>& periods) {
  if (end_s <= start_s) return;
  if (!periods.empty() && periods.back().activity == activity && start_s <= periods.back().end_s) {
    periods.back().end_s = std::max(periods.back().end_s, end_s);
  } else {
    periods.push_back({activity, start_s, end_s});
  }
}

// A steady step: what ends after it ends in the next step, and so appears at the start of this one.
std::vector<BusyPeriod> ordered_timeline(const TensorProfile& profile, const CommCosts& costs, BucketPlan plan) {
  const PipelineOptions options = pipeline_options(costs, {});
  plan.launch_order = launch_order_by_need(profile, plan, costs, options);
  const Pipeline step = simulate_pipeline(profile, plan, costs, options);
  std::vector<BusyPeriod> periods;
  double computed_until_s = 0;
  for (const PipelineSpan& wait : step.waits) {
    add_period(kComputeActivity, computed_until_s, wait.start_s, periods);
    computed_until_s = wait.end_s;
  }
  add_period(kComputeActivity, computed_until_s, step.backward_end_s, periods);
  for (const PipelineSpan& wait : step.waits) add_period(kForwardWaitActivity, wait.start_s, wait.end_s, periods);
  for (const PipelineSpan& update : step.updates) add_period(kOptimizerActivity, update.start_s, update.end_s, periods);
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
  inputs.profile = measure_ready_profile(group, workload, {.steps = kProfileSteps}).profile.tensors;
  const std::vector<int64_t> sizes = allreduce_sizes(inputs.profile.total_bytes());
  inputs.allreduce = allreduce_table(measure_allreduce(group, {.sizes = sizes, .seconds = seconds, .seed = seed}), group.world());
  return inputs;
}

std::vector<BusyPeriod> predicted_timeline(const ModelInputs& inputs, int64_t world_size, const DataParallelOptions& options,
                                           const StepTrace& trace) {
  TensorProfile profile = inputs.profile;
  CommCosts costs = comm_costs(inputs.allreduce, world_size);
  if (options.strategy.shards) return {};
  if (options.strategy.wait == Wait::kAtFirstUse && profile.knows_forward()) {
    return ordered_timeline(profile, costs, plan_of(profile, options));
  }
  const double backward_start_s = backward_start(trace.ranks[0]);
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

}  // namespace firkin
