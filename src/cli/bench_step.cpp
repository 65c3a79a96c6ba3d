// firkin bench step and bench layers: training steps under strategies and caps, for several models and shapes; and what of a step each
// layer takes.
#include <c10/core/CachingDeviceAllocator.h>

#include <tuple>

#include "bench/environment.h"
#include "bench/layer_bench.h"
#include "comm/across_ranks.h"
#include "firkin/base/progress.h"
#include "job.h"
#include "model/transformer.h"

#include <torch/headeronly/version.h>

namespace firkin::cli {
namespace {

// ---- firkin bench step

struct StepFlags : RunFlags {
  JobFlags job;  // what all configurations share
  RuleFlags rule;
  std::vector<std::string> models = {"demo"};
  std::vector<int64_t> batch_sizes = {2, 4};
  std::vector<int64_t> sequence_lengths = {128, 256, 512};
  std::vector<std::string> strategies = {"none", "naive", "flat", "overlap", "bucketed", "torch"};
  std::vector<int64_t> caps = {kMiB, 10 * kMiB, 100 * kMiB, 1000 * kMiB};
  int64_t synthetic_tensors = 0;  // instead of models, when positive
  int64_t synthetic_bytes = 10240;
  StepBenchOptions steps = {.blocks = 20, .warmup_steps = 1, .steps_per_block = 2, .communication_alone = true};
  bool resume = false;
};

// What is trained: by itself one row of the matrix.
struct Configuration {
  std::optional<JobFlags> job;  // none: the synthetic tensors
  ModelDescription description;
};

Configuration synthetic_configuration(const StepFlags& flags) {
  make_synthetic_workload({.count = 1, .bytes = flags.synthetic_bytes});  // checks the bytes
  ModelDescription model;
  model.name = fmt::format("{} tensors of {} bytes", flags.synthetic_tensors, flags.synthetic_bytes);
  model.tensors = flags.synthetic_tensors;
  model.dtype = "fp32";
  model.gradient_bytes = flags.synthetic_tensors * flags.synthetic_bytes;
  return {.job = std::nullopt, .description = std::move(model)};
}

// `none` is always there, and first: the others are compared with it.
std::vector<StepSetting> make_settings(const StepFlags& flags) {
  std::vector<std::string> strategies = flags.strategies;
  std::erase(strategies, "none");
  strategies.insert(strategies.begin(), "none");
  return make_settings(strategies, flags.caps, flags.rule);
}

// In the order in which they are measured. Checks each. Throws InputError.
std::vector<Configuration> make_configurations(const StepFlags& flags) {
  if (flags.synthetic_tensors > 0) return {synthetic_configuration(flags)};
  if (!flags.job.replay.empty()) {
    check_job_flags(flags.job);
    return {{flags.job, describe_job(flags.job)}};
  }
  check_list("--model", flags.models);
  check_list("--batch", flags.batch_sizes);
  check_list("--sequence", flags.sequence_lengths);
  std::vector<Configuration> configurations;
  for (const std::string& model : flags.models) {
    for (const int64_t batch : flags.batch_sizes) {
      for (const int64_t sequence : flags.sequence_lengths) {
        JobFlags job = flags.job;
        job.model.model = model;
        job.batch_size = batch;
        job.sequence_length = sequence;
        check_job_flags(job);
        configurations.push_back({job, describe_job(job)});
      }
    }
  }
  return configurations;
}

// What differs between an earlier run and one that these flags would start here: "batch 4, now 2", "host a, now b"; empty: nothing.
std::string difference_from(const RunHead& earlier, const StepFlags& flags) {
  const Host here = this_host();
  const std::vector<Host>& hosts = earlier.environment.hosts;
  std::vector<std::tuple<std::string, std::string, std::string>> facts = {
      {"firkin", earlier.environment.firkin, FIRKIN_VERSION},
      {"libtorch", earlier.environment.libtorch.value_or(""), TORCH_VERSION},
      {"host", hosts.empty() ? "" : hosts[0].host, here.host},
      {"cpu", earlier.environment.cpu.value_or(""), here.cpu},
      {"world size", fmt::format("{}", earlier.environment.world_size.value_or(0)), fmt::format("{}", world_size(flags.ranks))}};
  const RunHead now = start_run("", flags.common);
  for (const auto& [name, value] : now.settings) {
    if (name == "memory-limit") continue;  // what fitted was measured in the same way
    const auto before = earlier.settings.find(name);
    facts.emplace_back("--" + name, before == earlier.settings.end() ? "" : before->second, value);
  }
  for (const auto& [name, before, after] : facts) {
    if (before != after)
      return fmt::format("{} {}, now {}", name, before.empty() ? "(not given)" : before, after.empty() ? "(not given)" : after);
  }
  return "";
}

// The configurations that an earlier, interrupted run with the same settings left in --out; none when there is no results.json.
// Throws InputError when that is no result of bench step, or was measured with other settings, on another machine or by another version.
std::vector<StepConfiguration> resumable_configurations(const StepFlags& flags) {
  const std::filesystem::path file = std::filesystem::path(flags.common.out) / "results.json";
  if (!flags.resume || !std::filesystem::exists(file)) return {};
  Results found = read_results(file);
  if (found.run.command != "bench-step") {
    throw InputError(fmt::format("--resume: {} is a result of {}; expected one of firkin bench step", file.string(), found.run.command));
  }
  if (const std::string difference = difference_from(found.run, flags); !difference.empty()) {
    throw InputError(fmt::format("--resume: {} was measured with {}; expected the same, or another --out", file.string(), difference));
  }
  return std::move(found.configurations);
}

// What one rank needs to measure configuration after configuration.
struct MatrixRun {
  const StepFlags& flags;
  const ProcessGroup& group;
  const std::vector<StepSetting>& settings;
  int64_t memory_limit;  // bytes for this rank
  Progress progress;
};

int64_t memory_limit_of(const StepFlags& flags, c10::Device device) {
  if (device.is_cpu() || flags.job.memory_limit_bytes)
    return available_memory(flags.job.memory_limit_bytes, flags.ranks) / local_ranks(flags.ranks);
  return static_cast<int64_t>(c10::getDeviceAllocator(device.type())->getMemoryInfo(device.index()).second);  // of all ranks that share it
}

StepConfiguration measure_configuration(MatrixRun& run, const Configuration& configuration) {
  const StepFlags& flags = run.flags;
  const auto make = [&] {
    if (configuration.job) return make_job(*configuration.job, run.group, flags.common.seed);
    return make_synthetic_workload({.count = flags.synthetic_tensors, .bytes = flags.synthetic_bytes}, run.group.device);
  };
  const int64_t estimated_bytes =
      configuration.job ? process_bytes(estimate_job_memory(*configuration.job)) : 3 * flags.synthetic_tensors * flags.synthetic_bytes;
  std::string why_not;
  std::optional<Workload> workload = make_within_memory(run.group, make, estimated_bytes, run.memory_limit, why_not);
  if (!workload) {
    for (size_t i = 0; i < run.settings.size() * static_cast<size_t>(flags.steps.blocks); ++i) run.progress.advance("out of memory");
    return {.model = configuration.description, .status = "out of memory", .reason = why_not};
  }
  std::vector<StepMemory> memory;
  for (const StepSetting& setting : run.settings) memory.push_back(measure_step_memory(run.group, *workload, setting.options));
  StepBenchOptions options = flags.steps;
  options.seed = flags.common.seed;
  options.on_progress = [&run](const std::string& done) { run.progress.advance(done); };
  const StepBenchResult result = measure_steps(run.group, *workload, run.settings, options);
  return measured_configuration(configuration.description, run.settings, result, memory, run.group.size);
}

// What an earlier run measured of each configuration; nothing: it is to be measured. Rank 0's word counts, and it alone has the figures:
// other machines may not have the file.
std::vector<std::optional<StepConfiguration>> measured_before(const StepFlags& flags, const ProcessGroup& group,
                                                              const std::vector<Configuration>& configurations) {
  const std::vector<StepConfiguration> earlier = resumable_configurations(flags);
  std::vector<std::optional<StepConfiguration>> before;
  for (const Configuration& configuration : configurations) {
    const auto found = std::ranges::find(earlier, configuration.description, &StepConfiguration::model);
    // One that did not fit is tried again: another limit, or a machine with less beside it, may have enough now.
    const bool is_here = found != earlier.end() && !found->strategies.empty();
    before.emplace_back();
    if (of_rank_0(group, is_here ? 1 : 0) == 1) before.back() = is_here ? *found : StepConfiguration();
  }
  return before;
}

void run_rank(const StepFlags& flags, const ProcessGroup& group) {
  Results results = begin_run("bench-step", flags.common, group);
  const std::vector<Configuration> configurations = make_configurations(flags);
  const std::vector<std::optional<StepConfiguration>> before = measured_before(flags, group, configurations);
  const std::vector<StepSetting> settings = make_settings(flags);
  const int to_measure = static_cast<int>(std::ranges::count_if(before, [](const auto& one) { return !one; }) * std::ssize(settings));
  MatrixRun run{.flags = flags,
                .group = group,
                .settings = settings,
                .memory_limit = memory_limit_of(flags, group.device),
                .progress = {"measuring steps", to_measure * flags.steps.blocks, group.rank == 0}};
  for (size_t i = 0; i < configurations.size(); ++i) {
    StepConfiguration configuration = before[i] ? *before[i] : measure_configuration(run, configurations[i]);
    if (group.rank != 0) continue;
    if (!flags.common.json && !flags.common.quiet) {
      run.progress.finish();
      fmt::print("{}{}{}", i > 0 ? "\n" : "", before[i] ? "measured before: " : "", configuration_in_text(configuration));
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
  add_value(app, "--model", flags.models, "named models (firkin buckets lists them) or .json\nfiles")
      ->delimiter(',')
      ->type_name(kModelType);
  add_value(app, "--batch", flags.batch_sizes, "sequences per rank and step")->delimiter(',');
  add_value(app, "--sequence", flags.sequence_lengths, "tokens per sequence")->delimiter(',');
  add_strategy_flags(app, flags.strategies, flags.caps);
  app.add_option("--synthetic-tensors", flags.synthetic_tensors, "this many equal tensors instead of a model")
      ->check(CLI::Range(int64_t{1}, int64_t{1000000}))
      ->group("Synthetic tensors");
  add_size(app, "--synthetic-size", flags.synthetic_bytes, "size of each")->needs("--synthetic-tensors")->group("Synthetic tensors");
  add_replay_flags(app, flags.job);
  app.add_flag("--resume", flags.resume, "continue an interrupted run in --out");
}

// ---- firkin bench layers: forward and backward time of every layer, and when each gradient is ready.

struct LayersFlags : RunFlags {
  JobFlags job;
  int steps = 20;
  bool keeps_perturbed = false;
};

constexpr double kMostPerturbation = 0.03;  // of a step, by what is watching it

std::string perturbation_text(const PairedRatio& ratio) {
  return fmt::format("{:+.1f} % (95 % interval {:+.1f} to {:+.1f} %)", 100 * (ratio.ratio - 1), 100 * (ratio.interval.low - 1),
                     100 * (ratio.interval.high - 1));
}

LayerProfile measure(const LayersFlags& flags, Workload& workload, const ProcessGroup& group) {
  Progress progress("stepping", flags.steps, group.rank == 0);
  LayerBenchOptions options{
      .steps = flags.steps, .seed = flags.common.seed, .on_progress = [&progress](const std::string& done) { progress.advance(done); }};
  if (auto* model = workload.module->as<TransformerLMImpl>()) {
    options.observe_forward = [model](ForwardObserver observer) { model->observe_forward(std::move(observer)); };
  }
  return measure_layers(group, workload, options);
}

void run_rank(const LayersFlags& flags, const ProcessGroup& group) {
  Results results = begin_run("bench-layers", flags.common, group);
  results.run.model = describe_job(flags.job);
  Workload workload = make_job(flags.job, group, flags.common.seed);
  const LayerProfile profile = measure(flags, workload, group);
  if (group.rank != 0) return;
  const PairedRatio& ratio = profile.watched_to_bare;
  if (ratio.ratio - 1 > kMostPerturbation && !flags.keeps_perturbed) {
    throw RuntimeError(fmt::format("the clocks change a step by {}; expected at most {:.0f} %: use more --steps, or --keep-perturbed",
                                   perturbation_text(ratio), 100 * kMostPerturbation));
  }
  results.layers = profile.times;
  results.profile = ProfileSection{.tensors = profile.tensors,
                                   .bare_backward_s = {},
                                   .hook_perturbation = ratio.ratio - 1,
                                   .hook_perturbation_ci = Interval{ratio.interval.low - 1, ratio.interval.high - 1}};
  results.notes.push_back(fmt::format("The clocks change a step by {}.", perturbation_text(ratio)));
  finish_run(flags.common, results,
             {{"layer-sizes.csv", layer_sizes_csv(*results.layers)},
              {"layer-times.csv", layer_times_csv(*results.layers)},
              {"tensors.csv", tensors_csv(profile.tensors)}});
}

}  // namespace

Run declare_bench_step(CLI::App& app) {
  auto flags = std::make_shared<StepFlags>();
  app.footer(std::string(kStrategiesInHelp) +
             "Takes about blocks x settings x (warm-up + timed) steps per configuration.\n\n"
             "step: median over blocks of the slowest rank's step. spread: slowest minus\n"
             "fastest rank. after bw, share: from the end of backward to the last gradient.\n"
             "ovlp: share of the communication hidden by backward. exposed: the step minus\n"
             "the step without communication, paired. memory: the most that tensors hold in a\n"
             "step. x torch: ratio to c10d::Reducer under the same cap, paired, 95 %\n"
             "interval.\n\n"
             "  firkin bench step --ranks 2 --batch 4 --sequence 128 --cap 1MiB,4MiB\n"
             "  firkin bench step --ranks 2 --model small,medium --resume\n"
             "  firkin bench step --config matrix.toml   with [bench.step] and batch = [2, 4]\n"
             "  firkin bench step --ranks 2 --synthetic-tensors 500\n");
  add_run_flags(app, *flags, "bench-step");
  add_matrix_flags(app, *flags);
  add_model_detail_flags(app, flags->job.model);
  add_training_flags(app, flags->job);
  add_rule_flags(app, flags->rule);
  add_block_flags(app, flags->steps, "blocks; each runs all settings once");
  return [flags, &app] {
    check_replay_alone(app);
    check_alone(app, "--synthetic-tensors", model_flag_names());
    check_alone(app, "--synthetic-tensors", {"--batch", "--sequence", "--data", "--learning-rate", "--replay"});
    make_settings(*flags);
    make_configurations(*flags);
    claim_output_folder(flags->common, writes_results());
    resumable_configurations(*flags);
    flags->common.continues = flags->resume;
    return run_on_ranks(*flags, [&](const ProcessGroup& group) { run_rank(*flags, group); });
  };
}

Run declare_bench_layers(CLI::App& app) {
  auto flags = std::make_shared<LayersFlags>();
  app.footer(
      "Trains without communication, with a clock in every gradient's hook and after\n"
      "each layer of forward. Medians over steps of the slowest rank.\n\n"
      "backward: from when the previous layer (in backward) had all its gradients\n"
      "until this one has. The first one's therefore includes the loss, and a tied\n"
      "weight is ready only at the end. The total of forward includes reading the\n"
      "batch and the loss. tensors.csv: when autograd has finished each gradient; in\n"
      "tune's, the time to write it into a bucket is included.\n\n"
      "Half of the steps run without clocks. If the clocks slow a step by over 3 %,\n"
      "nothing is written (exit code 1), unless --keep-perturbed is given.\n\n"
      "  firkin bench layers --ranks 1 --model gpt2 --batch 1\n"
      "  firkin bench layers --ranks 2 --out run      then\n"
      "  firkin predict --tensors run/tensors.csv --allreduce run/allreduce.csv\n");
  add_run_flags(app, *flags, "bench-layers");
  add_job_flags(app, flags->job);
  add_value(app, "--steps", flags->steps, "steps with clocks, and as many without")->check(CLI::Range(4, 100000));
  app.add_flag("--keep-perturbed", flags->keeps_perturbed, "write the result even if clocks slow the step");
  return [flags] {
    check_job(flags->job, flags->ranks);
    return run_on_ranks(*flags, [&](const ProcessGroup& group) { run_rank(*flags, group); });
  };
}

}  // namespace firkin::cli
