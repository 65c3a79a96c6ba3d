// Tuning, whoever measures: what to measure next, and what to choose. `firkin tune`, firkin::tune() and firkin.tune() put the steps that
// they measure into one struct, and all else follows from it here; its sections of results.json are add_sections()'s (results/results.h).
//
//   Tuning tuning{.profile = profile, .allreduce = table, .world_size = 2};
//   tuning.calibration = measured;                   // none, then plans_to_calibrate_on()
//   calibrate(tuning);
//   choose_race(tuning);                             // tuning.raced: the few best predicted caps
//   do tuning.race = measured; while (!is_clear(tuning));  // one more block of steps, of each of them
//   tuning.gain = measured;                          // none, PyTorch's default, the chosen cap: other blocks
//   decide(tuning);
//
// Nothing is measured here. Deterministic. Not thread-safe for one struct.
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
#include "measuring/ready_profile.h"

namespace firkin {

// Strategies by name, and what stands beside them.
inline constexpr const char* kTorchDefaultName = "torch default";  // c10d::Reducer, 1 MiB and then 25 MiB
inline constexpr const char* kOrderedName = "ordered";
inline constexpr const char* kShardedName = "sharded";
inline constexpr const char* kChosenCapName = "chosen cap";

// One setting of training steps, in the blocks of a measurement. Seconds, of the slowest rank.
struct SettingSteps {
  std::string name;
  int64_t buckets = 0;
  std::vector<double> step_s = {};                   // per block
  std::vector<double> comm_s = {};                   // per block, from the end of backward to the last gradient; empty: not measured
  std::vector<std::vector<double>> raw_step_s = {};  // [step][rank]; empty: not kept
};

// A cap with gradients in another type on the wire.
struct HookTuning {
  std::string hook;        // "bf16"
  PredictedCap predicted;  // its cap in bytes of the gradients, as all caps
};

// What is not measured yet is empty.
struct Tuning {
  // Given.
  MeasuredProfile profile;           // with bare_backward_s
  std::vector<int64_t> ready_order;  // the profile's, as DataParallelOptions::ready_order takes it; empty: not needed
  AllReduceTable allreduce;
  std::vector<CollectiveRow> collectives;  // what takes an all-reduce's place under sharded; empty: half of it each
  int64_t world_size = 0;
  CapOptions rule = {.rule = CapRule::kCloseWhenFull};  // how buckets are filled; its cap is not used

  // Measured: settings of one list in the same blocks.
  std::vector<BucketPlan> calibration_plans;
  std::vector<SettingSteps> calibration;  // none, then one per plan
  std::vector<SettingSteps> race;         // one per raced cap
  // none; what is compared, by name; PyTorch's default, where it can be; ordered; sharded; hooks. Then the chosen cap, or where caps are
  // compared these.
  std::vector<SettingSteps> gain;

  // What follows: calibrate(), choose_race(), decide().
  Calibration fit;
  std::optional<CommCosts> costs;             // calibrated
  double none_step_s = 0;                     // median, in the blocks of the calibration
  std::vector<PredictedCap> dense_curve;      // by ascending cap, close enough to draw
  std::vector<PredictedCap> raced, compared;  // ascending
  std::optional<BucketPlan> ordered;          // buckets of the strategy; nothing where it is not measured
  std::optional<PredictedSharded> sharded;    // if asked for; its periods are whole steps
  std::vector<HookTuning> hooks;              // those asked for
  Standing standing;                          // among `raced`
  Decision decision;                          // the gain from `gain`, which did not choose
  std::vector<std::string> notes;             // what was left out, shared or not kept apart, one sentence each
  bool complete = false;
};

// What to calibrate on: plans that neither PyTorch's default, nor the two ends of the scale, nor a cap make.
std::vector<BucketPlan> plans_to_calibrate_on(const TensorProfile& profile, const CapOptions& rule);

// How settings are called in `gain`, besides those above.
std::string cap_setting_name(int64_t cap_bytes);
std::string hook_setting_name(const HookTuning& hook);

// Fits the model to `calibration`. Throws InputError as calibrate() of plan/, std::invalid_argument where it is not one setting more than
// plans.
void calibrate(Tuning& tuning);

// After calibrate(). Refers to `tuning`.
StepModel model_of(const Tuning& tuning);

// Sets `raced`, at most `count`. wanted: caps that are among them whatever is predicted.
void choose_race(Tuning& tuning, const std::vector<int64_t>& wanted = {}, int64_t smallest_cap_bytes = 1,
                 size_t count = RaceOptions().count);

// Whether another block of the race is worth nothing. Keeps the leading cap in `standing`; call it after the last block too.
bool is_clear(Tuning& tuning);

// The cap that leads, after is_clear().
const PredictedCap& choice_of(const Tuning& tuning);

// Predicts the step with the hook, and chooses its cap. conversion_s_per_byte: to its type and back.
HookTuning tune_hook(const Tuning& tuning, const std::string& hook, double conversion_s_per_byte);

// After is_clear(): sets `sharded`, by `collectives`, calibrated as the all-reduce. `trained`: as of predict_sharded().
void tune_sharded(Tuning& tuning, const TrainedMemory& trained);

// Of settings: seconds, [setting][block]; one by its name, or null; those of `gain` that are the caps of `compared`, and the one with the
// chosen cap. The last throws std::invalid_argument where it was not measured.
std::vector<std::vector<double>> series_of(std::span<const SettingSteps> settings);
const SettingSteps* find_setting(const std::vector<SettingSteps>& settings, std::string_view name);
std::span<const SettingSteps> compared_settings(const Tuning& tuning);
const SettingSteps& chosen_setting(const Tuning& tuning);

// What is predicted for a setting of `gain` that is no cap of the curve.
std::optional<double> predicted_step_s(const Tuning& tuning, const SettingSteps& setting);

// After `gain`: what the choice is worth, and notes on what is no test of the model and on a machine that has changed. Throws
// std::invalid_argument as decide() of plan/, and where the chosen cap was not measured.
void decide(Tuning& tuning);

}  // namespace firkin
