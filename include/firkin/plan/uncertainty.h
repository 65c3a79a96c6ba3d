// How sure a choice of buckets is: what plans take when what was measured is redrawn within its errors.
//
//   const CapOdds odds(profile, with_model_errors({}, {.costs = costs}), {.rule = CapRule::kAtMost});
//   odds.least_regret().caps;  // the caps to take when one does not know which draw is the truth
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "firkin/plan/allreduce_table.h"
#include "firkin/plan/uniform_cap.h"

namespace firkin {

// One world that the measurements allow.
struct InputDraw {
  double compute_factor = 1;  // of ready times and the end of backward
  CommCosts costs;
  SimulationOptions simulation = {};
};

inline constexpr int kDraws = 200;

// a(x) and g(x) of this world size, kDraws times: each size's median with a normal error of its logarithm, 1.2533 stdev_s / sqrt(samples)
// (what a median is off by under normal noise), the same for a and g. Sizes without stdev_s or samples stay as they are. Empty when none
// has both: then nothing can be said. Deterministic.
std::vector<CommCosts> redraw_costs(const AllReduceTable& table, int64_t world_size);

// A draw for each of `costs`. `compute_error`: the standard error of ready times and the end of backward together, as a fraction.
// Deterministic.
std::vector<InputDraw> redraw(std::vector<CommCosts> costs, const SimulationOptions& simulation, double compute_error = 0);

// The same with what the model may be wrong in (step_prediction.h). Of `nominal` alone where there is no draw.
std::vector<InputDraw> with_model_errors(std::vector<InputDraw> draws, const InputDraw& nominal,
                                         const std::optional<double>& residual = {});

// 95 % of the draws' times under `plan` lie between. Not for no draws.
Interval drawn_times(const TensorProfile& profile, const std::vector<InputDraw>& draws, const BucketPlan& plan);

struct PlanOdds {
  double near_best = 0;        // P(best): the part of the draws in which no uniform cap is more than 1 % faster
  double expected_regret = 0;  // mean over the draws of T / (T of the best uniform cap) - 1, not below 0
};

// Every distinct partition that a uniform cap makes, in every draw. The draws are shared, so what plans have in common cancels when they
// are compared. O(draws * partitions * buckets), cut to about four million buckets.
class CapOdds {
 public:
  // Throws InputError as distinct_plans() does, and when there is no draw.
  CapOdds(const TensorProfile& profile, std::vector<InputDraw> draws, const CapOptions& options, const SearchOptions& search = {});

  // Of any plan of the profile.
  PlanOdds of(const BucketPlan& plan) const;

  // The caps of least expected regret; of those within a thousandth of a step, the ones with the fewest buckets.
  const DistinctPlan& least_regret() const;

  bool exhaustive() const { return caps_.exhaustive; }

 private:
  PlanOdds odds(const std::vector<double>& end_s) const;

  std::vector<TensorProfile> profiles_;  // [draw]
  std::vector<InputDraw> draws_;
  DistinctPlans caps_;
  std::vector<std::vector<double>> end_s_;  // [cap][draw]
  std::vector<double> best_s_;              // [draw]
};

}  // namespace firkin
