// The main job: measure a few cheap things, predict the step time for every bucket size, and check the prediction against real steps.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "bench/ready_profile.h"
#include "bench/step_bench.h"
#include "firkin/comm/process_group.h"
#include "firkin/plan/allreduce_table.h"
#include "firkin/plan/bucket_assignment.h"
#include "firkin/plan/calibration.h"
#include "firkin/plan/cost_curve.h"
#include "firkin/stats/indifference.h"
#include "firkin/stats/interval.h"
#include "workload/workload.h"

namespace firkin {

struct TuneOptions {
  std::vector<int64_t> caps;   // bytes, to be measured; empty: seven, halved again and again from one bucket for everything
  CapOptions rule;             // how buckets are filled; its cap is not used
  int calibration_blocks = 8;  // of the steps that calibrate the model
  int profile_steps = 20;
  double allreduce_seconds = 10;  // for the whole table
  StepBenchOptions steps;
  uint64_t seed = 0;
  // Called as work goes on: what is done now, how many units of it there are, and which unit ended.
  std::function<void(const std::string& phase, int units, const std::string& done)> on_progress;
};

// The predicted step time under one cap.
struct Prediction {
  int64_t cap_bytes = 0;
  int64_t buckets = 0;
  double step_s = 0;
};

// What was measured of one setting, over the blocks of the step benchmark.
struct Measurement {
  std::string name;
  int64_t buckets = 0;
  double step_s = 0;  // median
  Interval step_ci;   // 95 %
  double comm_s = 0;  // median time from the end of backward to the last gradient
  PairedRatio to_none;
};

struct CurvePoint {
  Prediction predicted;
  Measurement measured;
};

// The model's contention and overheads, fitted to runs whose plans are not among the predicted ones.
struct TuneCalibration {
  std::vector<Measurement> runs;
  Calibration fit;
};

struct TuneResult {
  ReadyProfile profile;
  AllReduceTable allreduce;
  AlphaBeta alpha_beta;
  TuneCalibration calibration;
  std::vector<Prediction> dense_curve;  // by ascending cap, close enough to draw
  std::vector<CurvePoint> curve;        // the measured caps, ascending
  std::vector<Measurement> strategies;  // none, naive, flat, overlap
  size_t best_predicted = 0;            // index into curve
  size_t best_measured = 0;             // index into curve
  std::vector<size_t> indifference;     // indices into curve: caps that cannot be told from the best measured one
  PairedRatio predicted_to_best;        // measured time at the predicted best cap, divided by that at the measured best
  StepBenchResult steps;                // raw samples; settings are strategies, then curve
};

// Collective: every rank gets the same result. Throws InputError for caps that are not positive.
TuneResult tune(const ProcessGroup& group, Workload& workload, const TuneOptions& options);

}  // namespace firkin
