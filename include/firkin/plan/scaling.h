// Extrapolation of all-reduce times to more ranks than were measured.
//
//   const ScalingModel model(table);  // measured on 16, 32 and 64 ranks
//   model.costs(1024);                // a(x) and g(x): the forms' geometric mean
//   model.costs(ScalingForm::kRing, 1024);
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "firkin/plan/measurements.h"

namespace firkin {

// How the time of an all-reduce of x bytes on P ranks grows. c, l, b and m are fitted and at least 0; d = ceil(log2 P).
enum class ScalingForm {
  kRing,           // c + l (P - 1) + b x (P - 1) / P: 2 (P - 1) steps, each with a latency and a P-th of the data
  kTree,           // c + l d + b x d: reduce and broadcast, whole messages up and down a binomial tree
  kPipelinedTree,  // c + l d + b x + m sqrt(d x): the same in chunks of the best size (Sanders, Speck, Traeff 2009)
  // c + l d + b x: two trees at once, each rank a leaf in one of them (the same paper): full bandwidth for any P.
  kTwoTrees,
};
inline constexpr std::array kScalingForms = {ScalingForm::kRing, ScalingForm::kTree, ScalingForm::kPipelinedTree, ScalingForm::kTwoTrees};

struct FormFit {
  ScalingForm form = ScalingForm::kRing;
  std::vector<double> coefficients;  // for the terms above, in their order
};

inline constexpr int64_t kLargestWorld = 65536;

// Limits of the measured worlds to fit.
struct WorldRange {
  int64_t smallest = 2;
  int64_t largest = kLargestWorld;
};

// Worlds that span the same network as `world`: all within one node of `ranks_per_node` ranks (0: unknown, so any
// world), or all across nodes. Throws InputError if nodes would not be full.
WorldRange worlds_alike(int64_t world, int64_t ranks_per_node);

class ScalingModel {
 public:
  // Fits each form by relative least squares to the three largest measured worlds in `range`; smaller ones tell less.
  // Fits use calls of at least 4 KiB if there are any: tables hold many smaller ones, which are all latency and never
  // buckets. Throws InputError if the table has no such world.
  explicit ScalingModel(const AllReduceTable& table, WorldRange range = {});

  const std::vector<FormFit>& fits() const { return fits_; }
  const std::vector<int64_t>& fitted_worlds() const { return fitted_worlds_; }

  // a(x) and g(x) at `world` ranks. A form states growth, not absolute times: at each measured size, the time of the
  // nearest measured world (in doublings; the larger of two) is multiplied by the form's growth from there to `world`,
  // so bends of the measured curve remain. The gap keeps its measured ratio to a(x). Throws InputError unless 2 <=
  // world <= kLargestWorld.
  CommCosts costs(ScalingForm form, int64_t world) const;

  // The geometric mean of the forms, size by size.
  CommCosts costs(int64_t world) const;

 private:
  std::vector<double> seconds_at_sizes(const FormFit& fit, int64_t world) const;
  CommCosts curves(const std::vector<double>& seconds) const;

  AllReduceTable rows_;  // for the fitted worlds
  std::vector<int64_t> fitted_worlds_;
  std::vector<FormFit> fits_;
  std::vector<int64_t> sizes_;     // ascending
  std::vector<double> gap_ratio_;  // by size: g / a
};

}  // namespace firkin
