// A tuning in phases: calibration, race, gain. They decide which training steps to measure, in how many blocks, and
// what follows. `firkin tune`, firkin::tune() and firkin.tune() only run the steps; add_sections() of
// results/results.h turns the outcome into a results.json.
//
//   Tuning tuning;  // with profile, allreduce and world_size
//   run_phases({.seconds = 150}, {.measure = run_in_blocks, .elapsed_s = clock, .of_rank_0 = broadcast}, tuning);
//   choice_of(tuning).cap_bytes;
//
// It has no clock of its own, and is collective if its callbacks are. Deterministic. One Tuning must not be used by two
// threads at once.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "firkin/plan/bucket_plan.h"
#include "firkin/plan/calibration.h"
#include "firkin/plan/cost_curve.h"
#include "firkin/plan/decision.h"
#include "firkin/plan/sharded_plan.h"
#include "measuring/steps.h"

namespace firkin {

// What a tuning does, in this order. A front end runs the first two, run_phases() the others.
enum class TuningPhase { kProfile, kAllReduce, kCalibration, kRace, kOrderedRace, kShardedTable, kOptionsRace, kGain };

// Ways to synchronise gradients.
enum class SettingKind {
  kNone,  // no communication
  kNaive,
  kFlat,
  kOverlap,
  kTorchDefault,  // c10d::Reducer, 1 MiB and then 25 MiB
  kPlan,          // any buckets
  kCap,           // buckets of any cap
  kChosenCap,     // of the cap that won the race
  kOrdered,
  kSharded,
};

struct TunedSetting {
  SettingKind kind = SettingKind::kNone;
  BucketPlan plan = {};                   // the buckets that are expected, if anything is sent in buckets of known sizes
  std::optional<int64_t> cap_bytes = {};  // the cap that makes them
  std::vector<std::string> options = {};  // of DistributedDataParallel, that are True: "static_graph"
};

// "planned", "torch": the strategy of firkin/plan/bucket_plan.h that runs it.
std::string_view strategy_of(SettingKind kind);

// In results: "torch default", "bucketed 4 MiB", "chosen cap + options".
std::string_view name_of(SettingKind kind);
std::string name_of(const TunedSetting& setting);

// ---- What else a reader of a tuning has to know; notes_of() of report/words.h says it.

struct UntriedOptions {};  // there was no time

struct OptionRace {
  std::string option;
  PairedRatio to_without;
  bool wins = false;  // if so, the gain measures it again
};

// The model was also calibrated on buckets whose step was then measured, which does not test the prediction.
struct CalibrationBuckets {
  std::optional<int64_t> cap_bytes = {};  // none: PyTorch's default
};

struct LevelChange {
  double level = 1;  // Decision::level
};

// A strategy that is not measured, and why.
enum class UnmeasuredStrategy {
  kOrderedWithoutAwaiting,   // no module awaits its parameters
  kOrderedWithoutOptimizer,  // the step has no OverlappedOptimizer
  kShardedWithoutOptimizer,  // the step has no ShardedOptimizer
};

using TuningNote = std::variant<SameBuckets, UntriedOptions, OptionRace, CalibrationBuckets, LevelChange, UnmeasuredStrategy>;

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
  // In this order: none; what else is compared; PyTorch's default; it and the chosen cap with the options that won,
  // if any did; ordered; sharded; then the chosen cap or, if caps are compared, these.
  std::vector<TunedSetting> gain_settings;
  std::vector<SettingSteps> gain;  // one per setting, or none yet

  // The results.
  Calibration fit;
  std::optional<CommCosts> costs;             // calibrated
  double none_step_s = 0;                     // the median in the blocks of the calibration
  std::vector<PredictedCap> dense_curve;      // by ascending cap, close enough to draw
  std::vector<PredictedCap> raced, compared;  // ascending
  std::optional<BucketPlan> ordered;          // buckets of the strategy; none if it is not measured
  std::optional<PredictedSharded> sharded;    // if asked for; its periods are whole steps
  std::vector<std::string> options;           // of DistributedDataParallel, that won their race: "static_graph"
  Standing standing;                          // among the caps in `raced`
  Decision decision;                          // its gain is from `gain`, which had no part in the choice
  std::vector<TuningNote> notes;
  bool complete = false;
};

