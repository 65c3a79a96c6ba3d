// firkin bench step: training steps under strategies and caps, for several models and shapes.
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <new>

#include "bench/step_memory.h"
#include "command.h"
#include "firkin/base/error.h"
#include "firkin/base/machine.h"
#include "firkin/base/progress.h"
#include "firkin/base/units.h"
#include "firkin/comm/rank_info.h"
#include "model/memory_estimate.h"
#include "report/text.h"
#include "results/sample_shape.h"
#include "run.h"
#include "step_matrix.h"
#include "step_rows.h"
#include "workload/synthetic_workload.h"

namespace firkin::cli {
namespace {

// What one rank needs to measure configuration after configuration.
struct MatrixRun {
  const StepFlags& flags;
  const ProcessGroup& group;
  std::vector<Cell> cells;
  int64_t memory_limit;  // bytes for this rank
  std::unique_ptr<Progress> progress;
};

int64_t memory_limit_of(const StepFlags& flags, c10::Device device) {
  if (flags.job.memory_limit_gib) return memory_limit_bytes(*flags.job.memory_limit_gib);
  if (!device.is_cpu()) {
    return static_cast<int64_t>(
        c10::getDeviceAllocator(device.type())->getMemoryInfo(device.index()).second);  // of all ranks that share it
  }
  const auto info = rank_info_from_environment();
  return available_memory_bytes() / std::max(1, info ? info->local_world_size : 1);
}

int64_t estimated_bytes(const StepFlags& flags, const Configuration& configuration) {
  if (!configuration.job) return 3 * flags.synthetic_tensors * flags.synthetic_bytes;
  return process_bytes(estimate_job_memory(*configuration.job));
}

// The most that any rank asks for beyond its limit decides for all. Empty: every rank has room.
std::string agree_on_room(const MatrixRun& run, const char* what, int64_t needed) {
  bool fits = true;
  double most_needed = 0;
  double least_limit = static_cast<double>(run.memory_limit);
  for (const auto& rank : all_gather(run.group, {static_cast<double>(needed), static_cast<double>(run.memory_limit)})) {
    fits = fits && rank[0] <= rank[1];
    most_needed = std::max(most_needed, rank[0]);
    least_limit = std::min(least_limit, rank[1]);
  }
  if (fits) return "";
  return fmt::format("{} {} a rank; limit {}", what, format_bytes(static_cast<int64_t>(most_needed)),
                     format_bytes(static_cast<int64_t>(least_limit)));
}

bool is_out_of_memory(const std::exception& error) {
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr || dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr) return true;
  return std::string_view(error.what()).find("can't allocate memory") != std::string_view::npos;  // LibTorch's CPU allocator
}

// Makes the workload and takes one step without communication: no rank waits for another while it may run out of memory.
std::string try_configuration(const MatrixRun& run, const Configuration& configuration, std::optional<Workload>& workload) {
  constexpr int64_t kMoreThanAnyLimit = int64_t{1} << 62;
  int64_t peak = kMoreThanAnyLimit;
  try {
    workload = configuration.job
                   ? make_job(*configuration.job, run.group, run.flags.common.seed)
                   : make_synthetic_workload({.count = run.flags.synthetic_tensors, .bytes = run.flags.synthetic_bytes}, run.group.device);
    peak = measure_local_step_memory(*workload).peak_bytes;
  } catch (const std::exception& error) {
    if (!is_out_of_memory(error)) throw;
    workload.reset();
  }
  const auto by_rank = all_gather(run.group, {peak == kMoreThanAnyLimit ? 1.0 : 0.0});
  if (std::ranges::any_of(by_rank, [](const auto& rank) { return rank[0] > 0; })) return "an allocation failed";
  return agree_on_room(run, "a trial step took", peak);
}

StepConfiguration out_of_memory(const Configuration& configuration, const std::string& reason) {
  return {.model = configuration.description, .status = "out of memory", .reason = reason, .strategies = {}, .samples = {}};
}

StepConfiguration measure_configuration(MatrixRun& run, const Configuration& configuration) {
  std::string reason = agree_on_room(run, "estimated", estimated_bytes(run.flags, configuration));
  std::optional<Workload> workload;
  if (reason.empty()) reason = try_configuration(run, configuration, workload);
  if (!reason.empty()) {
    for (size_t i = 0; i < run.cells.size() * static_cast<size_t>(run.flags.blocks); ++i) run.progress->advance("out of memory");
    return out_of_memory(configuration, reason);
  }
  std::vector<StepSetting> settings;
  std::vector<StepMemory> memory;
  for (const Cell& cell : run.cells) {
    settings.push_back(cell.setting);
    memory.push_back(measure_step_memory(run.group, *workload, cell.setting.options));
  }
  const StepBenchResult result = measure_steps(run.group, *workload, settings,
                                               {.blocks = run.flags.blocks,
                                                .warmup_steps = run.flags.warmup,
                                                .steps_per_block = run.flags.steps,
                                                .seed = run.flags.common.seed,
                                                .communication_alone = true,
                                                .on_progress = [&run](const std::string& done) { run.progress->advance(done); }});
  return measured_configuration(configuration, run.cells, result, memory, run.group.size);
}

// The one of `before` that is this configuration; null when there is none, or when it did not fit: another limit, or a machine with less
// beside it, may have room now.
const StepConfiguration* measured_before(const std::vector<StepConfiguration>& before, const Configuration& configuration) {
  const auto found = std::ranges::find(before, configuration.description, &StepConfiguration::model);
  return found == before.end() || found->strategies.empty() ? nullptr : &*found;
}

// Rank 0's word counts: other machines may not have the file.
std::vector<bool> done_before(const ProcessGroup& group, const std::vector<Configuration>& configurations,
                              const std::vector<StepConfiguration>& before) {
  std::vector<double> done;
  for (const Configuration& configuration : configurations) done.push_back(measured_before(before, configuration) ? 1 : 0);
  const std::vector<double> on_rank0 = all_gather(group, done)[0];
  return {on_rank0.begin(), on_rank0.end()};
}

void run_rank(const StepFlags& flags, const ProcessGroup& group) {
  Results results;
  results.run = begin_run("bench-step", flags.common, group);
  const std::vector<Configuration> configurations = make_configurations(flags);
  const std::vector<StepConfiguration> before = resumable_configurations(flags);
  const std::vector<bool> done = done_before(group, configurations, before);
  MatrixRun run{.flags = flags,
                .group = group,
                .cells = make_cells(flags),
                .memory_limit = memory_limit_of(flags, group.device),
                .progress = nullptr};
  const auto cells_to_measure = std::ranges::count(done, false) * static_cast<int64_t>(run.cells.size());
  run.progress = std::make_unique<Progress>("measuring steps", static_cast<int>(cells_to_measure) * flags.blocks, group.rank == 0);
  for (size_t i = 0; i < configurations.size(); ++i) {
    StepConfiguration configuration = done[i] && group.rank == 0 ? *measured_before(before, configurations[i])
                                      : done[i]                  ? StepConfiguration()
                                                                 : measure_configuration(run, configurations[i]);
    if (group.rank != 0) continue;
    if (!flags.common.json) {
      run.progress->finish();
      fmt::print("{}{}{}", i > 0 ? "\n" : "", done[i] ? "measured before: " : "", configuration_in_text(configuration));
      std::fflush(stdout);
    }
    results.configurations.push_back(std::move(configuration));
    results.complete = i + 1 == configurations.size();
    if (results.complete) break;
    Results so_far = results;
    mark_sample_shapes(so_far);
    write_run_files(flags.common, so_far, {{"steps.csv", steps_csv(results.configurations)}});
  }
  if (group.rank != 0) return;
  mark_sample_shapes(results);
  finish_run(flags.common, results, {{"steps.csv", steps_csv(results.configurations)}}, "\n" + answer_in_text(results));
}

void add_matrix_flags(CLI::App& app, StepFlags& flags) {
  app.add_option("--model", flags.models, "named models (firkin models lists them) or .json\nfiles")
      ->delimiter(',')
      ->capture_default_str()
      ->type_name(kModelType);
  app.add_option("--batch", flags.batch_sizes, "sequences per rank and step")->delimiter(',')->capture_default_str();
  app.add_option("--sequence", flags.sequence_lengths, "tokens per sequence")->delimiter(',')->capture_default_str();
  add_strategy_flags(app, flags.strategies, flags.caps_mib);
  app.add_option("--synthetic-tensors", flags.synthetic_tensors, "that many equal tensors instead of models")
      ->check(CLI::Range(int64_t{1}, int64_t{1000000}));
  app.add_option("--synthetic-bytes", flags.synthetic_bytes, "bytes of each")->capture_default_str()->needs("--synthetic-tensors");
  add_replay_flags(app, flags.job);
  app.add_flag("--resume", flags.resume, "keep what an interrupted run left in --out");
}

}  // namespace

