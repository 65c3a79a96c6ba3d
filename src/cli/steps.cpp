// The commands that step a job: `bench step` (under strategies and caps, for several models and shapes), `bench layers`
// (the share of each layer in a step), `trace` (what ran when) and `tune`.
#include <c10/core/CachingDeviceAllocator.h>

#include <chrono>
#include <tuple>

#include "bench/ready_profile.h"
#include "bench/step_bench.h"
#include "bench/step_memory.h"
#include "bench/step_runner.h"
#include "bench/step_trace.h"
#include "comm/across_ranks.h"
#include "firkin/base/json_text.h"
#include "firkin/base/progress.h"
#include "firkin/comm/rank_info.h"
#include "job.h"
#include "tune/measure.h"
#include "workload/transformer.h"

#include <torch/headeronly/version.h>

namespace firkin::cli {
namespace {

// What is trained: one row of the matrix.
struct Configuration {
  JobFlags job;
  ModelDescription description;
};

// `none` always comes first, since the others are compared with it.
std::vector<StepSetting> settings_of(const StepFlags& flags) {
  std::vector<std::string> strategies = flags.strategies;
  std::erase(strategies, "none");
  strategies.insert(strategies.begin(), "none");
  return make_settings(strategies, flags.caps, flags.rule);
}

// The configurations in the order in which they are measured. Throws InputError.
std::vector<Configuration> make_configurations(const StepFlags& flags) {
  std::vector<Configuration> configurations;
  for (const JobFlags& job : jobs_of(flags)) {
    check_job_flags(job);
    configurations.push_back({job, describe_job(job)});
  }
  return configurations;
}

// What differs between an earlier run and one that these flags would start here: "batch 4, now 2", "host a, now b".
// Empty if nothing does.
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
    if (name == "memory-limit") continue;  // the limit does not affect the times of what fits
    const auto before = earlier.settings.find(name);
    facts.emplace_back("--" + name, before == earlier.settings.end() ? "" : before->second, value);
  }
  for (const auto& [name, before, after] : facts) {
    if (before != after)
      return fmt::format("{} {}, now {}", name, before.empty() ? "(not given)" : before, after.empty() ? "(not given)" : after);
  }
  return "";
}

// The configurations that an earlier, interrupted run with the same settings left in --out; none if it has no
// results.json. Throws InputError if that is no result of bench step, or was measured with other settings, on another
// machine or by another version.
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

// The bytes that this rank may use. Without --memory-limit a device may be filled: it reports by itself when it is full.
int64_t memory_limit_of(const StepFlags& flags, c10::Device device) {
  if (device.is_cpu() || flags.job.memory_limit_bytes)
    return available_memory(flags.job.memory_limit_bytes, flags.ranks) / local_ranks(flags.ranks);
  return static_cast<int64_t>(c10::getDeviceAllocator(device.type())->getMemoryInfo(device.index()).second);
}

// "45 s", "6 min", "1.5 h"
std::string rounded_time(double seconds) {
  if (seconds < 90) return fmt::format("{:.0f} s", seconds);
  return seconds < 90 * 60 ? fmt::format("{:.0f} min", seconds / 60) : fmt::format("{:.1f} h", seconds / 3600);
}

// The configurations that no earlier run has measured.
struct ToMeasure {
  size_t configurations = 0;
  double work = 0;  // work_of() those that have not begun yet
  bool is_announced = false;
};

// Bytes of gradients times tokens of a step, which a step's time roughly grows with.
double work_of(const ModelDescription& model) {
  const auto tokens = static_cast<double>(model.batch_size.value_or(1) * model.sequence_length.value_or(1));
  return std::max(1.0, tokens * static_cast<double>(model.gradient_bytes.value_or(1)));
}

// An estimate before any block has run: the seconds of all blocks of a setting whose first steps, those in which memory
// was measured, took `memory_s`.
double seconds_of_blocks(const BlockFlags& flags, const StepSetting& setting, double memory_s) {
  const int learned = steps_to_learn(setting.options);
  const double of_block = flags.warmup_steps + learned + flags.timed_steps;
  return memory_s * flags.blocks * of_block / (2 + learned);
}

