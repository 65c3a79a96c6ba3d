// Training steps of a workload: under one setting, or under several, compared so that noise of the machine cancels.
//
//   StepRunner runner(group, workload, options);
//   for (int64_t step = 0; step < 10; ++step) runner.step(step);
//   runner.drain();
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "bench/step_memory.h"
#include "bench/torch_peer.h"
#include "firkin/comm/process_group.h"
#include "firkin/ddp/data_parallel.h"
#include "firkin/ddp/overlapped_optimizer.h"
#include "firkin/ddp/sharded_optimizer.h"
#include "measuring/steps.h"
#include "results/results.h"
#include "workload/workload.h"

namespace firkin {

// Seconds on this rank; on a device by events, which are waited for when the step is over (DeviceTime).
struct StepTimes {
  double step_s = 0;  // zero_grad, forward, backward, synchronisation of gradients, optimiser
  // From the end of backward to the last gradient, as in the CS336 hand-out; none for the strategy torch.
  double comm_s = 0;
};

// How many steps beyond the first a setting needs until it works as it will. `ordered` chooses its launch order after
// two of these, and again after four, from steps in such an order. A strategy that learns the ready order in the first
// step makes its buckets anew in the second, in untouched memory: some 5,000 page faults with the demo model.
inline int steps_to_learn(const DataParallelOptions& options) {
  constexpr int kUntilOrdered = 5;
  const Strategy& strategy = options.strategy;
  if (strategy.wait == Wait::kAtFirstUse) return kUntilOrdered;
  const bool overlaps = strategy.launch == Launch::kWhenReady || strategy.launch == Launch::kByTorch;
  return overlaps && strategy.grouping != Grouping::kPlan && options.ready_order.empty() ? 1 : 0;
}

// Wraps the workload's module: in a TorchPeer for the strategy torch, in a DataParallel for every other. Construction
// and steps are collective. The workload must outlive it.
class StepRunner {
 public:
  // options.finish_with_backward is ignored: backward is timed apart from what comes after it, unless the workload is a
  // whole step. Throws what DataParallel and TorchPeer throw.
  StepRunner(const ProcessGroup& group, Workload& workload, DataParallelOptions options);

  // One training step. `step` picks the batch. A profiler sees it as phases: step, and in it forward, backward,
  // synchronisation, optimiser; only the step if the workload is a whole step.
  StepTimes step(int64_t step);

  // Call it after the last step: then no collective is in flight any more, and parameters may be read.
  void drain();

  // The buckets of the last step. Empty if nothing is sent; for the strategy torch only bytes are known.
  std::vector<BucketStats> buckets() const;

 private:
  Workload& workload_;
  std::optional<TorchPeer> peer_;  // or
  std::optional<DataParallel> ddp_;
  std::optional<OverlappedOptimizer> overlapped_;  // over ddp_ and the workload's
  std::optional<ShardedOptimizer> sharded_;        // instead, as the workload's: SGD
};

struct StepSetting {
  std::string name;
  DataParallelOptions options;         // the strategy torch too: see StepRunner
  std::optional<double> cap_mib = {};  // if the cap is part of what is compared
};

struct StepBenchOptions {
  int blocks = 12;        // the most; in each block every setting runs once, in a shuffled order
  int fewest_blocks = 1;  // after these, a block begins only if it is expected to end within `seconds`
  double seconds = std::numeric_limits<double>::infinity();
  // After each switch of the setting; at least 1, because a first step does not overlap.
  int warmup_steps = 2;
  int steps_per_block = 2;           // timed
  uint64_t seed = 0;                 // for the order; the same on every rank
  bool communication_alone = false;  // after each block, time once what the setting sends, with nothing to hide behind
  // Called after each setting of each block; may be empty.
  std::function<void(const std::string& done)> on_progress = {};
  // Asked after each block whether the blocks so far suffice, on every rank; all must answer alike. May be empty. Other
  // ranks wait.
  std::function<bool(const std::vector<SettingSteps>& so_far)> is_enough = {};
};

// What was measured of a model, with a row for every setting. The first setting is `none`: what a step takes longer
// than one of its steps is exposed communication. options.communication_alone must have been set. memory: of every
// setting.
StepConfiguration measured_configuration(const ModelDescription& model, const std::vector<StepSetting>& settings,
                                         const std::vector<SettingSteps>& steps, const std::vector<StepMemory>& memory, int world_size);

// Runs all settings inside one process group, in randomised blocks, a barrier before every step. Collective: every rank
// gets the same result. For the strategy ordered, whose steps overlap, every raw step of a block is the mean over the
// block's, of which there are at least four. Throws what StepRunner throws.
std::vector<SettingSteps> measure_steps(const ProcessGroup& group, Workload& workload, const std::vector<StepSetting>& settings,
                                        const StepBenchOptions& options);

}  // namespace firkin
