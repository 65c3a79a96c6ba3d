// Predicted times of whole training steps under a bucket plan, and the plans the model is calibrated on. Measures nothing.
//
//   const StepModel model{profile, costs, calibration.options, none_step_s, bare_backward_s, calibration.residual};
//   predict_steps(model, rule, caps);  // one prediction for each cap
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "firkin/plan/allreduce_table.h"
#include "firkin/plan/bucket_plan.h"
#include "firkin/plan/cost_curve.h"
#include "firkin/plan/tensor_profile.h"
#include "firkin/plan/timeline.h"
#include "firkin/plan/uncertainty.h"

namespace firkin {

// The default of PyTorch's DistributedDataParallel (bucket_cap_mb=None).
inline constexpr CapOptions kTorchDefaultCaps = {.cap_bytes = 25 * kMiB, .rule = CapRule::kCloseWhenFull, .first_cap_bytes = 1 * kMiB};

// A step is the step without communication, plus the excess of the simulated backward over the bare backward.
struct StepModel {
  const TensorProfile& profile;
  const CommCosts& costs;  // calibrated
  SimulationOptions simulation;
  double none_step_s = 0;               // measured, without communication: more than 0
  double bare_backward_s = 0;           // measured, without hooks
  std::optional<double> residual = {};  // of the calibration (calibration.h); none: not calibrated
};

// The predicted step time under one cap.
struct CapPrediction {
  int64_t cap_bytes = 0;
  int64_t lowest_cap_bytes = 0, highest_cap_bytes = 0;  // of the caps that make the same buckets; int64's largest: no cap changes anything
  int64_t buckets = 0;
  double step_s = 0;
  double low_s = 0, high_s = 0;  // of 95 % of measured caps, by the study (docs/validation.md)
  // The cap's mean cost over the best of those predicted with it, as a share of a step, when the model errs in the latency of a call, the
  // time of its bytes, or that of backward. One late large bucket costs more than one call too many, so a cap next to a cliff has more
  // regret than its step_s suggests.
  double expected_regret = 0;
};

// What the model may be wrong in, one at a time: factors of the latency of a call, of the time of its bytes, and of backward. The first is
// no error. Half as large for a calibrated model.
struct ModelError {
  double latency = 1, bytes = 1, compute = 1;
};
std::vector<ModelError> model_errors(const std::optional<double>& residual);

// 95 % of measured steps lie within this factor of what is predicted, by the study: exp(2.74 sqrt(0.02^2 + residual^2)), with a residual of
// 6 % for a model that was not calibrated.
double model_range(const std::optional<double>& residual);

// Seconds of a whole step under `plan`. Both throw std::invalid_argument when the step without communication is not known: differences of
// plans are told by their share of a step, never by their share of what is exposed, which may be next to nothing.
double predict_step(const StepModel& model, const BucketPlan& plan);
// One per cap, in the order given. rule.cap_bytes is not used.
std::vector<CapPrediction> predict_steps(const StepModel& model, const CapOptions& rule, std::span<const int64_t> caps);

// Seconds of a whole step under the strategy ordered. The profile must know its forward pass.
double predict_ordered_step(const StepModel& model, const BucketPlan& plan);
// Buckets for it worth a race, the best first: what a search finds, and equal caps from 0.25 MiB on, of those that the simulation cannot
// tell from the best (5 % of a step). None has more than `most_buckets`; at most three. Each with a launch order by need.
std::vector<BucketPlan> ordered_candidates(const StepModel& model, int64_t most_buckets);

// Halved again and again from the power of two that holds everything: the seven largest with different buckets, fewer where there are
// fewer. Ascending.
std::vector<int64_t> default_caps(std::span<const int64_t> sizes, const CapOptions& rule);

// Evenly on a logarithmic axis, eight to an octave, from a quarter of the smallest wanted cap to twice the gradients' size.
std::vector<int64_t> dense_caps(int64_t smallest_cap, int64_t total_bytes);

struct DistinctCaps {
  std::vector<int64_t> caps;       // ascending, each with other buckets
  std::vector<std::string> notes;  // one per cap that was dropped, and for which one it was
};

// Of caps that give the same buckets the smallest. Throws InputError for a cap that is not positive.
DistinctCaps distinct_caps(std::vector<int64_t> caps, std::span<const int64_t> sizes, const CapOptions& rule);

// Adds `cap` to the ascending caps, unless one of them gives the same buckets. Returns the cap that stands for it.
int64_t add_cap(std::vector<int64_t>& caps, int64_t cap, std::span<const int64_t> sizes, const CapOptions& rule);

// Four plans to calibrate on, one more than what they are to determine, the cost of a call and what computation and communication cost
// each other: the buckets of a sixtieth of all bytes, of a twentieth, a sixth and a third, each plan moved as little as needed to be one
// that no cap under `rule` makes and that is not in `verified`. So whatever cap is measured or found best later, it was not calibrated on.
// With very few tensors there may be no such plan (five suffice nearly always, one never): then one that is to be verified is calibrated
// on, and calibrated_on() tells.
std::vector<BucketPlan> calibration_plans(std::span<const int64_t> sizes, const CapOptions& rule, const std::vector<BucketPlan>& verified);

// The most buckets of any of them. What a call costs beside a backward is known of so many calls; of several times as many, nothing is, and
// a plan that seems best for its many calls is the one in which that is wrong.
int64_t most_calibrated_buckets(const std::vector<BucketPlan>& calibration);

// Whether `plan` is one of `calibration`.
bool calibrated_on(const std::vector<BucketPlan>& calibration, const BucketPlan& plan);

// The best of all plans, within a thousandth of backward.
BucketPlan best_plan(const StepModel& model);

// The two ends of the scale.
BucketPlan one_tensor_per_bucket(size_t tensors);
BucketPlan one_bucket(size_t tensors);

}  // namespace firkin
