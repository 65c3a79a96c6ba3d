#include "bench/tuner.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

#include "bench/allreduce_bench.h"
#include "firkin/base/units.h"
#include "firkin/plan/cap_sweep.h"
#include "firkin/stats/summary.h"

namespace firkin {
namespace {

constexpr std::array kBaselines = {"none", "naive", "flat", "overlap"};  // none first: others are compared with it

int64_t total_bytes(const TensorProfile& profile) {
  return std::accumulate(profile.bytes.begin(), profile.bytes.end(), int64_t{0});
}

// Halved again and again from the power of two that holds everything.
std::vector<int64_t> default_caps(int64_t total) {
  constexpr int kCaps = 7;
  std::vector<int64_t> caps;
  for (auto cap = std::bit_ceil(static_cast<uint64_t>(total)); caps.size() < kCaps && cap > 1; cap /= 2) {
    caps.push_back(static_cast<int64_t>(cap));
  }
  return caps;
}

// Caps that lie evenly on a logarithmic axis, from a quarter of the smallest wanted cap to twice the gradients' size.
std::vector<int64_t> dense_caps(int64_t smallest, int64_t total) {
  constexpr double kPerOctave = 8;
  std::vector<int64_t> caps;
  const double first = std::log2(static_cast<double>(smallest)) - 2;
  const double last = std::log2(static_cast<double>(std::max(total, smallest))) + 1;
  for (double exponent = std::max(first, 1.0); exponent <= last; exponent += 1 / kPerOctave) {
    caps.push_back(std::llround(std::exp2(exponent)));
  }
  return caps;
}

// Predicts steps from what was measured: the step without communication, plus what the simulated backward with communication takes longer
// than the bare backward.
struct Predictor {
  const TensorProfile& profile;
  const CommCosts& costs;
  const CapOptions& rule;
  const SimulationOptions& simulation;
  double none_step_s = 0;
  double bare_backward_s = 0;

