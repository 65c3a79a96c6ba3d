// Which cap to use, and what it gains: the one decision behind `firkin tune`, C++'s tune(), Python's firkin.tune() and
// automatic buckets; and before it, what whole training steps are predicted to take.
//
//   const StepModel model{profile, costs, calibration.options, none_step_s, bare_backward_s, calibration.residual};
//   predict_steps(model, rule, caps);                                      // one prediction for each cap
//   const std::vector<PredictedCap> caps = caps_to_race(model, rule, {});  // the few best predicted
//   while (!is_clear(weigh(caps, step_s))) ...                             // one more block of steps of each
//   decide({.caps = caps, .standing = ..., .confirmation = ...});           // the gain, from blocks measured after it
//
// Measures nothing. Deterministic; thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "firkin/plan/bucket_plan.h"
#include "firkin/plan/cost_curve.h"
#include "firkin/plan/measurements.h"
#include "firkin/plan/timeline.h"
#include "firkin/plan/uncertainty.h"
#include "firkin/stats/estimates.h"

namespace firkin {

// Predicts whole steps: the measured step without communication, plus what the simulated backward takes beyond the bare
// one.
struct StepModel {
  const TensorProfile& profile;
  const CommCosts& costs;  // calibrated
  SimulationOptions simulation;
  double none_step_s = 0;               // measured, without communication: more than 0
  double bare_backward_s = 0;           // measured, without hooks
  std::optional<double> residual = {};  // from the calibration (calibration.h); none if not calibrated
};

// Seconds of a whole step under `plan`. This and predict_steps() throw std::invalid_argument if the step without
// communication is unknown: differences of plans are judged as a share of a step, never of exposed communication, which
// may be close to zero.
double predict_step(const StepModel& model, const BucketPlan& plan);
// One prediction per cap, in the order given: the time of a whole step, and the expected regret relative to the best of
// these caps, as a share of a step. rule.cap_bytes is not used.
std::vector<PredictedCap> predict_steps(const StepModel& model, const CapOptions& rule, std::span<const int64_t> caps);

// Seconds of a whole step under the strategy ordered. The profile must know its forward pass.
double predict_ordered_step(const StepModel& model, const BucketPlan& plan);
// Seconds of a whole step of `ordered` or `sharded` whose simulated steady step takes `period_s`.
double step_of_period(const StepModel& model, double period_s);
// Plans worth racing under `ordered`, the best first, at most three: the plan of a search, and uniform caps from 0.25
// MiB on if the simulation puts them within 5 % of a step of the best. None has more than `most_buckets`; each has a
// launch order by need.
std::vector<BucketPlan> ordered_candidates(const StepModel& model, int64_t most_buckets);

// Powers of two, ascending, up to the one that holds everything: the seven largest (or fewer) that make different
// buckets.
std::vector<int64_t> default_caps(std::span<const int64_t> sizes, const CapOptions& rule);

// Caps spaced evenly on a logarithmic axis, eight to an octave, from a quarter of `smallest_cap` to twice the
// gradients' size.
std::vector<int64_t> dense_caps(int64_t smallest_cap, int64_t total_bytes);

// Two caps that make the same buckets, of which one is measured.
struct SameBuckets {
  int64_t cap_bytes = 0, measured_bytes = 0;
  friend bool operator==(const SameBuckets&, const SameBuckets&) = default;
};

struct DistinctCaps {
  std::vector<int64_t> caps;         // ascending, each with other buckets
  std::vector<SameBuckets> dropped;  // and the cap that stands for each
};

// Keeps the smallest of the caps that make the same buckets. Throws InputError for a cap that is not positive.
DistinctCaps distinct_caps(std::vector<int64_t> caps, std::span<const int64_t> sizes, const CapOptions& rule);

// Adds `cap` to the ascending caps, unless one of them gives the same buckets. Returns the cap that stands for it.
int64_t add_cap(std::vector<int64_t>& caps, int64_t cap, std::span<const int64_t> sizes, const CapOptions& rule);

// The best of all plans, within a thousandth of backward.
BucketPlan best_plan(const StepModel& model);

// ---- The decision

// The standard error of a predicted difference between two caps, as a share of a step: of the values tried, the one
// of least regret when ten blocks decided, in two studies of 18 configurations (docs/performance_model.md).
inline constexpr double kPredictionError = 0.02;

// A smaller gain, of a cap or of options, is not worth a line in a program; as a share of a step.
inline constexpr double kLeastGain = 0.01;

// Whether measured steps show a gain that is worth setting: the 95 % interval excludes no gain, and the ratio itself is a
// gain of kLeastGain or more.
bool is_worth_setting(const PairedRatio& to_other);

// The predicted gain over PyTorch's default, as a share of a step, from which on it is worth measuring more.
inline constexpr double kWorthMeasuring = 0.03;

// What predictions and measurements together say about some caps.
struct Standing {
  size_t choice = 0;  // index of the cap
  // Upper bound of the choice's expected cost over the best of these caps, as a share of a step.
  double expected_regret = 0;
  std::vector<size_t> tied;  // indices of the choice and of all caps indistinguishable from it; ascending
};

// Predictions are a normal prior around PredictedCap::expected_regret. Blocks of steps correct it by each cap's time
// over the others' in the block, weighted by the noise the blocks show. step_s: seconds, [cap][block]; empty:
// predictions alone. prediction_error: the prior's standard error, as kPredictionError. Throws std::invalid_argument
// without caps, or if the series do not match them.
Standing weigh(std::span<const PredictedCap> caps, const std::vector<std::vector<double>>& step_s = {},
               double prediction_error = kPredictionError);

// Whether another block would not be worth its cost.
bool is_clear(const Standing& standing, size_t blocks);

// The caps worth racing, ascending: at most `count`, those of least expected regret among all partitions that a cap
// from `smallest_cap_bytes` on makes with at most `most_buckets`. Each is the roundest cap that makes its buckets. For
// any two of them, the smallest or the largest caps that make their buckets differ by a fifth. `wanted` caps are always
// included.
struct RaceOptions {
  size_t count = 4;
  int64_t most_buckets = 1 << 30;
  int64_t smallest_cap_bytes = 1;
  std::vector<int64_t> wanted = {};
};
std::vector<PredictedCap> caps_to_race(const StepModel& model, const CapOptions& rule, const RaceOptions& options);

// What the cap's 95 % interval of the ratio to PyTorch's default says.
enum class Outcome {
  kGain,  // is_worth_setting()
  // It holds both 1 and a gain of kWorthMeasuring, and the prediction is such a gain, which the interval does not refute by
  // more than kPredictionError.
  kNotShown,
  kNotMeasured,    // the default was not measured
  kSameBuckets,    // the default makes the same buckets
  kHidden,         // the default's communication is hidden: its steps take as long as steps without communication
  kNothingToGain,  // excludes a gain of kLeastGain, or 1 where the gain is smaller
  kDefaultFaster,  // excludes 1
  kNotToldApart,   // holds both 1 and a gain of kLeastGain, and nothing that it does not refute makes that gain likely
};

// Which of two is faster, by the 95 % interval of their ratio.
enum class Faster { kThis, kOther, kNotToldApart };
Faster faster_of(const PairedRatio& this_to_other);

// Whether automatic buckets go on with a plan after its trial beside the one in use: unless the trial shows it slower.
// Where the trial cannot tell, the prediction decides, which chose the plan. A gain of kLeastGain is not asked for, since
// nobody has to write a line into a program.
bool keeps_tried(const PairedRatio& tried_to_used);

// Whether the advice is to keep PyTorch's bucket size: for all outcomes but the first three.
bool keeps_default(Outcome outcome);

// How sure an answer is.
enum class Certainty { kShown, kLikely, kNotToldApart, kNothingToGain };

// Steps of the same blocks, measured after the choice was made. Seconds, per block; empty: not measured.
struct Confirmation {
  std::vector<double> none_s, default_s, choice_s;
  std::vector<double> default_with_options_s = {}, choice_with_options_s = {};
};

// Whether further blocks of two settings could change what is said of them.
//
// Note [Stopping when settled]
// Whoever measures until an interval excludes something makes it exclude the truth too often. So an outlook is settled by
// an interval of 99 %, while that of 95 % is reported, and measure_gain() asks for an outlook only when the number of
// blocks has doubled.
struct Outlook {
  bool settled = false;      // the interval of 99 % excludes no gain, or a gain of kLeastGain
  double blocks_needed = 0;  // in all, until the interval of 95 % is expected to exclude one of the two
};
Outlook outlook(std::span<const double> step_s, std::span<const double> reference_s);

// Why no more blocks were measured.
enum class EndOfBlocks {
  kSettled,  // more would not change the answer
  kTime,     // the time was up, or would have been before the answer changes
  kLimit,    // the number of blocks that was asked for
};

// What would change the answer, or what would help where no bucket size does.
enum class NextStep {
  kMoreTime,    // more blocks may decide, and the time has ended them
  kMoreBlocks,  // the same; the limit of blocks has ended them
  kLessNoise,   // it would take more than kMostTimesMoreBlocks times as many blocks
  kSendLess,    // communication that no buckets can hide takes at least as long as the rest of the step
};
inline constexpr double kMostTimesMoreBlocks = 10;

struct DecisionInputs {
  std::span<const PredictedCap> caps;
  Standing standing = {};                          // from weigh()
  std::optional<double> default_predicted_s = {};  // a step with PyTorch's default
  std::vector<bool> as_default = {};               // per cap: makes the default's buckets; empty: none does
  Confirmation confirmation = {};
  std::string options = {};  // those measured in Confirmation: "gradient_as_bucket_view=True"; empty: none
  EndOfBlocks ended = EndOfBlocks::kSettled;
};

// What to set, and what that gains; as in a results.json. Times are seconds per step.
struct Decision {
  Outcome outcome = Outcome::kNotMeasured;  // of the cap, without options
  int64_t cap_bytes = 0, lowest_cap_bytes = 0;
  std::optional<int64_t> highest_cap_bytes = {};  // with the same buckets, as the lowest; none: no bound
  double predicted_s = 0, measured_s = 0;
  std::optional<double> predicted_to_default = {};  // step with the cap over step with the default
  std::optional<PairedRatio> over_default = {};     // the same, measured by the confirmation, without options
  double expected_regret = 0;                       // Standing::expected_regret
  std::vector<int64_t> tied_bytes = {};             // caps that the measurement cannot tell apart from it, with it
  // A step without communication, confirmed over predicted. Far from 1, the machine's speed has changed and predicted
  // times may be off by that factor; comparisons within blocks are not affected.
  std::optional<double> level = {};
  // Options of DistributedDataParallel to set, and the time with them over the time without, both with the buckets that
  // are recommended; none unless the confirmation shows a gain of kLeastGain.
  std::optional<std::string> options = {};
  std::optional<PairedRatio> options_over_none = {};
  std::optional<PairedRatio> all_over_default = {};  // what is recommended, with options, over PyTorch's default
  std::optional<std::string> recommended = {};       // the name of the measured setting that this recommends
  std::optional<NextStep> next_step = {};
  int64_t blocks = 0;  // how many blocks measured the gain
  // The blocks in all that would decide, if the difference is what it seems; none where no more are needed.
  std::optional<double> blocks_needed = {};
};

// How sure the recommendation is. Options are only recommended where they were shown to gain.
Certainty certainty_of(const Decision& decision);

// The time of what is recommended over that of PyTorch's default; none if that is recommended, or was not measured.
std::optional<PairedRatio> recommended_over_default(const Decision& decision);

// Leaves measured_s and recommended to the caller. Throws like weigh().
Decision decide(const DecisionInputs& inputs, double none_predicted_s = 0);

}  // namespace firkin