StepConfiguration measure_configuration(const StepFlags& flags, const ProcessGroup& group, const std::vector<StepSetting>& settings,
                                        const Configuration& configuration, int64_t memory_limit, ToMeasure& to_measure,
                                        Progress& progress) {
  const double work = work_of(configuration.description);
  to_measure.work -= work;
  const auto make = [&] { return make_job(configuration.job, group, flags.common.seed); };
  const int64_t estimated_bytes = process_bytes(estimate_job_memory(configuration.job));
  std::string why_not;
  std::optional<Workload> workload = make_within_memory(group, make, estimated_bytes, memory_limit, why_not);
  if (!workload) {
    for (size_t i = 0; i < settings.size() * static_cast<size_t>(flags.steps.blocks); ++i) progress.advance("out of memory");
    return {.model = configuration.description, .status = "out of memory", .reason = why_not};
  }
  std::vector<StepMemory> memory;
  double expected_s = 0;
  for (const StepSetting& setting : settings) {
    const auto memory_started = std::chrono::steady_clock::now();
    memory.push_back(measure_step_memory(group, *workload, setting.options));
    expected_s += seconds_of_blocks(flags.steps, setting, seconds_since(memory_started));
  }
  const double all_to_this = 1 + std::max(0.0, to_measure.work) / work;  // the work that is left over this configuration's
  if (group.rank == 0 && !flags.common.quiet && !std::exchange(to_measure.is_announced, true)) {
    progress.finish();
    fmt::print(stderr, "about {}: {} of {} settings in {} blocks\n", rounded_time(expected_s * all_to_this),
               to_measure.configurations == 1 ? "one configuration" : fmt::format("{} configurations", to_measure.configurations),
               settings.size(), flags.steps.blocks);
  }
  StepBenchOptions options{
      .blocks = {.most = flags.steps.blocks, .seed = flags.common.seed}, .steps = flags.steps, .communication_alone = true};
  const auto started = std::chrono::steady_clock::now();
  const size_t all_visits = settings.size() * static_cast<size_t>(flags.steps.blocks);
  size_t visits = 0;
  options.on_progress = [&](const std::string& done) {
    const double visit_s = seconds_since(started) / static_cast<double>(++visits);
    const double remaining_s = visit_s * (static_cast<double>(all_visits) * all_to_this - static_cast<double>(visits));
    // The first block has every setting once; before it ends, a visit may be of an unusually fast or slow one.
    const bool is_known = visits >= settings.size() && remaining_s >= 1;
    progress.advance(is_known ? fmt::format("{}, about {} left", done, rounded_time(remaining_s)) : done);
  };
  const std::vector<SettingSteps> steps = measure_steps(group, *workload, settings, options);
  return measured_configuration(configuration.description, settings, steps, memory, group.size);
}

