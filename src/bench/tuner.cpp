#include "bench/tuner.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <fmt/format.h>

#include <algorithm>

#include "bench/allreduce_bench.h"
#include "bench/torch_peer.h"
#include "comm/across_ranks.h"
#include "firkin/base/error.h"
#include "firkin/base/units.h"
#include "firkin/ddp/module_parameters.h"
#include "firkin/plan/compression.h"
#include "firkin/plan/decision.h"
#include "firkin/stats/block_fit.h"
#include "firkin/stats/summary.h"
#include "tune_settings.h"
#include "workload/device_clock.h"

namespace firkin {
namespace {

void check_input(const Workload& workload, const TuneOptions& options) {
  for (const int64_t cap : options.caps) {
    if (cap < 1) throw InputError(fmt::format("tune: cap of {} bytes; expected at least 1", cap));
  }
  for (const std::string& hook : options.hooks) find_compression(hook, 0);
  const std::vector<NamedTensor> parameters = trainable_parameters(*workload.module);
  for (const NamedTensor& parameter : parameters) {
    if (parameter.tensor.scalar_type() == parameters[0].tensor.scalar_type()) continue;
    throw InputError(
        fmt::format("tune: {} and {} are of two dtypes; expected one, since a bucket holds one", parameters[0].name, parameter.name));
  }
}

std::function<void(const std::string&)> phase_progress(const TuneOptions& options, const std::string& phase, int units) {
  return [&options, phase, units](const std::string& done) {
    if (options.on_progress) options.on_progress(phase, units, done);
  };
}

void tell(const TuneOptions& options, const TuneResult& result) {
  if (options.on_partial) options.on_partial(result);
}

void measure_inputs(const ProcessGroup& group, Workload& workload, const TuneOptions& options, TuneResult& result) {
  ReadyProfileOptions profile{.steps = options.profile_steps, .on_progress = {}};
  profile.on_progress = phase_progress(options, "profiling backward", options.profile_steps);
  result.profile = measure_ready_profile(group, workload, profile);
  tell(options, result);

  const AllReduceBenchOptions allreduce{.sizes = allreduce_sizes(result.profile.tensors.total_bytes()),
                                        .seconds = options.allreduce_seconds,
                                        .seed = options.seed,
                                        .on_progress = phase_progress(options, "measuring all-reduce", kMostRounds)};
  result.allreduce = allreduce_table(measure_allreduce(group, allreduce), group.size);
  result.alpha_beta = fit_alpha_beta(comm_costs(result.allreduce, group.size).isolated.points());
  tell(options, result);
}

// The steps of `settings` in at most `blocks` blocks; `on_block` and `is_enough` may be empty.
StepBenchResult measure(const ProcessGroup& group, Workload& workload, const TuneOptions& options, const std::string& phase,
                        const std::vector<StepSetting>& settings, int blocks, std::function<void(const StepBenchResult&)> on_block,
                        std::function<bool(const StepBenchResult&)> is_enough = {}) {
  StepBenchOptions steps = options.steps;
  steps.blocks = blocks;
  steps.seed = options.seed;
  steps.on_progress = phase_progress(options, phase, blocks * static_cast<int>(settings.size()));
  steps.on_block = std::move(on_block);
  steps.is_enough = std::move(is_enough);
  return measure_steps(group, workload, settings, steps);
}

TuneCalibration calibrate_on_steps(const ProcessGroup& group, Workload& workload, const TuneOptions& options, const ReadyProfile& profile,
                                   const CommCosts& costs, const std::vector<BucketPlan>& plans) {
  std::vector<StepSetting> settings = {strategy_setting(profile, "none")};
  for (const BucketPlan& plan : plans) settings.push_back(plan_setting(profile, plan));
  const StepBenchResult steps = measure(group, workload, options, "calibrating", settings, options.calibration_blocks, {});

  const BlockFit fit = fit_blocks(steps.step_s);
  TuneCalibration calibration{.plans = plans, .runs = {}, .fitted_runs = {}, .none_step_s = fit[0].median, .fit = {}};
  for (size_t i = 1; i < settings.size(); ++i) {
    const Measurement measured = measurement_of(steps, fit, i, settings[i].name);
    const double communication_s = calibration.none_step_s * (measured.to_none.ratio - 1);
    calibration.fitted_runs.push_back({.plan = plans[i - 1], .end_s = std::max(profile.bare_backward_s + communication_s, 1e-9)});
    calibration.runs.push_back(measured);
  }
  calibration.fit = calibrate(profile.tensors, costs, calibration.fitted_runs);
  return calibration;
}

// costs: calibrated.
StepModel step_model(const TuneResult& result, const CommCosts& costs) {
  return {.profile = result.profile.tensors,
          .costs = costs,
          .simulation = result.calibration.fit.options,
          .none_step_s = result.calibration.none_step_s,
          .bare_backward_s = result.profile.bare_backward_s,
          .residual = result.calibration.fit.residual};
}

PlanPoint plan_point(const TensorProfile& profile, const BucketPlan& plan) {
  return {.plan = plan, .bucket_bytes = bucket_bytes(plan, profile.bytes), .predicted_s = 0, .measured = {}, .to_torch_default = {}};
}

void predict(TuneResult& result, const StepModel& model, const CapOptions& rule, const std::vector<int64_t>& dense) {
  result.dense_curve = predict_steps(model, rule, dense);
  if (result.torch_default) result.torch_default->predicted_s = predict_step(model, result.torch_default->plan);
  if (result.ordered) result.ordered->predicted_s = predict_ordered_step(model, result.ordered->plan);
}

// A rank whose library rounds otherwise must not choose otherwise.
BucketPlan plan_of_rank_0(const ProcessGroup& group, const BucketPlan& plan) {
  std::vector<double> ours;
  for (const Bucket& bucket : plan.buckets) {
    for (const int64_t value : {bucket.first, bucket.count, bucket.part, bucket.parts}) ours.push_back(static_cast<double>(value));
  }
  const auto count = static_cast<size_t>(of_rank_0(group, static_cast<double>(plan.buckets.size())));
  constexpr size_t kFields = 4;
  ours.resize(kFields * count);
  for (const int64_t bucket : plan.launch_order) ours.push_back(static_cast<double>(bucket));
  ours.resize((kFields + 1) * count, -1);
  const std::vector<double> values = all_gather(group, ours)[0];
  const auto value = [&](size_t i) { return static_cast<int64_t>(values[i]); };
  BucketPlan agreed;
  for (size_t k = 0; k < count; ++k) {
    agreed.buckets.push_back({value(kFields * k), value(kFields * k + 1), value(kFields * k + 2), value(kFields * k + 3)});
  }
  for (size_t i = kFields * count; i < values.size() && values[i] >= 0; ++i) agreed.launch_order.push_back(value(i));
  return agreed;
}

// Seconds per byte of float32 for the way to bfloat16 and back, on the slowest rank's device.
double conversion_s_per_byte(const ProcessGroup& group) {
  constexpr int64_t kElements = 1 << 20;
  const at::Tensor gradient = at::ones({kElements}, at::TensorOptions(at::kFloat).device(group.device));
  const at::Tensor wire = at::empty({kElements}, at::TensorOptions(at::kBFloat16).device(group.device));
  std::vector<double> times;
  for (int i = 0; i < 9; ++i) {
    const DeviceTime started = device_now(group.device);
    wire.copy_(gradient);
    gradient.copy_(wire);
    times.push_back(seconds_between(started, device_now(group.device)));
  }
  return max_over_ranks(group, {median(times)})[0] / static_cast<double>(gradient.nbytes());
}

// The best cap under each hook.
std::vector<HookPoint> predict_hooks(const TuneOptions& options, const StepModel& model, double conversion_s, int64_t most_buckets) {
  std::vector<HookPoint> points;
  for (const std::string& name : options.hooks) {
    const CommCosts costs = compressed(model.costs, find_compression(name, conversion_s));
    const StepModel hooked{model.profile, costs, model.simulation, model.none_step_s, model.bare_backward_s, model.residual};
    const std::vector<CapPrediction> caps = caps_to_race(hooked, options.rule, {.most_buckets = most_buckets});
    points.push_back({.hook = name, .predicted = caps[weigh(caps).choice], .measured = {}, .to_best_cap = {}});
  }
  return points;
}

// What naive, flat and overlap are compared with.
std::vector<int64_t> compared_caps(const TuneOptions& options, const TensorProfile& profile, TuneResult& result) {
  if (!options.compare) return {};
  const std::vector<int64_t> wanted = options.caps.empty() ? default_caps(profile.bytes, options.rule) : options.caps;
  auto [caps, notes] = distinct_caps(wanted, profile.bytes, options.rule);
  result.notes.insert(result.notes.end(), notes.begin(), notes.end());
  return caps;
}

// The simulation takes ready times from steps without communication, and cannot tell close plans apart: a short race does.
BucketPlan race_ordered(const ProcessGroup& group, Workload& workload, const TuneOptions& options, const ReadyProfile& profile,
                        const std::vector<BucketPlan>& candidates) {
  constexpr int kBlocks = 3;
  if (candidates.size() == 1) return candidates[0];
  std::vector<StepSetting> settings;
  for (const BucketPlan& plan : candidates) settings.push_back(ordered_setting(profile, plan));
  const StepBenchResult steps = measure(group, workload, options, "racing ordered's buckets", settings, kBlocks, {});
  const auto fastest = std::ranges::min_element(steps.step_s, {}, [](const auto& blocks) { return median(blocks); });
  return candidates[static_cast<size_t>(fastest - steps.step_s.begin())];
}

void add_race(TuneResult& result) {
  const StepBenchResult& steps = result.race.steps;
  const BlockFit fit = fit_blocks(steps.step_s);
  std::vector<Measurement> measured;
  for (size_t i = 0; i < result.race.caps.size(); ++i) {
    measured.push_back(measurement_of(steps, fit, i, fmt::format("bucketed {}", format_bytes(result.race.caps[i].cap_bytes))));
  }
  add_curve(result, result.race.caps, steps.step_s, measured);
}

// The caps, of rank 0, and their steps until the choice is clear.
Race race_caps(const ProcessGroup& group, Workload& workload, const TuneOptions& options, const StepModel& model,
               const ReadyProfile& profile, int64_t most_buckets) {
  const std::vector<int64_t> wanted = options.compare ? std::vector<int64_t>() : options.caps;
  std::vector<int64_t> caps;
  for (const CapPrediction& cap : caps_to_race(model, options.rule, {.most_buckets = most_buckets, .wanted = wanted})) {
    caps.push_back(cap.cap_bytes);
  }
  caps.resize(static_cast<size_t>(of_rank_0(group, static_cast<double>(caps.size()))), caps.back());
  for (int64_t& cap : caps) cap = static_cast<int64_t>(of_rank_0(group, static_cast<double>(cap)));
  Race race{.caps = predict_steps(model, options.rule, caps), .steps = {}};
  std::vector<StepSetting> settings;
  for (const int64_t cap : caps) settings.push_back(cap_setting(profile, options.rule, cap));
  const auto is_enough = [&](const StepBenchResult& so_far) {
    return of_rank_0(group, is_clear(weigh(race.caps, so_far.step_s), so_far.step_s[0].size()) ? 1 : 0) == 1;
  };
  race.steps = measure(group, workload, options, "racing the best caps", settings, options.race_blocks, {}, is_enough);
  return race;
}

// What is worth measuring beside the caps.
void choose_plans(const ProcessGroup& group, Workload& workload, const TuneOptions& options, const StepModel& model, TuneResult& result) {
  const TensorProfile& profile = model.profile;
  const int64_t calibrated_buckets = most_calibrated_buckets(result.calibration.plans);
  if (!profile.knows_forward()) {
    result.notes.emplace_back("ordered is not measured: no module awaits its parameters, see await_parameters()");
  } else if (workload.whole_step) {
    result.notes.emplace_back("ordered is not measured: the step is one function, and would need an OverlappedOptimizer in it");
  } else {
    std::vector<BucketPlan> candidates = ordered_candidates(model, calibrated_buckets);
    candidates.resize(static_cast<size_t>(of_rank_0(group, static_cast<double>(candidates.size()))), candidates.back());
    for (BucketPlan& plan : candidates) plan = plan_of_rank_0(group, plan);
    result.ordered = plan_point(profile, race_ordered(group, workload, options, result.profile, candidates));
  }
  result.hooks = predict_hooks(options, model, options.hooks.empty() ? 0 : conversion_s_per_byte(group), calibrated_buckets);
  for (HookPoint& hook : result.hooks) {
    hook.predicted.cap_bytes = static_cast<int64_t>(of_rank_0(group, static_cast<double>(hook.predicted.cap_bytes)));
  }
}

void note_what_was_calibrated_on(TuneResult& result, const std::vector<int64_t>& caps, CapOptions rule) {
  const auto check = [&](const std::string& name, const BucketPlan& plan) {
    if (!calibrated_on(result.calibration.plans, plan)) return;
    result.notes.push_back(fmt::format("the model was calibrated on the buckets of {}, for want of others: no test of it", name));
  };
  for (const int64_t cap : caps) {
    rule.cap_bytes = cap;
    check(format_bytes(cap), assign_buckets(result.profile.tensors.bytes, rule));
  }
  if (result.torch_default) check("PyTorch's default", result.torch_default->plan);
}

// Steps that did not choose: what the choice gains, and what is to be compared.
void confirm(const ProcessGroup& group, Workload& workload, const TuneOptions& options, const StepModel& model,
             const std::vector<int64_t>& caps, int64_t best_cap, TuneResult& result) {
  const Settings list = settings_to_measure(result, options.rule, caps, best_cap, options.compare);
  const std::vector<CapPrediction> predicted = predict_steps(model, options.rule, caps);
  const int every = std::max(options.steps.blocks / 10, 1);  // often enough to lose little, seldom enough to cost nothing
  const auto on_block = [&](const StepBenchResult& steps) {
    const auto blocks = static_cast<int>(steps.step_s[0].size());
    if (!options.on_partial || blocks == options.steps.blocks || (blocks > 1 && blocks % every != 0)) return;
    add_steps(result, steps, list.names, predicted);
    tell(options, result);
  };
  add_steps(result, measure(group, workload, options, "measuring the gain", list.settings, options.steps.blocks, on_block), list.names,
            predicted);
}

// The model takes a step for what one took during the calibration; the machine may have changed since.
void note_level(TuneResult& result) {
  constexpr double kFar = 0.05;
  const double level = result.decision.level.value_or(1);
  if (std::abs(level - 1) < kFar) return;
  result.notes.push_back(fmt::format(
      "a step without communication took {:.0f} % {} than when the model was calibrated: all predicted times are off by as much, their "
      "comparisons are not",
      100 * std::abs(level - 1), level > 1 ? "longer" : "less"));
}

}  // namespace

std::string torch_default_left_out() {
  const std::string reason = torch_peer_unavailable();
  return reason.empty() ? "" : fmt::format("PyTorch's default is not measured: {}", reason);
}

TuneResult tune(const ProcessGroup& group, Workload& workload, const TuneOptions& options) {
  check_input(workload, options);
  TuneResult result;
  if (const std::string note = torch_default_left_out(); !note.empty()) result.notes.push_back(note);
  measure_inputs(group, workload, options, result);
  const TensorProfile& profile = result.profile.tensors;
  const CommCosts alone = comm_costs(result.allreduce, group.size);

  const size_t tensors = profile.bytes.size();
  const BucketPlan torch_plan = assign_buckets(profile.bytes, kTorchDefaultCaps);
  const std::vector<BucketPlan> verified = {one_tensor_per_bucket(tensors), one_bucket(tensors), torch_plan};
  const std::vector<BucketPlan> calibration = calibration_plans(profile.bytes, options.rule, verified);
  result.calibration = calibrate_on_steps(group, workload, options, result.profile, alone, calibration);
  if (torch_default_left_out().empty()) result.torch_default = plan_point(profile, torch_plan);
  const CommCosts costs = calibrated(alone, result.calibration.fit);
  const StepModel model = step_model(result, costs);
  const int64_t most_buckets = most_calibrated_buckets(calibration);
  std::vector<int64_t> caps = compared_caps(options, profile, result);
  const std::vector<int64_t> dense = dense_caps(default_caps(profile.bytes, options.rule).front(), profile.total_bytes());
  predict(result, model, options.rule, dense);
  tell(options, result);

  result.race = race_caps(group, workload, options, model, result.profile, most_buckets);
  add_race(result);
  const int64_t chosen = result.race.caps[weigh(result.race.caps, result.race.steps.step_s).choice].cap_bytes;
  const auto agreed = static_cast<int64_t>(of_rank_0(group, static_cast<double>(chosen)));
  const int64_t best_cap = add_cap(caps, agreed, profile.bytes, options.rule);
  choose_plans(group, workload, options, model, result);
  predict(result, model, options.rule, dense);
  tell(options, result);

  note_what_was_calibrated_on(result, caps, options.rule);
  confirm(group, workload, options, model, caps, best_cap, result);
  note_level(result);
  result.complete = true;
  return result;
}

}  // namespace firkin
