// How the times of caps change when inputs are redrawn within their errors, or one is multiplied.
//
//   const CapOdds odds(profile, with_model_errors({}, {.costs = costs}), {.rule = CapRule::kAtMost});
//   odds.least_regret().caps;  // the caps to use without knowing which draw is true
//   for (const SensitivityPoint& p : sensitivity_table(profile, costs, {.rule = CapRule::kAtMost}))
//     fmt::print("{} x {}: best cap {}\n", static_cast<int>(p.influence), p.factor, p.best.cap_bytes);
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "firkin/plan/best_plan.h"
#include "firkin/plan/measurements.h"

namespace firkin {

// One set of inputs that is consistent with the measurements.
struct InputDraw {
  double compute_factor = 1;  // for ready times and the end of backward
  CommCosts costs;
  SimulationOptions simulation = {};
  // The simulation's errors that depend on the size of buckets: logarithms of factors on the time of plans whose
  // buckets have 2^i bytes in the mean. Plans between two of these sizes have part of both.
  std::array<double, 64> by_bucket_bytes = {};
};

inline constexpr int kDraws = 200;

// a(x) and g(x) at this world size, kDraws times: each size's median and gap with normal errors of their logarithms,
// taken from stderr_s and gap_stderr_s. If the table lacks these, both errors are 1.2533 stdev_s / sqrt(samples) (the
// standard error of a median of independent normal samples). Sizes with neither do not vary; empty if none does.
// Deterministic. The draws matter for caps of many small calls over slow links; otherwise a prediction's interval is
// mostly the model's own error (model_range()).
//
// unstated_error: the logarithm's standard error, for rows that state none of these.
std::vector<CommCosts> redraw_costs(const AllReduceTable& table, int64_t world_size, double unstated_error = 0);

// ---- More ranks than were measured.

inline constexpr int64_t kLargestWorld = 65536;

// All-reduces at an unmeasured number of ranks, from the nearest measured one (in doublings; the larger of two), by
// four laws that each hold in some network: latency stays as it is, grows with P - 1 (a ring) or with log2 P (two
// trees), or latency and time per byte grow with log2 P (a tree).
struct GrownCosts {
  int64_t from_world = 0;
  CommCosts likely;             // by the geometric mean of the laws' factors
  std::vector<CommCosts> laws;  // what is uncertain: draws for CapOdds
};

// The argument of CapOdds::least_regret() for draws that are these laws. How large a cap's regret is depends on which law
// holds; where that is not clear, larger buckets are to win. Chosen with measurements of two clusters (GrowthFull in
// tests/plan/growth_test.cpp).
inline constexpr double kSameShareOfGrown = 0.25;

// Throws InputError unless 2 <= world_size <= kLargestWorld, and for a table of single ranks.
GrownCosts grown_costs(const AllReduceTable& table, int64_t world_size);

// ---- Draws, and what caps are worth in them.

// A draw for each of `costs`, which differ in these alone.
std::vector<InputDraw> draws_of(std::vector<CommCosts> costs, const SimulationOptions& simulation = {});

// A prediction's interval is step_s divided by this factor to step_s times it: exp(2.74 sqrt(0.02^2 + residual^2)),
// with a residual of 6 % for an uncalibrated model. Chosen to hold 95 % of measured caps in two studies; what it
// has held since is in docs/validation.md.
double model_range(const std::optional<double>& residual);

// Draws with the errors that the model may have, one at a time, as factors on the latency of a call, the time of its
// bytes, and backward; those of `nominal` alone if there are no draws. The first has no error. Half as large for a
// calibrated model.
std::vector<InputDraw> with_model_errors(std::vector<InputDraw> draws, const InputDraw& nominal,
                                         const std::optional<double>& residual = {});

// For computing times that are assumed (model/transformer_config.h), not measured: the error on the slower side is
// exp(kOfAssumedCompute z), z > 0, in place of exp(0.15 z). About the root mean square of the logarithm of
// measured over assumed backward: 1.4 and 1.5 for the slowest runs in llm-foundry's tables of bf16 on A100s and H100s
// (model/transformer_config.h), 1.23 for gpt2-medium in bf16 on an H200 (studies/gpu/h200), 9.1 for gpt2-large on an A100
// (data/cmsc828g), and 24 for the xl of CS336 in float32 on an H100, batch 2 x 512 (data/gpu_sweeps, as
// studies/worth/published.py derives it).
inline constexpr double kOfAssumedCompute = 1.7;

// All the errors that a prediction may have, at once: kDraws sets of inputs, whose all-reduces are `costs` in turn. In
// each, latency, the time of bytes and backward err by factors exp(0.35 z), exp(0.2 z) and exp(0.15 z), each z standard
// normal, and the time of every size of bucket by exp(0.02 z) of its own. Unless `contention_known`, what the simulation
// leaves out is drawn too: an all-reduce slows computation by 1 + 0.3 exp(2 z), and a call takes up to half its latency
// on the computing thread; but what `simulation` states of these is kept, the slowdown up to a factor of exp(0.75 z) on
// its excess over 1. compute_assumed: kOfAssumedCompute holds. Fitted to two studies and tried on others (docs/performance_model.md).
// Deterministic. Throws InputError without costs.
std::vector<InputDraw> possible_inputs(const std::vector<CommCosts>& costs, const SimulationOptions& simulation, bool contention_known,
                                       bool compute_assumed = false);

// Backward with its communication under `plan`, one time per draw.
std::vector<double> drawn_times(const TensorProfile& profile, const BucketPlan& plan, const std::vector<InputDraw>& draws);

struct PlanOdds {
  double near_best = 0;        // share of the draws in which the plan is within 5 % of the best uniform cap; 0 to 1
  double expected_regret = 0;  // mean over the draws of T / (T of the best uniform cap) - 1, not below 0
};

// Simulates every distinct partition of a uniform cap in every draw, so that common errors cancel in comparisons.
// O(draws * partitions * buckets), cut to about eight million buckets.
class CapOdds {
 public:
  // Throws InputError as distinct_plans() does, and when there is no draw.
  CapOdds(const TensorProfile& profile, std::vector<InputDraw> draws, const CapOptions& options, const SearchOptions& search = {});

