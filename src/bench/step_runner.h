// Training steps of a workload under one setting.
//
//   StepRunner runner(group, workload, options);
//   for (int64_t step = 0; step < 10; ++step) runner.step(step);
//   runner.drain();
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "bench/torch_peer.h"
#include "firkin/comm/process_group.h"
#include "firkin/ddp/data_parallel.h"
#include "firkin/ddp/overlapped_optimizer.h"
#include "firkin/ddp/sharded_optimizer.h"
#include "firkin/plan/bucket_plan.h"
#include "workload/workload.h"

namespace firkin {

// Seconds on this rank; on a device by events, which are waited for when the step is over (DeviceTime).
struct StepTimes {
  double step_s = 0;  // zero_grad, forward, backward, synchronisation of gradients, optimiser
  // From the end of backward to the last gradient, as in the CS336 hand-out; none for the strategy torch.
  double comm_s = 0;
};

// How many steps beyond the first a setting needs to reach its steady state. `ordered` chooses its launch order after
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

  // Call it after the last step: waits for collectives in flight, so that parameters may be read.
  void drain();

  // The buckets of the last step. Empty if nothing is sent; for the strategy torch only bytes are known.
  std::vector<BucketStats> buckets() const;

 private:
  Workload& workload_;
  // One of the two, and with a DataParallel at most one of the optimisers.
  std::optional<TorchPeer> peer_;
  std::optional<DataParallel> ddp_;
  std::optional<OverlappedOptimizer> overlapped_;  // runs the workload's optimiser
  std::optional<ShardedOptimizer> sharded_;        // runs SGD with the learning rate of the workload's optimiser
};

}  // namespace firkin
