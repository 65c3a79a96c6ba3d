// firkin tune: profile, measure the all-reduce, predict, verify, report.
#include "job.h"
#include "tune/measure.h"

namespace firkin::cli {
namespace {

struct TuneFlags : RunFlags {
  JobFlags job;
  RuleFlags rule;
  TuneOptions options = {.steps = {.blocks = 20, .warmup_steps = 1, .steps_per_block = 2}};  // as the flags are, before checked_options()
  std::optional<double> seconds;                                                             // for all of it
};

TuneOptions checked_options(const TuneFlags& flags) {
  TuneOptions options = flags.options;
  if (!(options.allreduce_seconds >= 0.1 && options.allreduce_seconds <= 1e6)) {
    throw InputError(fmt::format("--allreduce-time {}: expected 100ms to 11 days", format_seconds(options.allreduce_seconds)));
  }
  options.rule = cap_options(flags.rule);
  options.hooks.clear();
  for (const std::string& hook : flags.options.hooks) {
    find_compression(hook, 0);
    if (hook != kNoHook && std::ranges::find(options.hooks, hook) == options.hooks.end()) options.hooks.push_back(hook);
  }
  constexpr double kSeconds = 120;
  options.seconds = flags.seconds.value_or(options.compare ? options.seconds : kSeconds);
  options.seed = flags.common.seed;
  options.calibration_blocks = std::max(4, options.steps.blocks / 2);
  return options;
}

void run_rank(const TuneFlags& flags, TuneOptions options, const ProcessGroup& group) {
  const bool speaks = group.rank == 0;
  Results results = begin_run("tune", flags.common, group);
  results.run.model = describe_job(flags.job);
  Workload workload = make_job(flags.job, group, flags.common.seed);
  show_progress(options, speaks);
  if (speaks) {
    options.on_partial = [&](const Tuning& so_far) {
      Results partial = results;
      add_sections(so_far, partial);
      write_run_files(flags.common, partial, tables_of(so_far));
    };
  }
  const Tuning tuned = tune(group, workload, options);
  options.on_progress = {};
  if (!speaks) return;
  const std::string& warning = tuned.fit.warning;
  if (!warning.empty()) fmt::print(stderr, "firkin: calibration: {}\n", warning);
  add_sections(tuned, results);
  mark_sample_shapes(results);
  finish_run(flags.common, results, tables_of(tuned));
}

}  // namespace

Run declare_tune(CLI::App& app) {
  auto flags = std::make_shared<TuneFlags>();
  app.footer(
      "Profiles the backward pass, times the all-reduce, predicts the step time for\n"
      "every bucket size, and races the best few caps until one is clear. Further\n"
      "blocks of steps then compare the winner with PyTorch's default (its own engine,\n"
      "1 MiB and then 25 MiB), with none (no communication) and with ordered\n"
      "(communication also overlaps the next forward pass; recommended if its interval\n"
      "excludes no gain). This takes two minutes (--time), and --out always holds what\n"
      "is known so far. --compare also measures naive (one call per tensor after\n"
      "backward), flat (one call after backward), overlap (each tensor when ready),\n"
      "and seven caps.\n\n"
      "predicted, measured: seconds per step. error: predicted / measured - 1.\n"
      "exposed: the step minus the step without communication. after bw: from the end\n"
      "of backward to the last gradient.\n\n"
      "  firkin tune --ranks 2                     the demo model on this machine\n"
      "  firkin tune --ranks 2 --link 1gbit        over a modelled link\n"
      "  firkin tune --link c.csv --world 128      as one rank of 128, by a cluster's\n"
      "                                            all-reduce times (firkin import)\n"
      "  firkin tune --ranks 2 --data book.txt     on your own text\n"
      "  torchrun --nproc-per-node 2 --no-python firkin tune\n\n"
      "--rule at-most: a tensor that would exceed the cap starts a new bucket;\n"
      "close-when-full: a bucket closes once it reaches the cap, as PyTorch's do.\n");
  add_run_flags(app, *flags, "tune");
  add_settings_flag(app, flags->common);
  add_job_flags(app, flags->job);
  add_replay_flags(app, flags->job);
  add_rule_flags(app, flags->rule);
  TuneOptions& options = flags->options;
  app.add_flag("--sharded", options.sharded, "consider the strategy sharded too: time and memory")->group("Measuring");
  app.add_flag("--compare", options.compare, "also measure naive, flat, overlap and more caps")->group("Measuring");
  add_sizes(app, "--cap", options.caps, "also race these: 1MiB,25MiB; with --compare, the\ncaps to compare")->group("Buckets");
  app.add_option("--hooks", options.hooks, "compare these wire formats: none,bf16")->delimiter(',')->group("Buckets");
  const char* const measuring = "Measuring";
  add_value(app, "--race-blocks", options.race_blocks, "at most this many blocks in the race", measuring)->check(CLI::Range(1, 100000));
  add_block_flags(app, options.steps, "blocks that measure the gain; each runs all settings");
  add_time(app, "--time", flags->seconds, "budget for the whole run; slow steps run fewer times\n(default: 2m; with --compare no limit)")
      ->group(measuring);
  add_value(app, "--profile-steps", options.profile_steps, "backward passes to profile", measuring)->check(CLI::Range(4, 100000));
  add_time(app, "--allreduce-time", options.allreduce_seconds, "budget for the all-reduce table: 10s")->group(measuring);
  return [flags, &app] {
    check_replay_alone(app);
    const TuneOptions checked = checked_options(*flags);
    check_job(flags->job, flags->ranks);
    return run_on_ranks(*flags, [&](const ProcessGroup& group) { run_rank(*flags, checked, group); });
  };
}

}  // namespace firkin::cli
