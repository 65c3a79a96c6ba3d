// Training steps: of a workload under one setting, and under several, compared so that noise of the machine cancels.
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
#include "results/results.h"
#include "workload/workload.h"

namespace firkin {

// Seconds on this rank: on a device as its events say, which are waited for when the step is over (DeviceTime).
struct StepTimes {
  double step_s = 0;  // zero_grad, forward, backward, synchronisation of gradients, optimiser
  double comm_s = 0;  // from the end of backward to the last gradient: the figure of the CS336 hand-out; the strategy torch has none
};

// Steps beyond the first until a setting works as it will. `ordered` chooses its launch order after two of these, and again after four,
// from steps in such an order. A strategy that learns the ready order in the first step makes its buckets anew in the second, in untouched
// memory: some 5,000 page faults with the demo model.
inline int steps_to_learn(const DataParallelOptions& options) {
  constexpr int kUntilOrdered = 5;
  const Strategy& strategy = options.strategy;
  if (strategy.wait == Wait::kAtFirstUse) return kUntilOrdered;
  const bool overlaps = strategy.launch == Launch::kWhenReady || strategy.launch == Launch::kByTorch;
  return overlaps && strategy.grouping != Grouping::kPlan && options.ready_order.empty() ? 1 : 0;
}

// Wraps the workload's module: in a TorchPeer for the strategy torch, in a DataParallel for every other. Construction and steps are
// collective. The workload must outlive it.
class StepRunner {
 public:
  // finish_with_backward is not the options' own: backward is told from what comes after it, unless the workload is a whole step. Throws
  // what DataParallel and TorchPeer throw.
  StepRunner(const ProcessGroup& group, Workload& workload, DataParallelOptions options);

  // One training step. `step` picks the batch. A profiler sees it as phases: step, and in it forward, backward, synchronisation, optimiser;
  // of a whole step itself alone.
  StepTimes step(int64_t step);

  // After the last step: no collective is under way any more, and parameters may be read.
  void drain();

  // Of the last step. Empty when nothing is sent; of the strategy torch only bytes are known.
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
  std::optional<double> cap_mib = {};  // where the cap is part of what is compared
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
  int blocks = 12;        // at most; in each block every setting runs once, in an order shuffled anew
  int fewest_blocks = 1;  // beyond these none begins that would end after `seconds`
  double seconds = std::numeric_limits<double>::infinity();
  int warmup_steps = 2;              // after each switch of the setting; at least 1, because a first step does not overlap
  int steps_per_block = 2;           // timed
  uint64_t seed = 0;                 // of the order; the same on every rank
  bool communication_alone = false;  // after each block, time once what the setting sends, with nothing to hide behind
  std::function<void(const std::string& done)> on_progress = {};  // called after each setting of each block; may be empty
  // Asked after each block on every rank, which must all answer alike: whether the blocks so far suffice; may be empty. Other ranks wait.
  std::function<bool(const StepBenchResult& so_far)> is_enough = {};
};

// What was measured of a model, with a row for every setting. The first is `none`: what a step takes longer than its is exposed
// communication. options.communication_alone must have been set. memory: of every setting.
StepConfiguration measured_configuration(const ModelDescription& model, const std::vector<StepSetting>& settings,
                                         const StepBenchResult& result, const std::vector<StepMemory>& memory, int world_size);

// Runs all settings inside one process group, in randomised blocks, a barrier before every step. Collective: every rank gets the same
// result. Throws what StepRunner throws.
StepBenchResult measure_steps(const ProcessGroup& group, Workload& workload, const std::vector<StepSetting>& settings,
                              const StepBenchOptions& options);

}  // namespace firkin
