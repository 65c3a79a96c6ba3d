// What the strategy `ordered` is predicted to gain over `bucketed` at its best cap.
//
//   const PredictedOrdered ordered = predict_ordered(profile, costs, best_uniform.timeline.end_s);
//   ordered.period_s / ordered.bucketed_period_s;
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "firkin/plan/optimal_plan.h"
#include "firkin/plan/ordered_plan.h"

namespace firkin {

// Seconds from the start of backward; what ends after the end of backward runs under the next forward pass.
struct PredictedOrderedBucket {
  int64_t bucket = 0;        // its place among the buckets in gradient-ready order, from 0
  int64_t first_tensor = 0;  // the place of its first tensor in gradient-ready order, from 0
  int64_t part = 0;          // of a split tensor
  int64_t parts = 1;
  int64_t bytes = 0;
  std::vector<std::string> tensors;
  double ready_s = 0, start_s = 0, end_s = 0;
  double needed_s = 0;  // first use, seconds from the start of the next forward pass if that never waits
};

struct PredictedOrdered {
  double bucketed_period_s = 0;  // forward, backward with the best uniform cap, and the optimiser
  double period_s = 0;
  double gain = 0;     // 1 - period_s / bucketed_period_s; below 0 where ordered is slower
  double bound_s = 0;  // no plan has a shorter period
  double waited_s = 0;
  double computation_s = 0;
  double communication_s = 0;
  double agreement_s = 0;                         // after backward
  std::optional<double> low_s = {}, high_s = {};  // 95 % of the draws of uncertain inputs; none where nothing is known of errors
  std::vector<PredictedOrderedBucket> buckets;    // in launch order
  BucketPlan plan;                                // the same, for whoever simulates or runs it
};

// The agreement after backward takes as long as an all-reduce of 64 bytes.
PipelineOptions pipeline_options(const CommCosts& costs, const SimulationOptions& simulation);

// `bucketed_backward_s`: backward with its communication under the best uniform cap. Throws InputError as find_ordered_plan().
PredictedOrdered predict_ordered(const TensorProfile& profile, const CommCosts& costs, double bucketed_backward_s,
                                 const SearchOptions& search = {});

}  // namespace firkin
