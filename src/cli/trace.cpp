// Firkin trace: what ran when in a few training steps, per strategy, as Chrome traces, beside what the performance
// model says.
#include "bench/step_trace.h"
#include "firkin/base/json_text.h"
#include "firkin/base/progress.h"
#include "job.h"

namespace firkin::cli {
namespace {

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
      const StepTrace trace = trace_steps(group, workload, setting.options, {.warmup_steps = flags.warmup_steps, .steps = flags.steps});
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

int run(TraceFlags& flags) {
  check_job(flags.job, flags.ranks);
  const std::vector<StepSetting> settings = make_settings(flags.strategies, flags.caps, flags.rule);
  return run_on_ranks(flags, [&](const ProcessGroup& group) { run_rank(flags, settings, group); });
}

}  // namespace firkin::cli
