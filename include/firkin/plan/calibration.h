// Contention, the latency of calls beside a backward, and launch overhead, from a few measured runs of the workload that is to be
// predicted.
//
//   const Calibration calibration = calibrate(profile, costs, {{plan_a, 0.212}, {plan_b, 0.198}});
//   if (!calibration.warning.empty()) fmt::print(stderr, "{}\n", calibration.warning);
//   simulate(profile, plan, calibrated(costs, calibration), calibration.options);
//
// Calibrate on a few plans and predict others: a cap that was calibrated on is no test of the model. Take more times than parameters: only
// then is there a residual that says how well the model fits.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "firkin/plan/timeline.h"

namespace firkin {

// One plan as it really ran.
struct MeasuredRun {
  BucketPlan plan;
  // Median, from the start of backward to the last gradient: a step, less the step without communication, plus backward_s.
  double end_s = 0;
  std::optional<double> compute_end_s = std::nullopt;  // median end of the backward computation, where that was measured as well
};

// The parameters, as Calibration::fitted names them.
inline constexpr const char *kSlowdown = "the slowdown", *kComputeSlowdown = "the slowdown of computation",
                            *kLatencyFactor = "the latency factor", *kCallOverhead = "the overhead per call";

struct Calibration {
  SimulationOptions options = {};
  double latency_factor = 1;                 // what latency is beside a backward, over what it is alone: may be less
  double median_relative_error = 0;          // of the fitted times against the measured ones
  double largest_relative_error = 0;         // the same, worst case
  std::vector<std::string> fitted = {};      // names of the parameters that were fitted, simplest first
  std::optional<double> residual = {};       // standard deviation of log(predicted / measured), with a divisor of times less parameters
  std::vector<double> standard_errors = {};  // of each of `fitted`, in its unit; empty without a residual, or where one is not determined
  std::string warning = {};                  // empty, or which of them the runs do not determine: other values would have fitted as well
};

// Least squares of log(predicted / measured). The number of measured times decides what is fitted, so that one more is left than there are
// parameters: with one or two, a slowdown common to computation and communication; with three, the overhead per call as well; with four or
// more, the slowdown of computation, a factor on the latency of all-reduces, and the overhead. A parameter that has no influence on these
// runs stays at "none". Standard errors are those of the model made linear at the fit. Deterministic; a few hundred simulations per
// parameter. `known`: the value of each parameter that is not fitted.
// Throws InputError when there is no run, a plan does not fit the profile, or a time is not positive.
Calibration calibrate(const TensorProfile& profile, const CommCosts& costs, const std::vector<MeasuredRun>& runs,
                      const SimulationOptions& known = {});

// The costs as they are beside a backward.
CommCosts calibrated(const CommCosts& costs, const Calibration& calibration);

}  // namespace firkin
