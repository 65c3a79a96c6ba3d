// The phases of a tuning: calibration, race, gain. They decide which training steps to measure, in how many blocks, and
// what follows; `firkin tune`, firkin::tune() and firkin.tune() only run the steps.
//
//   Tuning tuning;  // with profile, allreduce and world_size
//   run_phases({.seconds = 150}, {.measure = run_in_blocks, .elapsed_s = clock, .of_rank_0 = broadcast}, tuning);
//   choice_of(tuning).cap_bytes;
//
// No clock of its own. Collective if its callbacks are. Deterministic.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "firkin/plan/bucket_plan.h"
#include "measuring/tuning.h"

namespace firkin {

// One way to synchronise gradients.
struct TunedSetting {
  std::string name;
  std::string strategy;
  BucketPlan plan = {};                   // the buckets that are expected, if anything is sent in buckets of known sizes
  std::optional<int64_t> cap_bytes = {};  // the cap that makes them
};

struct PhaseOptions {
  struct Blocks {
    int fewest = 3;
    int most = 10;
  };

  // For the whole tuning, from its beginning. Phases end when their share of it has passed, after the fewest blocks.
  double seconds = std::numeric_limits<double>::infinity();
  Blocks calibration_blocks = {}, race_blocks = {}, gain_blocks = {};
  size_t calibrations = 4;             // settings to calibrate on, 4 or 2
  size_t raced = RaceOptions().count;  // caps, at most
  std::vector<int64_t> caps = {};      // raced whatever their prediction; with `compare` the caps of the comparison
  int64_t smallest_cap_bytes = 1;
  bool compare = false;                       // measure naive, flat, overlap and caps of all sizes too
  bool ordered = false;                       // measure the strategy ordered too
  std::optional<TrainedMemory> sharded = {};  // consider the strategy sharded too, with this memory
  bool measures_sharded = false;
};

// How a front end measures.
struct StepMeter {
  using Steps = std::vector<SettingSteps>;  // one per setting, in the same blocks

  // Runs the settings in blocks. is_enough: to be asked after each block, on every rank.
  std::function<Steps(const std::string& phase, const std::vector<TunedSetting>& settings, const StepBlocks& blocks,
                      const std::function<bool(const Steps& so_far)>& is_enough)>
      measure;
  std::function<double()> elapsed_s;  // since the tuning began; the same on every rank
  // Rank 0's list, on every rank: libraries that round differently must not choose differently.
  std::function<std::vector<int64_t>(std::vector<int64_t>)> of_rank_0;
  // Whether steps can have these buckets; calibration plans that are not possible are replaced by caps.
  std::function<bool(const BucketPlan&)> is_possible = [](const BucketPlan& /*plan*/) { return true; };
  // The collectives of the strategy sharded, if that is considered; none: each takes half the time of an all-reduce.
  std::function<std::vector<CollectiveRow>()> measure_collectives = [] { return std::vector<CollectiveRow>(); };
  // Called with intermediate results: after the calibration, after the race, and up to a dozen times during the gain.
  std::function<void()> tell = [] {};
};

// Fills `tuning`, which must have profile, allreduce and world_size, up to its decision. Throws what calibrate() and
// decide() throw, and what the meter does.
void run_phases(const PhaseOptions& options, const StepMeter& meter, Tuning& tuning);

}  // namespace firkin
