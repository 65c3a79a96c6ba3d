// All-reduce times at world sizes that nobody has measured, and how far apart the guesses are.
//
//   const ScalingModel model(table);               // measured on 16, 32 and 64 ranks
//   const TimeRange range = model.range(1024, 25 << 20);
//   // range.low_s to range.high_s is the spread between three models: not a confidence interval
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "firkin/plan/allreduce_table.h"
#include "firkin/plan/uniform_cap.h"

namespace firkin {

// How the time of an all-reduce of x bytes on P ranks grows. c, l and b are fitted and at least 0; d = ceil(log2 P).
enum class ScalingForm {
  kRing,           // c + l (P - 1) + b x (P - 1) / P: 2 (P - 1) steps, each with a latency and a P-th of the data
  kTree,           // c + l d + b x d: reduce and broadcast, whole messages up and down a binomial tree
  kPipelinedTree,  // c + l d + b x + m sqrt(d x): the same in chunks of the best size (Sanders, Speck, Traeff 2009)
};
inline constexpr std::array kScalingForms = {ScalingForm::kRing, ScalingForm::kTree, ScalingForm::kPipelinedTree};

std::string name_of(ScalingForm form);  // "ring", "tree", "pipelined tree"

struct FormFit {
  ScalingForm form = ScalingForm::kRing;
  std::vector<double> coefficients;  // of the terms above, in their order
  double median_relative_error = 0;  // at the measured points
};

struct TimeRange {
  double low_s = 0;
  double median_s = 0;  // of the forms
  double high_s = 0;
};

inline constexpr int64_t kLargestWorld = 65536;

class ScalingModel {
 public:
  // Fits each form by relative least squares to the measured worlds of at least `smallest_world` ranks. 0: the three largest worlds of at
  // least two ranks, because smaller ones often stay within a machine and say little about the network between machines.
  // Throws InputError when the table has no such world.
  explicit ScalingModel(const AllReduceTable& table, int64_t smallest_world = 0);

  const std::vector<FormFit>& fits() const { return fits_; }
  const std::vector<int64_t>& fitted_worlds() const { return fitted_worlds_; }

  // a(x) and g(x) at `world` ranks: at each measured size the form's time, corrected by what the form missed at that size (the median over
  // the fitted worlds of measured / form). So a bend of the measured curve stays a bend. The gap keeps its measured ratio to a(x). Throws
  // InputError unless 2 <= world <= kLargestWorld.
  CommCosts costs(ScalingForm form, int64_t world) const;

  // The median of the forms, size by size.
  CommCosts median_costs(int64_t world) const;

  // The isolated time of one size under the three forms. Their spread says how little is known; it is no confidence interval.
  TimeRange range(int64_t world, double bytes) const;

 private:
  std::vector<double> seconds_at_sizes(size_t form, int64_t world) const;
  CommCosts curves(const std::vector<double>& seconds) const;

  std::vector<int64_t> fitted_worlds_;
  std::vector<FormFit> fits_;
  std::vector<int64_t> sizes_;                   // ascending
  std::vector<double> gap_ratio_;                // by size: g / a
  std::vector<std::vector<double>> correction_;  // by form and size
};

// The uniform cap whose regret is least in the worst case: of all distinct partitions, the one that minimises the largest, over the given
// costs, of T(cap) / (the best T under those costs) - 1. Ties, within search.tolerance, go to fewer buckets.
struct MinimaxRegretCap {
  int64_t cap_bytes = 0;
  int64_t lowest_cap_bytes = 0;
  int64_t highest_cap_bytes = 0;
  BucketPlan plan;
  double largest_regret = 0;
  std::vector<double> end_s;  // under each of the costs
};

MinimaxRegretCap find_minimax_regret_cap(const TensorProfile& profile, const std::vector<CommCosts>& costs, const CapOptions& options,
                                         const SearchOptions& search = {});

}  // namespace firkin
