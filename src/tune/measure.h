// Takes the measurements of a tuning: a profile, all-reduces, and the steps that measuring/tuning.h asks for and draws
// conclusions from.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "firkin/comm/process_group.h"
#include "firkin/plan/bucket_plan.h"
#include "measuring/steps.h"
#include "measuring/tuning.h"
#include "results/results.h"
#include "workload/workload.h"

namespace firkin {

struct TuneOptions {
  PhaseOptions phases = {};  // `ordered` and `measures_sharded` follow from the workload
  bool sharded = false;      // consider the strategy sharded
  CapOptions rule = {};      // how buckets are filled; its cap is not used
  int profile_steps = 20;
  double allreduce_seconds = 10;  // for the whole table
  StepCounts steps = {};          // of each setting in a block
  uint64_t seed = 0;
  // Called as work goes on: the current phase, how many units it has (0: not known), and which unit ended.
  std::function<void(TuningPhase phase, int units, const std::string& done)> on_progress = {};
  // Called with what is known so far, on every rank: after the profile, after the all-reduce table, after the
  // calibration, after the race, and up to a dozen times between blocks of steps. Other ranks wait meanwhile. The
  // complete result is returned, not passed here.
  std::function<void(const Tuning& so_far)> on_partial = {};
};

// The phases of a tuning that takes about `seconds` in all: slow steps run fewer times, but at least as often as a
// calibration, a race and an interval of 95 % need. blocks: how many measure the gain; none: as many as settle it. caps: in
// bytes, raced beside those predicted best.
PhaseOptions phases_of(double seconds, std::optional<int> blocks, const std::vector<int64_t>& caps);

// Progress lines on standard error, if `enabled`; the last line ends when options.on_progress is destroyed.
void show_progress(TuneOptions& options, bool enabled);

// Collective: every rank gets the same result. The few best predicted caps race, in blocks, until the choice is clear
// (decision.h). Then, in other blocks: none, PyTorch's default, the chosen cap, the strategy ordered if modules await
// their parameters, sharded, and what is to be compared. Throws InputError for caps that are not positive, and for a
// module whose trainable parameters are of several dtypes.
Tuning tune(const ProcessGroup& group, Workload& workload, const TuneOptions& options);

// tensors.csv and allreduce.csv, as far as they are known.
std::vector<OutputFile> tables_of(const Tuning& tuning);

}  // namespace firkin
