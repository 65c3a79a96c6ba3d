// Training steps under several settings, compared so that noise of the machine cancels.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "firkin/comm/process_group.h"
#include "firkin/ddp/data_parallel.h"
#include "workload/workload.h"

namespace firkin {

struct StepSetting {
  std::string name;
  DataParallelOptions options;  // the strategy torch too: see StepRunner
};

struct StepBenchResult {
  // [setting][block]: median over the block's timed steps of the slowest rank's time, in seconds.
  std::vector<std::vector<double>> step_s;
  std::vector<std::vector<double>> comm_s;
  // [setting][block * steps_per_block + step][rank], in seconds. Of the strategy ordered, whose steps reach into one another, every step of
  // a block is the mean over the block's, of which there are at least four.
  std::vector<std::vector<std::vector<double>>> raw_step_s;
  // [setting][block]: the slowest rank's time to send all buckets with no backward around them, in seconds. Empty unless asked for; 0
  // for the strategy none.
  std::vector<std::vector<double>> communication_s;
  std::vector<int64_t> buckets;  // per setting
};

struct StepBenchOptions {
  int blocks = 12;                   // in each block every setting runs once, in an order shuffled anew
  int warmup_steps = 2;              // after each switch of the setting; at least 1, because a first step does not overlap
  int steps_per_block = 2;           // timed
  uint64_t seed = 0;                 // of the order; the same on every rank
  bool communication_alone = false;  // after each block, time once what the setting sends, with nothing to hide behind
  std::function<void(const std::string& done)> on_progress;  // called after each setting of each block; may be empty
  // Called after each block with all blocks so far; may be empty. Other ranks wait meanwhile.
  std::function<void(const StepBenchResult& so_far)> on_block = {};
  // Asked after each block on every rank, which must all answer alike: whether the blocks so far suffice; may be empty.
  std::function<bool(const StepBenchResult& so_far)> is_enough = {};
};

// Runs all settings inside one process group, in randomised blocks, a barrier before every step. Collective: every rank gets the same
// result. Throws what StepRunner throws.
StepBenchResult measure_steps(const ProcessGroup& group, Workload& workload, const std::vector<StepSetting>& settings,
                              const StepBenchOptions& options);

}  // namespace firkin
