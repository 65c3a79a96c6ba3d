// How sure a choice of buckets is: what plans take when what was measured is redrawn within its errors.
//
//   const CapOdds odds(profile, redraw(redraw_costs(table, 8), simulation), {.rule = CapRule::kAtMost});
//   odds.of(plan).low_s;               // 95 % of the draws lie between this and high_s
//   odds.least_regret().cap_bytes;     // the cap to take when one does not know which draw is the truth
#pragma once

#include <cstdint>
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

struct PlanOdds {
  double low_s = 0, high_s = 0;  // 95 % of the draws lie between
  double near_best = 0;          // P(best): the part of the draws in which no uniform cap is more than 1 % faster
  double expected_regret = 0;    // mean over the draws of T / (T of the best uniform cap) - 1, not below 0
};

struct LeastRegretCap {
  int64_t cap_bytes = 0;
  int64_t lowest_cap_bytes = 0;
  int64_t highest_cap_bytes = 0;
  BucketPlan plan;
  PlanOdds odds;
  bool exhaustive = true;  // every distinct partition was tried in every draw; else caps that differ by little were skipped
};

// Every distinct partition that a uniform cap makes, in every draw. The draws are shared, so what plans have in common cancels when they
// are compared. O(draws * partitions * buckets), cut to about four million buckets.
class CapOdds {
 public:
  // Throws InputError as distinct_plans() does, and when there is no draw.
  CapOdds(const TensorProfile& profile, std::vector<InputDraw> draws, const CapOptions& options, const SearchOptions& search = {});

  // Of any plan of the profile.
  PlanOdds of(const BucketPlan& plan) const;

  // The cap of least expected regret; of those within a quarter of it, which 200 draws do not tell apart, the one with the fewest buckets.
  LeastRegretCap least_regret() const;

 private:
  PlanOdds odds(std::vector<double> end_s) const;

  std::vector<TensorProfile> profiles_;  // [draw]
  std::vector<InputDraw> draws_;
  double tolerance_ = 0;
  DistinctPlans caps_;
  std::vector<std::vector<double>> end_s_;  // [cap][draw]
  std::vector<double> best_s_;              // [draw]
};

}  // namespace firkin