// The leading cap, after the race.
const PredictedCap& choice_of(const Tuning& tuning);

// What the blocks of the gain measured of a setting, without or with the options that won; null if they did not run it.
const SettingSteps* find_setting(const Tuning& tuning, SettingKind kind, bool with_options = false);
// What they measured of the caps of `compared`, in their order.
std::span<const SettingSteps> compared_settings(const Tuning& tuning);
// What they measured of the chosen cap. Throws std::invalid_argument if it was not measured.
const SettingSteps& chosen_setting(const Tuning& tuning);

// The setting that the decision recommends, as an index of `gain`.
size_t recommended_setting(const Tuning& tuning);

// The prediction for a setting of `gain` that is no cap of the curve, without options: the model knows nothing of them.
std::optional<double> predicted_step_s(const Tuning& tuning, SettingKind kind);

// ---- The phases.

struct PhaseOptions {
  struct Blocks {
    int fewest = 3;
    int most = 10;
  };

  // For the whole tuning, from its beginning. Phases end when their share of it has passed, after the fewest blocks.
  double seconds = std::numeric_limits<double>::infinity();
  Blocks calibration_blocks = {}, race_blocks = {};
  // Without `most`, the gain is measured until it is settled, or until that would take longer than `seconds`.
  struct GainBlocks {
    int fewest = 3;
    std::optional<int> most = {};
  } gain_blocks = {};
  size_t calibrations = 4;             // settings to calibrate on, 4 or 2
  size_t raced = RaceOptions().count;  // caps, at most
  std::vector<int64_t> caps = {};      // raced whatever their prediction; with `compare` the caps of the comparison
  int64_t smallest_cap_bytes = 1;
  std::vector<std::string> options = {};      // of DistributedDataParallel, to be raced with the chosen cap if there is time
  bool compare = false;                       // measure naive, flat, overlap and caps of all sizes too
  bool ordered = false;                       // measure the strategy ordered too
  std::optional<TrainedMemory> sharded = {};  // consider the strategy sharded too, with this memory
  bool measures_sharded = false;              // and measure it; needs `sharded`
};

// How a front end measures.
struct StepMeter {
  using Steps = std::vector<SettingSteps>;  // one per setting, in the same blocks

  // Runs the settings in blocks. is_enough: to be asked after each block, on every rank.
  std::function<Steps(TuningPhase phase, const std::vector<TunedSetting>& settings, const StepBlocks& blocks,
                      const std::function<bool(const Steps& so_far)>& is_enough)>
      measure;
  std::function<double()> elapsed_s;  // since the tuning began; the same on every rank
  // Rank 0's list, on every rank: libraries that round differently must not choose differently.
  std::function<std::vector<int64_t>(std::vector<int64_t>)> of_rank_0;
  // Whether steps can have these buckets; calibration plans that are not possible are replaced by caps.
  std::function<bool(const BucketPlan&)> is_possible = [](const BucketPlan& /*plan*/) { return true; };
  // Which of these options the program can be run with, besides the setting. May run steps.
  std::function<std::vector<std::string>(const TunedSetting& setting, const std::vector<std::string>& options)> possible_options =
      [](const TunedSetting& /*setting*/, const auto& options) { return options; };
  // The collectives of the strategy sharded, if that is considered; none: each takes half the time of an all-reduce.
  std::function<std::vector<CollectiveRow>()> measure_collectives = [] { return std::vector<CollectiveRow>(); };
  // Called when `tuning` holds more than before: after the calibration, after the race, and during the gain ever less
  // often.
  std::function<void()> on_partial = [] {};
};

// Fills `tuning`, which must have profile, allreduce and world_size, up to its decision. Throws what calibrate() and
// decide() of plan/ throw, and what the meter does.
void run_phases(const PhaseOptions& options, const StepMeter& meter, Tuning& tuning);

}  // namespace firkin
