// firkin trace: what ran when in a few training steps, per strategy, as Chrome traces, beside what the performance model says.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <memory>

#include "bench/allreduce_bench.h"
#include "bench/ready_profile.h"
#include "bench/step_bench.h"
#include "firkin/base/json_text.h"
#include "firkin/base/progress.h"
#include "firkin/base/units.h"
#include "firkin/plan/allreduce_table.h"
#include "firkin/plan/bucket_plan.h"
#include "firkin/plan/ordered_plan.h"
#include "firkin/plan/timeline.h"
#include "job.h"
#include "results/results.h"
#include "trace/trace.h"

namespace firkin::cli {
namespace {

// What the model needs to know.
struct ModelInputs {
  TensorProfile profile;
  AllReduceTable allreduce;
};

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

// Steps the workload a few times and spends `seconds` on all-reduces. Collective: every rank gets the same.
ModelInputs measure_model_inputs(const ProcessGroup& group, Workload& workload, double seconds, uint64_t seed) {
  constexpr int kProfileSteps = 8;
  ModelInputs inputs;
  inputs.profile = measure_ready_profile(group, workload, {.steps = kProfileSteps, .on_progress = {}}).profile.tensors;
  const int64_t total = inputs.profile.total_bytes();
  inputs.allreduce = allreduce_table(
      measure_allreduce(group, {.sizes = allreduce_sizes(total), .seconds = seconds, .seed = seed, .on_progress = {}}), group.size);
  return inputs;
}

// When the step computes and communicates, in seconds since it began; backward_start_s: when its backward did, but under the strategy
// ordered, whose forward is predicted as well. Uncalibrated: an idle processor beside an idle link. Nothing for the strategy sharded, which
// sends no all-reduce.
std::vector<BusyPeriod> predicted_timeline(const ModelInputs& inputs, int world_size, const DataParallelOptions& options,
                                           double backward_start_s) {
  TensorProfile profile = inputs.profile;
  CommCosts costs = comm_costs(inputs.allreduce, world_size);
  if (options.strategy.shards) return {};
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

struct TraceFlags {
  CommonFlags common;
  RankFlags ranks;
  JobFlags job;
  RuleFlags rule;
  std::vector<std::string> strategies = {"naive", "flat", "overlap", "bucketed", "torch"};
  std::vector<int64_t> caps = {4 * kMiB};
  int warmup = 3;
  int steps = 3;
  double allreduce_seconds = 3;
};

using SpansByRank = std::vector<std::vector<Span>>;

// "trace-naive.json", "trace-bucketed-4MiB.json"
std::string file_name(const Cell& cell) {
  return cell.cap_mib ? fmt::format("trace-{}-{}MiB.json", cell.strategy, *cell.cap_mib) : fmt::format("trace-{}.json", cell.strategy);
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

// The last step: when it computed, communicated, waited in forward and ran the optimiser, in seconds since it began. Gaps too short to be
// seen are closed.
std::vector<BusyPeriod> timeline_of(const std::vector<Span>& spans) {
  constexpr int64_t kGapsPerStep = 500;  // shorter ones are closed
  const Period step = traced_steps(spans).back().period;
  const int64_t least_gap_ns = (step.end_ns - step.start_ns) / kGapsPerStep;
  const std::vector<Span> last = spans_cut_to(spans, step.start_ns, step.end_ns);
  const auto since_start = [&step](int64_t time_ns) { return seconds_of({step.start_ns, time_ns}); };
  std::vector<BusyPeriod> timeline;
  const auto add = [&](const std::vector<Span>& of, Activity activity, const char* name) {
    for (const Period& period : busy_periods(of, activity, least_gap_ns)) {
      timeline.push_back({name, since_start(period.start_ns), since_start(period.end_ns)});
    }
  };
  add(last, Activity::kOperator, kComputeActivity);
  add(last, Activity::kCollective, kCommunicationActivity);
  for (const auto& [phase, name] : {std::pair{kForwardWaitPhase, kForwardWaitActivity}, {kOptimizerPhase, kOptimizerActivity}}) {
    std::vector<Span> of_phase;
    std::ranges::copy_if(last, std::back_inserter(of_phase), [&](const Span& span) { return span.name == phase; });
    add(of_phase, Activity::kPhase, name);
  }
  return timeline;
}

// When the last step's backward began, in seconds since the step did.
double backward_start(const std::vector<Span>& spans) {
  const Period step = traced_steps(spans).back().period;
  for (const Span& span : spans_between(spans, step.start_ns, step.end_ns)) {
    if (span.activity == Activity::kPhase && span.name == kBackwardPhase) return seconds_of({step.start_ns, span.start_ns});
  }
  return 0;
}

TraceRow row_of(const Cell& cell, const SpansByRank& spans) {
  TraceRow row{.strategy = cell.strategy, .name = cell.setting.name, .cap_mib = cell.cap_mib, .file = file_name(cell)};
  for (const auto& rank : spans) row.ranks.push_back(figures_of(rank));
  row.timeline = timeline_of(spans[0]);
  return row;
}

void run_rank(const TraceFlags& flags, const std::vector<Cell>& cells, const ProcessGroup& group) {
  Results results;
  results.run = begin_run("trace", flags.common, group);
  results.run.model = describe_job(flags.job);
  Workload workload = make_job(flags.job, group, flags.common.seed);
  std::optional<ModelInputs> inputs;
  if (flags.allreduce_seconds > 0) inputs = measure_model_inputs(group, workload, flags.allreduce_seconds, flags.common.seed);
  std::vector<OutputFile> files;
  {
    Progress progress("tracing", static_cast<int>(cells.size()), group.rank == 0);
    for (const Cell& cell : cells) {
      const StepTrace trace = trace_steps(group, workload, cell.setting.options, {.warmup_steps = flags.warmup, .steps = flags.steps});
      if (group.rank != 0) continue;
      const SpansByRank& spans = trace.ranks;
      results.traces.push_back(row_of(cell, spans));
      if (cell.setting.options.strategy.launch == Launch::kWhenReady) results.traces.back().idle_share = idle_though_ready(trace.buckets);
      if (inputs) {
        results.traces.back().predicted = predicted_timeline(*inputs, group.size, cell.setting.options, backward_start(spans[0]));
      }
      files.push_back({file_name(cell), dump_json(chrome_trace(spans)) + "\n"});
      progress.advance(cell.setting.name);
    }
  }
  if (group.rank == 0) finish_run(flags.common, results, files);
}

}  // namespace

Run declare_trace(CLI::App& app) {
  auto flags = std::make_shared<TraceFlags>();
  app.footer(std::string(kStrategiesInHelp) +
             "Records a few steps per strategy: operators and collectives, on every rank.\n\n"
             "compute: at least one operator ran. communication: the transport was working on\n"
             "at least one collective. overlapped: both; exposed: communication alone. idle:\n"
             "share of backward in which a bucket was ready but the link idle, because of the\n"
             "launch order (last step).\n\n"
             "Rank 0, medians over steps. Recording slows the steps; firkin bench step gives\n"
             "undisturbed times. Takes half a minute for five strategies.\n\n"
             "report.html shows the last step of each strategy. trace-STRATEGY.json has every\n"
             "operator of every rank: drop it on https://ui.perfetto.dev (it stays on your\n"
             "machine) or load it in chrome://tracing.\n\n"
             "  firkin trace --ranks 2 --strategies naive,overlap\n"
             "  firkin trace --ranks 2 --strategies bucketed,torch --cap 1MiB,4MiB\n");
  add_common_flags(app, flags->common, "trace");
  add_rank_flags(app, flags->ranks);
  add_job_flags(app, flags->job);
  add_replay_flags(app, flags->job);
  add_strategy_flags(app, flags->strategies, flags->caps);
  add_rule_flags(app, flags->rule);
  const char* const measuring = "Measuring";
  add_value(app, "--warmup", flags->warmup, "steps before the recorded ones", measuring)->check(CLI::Range(1, 100000));
  app.add_option("--steps", flags->steps, "recorded steps")->capture_default_str()->check(CLI::Range(1, 1000));
  CLI::Option* time =
      add_time(app, "--allreduce-time", flags->allreduce_seconds, "budget for measuring a(x), which predicted timelines\nneed; 0: none");
  add_old_name(app, "--allreduce-seconds", time->group(measuring), "s");
  return [flags, &app] {
    check_replay_alone(app);
    check_job_flags(flags->job);
    check_memory(estimate_job_memory(flags->job), flags->job.memory_limit_bytes, flags->ranks);
    const std::vector<Cell> cells = make_cells(flags->strategies, flags->caps, flags->rule);
    claim_output_folder(flags->common, writes_results());
    return run_on_ranks(flags->ranks, [&](const ProcessGroup& group) { run_rank(*flags, cells, group); });
  };
}

}  // namespace firkin::cli
