// The result of `firkin predict` for a script and for a person.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "firkin/plan/analytic.h"
#include "firkin/plan/baselines.h"
#include "firkin/plan/cap_sweep.h"
#include "firkin/plan/curve_quality.h"
#include "firkin/plan/optimal_plan.h"
#include "firkin/plan/pytorch_caps.h"
#include "firkin/plan/scaling.h"
#include "firkin/plan/sensitivity.h"
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
  std::vector<SweepPoint> curve;
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
  std::vector<Elasticity> elasticities;
};

struct PredictResult {
  TensorProfile profile;
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
  std::optional<Extrapolation> extrapolation;  // none at a measured world; else costs are the median of its forms
  std::optional<SensitivityPrediction> sensitivity;
};

nlohmann::json predict_json(const PredictResult& result);

// Tables and the answer in words, 80 columns wide.
std::string predict_table(const PredictResult& result);

}  // namespace firkin::cli
