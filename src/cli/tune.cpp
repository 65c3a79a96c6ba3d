// firkin tune: profile, measure the all-reduce, predict, verify, report.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>

#include "firkin/base/error.h"
#include "firkin/base/units.h"
#include "firkin/plan/cost_curve.h"
#include "job.h"
#include "results/results.h"
#include "tune/measure.h"

namespace firkin::cli {
namespace {

struct TuneFlags {
  CommonFlags common;
  RankFlags ranks;
  JobFlags job;
  RuleFlags rule;
  std::vector<int64_t> caps;
  std::vector<std::string> hooks;
  int blocks = 20;
  int race_blocks = 10;
  bool compare = false;
  bool sharded = false;
  int warmup = 1;
  int steps = 2;
  int profile_steps = 20;
  double allreduce_seconds = 10;
  std::optional<double> seconds;  // for all of it
};

TuneOptions checked_options(const TuneFlags& flags) {
  if (!(flags.allreduce_seconds >= 0.1 && flags.allreduce_seconds <= 1e6)) {
    throw InputError(fmt::format("--allreduce-time {}: expected 100ms to 11 days", format_seconds(flags.allreduce_seconds)));
  }
  TuneOptions options;
  options.caps = flags.caps;
  options.rule = cap_options(flags.rule);
  for (const std::string& hook : flags.hooks) {
    find_compression(hook, 0);
    if (hook != kNoHook && std::ranges::find(options.hooks, hook) == options.hooks.end()) options.hooks.push_back(hook);
  }
  constexpr double kSeconds = 120;
  options.seconds = flags.seconds.value_or(flags.compare ? options.seconds : kSeconds);
  options.profile_steps = flags.profile_steps;
  options.allreduce_seconds = flags.allreduce_seconds;
  options.seed = flags.common.seed;
  options.steps.blocks = flags.blocks;
  options.race_blocks = flags.race_blocks;
  options.compare = flags.compare;
  options.sharded = flags.sharded;
  options.calibration_blocks = std::max(4, flags.blocks / 2);
  options.steps.warmup_steps = flags.warmup;
  options.steps.steps_per_block = flags.steps;
  return options;
}

void run_rank(const TuneFlags& flags, TuneOptions options, const ProcessGroup& group) {
  const bool speaks = group.rank == 0;
  Results results;
  results.run = begin_run("tune", flags.common, group);
  results.run.model = describe_job(flags.job);
  Workload workload = make_job(flags.job, group, flags.common.seed);
  if (const std::string left_out = torch_default_left_out(); speaks && !left_out.empty()) fmt::print(stderr, "firkin: {}\n", left_out);
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
      "  firkin tune --ranks 2 --data book.txt     on your own text\n"
      "  torchrun --nproc-per-node 2 --no-python firkin tune\n\n"
      "--rule at-most: a tensor that would exceed the cap starts a new bucket;\n"
      "close-when-full: a bucket closes once it reaches the cap, as PyTorch's do.\n");
  add_common_flags(app, flags->common, "tune");
  add_settings_flag(app, flags->common);
  add_rank_flags(app, flags->ranks);
  add_job_flags(app, flags->job);
  add_replay_flags(app, flags->job);
  add_rule_flags(app, flags->rule);
  app.add_flag("--sharded", flags->sharded, "consider the strategy sharded too: time and memory")->group("Measuring");
  app.add_flag("--compare", flags->compare, "also measure naive, flat, overlap and more caps")->group("Measuring");
  CLI::Option* caps = add_sizes(app, "--cap", flags->caps, "also race these: 1MiB,25MiB; with --compare, the\ncaps to compare");
  add_old_name(app, "--cap-mib", caps->group("Buckets"), "MiB");
  app.add_option("--hooks", flags->hooks, "compare these wire formats: none,bf16")->delimiter(',')->group("Buckets");
  const char* const measuring = "Measuring";
  const CLI::Range some(1, 100000);
  const CLI::Range at_least_4(4, 100000);
  add_value(app, "--race-blocks", flags->race_blocks, "at most this many blocks in the race", measuring)->check(some);
  add_value(app, "--blocks", flags->blocks, "blocks that measure the gain; each runs all settings", measuring)->check(at_least_4);
  add_value(app, "--warmup", flags->warmup, "untimed steps after each change of setting", measuring)->check(some);
  CLI::Option* steps = app.add_option("--steps-per-block", flags->steps, "timed steps per block and setting");
  add_old_name(app, "--steps", steps->capture_default_str()->check(some)->group(measuring));
  CLI::Option* all = add_time(app, "--time", flags->seconds,
                              "budget for the whole run; slow steps run fewer times\n(default: 2m; with --compare no limit)");
  add_old_name(app, "--seconds", all->group(measuring), "s");
  add_value(app, "--profile-steps", flags->profile_steps, "backward passes to profile", measuring)->check(at_least_4);
  CLI::Option* time = add_time(app, "--allreduce-time", flags->allreduce_seconds, "budget for the all-reduce table: 10s");
  add_old_name(app, "--allreduce-seconds", time->group(measuring), "s");
  return [flags, &app] {
    check_replay_alone(app);
    const TuneOptions options = checked_options(*flags);
    check_job_flags(flags->job);
    check_memory(estimate_job_memory(flags->job), flags->job.memory_limit_bytes, flags->ranks);
    claim_output_folder(flags->common, writes_results());
    return run_on_ranks(flags->ranks, [&](const ProcessGroup& group) { run_rank(*flags, options, group); });
  };
}

}  // namespace firkin::cli
