// firkin trace: what ran when in a few training steps, per strategy, as Chrome traces, beside what the performance model says.
#include "bench/step_trace.h"
#include "firkin/base/json_text.h"
#include "firkin/base/progress.h"
#include "job.h"

namespace firkin::cli {
namespace {

struct TraceFlags : RunFlags {
  JobFlags job;
  RuleFlags rule;
  std::vector<std::string> strategies = {"naive", "flat", "overlap", "bucketed", "torch"};
  std::vector<int64_t> caps = {4 * kMiB};
  StepTraceOptions steps;
  double allreduce_seconds = 3;
};

// "trace-naive.json", "trace-bucketed-4MiB.json"
std::string file_name(const StepSetting& setting) {
  const std::string_view strategy = setting.options.strategy.name;
  return setting.cap_mib ? fmt::format("trace-{}-{}MiB.json", strategy, *setting.cap_mib) : fmt::format("trace-{}.json", strategy);
}

void run_rank(const TraceFlags& flags, const std::vector<StepSetting>& settings, const ProcessGroup& group) {
  Results results = begin_run("trace", flags.common, group);
  results.run.model = describe_job(flags.job);
  Workload workload = make_job(flags.job, group, flags.common.seed);
  std::optional<ModelInputs> inputs;
  if (flags.allreduce_seconds > 0) inputs = measure_model_inputs(group, workload, flags.allreduce_seconds, flags.common.seed);
  std::vector<OutputFile> files;
  {
    Progress progress("tracing", static_cast<int>(settings.size()), group.rank == 0);
    for (const StepSetting& setting : settings) {
      const StepTrace trace = trace_steps(group, workload, setting.options, flags.steps);
      if (group.rank != 0) continue;
      TraceRow row = row_of(trace, setting);
      row.file = file_name(setting);
      if (inputs) row.predicted = predicted_timeline(*inputs, group.world(), setting.options, trace);
      results.traces.push_back(std::move(row));
      files.push_back({file_name(setting), dump_json(chrome_trace(trace.ranks)) + "\n"});
      progress.advance(setting.name);
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
  add_run_flags(app, *flags, "trace");
  add_job_flags(app, flags->job);
  add_replay_flags(app, flags->job);
  add_strategy_flags(app, flags->strategies, flags->caps);
  add_rule_flags(app, flags->rule);
  const char* const measuring = "Measuring";
  add_value(app, "--warmup", flags->steps.warmup_steps, "steps before the recorded ones", measuring)->check(CLI::Range(1, 100000));
  add_value(app, "--steps", flags->steps.steps, "recorded steps")->check(CLI::Range(1, 1000));
  add_time(app, "--allreduce-time", flags->allreduce_seconds, "budget for measuring a(x), which predicted timelines\nneed; 0: none")
      ->group(measuring);
  return [flags, &app] {
    check_replay_alone(app);
    check_job(flags->job, flags->ranks);
    const std::vector<StepSetting> settings = make_settings(flags->strategies, flags->caps, flags->rule);
    return run_on_ranks(*flags, [&](const ProcessGroup& group) { run_rank(*flags, settings, group); });
  };
}

}  // namespace firkin::cli
