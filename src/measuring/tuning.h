// Decides what a tuning measures next and what it chooses. `firkin tune`, firkin::tune() and firkin.tune() put measured
// steps into one struct; add_sections() of results/results.h turns it into a results.json.
//
//   Tuning tuning{.profile = profile, .allreduce = table, .world_size = 2};
//   tuning.calibration = measured;                   // none, then plans_to_calibrate_on()
//   calibrate(tuning);
//   choose_race(tuning);                             // tuning.raced: the few caps with the best predictions
//   do tuning.race = measured; while (!is_clear(tuning));  // one more block of steps, with each of them
//   tuning.gain = measured;                          // none, PyTorch's default, the chosen cap, in blocks of their own
//   decide(tuning);
//
// Measures nothing. Deterministic. Not thread-safe for one struct.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "firkin/plan/bucket_plan.h"
#include "firkin/plan/calibration.h"
#include "firkin/plan/cost_curve.h"
#include "firkin/plan/decision.h"
#include "firkin/plan/sharded_plan.h"
#include "measuring/steps.h"

namespace firkin {

// Names of strategies, and of settings that are compared with them.
inline constexpr const char* kTorchDefaultName = "torch default";  // c10d::Reducer, 1 MiB and then 25 MiB
inline constexpr const char* kOrderedName = "ordered";
inline constexpr const char* kShardedName = "sharded";
inline constexpr const char* kChosenCapName = "chosen cap";

// Members that are not measured yet are empty.
struct Tuning {
  // The input.
  MeasuredProfile profile;  // with bare_backward_s
  AllReduceTable allreduce;
  // The collectives that replace an all-reduce under sharded; if empty, each takes half the time of an all-reduce.
  std::vector<CollectiveRow> collectives;
  int64_t world_size = 0;
  CapOptions rule = {.rule = CapRule::kCloseWhenFull};  // how buckets are filled; its cap is not used

  // The measurements. Settings of one list run in the same blocks.
  std::vector<BucketPlan> calibration_plans;
  std::vector<SettingSteps> calibration;  // none, then one per plan
  std::vector<SettingSteps> race;         // one per raced cap
  // In this order: none; what is compared, by name; PyTorch's default, if it can be measured; ordered; sharded;
  // then the chosen cap or, if caps are compared, these.
  std::vector<SettingSteps> gain;

  // The results of calibrate(), choose_race() and decide().
  Calibration fit;
  std::optional<CommCosts> costs;             // calibrated
  double none_step_s = 0;                     // the median in the blocks of the calibration
  std::vector<PredictedCap> dense_curve;      // by ascending cap, close enough to draw
  std::vector<PredictedCap> raced, compared;  // ascending
  std::optional<BucketPlan> ordered;          // buckets of the strategy; none if it is not measured
  std::optional<PredictedSharded> sharded;    // if asked for; its periods are whole steps
  Standing standing;                          // among the caps in `raced`
  Decision decision;                          // its gain is from `gain`, which had no part in the choice
  std::vector<std::string> notes;             // what was left out or could not be told apart, one sentence each
  bool complete = false;
};

// Plans to calibrate on that neither a cap nor PyTorch's default makes, nor the two ends of the scale.
std::vector<BucketPlan> plans_to_calibrate_on(const TensorProfile& profile, const CapOptions& rule);

// The names of further settings in `gain`.
std::string cap_setting_name(int64_t cap_bytes);

// Fits the model to `calibration`. Throws InputError as calibrate() of plan/, and std::invalid_argument unless there is
// one setting more than plans.
void calibrate(Tuning& tuning);

// The fitted model, after calibrate(). Refers to `tuning`.
StepModel model_of(const Tuning& tuning);

// Sets `raced`: caps that make no more buckets than were calibrated on.
void choose_race(Tuning& tuning, RaceOptions options = {});

// Whether the race is decided, so that no further block is needed. Keeps the leading cap in `standing`; call it after
// the last block too.
bool is_clear(Tuning& tuning);

// The leading cap, after is_clear().
const PredictedCap& choice_of(const Tuning& tuning);

// After is_clear(): sets `sharded`, from `collectives`, calibrated like the all-reduce. `trained`: as for
// predict_sharded().
void tune_sharded(Tuning& tuning, const TrainedMemory& trained);

// The setting of this name, or null; the settings of `gain` for the caps of `compared`; the one for the chosen cap,
// which throws std::invalid_argument if it was not measured.
const SettingSteps* find_setting(const std::vector<SettingSteps>& settings, std::string_view name);
std::span<const SettingSteps> compared_settings(const Tuning& tuning);
const SettingSteps& chosen_setting(const Tuning& tuning);

// The prediction for a setting of `gain` that is no cap of the curve.
std::optional<double> predicted_step_s(const Tuning& tuning, const SettingSteps& setting);

// Once `gain` is measured: sets what the choice is worth, and notes what does not test the model and changes of the
// machine. Throws std::invalid_argument as decide() of plan/, and if the chosen cap was not measured.
void decide(Tuning& tuning);

}  // namespace firkin