// What an earlier run measured of each configuration; none if it is yet to be measured. Rank 0 alone reads the file,
// which other machines may not have, and only it gets the figures.
std::vector<std::optional<StepConfiguration>> measured_before(const StepFlags& flags, const ProcessGroup& group,
                                                              const std::vector<Configuration>& configurations) {
  const std::vector<StepConfiguration> earlier = on_rank_0_alone(group, [&] { return resumable_configurations(flags); });
  std::vector<std::optional<StepConfiguration>> before;
  for (const Configuration& configuration : configurations) {
    const auto found = std::ranges::find(earlier, configuration.description, &StepConfiguration::model);
    // A configuration that did not fit is tried again: the limit may have changed, or the machine may have more free
    // memory.
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
  const std::vector<StepSetting> settings = settings_of(flags);
  ToMeasure to_measure;
  for (size_t i = 0; i < configurations.size(); ++i) {
    if (before[i]) continue;
    ++to_measure.configurations;
    to_measure.work += work_of(configurations[i].description);
  }
  const int64_t memory_limit = memory_limit_of(flags, group.device);
  Progress progress("measuring steps", static_cast<int>(to_measure.configurations * settings.size()) * flags.steps.blocks, group.rank == 0);
  for (size_t i = 0; i < configurations.size(); ++i) {
    StepConfiguration configuration =
        before[i] ? *before[i] : measure_configuration(flags, group, settings, configurations[i], memory_limit, to_measure, progress);
    if (group.rank != 0) continue;
    if (!flags.common.json && !flags.common.quiet) {
      progress.finish();
      fmt::print("{}{}{}", i > 0 ? "\n" : "", before[i] ? "measured before: " : "", configuration_in_text(configuration));
      std::fflush(stdout);
    }
    results.configurations.push_back(std::move(configuration));
    results.complete = i + 1 == configurations.size();
    if (results.complete) break;
    write_run_files(flags.common, results);
  }
  if (group.rank != 0) return;
  finish_run(flags.common, results, {}, "\n" + answer_in_text(results));
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
  results.layers = profile.times;
  results.profile = MeasuredProfile{.tensors = profile.tensors, .bare_backward_s = {}, .hook_perturbation = ratio.ratio - 1};
  constexpr double kMostPerturbation = 0.03;
  results.notes.push_back(fmt::format("The clocks change a step by {:+.1f} % (95 % interval {:+.1f} to {:+.1f} %){}.",
                                      100 * (ratio.ratio - 1), 100 * (ratio.interval.low - 1), 100 * (ratio.interval.high - 1),
                                      ratio.ratio - 1 > kMostPerturbation ? ", and so these times: more --steps make it sure" : ""));
  finish_run(flags.common, results, {{"tensors.csv", tensors_csv(profile.tensors)}});
}

// "trace-naive.json", "trace-bucketed-4MiB.json"
std::string file_name(const StepSetting& setting) {
  const std::string_view strategy = setting.options.strategy.name;
  return setting.cap_bytes ? fmt::format("trace-{}-{}MiB.json", strategy, short_mib(*setting.cap_bytes))
                           : fmt::format("trace-{}.json", strategy);
}

void run_rank(const TraceFlags& flags, const std::vector<StepSetting>& settings, const ProcessGroup& group) {
  Results results = begin_run("trace", flags.common, group);
  results.run.model = describe_job(flags.job);
  Workload workload = make_job(flags.job, group, flags.common.seed);
  std::vector<OutputFile> files;
  {
    Progress progress("tracing", static_cast<int>(settings.size()), group.rank == 0);
    for (const StepSetting& setting : settings) {
      const auto ranks = trace_steps(group, workload, setting.options, {.warmup_steps = flags.warmup_steps, .steps = flags.steps});
      if (group.rank != 0) continue;
      TraceRow row = row_of(ranks, setting);
      row.file = file_name(setting);
      results.traces.push_back(std::move(row));
      files.push_back({file_name(setting), dump_json(chrome_trace(ranks)) + "\n"});
      progress.advance(setting.name);
    }
  }
  if (group.rank == 0) finish_run(flags.common, results, files);
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
      partial.notes = notes_of(so_far);
      write_run_files(flags.common, partial, tables_of(so_far));
    };
  }
  const Tuning tuned = tune(group, workload, options);
  options.on_progress = {};
  if (!is_rank_0) return;
  add_sections(tuned, results);
  results.notes = notes_of(tuned);
  finish_run(flags.common, results, tables_of(tuned));
}

}  // namespace

int run(StepFlags& flags) {
  settings_of(flags);
  make_configurations(flags);
  if (!rank_info_unless_alone()) resumable_configurations(flags);  // reports what is wrong once, before any rank starts
  flags.common.continues = flags.resume;
  return run_on_ranks(flags, [&](const ProcessGroup& group) { run_rank(flags, group); });
}

int run(LayersFlags& flags) {
  check_job(flags.job, flags.ranks);
  return run_on_ranks(flags, [&](const ProcessGroup& group) { run_rank(flags, group); });
}

int run(TraceFlags& flags) {
  check_job(flags.job, flags.ranks);
  const std::vector<StepSetting> settings = make_settings(flags.strategies, flags.caps, flags.rule);
  return run_on_ranks(flags, [&](const ProcessGroup& group) { run_rank(flags, settings, group); });
}

int run(TuneFlags& flags) {
  const double seconds = flags.seconds.value_or(flags.compare ? PhaseOptions().seconds : 120);
  TuneOptions options{.phases = phases_of(seconds, flags.blocks, flags.caps),
                      .sharded = flags.sharded,
                      .rule = flags.rule,
                      .profile_steps = flags.profile_steps,
                      .allreduce_seconds = flags.allreduce_seconds,
                      .steps = flags.steps,
                      .seed = flags.common.seed};
  options.phases.compare = flags.compare;
  check_job(flags.job, flags.ranks);
  return run_on_ranks(flags, [&](const ProcessGroup& group) { run_rank(flags, options, group); });
}

}  // namespace firkin::cli
