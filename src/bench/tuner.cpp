#include "firkin/bench/tuner.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

#include "firkin/base/units.h"
#include "firkin/bench/allreduce_bench.h"
#include "firkin/plan/cap_sweep.h"
#include "firkin/stats/summary.h"

namespace firkin {
namespace {

constexpr std::array kBaselines = {"none", "naive", "flat", "overlap"};

int64_t total_bytes(const TensorProfile& profile) { return std::accumulate(profile.bytes.begin(), profile.bytes.end(), int64_t{0}); }

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
  CommCosts costs;
  CapOptions rule;
  double none_step_s = 0;
  double bare_backward_s = 0;

  std::vector<Prediction> predict(const std::vector<int64_t>& caps) const {
    std::vector<Prediction> predictions;
    for (const SweepPoint& point : sweep_caps(profile, costs, rule, caps)) {
      predictions.push_back({.cap_bytes = point.cap_bytes,
                             .buckets = point.buckets,
                             .step_s = none_step_s + point.backward_s - bare_backward_s});
    }
    return predictions;
  }
};

// The fastest; among those within a thousandth of it, the one with the fewest buckets, and the smallest cap that gives them.
const Prediction& best_of(const std::vector<Prediction>& predictions) {
  constexpr double kTolerance = 1.001;
  const double fastest = std::ranges::min(predictions, {}, &Prediction::step_s).step_s;
  const Prediction* best = nullptr;
  for (const Prediction& p : predictions) {
    if (p.step_s <= fastest * kTolerance && (best == nullptr || p.buckets < best->buckets)) best = &p;
  }
  return *best;
}

std::vector<StepSetting> make_settings(const std::vector<int64_t>& caps, const TuneOptions& options, const ReadyProfile& profile) {
  DataParallelOptions base;
  base.broadcast_parameters = false;
  base.ready_order = profile.ready_order;
  std::vector<StepSetting> settings;
  for (const char* name : kBaselines) {
    base.strategy = find_strategy(name);
    settings.push_back({name, base});
  }
  base.strategy = find_strategy("bucketed");
  base.cap = options.rule;
  for (const int64_t cap : caps) {
    base.cap.cap_bytes = cap;
    settings.push_back({fmt::format("bucketed {}", format_bytes(cap)), base});
  }
  return settings;
}

Measurement measurement_of(const StepBenchResult& steps, size_t setting, const std::string& name, uint64_t seed) {
  return {.name = name,
          .buckets = steps.buckets[setting],
          .step_s = median(steps.step_s[setting]),
          .step_ci = bootstrap_median(steps.step_s[setting], seed),
          .comm_s = median(steps.comm_s[setting]),
          .to_none = paired_ratio(steps.step_s[setting], steps.step_s[0], seed)};
}

size_t index_of_cap(const std::vector<CurvePoint>& curve, int64_t cap) {
  const auto found = std::ranges::find(curve, cap, [](const CurvePoint& point) { return point.predicted.cap_bytes; });
  return static_cast<size_t>(found - curve.begin());
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

}  // namespace

TuneResult tune(const ProcessGroup& group, Workload& workload, const TuneOptions& options) {
  TuneResult result;
  ReadyProfileOptions profile_options{.steps = options.profile_steps, .seed = options.seed, .on_progress = {}};
  profile_options.on_progress = phase_progress(options, "profiling backward", options.profile_steps);
  result.profile = measure_ready_profile(group, workload, profile_options);
  const int64_t total = total_bytes(result.profile.tensors);

  AllReduceBenchOptions allreduce{.sizes = allreduce_sizes(total), .seed = options.seed, .on_progress = {}};
  allreduce.seconds_per_size = options.allreduce_seconds / (2.0 * static_cast<double>(allreduce.sizes.size()));
  allreduce.on_progress = phase_progress(options, "measuring all-reduce", allreduce.rounds);
  result.allreduce = measure_allreduce(group, allreduce);
  const CommCosts costs = comm_costs(result.allreduce, group.size);
  result.alpha_beta = fit_alpha_beta(costs.isolated.points());

  std::vector<int64_t> caps = options.caps.empty() ? default_caps(total) : options.caps;
  std::ranges::sort(caps);
  Predictor predictor{result.profile.tensors, costs, options.rule, 0, result.profile.bare_backward_s};
  const std::vector<int64_t> dense = dense_caps(caps.front(), total);
  const int64_t best_cap = best_of(predictor.predict(dense)).cap_bytes;
  if (!std::ranges::binary_search(caps, best_cap)) caps.insert(std::ranges::upper_bound(caps, best_cap), best_cap);

  const std::vector<StepSetting> settings = make_settings(caps, options, result.profile);
  result.steps = measure(group, workload, options, "measuring steps", settings, options.steps.blocks);
  predictor.none_step_s = median(result.steps.step_s[0]);
  result.dense_curve = predictor.predict(dense);
  for (size_t i = 0; i < kBaselines.size(); ++i) {
    result.strategies.push_back(measurement_of(result.steps, i, settings[i].name, options.seed));
  }
  const std::vector<Prediction> predictions = predictor.predict(caps);
  for (size_t i = 0; i < caps.size(); ++i) {
    const size_t setting = kBaselines.size() + i;
    result.curve.push_back({predictions[i], measurement_of(result.steps, setting, settings[setting].name, options.seed)});
  }
  const std::vector<std::vector<double>> cap_steps(result.steps.step_s.begin() + kBaselines.size(), result.steps.step_s.end());
  const IndifferenceSet indifference = indifference_set(cap_steps, options.seed);
  result.best_predicted = index_of_cap(result.curve, best_cap);
  result.best_measured = indifference.best;
  result.indifference = indifference.members;
  result.predicted_to_best = indifference.to_best[result.best_predicted];
  return result;
}

}  // namespace firkin
