// A workload that is stepped under one setting: what all experiments on training steps do.
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
#include "workload/workload.h"

namespace firkin {

// Seconds on this rank: on a device as its events say, which are waited for when the step is over (device_clock.h).
struct StepTimes {
  double step_s = 0;  // zero_grad, forward, backward, synchronisation of gradients, optimiser
  double comm_s = 0;  // from the end of backward to the last gradient: the figure of the CS336 hand-out; the strategy torch has none
};

// Steps beyond the first that the strategy takes until it works as it will: `ordered` chooses its launch order after two of these, and
// again after four, from steps in such an order.
inline int steps_to_learn(const Strategy& strategy) {
  return strategy.wait == Wait::kAtFirstUse ? 5 : 0;
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
};

}  // namespace firkin