  std::vector<Prediction> predict(const std::vector<int64_t>& caps) const {
    std::vector<Prediction> predictions;
    for (const SweepPoint& point : sweep_caps(profile, costs, rule, caps, simulation)) {
      predictions.push_back(
          {.cap_bytes = point.cap_bytes, .buckets = point.buckets, .step_s = none_step_s + point.backward_s - bare_backward_s});
    }
    return predictions;
  }
};

// The fastest; among those within a thousandth of it, the one with the fewest buckets, and the smallest cap that gives them.
const Prediction& best_of(const std::vector<Prediction>& predictions) {
  constexpr double kTolerance = 1.001;
  const Prediction* best = &*std::ranges::min_element(predictions, {}, &Prediction::step_s);
  const double limit_s = best->step_s * kTolerance;
  for (const Prediction& p : predictions) {
    const auto rank = [](const Prediction& prediction) { return std::pair(prediction.buckets, prediction.cap_bytes); };
    if (p.step_s <= limit_s && rank(p) < rank(*best)) best = &p;
  }
  return *best;
}

DataParallelOptions rewrap_options(const ReadyProfile& profile, std::string_view strategy) {
  DataParallelOptions options;
  options.strategy = find_strategy(strategy);
  options.broadcast_parameters = false;  // the ranks are in step already
  options.ready_order = profile.ready_order;
  return options;
}

StepSetting cap_setting(const ReadyProfile& profile, const CapOptions& rule, int64_t cap) {
  DataParallelOptions options = rewrap_options(profile, "bucketed");
  options.cap = rule;
  options.cap.cap_bytes = cap;
  return {fmt::format("bucketed {}", format_bytes(cap)), options};
}

Measurement measurement_of(const StepBenchResult& steps, size_t setting, const std::string& name, uint64_t seed) {
  return {.name = name,
          .buckets = steps.buckets[setting],
          .step_s = median(steps.step_s[setting]),
          .step_ci = bootstrap_median(steps.step_s[setting], seed),
          .comm_s = median(steps.comm_s[setting]),
          .to_none = paired_ratio(steps.step_s[setting], steps.step_s[0], seed)};
}

std::function<void(const std::string&)> phase_progress(const TuneOptions& options, const std::string& phase, int units) {
  return [&options, phase, units](const std::string& done) {
    if (options.on_progress) options.on_progress(phase, units, done);
  };
}

StepBenchResult measure(const ProcessGroup& group, Workload& workload, const TuneOptions& options, const std::string& phase,
                        const std::vector<StepSetting>& settings, int blocks) {
  StepBenchOptions steps = options.steps;
  steps.blocks = blocks;
  steps.seed = options.seed;
  steps.on_progress = phase_progress(options, phase, blocks * static_cast<int>(settings.size()));
  return measure_steps(group, workload, settings, steps);
}

void measure_inputs(const ProcessGroup& group, Workload& workload, const TuneOptions& options, TuneResult& result) {
  ReadyProfileOptions profile{.steps = options.profile_steps, .seed = options.seed, .on_progress = {}};
  profile.on_progress = phase_progress(options, "profiling backward", options.profile_steps);
  result.profile = measure_ready_profile(group, workload, profile);

  const AllReduceBenchOptions allreduce{.sizes = allreduce_sizes(total_bytes(result.profile.tensors)),
                                        .seconds = options.allreduce_seconds,
                                        .seed = options.seed,
                                        .on_progress = phase_progress(options, "measuring all-reduce", kMostRounds)};
  result.allreduce = allreduce_table(measure_allreduce(group, allreduce), group.size);
}

// Two overlapped runs with many and with few calls, which tell the cost of a call from that of sharing the machine.
TuneCalibration calibrate_on_steps(const ProcessGroup& group, Workload& workload, const TuneOptions& options, const ReadyProfile& profile,
                                   const CommCosts& costs) {
  const int64_t odd_cap = std::max<int64_t>(total_bytes(profile.tensors) / 6, 1);  // no half, quarter, ...: not among the default caps
  std::vector<StepSetting> settings = {{"none", rewrap_options(profile, "none")}, {"overlap", rewrap_options(profile, "overlap")}};
  settings.push_back(cap_setting(profile, options.rule, odd_cap));
  const StepBenchResult steps = measure(group, workload, options, "calibrating", settings, options.calibration_blocks);

  TuneCalibration calibration;
  std::vector<MeasuredRun> runs;
  for (size_t i = 1; i < settings.size(); ++i) {
    const Measurement measured = measurement_of(steps, i, settings[i].name, options.seed);
    CapOptions rule = settings[i].options.cap;
    if (settings[i].name == "overlap") rule = {.cap_bytes = 1, .rule = CapRule::kAtMost, .first_cap_bytes = {}};
    const double communication_s = median(steps.step_s[0]) * (measured.to_none.ratio - 1);
    const double end_s = std::max(profile.bare_backward_s + communication_s, 1e-9);
    runs.push_back({.plan = assign_buckets(profile.tensors.bytes, rule), .end_s = end_s});
    calibration.runs.push_back(measured);
  }
  calibration.fit = calibrate(profile.tensors, costs, runs);
  return calibration;
}

// Adds `cap` to the sorted caps, unless one of them gives the same buckets. Returns the cap that stands for it.
int64_t add_cap(std::vector<int64_t>& caps, int64_t cap, const TensorProfile& profile, CapOptions rule) {
  const auto plan_under = [&](int64_t bytes) {
    rule.cap_bytes = bytes;
    return assign_buckets(profile.bytes, rule);
  };
  const auto same = std::ranges::find(caps, plan_under(cap), plan_under);
  if (same != caps.end()) return *same;
  caps.insert(std::ranges::upper_bound(caps, cap), cap);
  return cap;
}

size_t index_of_cap(const std::vector<CurvePoint>& curve, int64_t cap) {
  const auto found = std::ranges::find(curve, cap, [](const CurvePoint& point) { return point.predicted.cap_bytes; });
  return static_cast<size_t>(found - curve.begin());
}

void choose(const TuneOptions& options, int64_t best_cap, TuneResult& result) {
  const std::vector<std::vector<double>> cap_steps(result.steps.step_s.begin() + kBaselines.size(), result.steps.step_s.end());
  const IndifferenceSet indifference = indifference_set(cap_steps, options.seed);
  result.best_predicted = index_of_cap(result.curve, best_cap);
  result.best_measured = indifference.best;
  result.indifference = indifference.members;
  result.predicted_to_best = indifference.to_best[result.best_predicted];
}

}  // namespace

TuneResult tune(const ProcessGroup& group, Workload& workload, const TuneOptions& options) {
  TuneResult result;
  measure_inputs(group, workload, options, result);
  const CommCosts costs = comm_costs(result.allreduce, group.size);
  result.alpha_beta = fit_alpha_beta(costs.isolated.points());
  result.calibration = calibrate_on_steps(group, workload, options, result.profile, costs);

  const int64_t total = total_bytes(result.profile.tensors);
  std::vector<int64_t> caps = options.caps.empty() ? default_caps(total) : options.caps;
  std::ranges::sort(caps);
  const std::vector<int64_t> dense = dense_caps(caps.front(), total);
  Predictor predictor{.profile = result.profile.tensors,
                      .costs = costs,
                      .rule = options.rule,
                      .simulation = result.calibration.fit.options,
                      .bare_backward_s = result.profile.bare_backward_s};
  const int64_t best_cap = add_cap(caps, best_of(predictor.predict(dense)).cap_bytes, result.profile.tensors, options.rule);

  std::vector<StepSetting> settings;
  for (const char* name : kBaselines) settings.push_back({name, rewrap_options(result.profile, name)});
  for (const int64_t cap : caps) settings.push_back(cap_setting(result.profile, options.rule, cap));
  result.steps = measure(group, workload, options, "measuring steps", settings, options.steps.blocks);

  predictor.none_step_s = median(result.steps.step_s[0]);
  result.dense_curve = predictor.predict(dense);
  const std::vector<Prediction> predictions = predictor.predict(caps);
  for (size_t i = 0; i < settings.size(); ++i) {
    const Measurement measured = measurement_of(result.steps, i, settings[i].name, options.seed);
    if (i < kBaselines.size()) {
      result.strategies.push_back(measured);
    } else {
      result.curve.push_back({predictions[i - kBaselines.size()], measured});
    }
  }
  choose(options, best_cap, result);
  return result;
}

}  // namespace firkin
