// What `firkin tune` found: the inputs, the predictions, and the steps that they are checked with.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "bench/ready_profile.h"
#include "bench/step_bench.h"
#include "firkin/plan/allreduce_table.h"
#include "firkin/plan/bucket_plan.h"
#include "firkin/plan/calibration.h"
#include "firkin/plan/cost_curve.h"
#include "firkin/plan/decision.h"
#include "firkin/stats/block_fit.h"
#include "firkin/stats/indifference.h"
#include "firkin/stats/interval.h"
#include "firkin/stats/paired.h"

namespace firkin {

// The chosen cap, where it is measured beside strategies.
inline constexpr std::string_view kChoiceName = "chosen cap";

// What was measured of one setting, over the blocks of the step benchmark.
struct Measurement {
  std::string name;
  int64_t buckets = 0;
  double step_s = 0;  // of a typical block (block_fit.h)
  Interval step_ci;   // 95 %; unbounded with fewer than kFewestSamples blocks
  double comm_s = 0;  // median time from the end of backward to the last gradient
  PairedRatio to_none;
};

struct CurvePoint {
  CapPrediction predicted;
  Measurement measured;
};

// The model's contention and overheads, fitted to runs whose plans are not among the predicted ones.
struct TuneCalibration {
  std::vector<BucketPlan> plans;
  std::vector<Measurement> runs;         // one per plan
  std::vector<MeasuredRun> fitted_runs;  // the same, as the model was fitted to them
  double none_step_s = 0;                // median step without communication, in the same blocks
  Calibration fit;
};

// The few best predicted caps, in blocks until the choice is clear.
struct Race {
  std::vector<CapPrediction> caps;  // ascending
  StepBenchResult steps;            // of these
};

// A way to cut the gradients that is no cap of the curve.
struct PlanPoint {
  BucketPlan plan;                    // over profile.tensors
  std::vector<int64_t> bucket_bytes;  // one per bucket
  double predicted_s = 0;             // step
  Measurement measured;               // empty until measured
  // Its step divided by that of PyTorch's default: below 1, switching to it gains. Nothing when the default was not measured.
  std::optional<PairedRatio> to_torch_default;
};

// The best cap with gradients in another type on the wire.
struct HookPoint {
  std::string hook;         // "bf16"
  CapPrediction predicted;  // its cap in bytes of the gradients, as all caps
  Measurement measured;     // empty until measured
  PairedRatio to_best_cap;  // its step divided by that at the chosen cap
};

// While a measurement is under way, what is not known yet is empty: `curve` until the first block of steps is complete.
struct TuneResult {
  ReadyProfile profile;
  AllReduceTable allreduce;
  AlphaBeta alpha_beta;
  TuneCalibration calibration;
  std::vector<CapPrediction> dense_curve;  // by ascending cap, close enough to draw
  Race race;
  std::vector<CurvePoint> curve;  // ascending: the caps that were raced; with TuneOptions::compare those of its blocks
  // none, then with compare naive, flat, overlap, then torch default, ordered, hooks where measured; without compare the chosen cap last.
  std::vector<Measurement> strategies;
  std::optional<PlanPoint> torch_default;          // c10d::Reducer, 1 MiB and then 25 MiB; nothing where this LibTorch's cannot be used
  std::optional<PlanPoint> ordered;                // nothing where no module awaits its parameters
  std::optional<PairedRatio> ordered_to_best_cap;  // its step divided by that at the chosen cap
  std::vector<HookPoint> hooks;                    // those asked for
  size_t best_predicted = 0;                       // index into curve
  size_t best_measured = 0;                        // index into curve
  std::vector<size_t> indifference;                // indices into curve: caps that cannot be told from the best measured one
  PairedRatio predicted_to_best;                   // measured time at the predicted best cap, divided by that at the measured best
  Decision decision;                               // among race.caps; the gain from `steps`, which did not choose
  StepBenchResult steps;                           // raw samples; settings are strategies, then with compare the curve's
  std::vector<std::string> notes;                  // what was left out, shared or not kept apart, one sentence each
  int blocks_done = 0;                             // of the steps
  bool complete = false;
};

// What the settings of a step benchmark were: strategies first, none before all, then caps.
struct SettingNames {
  std::vector<std::string> strategies;
  std::vector<int64_t> caps;            // ascending
  int64_t best_cap = 0;                 // of `caps`, the one that the race chose
  std::optional<size_t> torch_default;  // index of the setting
  std::optional<size_t> ordered;        // index of the setting
  std::vector<size_t> hooks;            // indices of the settings
  CapOptions rule;                      // of the caps
};

// fit: of steps.step_s.
Measurement measurement_of(const StepBenchResult& steps, const BlockFit& fit, size_t setting, const std::string& name);

// Fills everything that follows from the race, or from the caps of a comparison: the curve, its best and what is tied with it.
void add_curve(TuneResult& result, const std::vector<CapPrediction>& predicted, const std::vector<std::vector<double>>& step_s,
               const std::vector<Measurement>& measured);

// Fills everything that follows from the steps.
void add_steps(TuneResult& result, const StepBenchResult& steps, const SettingNames& settings, const std::vector<CapPrediction>& predicted);

}  // namespace firkin
