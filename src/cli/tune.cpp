// firkin tune: profile, measure the all-reduce, predict, verify, report.
#include "job.h"
#include "tune/measure.h"

namespace firkin::cli {
namespace {

TuneOptions checked_options(const TuneFlags& flags) {
  TuneOptions options{
      .caps = flags.caps,
      .sharded = flags.sharded,
      .compare = flags.compare,
      .rule = cap_options(flags.rule),
      .calibration_blocks = std::max(4, flags.steps.blocks / 2),
      .profile_steps = flags.profile_steps,
      .allreduce_seconds = flags.allreduce_seconds,
      .steps = {.blocks = flags.steps.blocks, .warmup_steps = flags.steps.warmup_steps, .steps_per_block = flags.steps.steps_per_block},
      .seed = flags.common.seed};
  constexpr double kSeconds = 120;
  options.seconds = flags.seconds.value_or(options.compare ? options.seconds : kSeconds);
  return options;
}

void run_rank(const TuneFlags& flags, TuneOptions options, const ProcessGroup& group) {
  const bool is_rank_0 = group.rank == 0;
  Results results = begin_run("tune", flags.common, group);
  results.run.model = describe_job(flags.job);
  Workload workload = make_job(flags.job, group, flags.common.seed);
  show_progress(options, is_rank_0);
  if (is_rank_0) {
    options.on_partial = [&](const Tuning& so_far) {
      Results partial = results;
      add_sections(so_far, partial);
      write_run_files(flags.common, partial, tables_of(so_far));
    };
  }
  const Tuning tuned = tune(group, workload, options);
  options.on_progress = {};
  if (!is_rank_0) return;
  add_sections(tuned, results);
  finish_run(flags.common, results, tables_of(tuned));
}

}  // namespace

int run(TuneFlags& flags) {
  const TuneOptions checked = checked_options(flags);
  check_job(flags.job, flags.ranks);
  return run_on_ranks(flags, [&](const ProcessGroup& group) { run_rank(flags, checked, group); });
}

}  // namespace firkin::cli
