// Training steps under several settings, compared so that noise of the machine cancels.
//
//   const auto steps = measure_steps(group, workload, settings, {.blocks = {.most = 12}});
//   paired_ratio(steps[1].step_s, steps[0].step_s).interval;  // of the second setting to the first
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "bench/step_memory.h"
#include "firkin/comm/process_group.h"
#include "firkin/ddp/options.h"
#include "measuring/steps.h"
#include "results/results.h"
#include "workload/workload.h"

namespace firkin {

struct StepSetting {
  std::string name;
  DataParallelOptions options;            // the strategy torch too: see StepRunner
  std::optional<int64_t> cap_bytes = {};  // if the cap is part of what is compared
};

struct StepBenchOptions {
  StepBlocks blocks = {};            // the same on every rank
  StepCounts steps = {};             // in a block; at least one warm-up step, because a first step does not overlap
  bool communication_alone = false;  // after each block, time once what the setting sends, with nothing to hide behind
  // Called after each setting of each block; may be empty.
  std::function<void(const std::string& done)> on_progress = {};
  // Asked after each block whether the blocks so far suffice, on every rank; all must answer alike. May be empty. Other
  // ranks wait.
  std::function<bool(const std::vector<SettingSteps>& so_far)> is_enough = {};
};

// Runs all settings inside one process group, in randomised blocks, with a barrier before every step. Collective: every
// rank gets the same result. Where steps overlap, as those of `ordered` do, a block has one barrier, and every raw step is
// the mean over the block (Note [Steps that overlap] in step_bench.cpp). Throws what StepRunner throws.
std::vector<SettingSteps> measure_steps(const ProcessGroup& group, Workload& workload, const std::vector<StepSetting>& settings,
                                        const StepBenchOptions& options);

// The measurements of a model, with a row for every setting. The first setting must be `none`: what a step takes beyond a
// step of `none` is exposed communication. `steps` must come from options.communication_alone. memory: one per setting.
StepConfiguration measured_configuration(const ModelDescription& model, const std::vector<StepSetting>& settings,
                                         const std::vector<SettingSteps>& steps, const std::vector<StepMemory>& memory, int world_size);

}  // namespace firkin