Run declare_bench_step(CLI::App& app) {
  auto flags = std::make_shared<StepFlags>();
  app.footer(
      "strategies: none communicates nothing; naive one tensor after another, after\n"
      "backward; flat all in one call after backward; overlap each tensor when its\n"
      "gradient is ready; bucketed whole buckets when ready; torch PyTorch's own engine\n"
      "(c10d::Reducer) under the same caps.\n\n"
      "Takes about blocks x settings x (warmup + steps) steps per configuration.\n"
      "step: median over blocks of the slowest rank's step. spread: slowest rank less\n"
      "fastest. after bw, share: from the end of backward to the last gradient.\n"
      "ovlp: part of the communication that backward hid. exposed: step less the step\n"
      "without communication, paired. memory: the most that tensors hold in a step.\n"
      "x torch: paired ratio to c10d::Reducer under the same cap, 95 % interval.\n\n"
      "  firkin bench step --ranks 2 --batch 4 --sequence 128 --cap-mib 1,4,25\n"
      "  firkin bench step --ranks 2 --model small,medium --resume\n"
      "  firkin bench step --config matrix.toml   with [bench.step] and batch = [2, 4]\n"
      "  firkin bench step --ranks 2 --synthetic-tensors 500 --synthetic-bytes 10240\n");
  add_common_flags(app, flags->common, "bench-step");
  add_rank_flags(app, flags->ranks);
  add_matrix_flags(app, *flags);
  add_dtype_flag(app, flags->job.model);
  add_model_size_flags(app, flags->job.model);
  add_training_flags(app, flags->job);
  add_memory_flag(app, flags->job.memory_limit_gib);
  add_rule_flags(app, flags->rule);
  app.add_option("--blocks", flags->blocks, "blocks; each runs every setting once")->capture_default_str()->check(CLI::Range(4, 100000));
  app.add_option("--warmup", flags->warmup, "steps after each switch of setting")->capture_default_str()->check(CLI::Range(1, 100000));
  app.add_option("--steps", flags->steps, "timed steps per block and setting")->capture_default_str()->check(CLI::Range(1, 100000));
  return [flags, &app] {
    check_replay_alone(app);
    check_alone(app, "--synthetic-tensors", model_flag_names());
    check_alone(app, "--synthetic-tensors", {"--batch", "--sequence", "--text", "--learning-rate", "--replay"});
    make_cells(*flags);
    make_configurations(*flags);
    claim_output_folder(flags->common, writes_results());
    resumable_configurations(*flags);
    if (flags->resume && flags->common.folder) flags->common.folder->older_result_is_kept = true;  // what is there goes on
    return run_on_ranks(flags->ranks, [&](const ProcessGroup& group) { run_rank(*flags, group); });
  };
}

}  // namespace firkin::cli
