// Fits contention, the latency of calls during backward, and launch overhead to a few measured runs of the workload.
//
//   const Calibration calibration = calibrate(profile, costs, {{plan_a, 0.212}, {plan_b, 0.198}});
//   simulate(profile, plan, scaled(costs, calibration.latency_factor), calibration.options);
//
// Calibrate on a few plans and predict others: a cap used for calibration does not test the model.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "firkin/plan/timeline.h"

namespace firkin {

// One measured plan.
struct MeasuredRun {
  BucketPlan plan;
  // Median seconds from the start of backward to the last gradient: a step, less the step without communication, plus
  // the profile's backward_s.
  double end_s = 0;
};

struct Calibration {
  SimulationOptions options = {};
  double latency_factor = 1;             // latency during backward over latency alone; may be below 1
  double median_relative_error = 0;      // over the fitted times
  std::vector<std::string> fitted = {};  // names of the fitted parameters
  // Standard deviation of log(predicted / measured); divisor: times less parameters.
  std::optional<double> residual = {};
  std::vector<std::string> at_bound = {};  // the fitted parameters whose value is a bound of the search
};

// Whether predictions with this calibration cannot be relied on: a parameter ended at a bound, or the residual is above
// the 15 % up to which intervals of predictions were tried (docs/performance_model.md).
bool is_doubtful(const Calibration& calibration);

// Least squares of log(predicted / measured). One or two runs determine the slowdown of computation, three also the
// overhead per call, four also a factor on the latency of all-reduces; what has no influence on the runs gets no
// effect. Deterministic. Throws InputError without runs, if a plan does not fit the profile, or if a time is not
// positive.
Calibration calibrate(const TensorProfile& profile, const CommCosts& costs, const std::vector<MeasuredRun>& runs);

// Four plans to calibrate on, one more than the parameters: buckets of a sixtieth, a twentieth, a sixth and a third of
// all bytes, adjusted as little as possible until no cap under `rule` makes them and `verified` does not contain them,
// so that no plan is both calibrated on and verified. With too few tensors there may be none; calibrated_on() tells.
std::vector<BucketPlan> calibration_plans(std::span<const int64_t> sizes, const CapOptions& rule, const std::vector<BucketPlan>& verified);

// The largest number of buckets in a calibration plan; beyond it the cost per call is extrapolated.
int64_t most_calibrated_buckets(const std::vector<BucketPlan>& calibration);

// Whether `plan` is one of `calibration`.
bool calibrated_on(const std::vector<BucketPlan>& calibration, const BucketPlan& plan);

}  // namespace firkin
