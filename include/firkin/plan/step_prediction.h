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
#include <string_view>
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
  double low_s = 0, high_s = 0;  // the interval by model_range()
  // The cap's mean cost over the best of those predicted with it, as a share of a step, when the model errs in the latency of a call, the
  // time of its bytes, or that of backward. One late large bucket costs more than one call too many, so a cap next to a cliff has more
  // regret than its step_s suggests.
  double expected_regret = 0;
};

// Errors the model may have, one at a time: factors on the latency of a call, the time of its bytes, and backward. The first is
// no error. Half as large for a calibrated model.
struct ModelError {
  double latency = 1, bytes = 1, compute = 1;
};
std::vector<ModelError> model_errors(const std::optional<double>& residual);

// The prediction's interval is from step_s divided by this factor to step_s times it: exp(2.74 sqrt(0.02^2 + residual^2)), with a residual
// of 6 % for a model that was not calibrated. Made to hold 95 % of measured caps in two studies; kRangeHeld says what it held since.
double model_range(const std::optional<double>& residual);

// Stands beside every such interval of a whole step. A test compares it with the kept study (docs/validation.md).
inline constexpr std::string_view kRangeHeld =
    "Such intervals held 95 % of caps in two earlier studies, 78 % in the newest (91 % where the machine kept its speed).";

// Seconds of a whole step under `plan`. Both throw std::invalid_argument if the step without communication is unknown: differences of
// plans are judged as a share of a step, never of exposed communication, which may be close to zero.
double predict_step(const StepModel& model, const BucketPlan& plan);
// One per cap, in the order given. rule.cap_bytes is not used.
std::vector<CapPrediction> predict_steps(const StepModel& model, const CapOptions& rule, std::span<const int64_t> caps);

// Seconds of a whole step under the strategy ordered. The profile must know its forward pass.
double predict_ordered_step(const StepModel& model, const BucketPlan& plan);
// The same of a simulated steady step of `ordered` or `sharded`.
double step_of_period(const StepModel& model, double period_s);
// Its buckets worth racing, the best first: the plan of a search, and equal caps from 0.25 MiB on, as far as the simulation puts them
// within 5 % of a step of the best. None has more than `most_buckets`; at most three. Each with a launch order by need.
std::vector<BucketPlan> ordered_candidates(const StepModel& model, int64_t most_buckets);

// Powers of two down from the one that holds everything: the seven largest with different buckets, or fewer. Ascending.
std::vector<int64_t> default_caps(std::span<const int64_t> sizes, const CapOptions& rule);

// Evenly on a logarithmic axis, eight to an octave, from a quarter of the smallest wanted cap to twice the gradients' size.
std::vector<int64_t> dense_caps(int64_t smallest_cap, int64_t total_bytes);

struct DistinctCaps {
  std::vector<int64_t> caps;       // ascending, each with other buckets
  std::vector<std::string> notes;  // one per dropped cap, naming the cap that stands for it
};

// Keeps the smallest of the caps that make the same buckets. Throws InputError for a cap that is not positive.
DistinctCaps distinct_caps(std::vector<int64_t> caps, std::span<const int64_t> sizes, const CapOptions& rule);

// Adds `cap` to the ascending caps, unless one of them gives the same buckets. Returns the cap that stands for it.
int64_t add_cap(std::vector<int64_t>& caps, int64_t cap, std::span<const int64_t> sizes, const CapOptions& rule);

// Four plans to calibrate on, one more than the parameters they determine: buckets of a sixtieth, a twentieth, a sixth and a third of all
// bytes. Each plan is adjusted as little as possible until no cap under `rule` makes it and `verified` does not contain it: no cap is
// calibrated on and then measured. With very few tensors there may be no such plan (five tensors nearly always suffice, one never does);
// then a plan of `verified` is used, and calibrated_on() reports it.
std::vector<BucketPlan> calibration_plans(std::span<const int64_t> sizes, const CapOptions& rule, const std::vector<BucketPlan>& verified);

// The largest number of buckets in any calibration plan. Beyond it the cost per call is extrapolated: a plan with several times as many
// buckets may look best only because of that error.
int64_t most_calibrated_buckets(const std::vector<BucketPlan>& calibration);

// Whether `plan` is one of `calibration`.
bool calibrated_on(const std::vector<BucketPlan>& calibration, const BucketPlan& plan);

// The best of all plans, within a thousandth of backward.
BucketPlan best_plan(const StepModel& model);

// The two ends of the scale.
BucketPlan one_tensor_per_bucket(size_t tensors);
BucketPlan one_bucket(size_t tensors);

}  // namespace firkin