  // The odds of any plan of the profile.
  PlanOdds of(const BucketPlan& plan) const;

  // Seconds of any plan of the profile in each draw.
  std::vector<double> times(const BucketPlan& plan) const;

  // The caps of least expected regret: among those within a thousandth of a step of the least, or `same_share` of it if
  // that is more, the ones with the fewest buckets.
  const UniformCap& least_regret(double same_share = 0) const;

  bool exhaustive() const { return caps_.exhaustive; }

 private:
  PlanOdds odds(const std::vector<double>& end_s) const;

  std::vector<TensorProfile> profiles_;  // [draw]
  std::vector<InputDraw> draws_;
  DistinctPlans caps_;
  std::vector<std::vector<double>> end_s_;  // [cap][draw]
  std::vector<double> best_s_;              // [draw]
};

// A cap's buckets and predicted times, in seconds: of a whole step from predict_steps(), else of backward with its
// communication. What was not asked for is 0 or none.
struct PredictedCap {
  int64_t cap_bytes = 0;                                // 0 if the buckets do not come from a cap
  int64_t lowest_cap_bytes = 0, highest_cap_bytes = 0;  // range of caps that make the same buckets
  int64_t buckets = 0;
  double time_s = 0;
  double exposed_s = 0;          // the part that communication adds
  double low_s = 0, high_s = 0;  // 95 % range, from the model's error (model_range()) and the inputs'
  // Over errors of the model and of its inputs (PlanOdds). Next to a cliff the expected regret is more than time_s
  // suggests, since one late large bucket costs more than one call too many.
  std::optional<double> near_best = {}, expected_regret = {};
  std::optional<double> regret = {};    // time over that of the best plan, less 1; at least 0
  std::optional<bool> exhaustive = {};  // whether the search for it skipped no cap
};

enum class Influence {
  kTotalBytes,  // bytes of every gradient; computation takes as long as before
  kLatency,     // the part of a(x) and g(x) that even the smallest size takes: the least time in the table
  kBandwidth,   // the rest of a(x) and g(x) is divided by the factor
  kBackward,    // the profile's computation
  kContention,  // the excess of the slowdown over 1
};

inline constexpr std::array kInfluences = {Influence::kTotalBytes, Influence::kLatency, Influence::kBandwidth, Influence::kBackward,
                                           Influence::kContention};

// The inputs of a simulation with one of them multiplied by `factor` (more than 0).
struct ScaledInputs {
  TensorProfile profile;
  CommCosts costs;
  SimulationOptions options;
};
ScaledInputs scale_inputs(const ScaledInputs& inputs, Influence influence, double factor);

struct SensitivityPoint {
  Influence influence = Influence::kLatency;
  double factor = 1;
  PredictedCap best;           // its cap, buckets and times
  double kept_backward_s = 0;  // with the cap that is best at factor 1
  // Caps around the best one whose time is within 1 % of it; the higher end is at most the total bytes.
  int64_t near_low_bytes = 0;
  int64_t near_high_bytes = 0;
};

// Multiplies one input at a time by 1/8 to 8, in powers of two; contention only if there is any. Caps come from
// distinct_plans(), which skips some if there are very many tensors (see UniformCap::exhaustive).
std::vector<SensitivityPoint> sensitivity_table(const TensorProfile& profile, const CommCosts& costs, const CapOptions& options,
                                                const SearchOptions& search = {});

}  // namespace firkin
