// Training steps of a workload: under one setting, or under several, compared so that noise of the machine cancels.
//
//   StepRunner runner(group, workload, options);
//   for (int64_t step = 0; step < 10; ++step) runner.step(step);
//   runner.drain();
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "firkin/comm/process_group.h"
#include "firkin/ddp/data_parallel.h"
#include "firkin/ddp/overlapped_optimizer.h"
#include "firkin/ddp/sharded_optimizer.h"
#include "firkin/plan/bucket_plan.h"
#include "measuring/steps.h"
#include "results/results.h"
#include "workload/workload.h"

#include <torch/nn/module.h>

namespace c10d {
class Logger;
class Reducer;
}  // namespace c10d

namespace firkin {

// ---- c10d::Reducer, PyTorch's own bucketed reducer, driven from C++: the peer that Firkin's strategies are compared
// with.
//
//   TorchPeer peer(*net, group, options);
//   for (...) {
//     peer.prepare();
//     loss().backward();  // when it returns, gradients are the mean over the ranks
//     optimizer.step();
//     peer.rebuild_buckets();
//   }

// For one experiment: with none of the guarantees of DataParallel. A parameter without a gradient is an error of the
// next step, and a backward that throws on one rank leaves the others waiting. Gradients that are views of the
// Reducer's buckets refuse detach_(): reset them to undefined before a step.
//
// Construction, prepare() and rebuild_buckets() are collective; errors are those of c10d. The destructor removes the
// Reducer's hooks. The group and the module must outlive it.
class TorchPeer {
 public:
  // Uses only these options: cap (the rule is always PyTorch's, close-when-full), ready_order (for the first step),
  // broadcast_parameters, and broadcast_buffers (before every step, as DistributedDataParallel sends them). Throws
  // InputError when the module has no trainable parameter.
  TorchPeer(const torch::nn::Module& module, const ProcessGroup& group, const DataParallelOptions& options);
  TorchPeer(const TorchPeer&) = delete;
  TorchPeer& operator=(const TorchPeer&) = delete;

  // Call it before the forward of a step. A backward without it accumulates on this rank only.
  void prepare();

  // Call it after a step: lays the buckets out in the order in which gradients were ready. Does so once, and nothing
  // from then on.
  void rebuild_buckets();

  std::vector<int64_t> bucket_bytes() const;

 private:
  ProcessGroup group_;
  std::vector<at::Tensor> buffers_;  // those that are sent before every step
  std::shared_ptr<c10d::Reducer> reducer_;
  std::shared_ptr<c10d::Logger> logger_;  // the Reducer expects one
};

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
  std::optional<TorchPeer> peer_;  // or
  std::optional<DataParallel> ddp_;
  std::optional<OverlappedOptimizer> overlapped_;  // over ddp_ and the workload's
  std::optional<ShardedOptimizer> sharded_;        // instead, as the workload's: SGD
};

struct StepSetting {
  std::string name;
  DataParallelOptions options;            // the strategy torch too: see StepRunner
  std::optional<int64_t> cap_bytes = {};  // if the cap is part of what is compared
};

struct StepBenchOptions {
  StepBlocks blocks = {};            // the same on every rank
  StepCounts steps = {};             // of a block; at least one warm-up step, because a first step does not overlap
  bool communication_alone = false;  // after each block, time once what the setting sends, with nothing to hide behind
  // Called after each setting of each block; may be empty.
  std::function<void(const std::string& done)> on_progress = {};
  // Asked after each block whether the blocks so far suffice, on every rank; all must answer alike. May be empty. Other
  // ranks wait.
  std::function<bool(const std::vector<SettingSteps>& so_far)> is_enough = {};
};

// Runs all settings inside one process group, in randomised blocks, a barrier before every step. Collective: every rank
// gets the same result. For the strategy ordered, whose steps overlap, every raw step of a block is the mean over the
// block's, of which there are at least four. Throws what StepRunner throws.
std::vector<SettingSteps> measure_steps(const ProcessGroup& group, Workload& workload, const std::vector<StepSetting>& settings,
                                        const StepBenchOptions& options);

// Counts the memory of tensors that this process allocates on the device while the object lives. On a GPU the figures
// are those of LibTorch's caching allocator, which rounds up to 512 bytes; on a CPU this replaces LibTorch's allocator,
// at a small allocation per tensor, so time nothing under it. One at a time; no other thread may begin to use tensors
// while it is made or destroyed.
class TensorMemory {
 public:
  explicit TensorMemory(c10::Device device = c10::kCPU);
  ~TensorMemory();
  TensorMemory(const TensorMemory&) = delete;
  TensorMemory& operator=(const TensorMemory&) = delete;

  int64_t now_bytes() const;
  int64_t peak_bytes() const;  // the most since construction or reset_peak()
  void reset_peak();

 private:
  c10::Device device_;
  int64_t before_bytes_ = 0;  // on a GPU
};

struct StepMemory {
  int64_t peak_bytes = 0;           // during the step: parameters, gradients, buckets, activations
  int64_t between_steps_bytes = 0;  // after it: parameters, gradients, buckets
};

// The memory of the second step (the first lays the buckets out), on the rank that needs most. Collective: every rank
// gets the same result. Leaves the gradients undefined. Throws what StepRunner throws.
StepMemory measure_step_memory(const ProcessGroup& group, Workload& workload, const DataParallelOptions& options);

// The memory of a step on this rank alone, to see whether the workload fits at all. Not collective. Throws what a
// failing allocation throws.
StepMemory measure_local_step_memory(Workload& workload);

// Returns what `make` returns if, on every rank, both the estimate and the memory of a local step
// are at most `limit_bytes`; else nothing, and `why_not` says what exceeded it. Collective: every
// rank has the same answer. Throws what `make` and a step throw, except for memory.
std::optional<Workload> make_within_memory(const ProcessGroup& group, const std::function<Workload()>& make, int64_t estimated_bytes,
                                           int64_t limit_bytes, std::string& why_not);

// The measurements of a model, a row for every setting. The first setting must be `none`: time that
// a step takes beyond its steps is exposed communication. Requires options.communication_alone.
// memory: of every setting.
StepConfiguration measured_configuration(const ModelDescription& model, const std::vector<StepSetting>& settings,
                                         const std::vector<SettingSteps>& steps, const std::vector<StepMemory>& memory, int world_size);

// Fills in everything of `environment` except Firkin's version: LibTorch, threads, the group's size, device, backend
// and link, and the machines of all ranks. Collective.
void add_ranks(const ProcessGroup& group, Environment& environment);

}  // namespace firkin
