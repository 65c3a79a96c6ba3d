// All-reduce times at world sizes that nobody has measured, and what they may be instead.
//
//   const ScalingModel model(table);  // measured on 16, 32 and 64 ranks
//   model.costs(1024);                // a(x) and g(x): the forms together, each as far as it predicted what was left out
//   model.redraw(1024, 200);          // the same, as uncertain as it is
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "firkin/plan/allreduce_table.h"

namespace firkin {

// How the time of an all-reduce of x bytes on P ranks grows. c, l, b and m are fitted and at least 0; d = ceil(log2 P).
enum class ScalingForm {
  kRing,           // c + l (P - 1) + b x (P - 1) / P: 2 (P - 1) steps, each with a latency and a P-th of the data
  kTree,           // c + l d + b x d: reduce and broadcast, whole messages up and down a binomial tree
  kPipelinedTree,  // c + l d + b x + m sqrt(d x): the same in chunks of the best size (Sanders, Speck, Traeff 2009)
  kTwoTrees,  // c + l d + b x: two trees at once, of which each rank is a leaf in one (the same): full bandwidth on any number of ranks
};
inline constexpr std::array kScalingForms = {ScalingForm::kRing, ScalingForm::kTree, ScalingForm::kPipelinedTree, ScalingForm::kTwoTrees};

std::string name_of(ScalingForm form);  // "ring", "tree", "pipelined tree", "two trees"

struct FormFit {
  ScalingForm form = ScalingForm::kRing;
  std::vector<double> coefficients;      // of the terms above, in their order
  std::optional<double> left_out_error;  // root mean square of log(measured / predicted) of worlds that were left out; none of one world
  double weight = 0;                     // among the forms: as 1 / left_out_error^2, all together 1
};

inline constexpr int64_t kLargestWorld = 65536;

// The measured worlds that forms are fitted to: of these, the three largest.
struct WorldRange {
  int64_t smallest = 2;
  int64_t largest = kLargestWorld;
};

// Worlds that cross what `world` crosses: all within one node of `ranks_per_node` ranks, or all on several. Of times within a node, nothing
// follows for the network between nodes. 0 when the number is not known: any world. Throws InputError when nodes would not be full.
WorldRange worlds_alike(int64_t world, int64_t ranks_per_node);

class ScalingModel {
 public:
  // Fits each form by relative least squares to the three largest of the measured worlds in `range`: smaller ones say less. Fits and
  // weights come from calls of at least 4 KiB, where there are any: those below are many in tables, all latency, and no buckets. Throws
  // InputError when the table has no such world.
  explicit ScalingModel(const AllReduceTable& table, WorldRange range = {});

  const std::vector<FormFit>& fits() const { return fits_; }
  const std::vector<int64_t>& fitted_worlds() const { return fitted_worlds_; }

  // a(x) and g(x) at `world` ranks. A form says how times grow, not what they are: at each measured size, the time of the nearest measured
  // world (in doublings; the larger of two) is multiplied by what the form says from there to `world`. So a bend of the measured curve
  // stays a bend. The gap keeps its measured ratio to a(x). Throws InputError unless 2 <= world <= kLargestWorld.
  CommCosts costs(ScalingForm form, int64_t world) const;

  // The geometric mean of the forms by their weights, size by size.
  CommCosts costs(int64_t world) const;

  // `count` draws: each of one form, drawn by its weight, with a normal error of the logarithm at each size: the root mean square of what
  // the form missed there and at the two neighbouring sizes when a world was left out, times the square root of the doublings from the
  // nearest measured world. So sizes at which a protocol changes, where all forms fail, are uncertain, and others are not. Deterministic.
  std::vector<CommCosts> redraw(int64_t world, int count) const;

 private:
  std::vector<double> seconds_at_sizes(const FormFit& fit, int64_t world) const;
  CommCosts curves(const std::vector<double>& seconds) const;

  AllReduceTable rows_;  // of the fitted worlds
  std::vector<int64_t> fitted_worlds_;
  std::vector<FormFit> fits_;
  std::vector<int64_t> sizes_;                    // ascending
  std::vector<double> gap_ratio_;                 // by size: g / a
  std::vector<std::vector<double>> local_error_;  // by form and size
};

}  // namespace firkin
