// Which cap to use, and what it gains: the one decision behind `firkin tune`, C++'s tune(), Python's firkin.tune() and automatic buckets.
//
//   const std::vector<CapPrediction> caps = caps_to_race(model, rule, {});  // the few best predicted
//   while (!is_clear(weigh(caps, step_s))) ...                              // one more block of steps of each
//   decide({.caps = caps, .race_s = step_s, .confirmation = ...});          // the gain, from blocks that did not choose
//
// Measures nothing. Deterministic; thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "firkin/plan/step_prediction.h"
#include "firkin/stats/paired.h"

namespace firkin {

// The standard error of a predicted difference between two caps, as a share of a step. On two studies of 18 regimes, choosing among four
// caps by ten blocks had the least regret, in the mean and at worst, when shrunk to the prediction with this error.
inline constexpr double kPredictionError = 0.02;

// What predictions and measurements together say about some caps.
struct Standing {
  size_t choice = 0;           // index of the cap
  double expected_regret = 0;  // upper bound of the choice's expected cost over the best of these caps, as a share of a step
  std::vector<size_t> tied;    // indices of the choice and of all caps indistinguishable from it; ascending
};

// Predictions are a normal prior with error kPredictionError around CapPrediction::expected_regret. Blocks of steps correct it by each
// cap's time over the others' in the block, weighted by the noise the blocks show. step_s: seconds, [cap][block]; empty: predictions alone.
// Throws std::invalid_argument without caps, or if the series do not match them.
Standing weigh(std::span<const CapPrediction> caps, const std::vector<std::vector<double>>& step_s = {});

// Whether another block would not be worth its cost.
bool is_clear(const Standing& standing, size_t blocks);

// The caps worth racing, ascending: at most `count` of least expected regret among all partitions a cap can make with at most
// `most_buckets`, from `smallest_cap_bytes` on. Each is the roundest cap that makes its buckets; the smallest or the largest that does is a
// fifth apart from that of every other. `wanted` caps are always included.
struct RaceOptions {
  size_t count = 4;
  int64_t most_buckets = 1 << 30;
  int64_t smallest_cap_bytes = 1;
  std::vector<int64_t> wanted = {};
};
std::vector<CapPrediction> caps_to_race(const StepModel& model, const CapOptions& rule, const RaceOptions& options);

enum class Outcome {
  kGain,           // faster than PyTorch's default, by an interval that excludes 1
  kNotShown,       // predicted to be faster, by more than the model's error; the measurement neither shows nor refutes it
  kNotMeasured,    // the default was not measured
  kSameBuckets,    // the default makes the same buckets
  kHidden,         // the default's communication is hidden: its steps take as long as steps without communication
  kNothingToGain,  // as far as the measurement shows, and the prediction gives no reason to measure more
  kDefaultFaster,  // by an interval that excludes 1
};

// In results.json: "gain", "gain not shown", ...
std::string_view name_of(Outcome outcome);
std::optional<Outcome> outcome_named(std::string_view name);

// Whether to keep the default: for all but the first three.
bool keeps_default(Outcome outcome);

// Steps in the same blocks, after the choice was made. Seconds, per block; default_s empty: not measured.
struct Confirmation {
  std::vector<double> none_s, default_s, choice_s;
};

struct DecisionInputs {
  std::span<const CapPrediction> caps;
  std::vector<std::vector<double>> race_s = {};    // [cap][block]
  std::optional<double> default_predicted_s = {};  // a step with PyTorch's default
  std::vector<bool> as_default = {};               // per cap: makes the default's buckets; empty: none does
  Confirmation confirmation = {};
};

struct Decision {
  Standing standing;
  Outcome outcome = Outcome::kNotMeasured;
  std::optional<double> predicted_to_default = {};  // step of the choice over the default's
  std::optional<PairedRatio> to_default = {};       // the same, measured by the confirmation
  // A step without communication, confirmed over predicted. If it is far from 1, the machine's speed has changed: predicted times may be
  // off by up to about that factor. What was compared within blocks is not affected.
  std::optional<double> level = {};
};

// Throws like weigh().
Decision decide(const DecisionInputs& inputs, double none_predicted_s = 0);

}  // namespace firkin
