// Everything the performance model says about one workload: T(b), the best uniform cap, the best plan, and how sure
// that is.
//
//   const Prediction prediction = predict({.profile = read_tensors_csv("tensors.csv"),
//                                          .table = read_allreduce_csv("allreduce.csv"),
//                                          .world_size = 8});
//   prediction.best_uniform.cap_bytes;  // the cap to use
//   prediction.best_plan.gain;          // over that
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "firkin/plan/best_plan.h"
#include "firkin/plan/bucket_plan.h"
#include "firkin/plan/cost_curve.h"
#include "firkin/plan/decision.h"
#include "firkin/plan/measurements.h"
#include "firkin/plan/ordered_plan.h"
#include "firkin/plan/sharded_plan.h"
#include "firkin/plan/uncertainty.h"

namespace firkin {

// The inputs of a prediction, summarised.
struct PredictedWorkload {
  int64_t world_size = 0;
  std::optional<int64_t> extrapolated_from = {};  // the world that was measured instead
  int64_t tensors = 0;
  int64_t gradient_bytes = 0;
  double backward_s = 0;  // without communication
  std::string rule;
  std::optional<int64_t> first_cap_bytes;
  bool gap_measured = false;
  bool compute_assumed = false;  // computing times were not measured
  SimulationOptions simulation;
  std::optional<double> latency_factor;  // if it is not 1
};

// A rule of another library or paper.
struct PredictedBaseline {
  std::string name, description;
  PredictedCap plan;  // its buckets and times
};

// The best plan, whose buckets may have any sizes.
struct PredictedPlan {
  std::vector<PredictedBucket> buckets;  // in launch order
  double backward_s = 0;
  double exposed_s = 0;
  double low_s = 0, high_s = 0;  // 95 % range, as in PredictedCap
  // Over the best uniform cap, as a fraction of its time; 0 if the plan is slower within the search's tolerance.
  double gain = 0;
  bool exact = false;  // whether it is the best of all plans in ready order
  PyTorchCaps pytorch;
};

// What the cap to use gains over PyTorch's default, as a share of backward with its communication under the default.
struct PredictedGain {
  double expected = 0;       // mean over the errors of inputs and model (possible_inputs())
  double low = 0, high = 0;  // of the middle nine tenths of these cases, and of the inputs as they are stated
};

struct PredictionInputs {
  TensorProfile profile;
  AllReduceTable table;
  int64_t world_size = 0;        // ranks; extrapolated to when the table has other worlds only (GrownCosts)
  bool compute_assumed = false;  // whether the profile's times are assumed, not measured (kOfAssumedCompute)
  CapOptions rule = {};          // its cap is ignored
  SearchOptions search = {};
  double latency_factor = 1;  // from a calibration (calibration.h)
  // How well the model fits, by the same calibration; none if it was not calibrated.
  std::optional<double> residual = std::nullopt;
  std::vector<int64_t> caps = {};  // the curve's, in bytes; empty: powers of two
  bool sensitivity = false;
  bool sharded = false;  // only for a profile that knows its forward pass; collectives are halves_of() the all-reduce
};

struct Prediction {
  PredictedWorkload workload;
  AlphaBeta alpha_beta;  // fitted to a(x)
  std::vector<PredictedCap> curve;
  PredictedCap best_uniform;  // the cap to use: of least expected regret
  PredictedPlan best_plan;
  std::vector<PredictedBaseline> baselines;
  std::optional<PredictedGain> over_default;
  std::vector<SensitivityPoint> sensitivity;  // if asked for
  std::optional<PredictedOrdered> ordered;    // only for a profile that knows its forward pass
  std::optional<PredictedSharded> sharded;    // if asked for
  std::vector<MeasurementDoubt> doubts;       // about the table, then about the profile
};

// Which advice follows. A prediction never shows a gain.
enum class PredictedAnswer {
  kLikely,         // set the cap
  kNotToldApart,   // keep PyTorch's default until steps were measured: the gain may as well be a loss
  kNothingToGain,  // keep PyTorch's default
};

// Whether a cap is within 5 % of the best one, by the share of the cases considered in which it is (PlanOdds). Such a
// share is not a frequency, so people are shown a word instead. In two studies, 78 % of the caps called likely were
// within 5 %, 62 % of those called possible, and 16 % of those called unlikely; docs/performance_model.md has later ones.
enum class NearBest { kUnlikely, kPossible, kLikely };

// share: of the draws, PredictedCap::near_best.
NearBest near_best_of(double share);

// kNothingToGain where less than kWorthMeasuring is expected; kLikely where the range of the gain excludes a loss, and
// where the gain is not known.
PredictedAnswer answer_of(const Prediction& prediction);

// Throws InputError if the inputs fail the checks of the functions it combines, or take no time at all. Thread-safe.
Prediction predict(PredictionInputs inputs);

}  // namespace firkin
