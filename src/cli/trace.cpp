// firkin trace: what ran when in a few training steps, per strategy, as Chrome traces.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <memory>

#include "bench/step_trace.h"
#include "command.h"
#include "firkin/base/json_text.h"
#include "firkin/base/progress.h"
#include "language_model_job.h"
#include "rank_flags.h"
#include "rule_flags.h"
#include "run.h"
#include "step_matrix.h"
#include "trace/trace.h"
#include "trace_prediction.h"

namespace firkin::cli {
namespace {

struct TraceFlags {
  CommonFlags common;
  RankFlags ranks;
  JobFlags job;
  RuleFlags rule;
  std::vector<std::string> strategies = {"naive", "flat", "overlap", "bucketed", "torch"};
  std::vector<double> caps_mib = {4};
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
  app.footer(
      "strategies: none communicates nothing; naive one tensor after another, after\n"
      "backward; flat all in one call after backward; overlap each tensor when its\n"
      "gradient is ready; bucketed whole buckets when ready; torch PyTorch's own engine\n"
      "(c10d::Reducer) under the same caps.\n\n"
      "Records a few steps per strategy: operators and collectives, on every rank.\n"
      "compute: at least one operator ran. communication: the transport had taken up at\n"
      "least one collective. overlapped: the part of that with an operator beside it;\n"
      "exposed: the rest. idle: the share of backward in which a bucket was ready and the\n"
      "link had nothing, because of the launch order (last step). Rank 0, medians over steps, which recording makes slower: for\n"
      "times take firkin bench step. Takes half a minute for five strategies.\n\n"
      "report.html shows the last step of each strategy. trace-STRATEGY.json has every\n"
      "operator of every rank: drop it on https://ui.perfetto.dev (it stays on your\n"
      "machine) or load it in chrome://tracing.\n\n"
      "  firkin trace --ranks 2 --strategies naive,overlap\n"
      "  firkin trace --ranks 2 --strategies bucketed,torch --cap-mib 1,4,25\n");
  add_common_flags(app, flags->common, "trace");
  add_rank_flags(app, flags->ranks);
  add_job_flags(app, flags->job);
  add_replay_flags(app, flags->job);
  add_strategy_flags(app, flags->strategies, flags->caps_mib);
  add_rule_flags(app, flags->rule);
  app.add_option("--warmup", flags->warmup, "steps before the recorded ones")->capture_default_str()->check(CLI::Range(1, 100000));
  app.add_option("--steps", flags->steps, "recorded steps")->capture_default_str()->check(CLI::Range(1, 1000));
  app.add_option("--allreduce-seconds", flags->allreduce_seconds, "to measure a(x) for the predicted timelines; 0: none")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 1e6));
  return [flags, &app] {
    check_replay_alone(app);
    check_job_flags(flags->job);
    check_job_memory(flags->job, flags->ranks);
    const std::vector<Cell> cells = make_cells(flags->strategies, flags->caps_mib, flags->rule);
    claim_output_folder(flags->common, writes_results());
    return run_on_ranks(flags->ranks, [&](const ProcessGroup& group) { run_rank(*flags, cells, group); });
  };
}

}  // namespace firkin::cli
