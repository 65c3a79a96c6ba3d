// What `firkin predict` computes, from its inputs to its result.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "firkin/plan/allreduce_table.h"
#include "firkin/plan/analytic.h"
#include "firkin/plan/baselines.h"
#include "firkin/plan/cap_sweep.h"
#include "firkin/plan/curve_quality.h"
#include "firkin/plan/optimal_plan.h"
#include "firkin/plan/pytorch_caps.h"
#include "firkin/plan/scaling.h"
#include "firkin/plan/sensitivity.h"
#include "firkin/plan/stragglers.h"
#include "firkin/plan/uniform_cap.h"

namespace firkin::cli {

// The model in closed form, with the alpha and beta that were fitted to a(x).
struct AnalyticPrediction {
  EvenWorkload workload;
  EqualBuckets balanced;
  EqualBuckets even;
  std::optional<GrowingBuckets> growing;  // only when communication takes at least as long as computation
};

// One way in which a(x) may grow with the world, and what is best if it is right.
struct FormPrediction {
  ScalingForm form = ScalingForm::kRing;
  double median_relative_error = 0;
  UniformCap best;
};

// A world that was not measured.
struct Extrapolation {
  std::vector<int64_t> fitted_worlds;
  std::vector<FormPrediction> forms;
  MinimaxRegretCap minimax;
};

struct SensitivityPrediction {
  std::vector<SensitivityPoint> points;
  SensitivityMap map;
  std::vector<Elasticity> elasticities;
};

// All ranks wait for the slowest, so the profile that is predicted from is the measured one times `slowest.factor`.
struct StragglerPrediction {
  size_t samples = 0;
  Straggler slowest;
  double median_backward_s = 0;  // of the profile before
};

// Of extrapolated times: the least and the most over the forms of a(x) and, beyond the measured stragglers, with and without a tail.
struct ExtrapolatedRanges {
  std::vector<TimeRange> curve;
  TimeRange best_uniform, best_plan;
  std::vector<TimeRange> baselines;
};

struct PredictInputs {
  TensorProfile profile;
  AllReduceTable table;
  std::string table_file;  // for messages
  int64_t world_size = 0;  // 0: the only one in the table
  CapOptions rule;
  std::string rule_name;
  SearchOptions search;
  std::vector<int64_t> caps;            // of the curve; empty: powers of two
  std::vector<double> rank_times = {};  // seconds of ranks, without communication; empty: every rank is as fast as the profile's
  bool sensitivity = false;
};

struct PredictResult {
  TensorProfile profile;  // of the slowest rank
  int64_t world_size = 0;
  CapOptions rule;
  std::string rule_name;
  SearchOptions search;
  AlphaBeta alpha_beta;                                          // of a(x)
  std::optional<LeaveOneOut> curve_quality, alpha_beta_quality;  // of a(x); none with fewer than three sizes
  bool gap_measured = false;
  std::vector<SweepPoint> curve;
  UniformCap best_uniform;
  PlannedBuckets best_plan;
  PyTorchCaps pytorch;
  std::vector<Baseline> baselines;
  std::optional<AnalyticPrediction> analytic;  // none when the fit has no latency, or no bandwidth limit
  std::optional<StragglerPrediction> stragglers;
  std::optional<Extrapolation> extrapolation;  // none at a measured world; else costs are the median of its forms
  std::optional<ExtrapolatedRanges> ranges;    // when the world or the stragglers are extrapolated
  std::optional<SensitivityPrediction> sensitivity;
};

// Throws InputError when the inputs do not pass the checks of plan/, or leave open which world size is meant.
PredictResult predict(PredictInputs inputs);

}  // namespace firkin::cli
