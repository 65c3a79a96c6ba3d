// Data-parallel training: every rank holds the module and a part of the batch, and all ranks step with the mean gradient.
//
//   ProcessGroup group = connect();
//   Net net;                                          // any torch::nn::Module
//   DataParallel ddp(*net, group);                    // now every rank has rank 0's parameters
//   torch::optim::SGD optimizer(net->parameters(), 0.1);
//   for (auto& batch : my_part_of_the_data) {
//     optimizer.zero_grad();
//     loss(net->forward(batch.x), batch.y).backward();  // buckets are summed meanwhile; at its end every rank has the mean gradient
//     optimizer.step();
//   }
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "firkin/comm/group_error.h"
#include "firkin/comm/process_group.h"
#include "firkin/ddp/automatic_buckets.h"
#include "firkin/ddp/gradient_hook.h"
#include "firkin/ddp/step_error.h"
#include "firkin/ddp/strategy.h"
#include "firkin/plan/bucket_assignment.h"
#include "firkin/plan/bucket_plan.h"

#include <torch/nn/module.h>

namespace torch::optim {
class Optimizer;
}

namespace firkin {

// Every rank must give the same options; timeout, and automatic buckets' log and file, apart.
struct DataParallelOptions {
  Strategy strategy = find_strategy("bucketed");
  CapOptions cap;                  // for Grouping::kCap
  std::optional<BucketPlan> plan;  // for Grouping::kPlan, and for Wait::kAtFirstUse if given: over the tensors in ready order
  // For the strategy bucketed, without a plan: starts with `cap`, and finds what is best here while it trains. See automatic().
  std::optional<AutomaticBuckets> buckets;
  // The order in which gradients become ready, as indices of the trainable parameters in registration order. Without it: the reverse of
  // registration, and, once the first backward has shown it, rank 0's observed order. Given, it is kept.
  std::vector<int64_t> ready_order;
  GradientHook gradient_hook = plain_all_reduce();
  std::optional<std::chrono::milliseconds> timeout;  // of every collective of a step; without: the group's
  bool finish_with_backward = true;                  // false: finish_gradient_synchronization() after every backward completes the step
  bool find_unused_parameters = false;               // allow parameters that a rank's backward does not reach
  bool broadcast_buffers = true;                     // rank 0's buffers (batch norm's statistics) to all after every step
  bool broadcast_parameters = true;                  // rank 0's parameters and buffers to all at construction
  bool torch_bucket_views = true;                    // strategy torch only: gradients are views into the Reducer's buckets
};

// One bucket in the last step. Seconds since the first gradient of the step was ready.
struct BucketStats {
  int64_t tensors = 0;
  int64_t bytes = 0;          // of the gradients in it
  int64_t bytes_on_wire = 0;  // that this rank hands to the collective
  double launch_s = 0;
  double end_s = 0;  // its sum was complete on this rank
};

struct DataParallelStats {
  std::vector<std::string> tensors;  // parameter names in the order in which they lie in the buckets
  std::vector<BucketStats> buckets;  // in launch order, of the last finished step
  double exposed_wait_s = 0;         // from the end of the last backward's gradients to the end of the step
  int64_t steps = 0;                 // finished without an error
  double forward_wait_s = 0;         // strategy ordered: spent in await_parameters(), optimiser included, in the forward of that step
  int64_t awaited_bytes = 0;         // strategy ordered: of the gradients that a step may leave on their way, because modules await them
  std::optional<AutomaticPhase> automatic = {};  // how far DataParallelOptions::buckets has come
};

class Synchronizer;

// Guarantees: when a step has ended, every trainable parameter's gradient is the mean over the ranks of what each rank's backward produced,
// the same bits on every rank, or every rank has an error from that very step and no gradient. A step ends with backward(), or with
// finish_gradient_synchronization() when finish_with_backward is off. Gradients live in the buckets (parameter.grad() is a view); while
// backward runs, parameter.grad() is undefined from the moment its bucket takes it. zero_grad() may set gradients to none or to zero.
//
// Errors: when a rank's backward throws, that rank's backward() throws what it threw, and every other rank's step throws a StepError that
// names the rank and its reason; the next step starts clean. A backward that throws before its first gradient or under no_sync() goes
// unnoticed, as does a forward: the handler calls abandon_step(). Without that call the others wait for this rank's next backward, and take
// it for their step. When a collective fails, the group is lost: every call throws a GroupError that names the ranks that are missing, a
// new group is needed, and ranks may be a step apart (docs/data_parallel.md, "After a failure").
//
// Under the strategy `ordered` a step ends, as far as the ranks agree on it, before all gradients have arrived. Gradients of parameters
// that a module awaits (await_parameters.h) stay undefined after backward; OverlappedOptimizer::step() uses them when they come, and
// drain() waits for all. Whatever reads parameters otherwise than in a forward that awaits them reads them through module(), or after
// drain().
//
// Construction and steps are collective: every rank takes part, in the same order. One thread at a time may use an object; autograd may run
// its hooks on other threads. The destructor removes every hook, and waits for nobody; gradients of finished steps stay valid. It must not
// run during a backward. An instance must not outlive the process group's c10d backend.
class DataParallel {
 public:
  // Throws RuntimeError on every rank, naming the first difference and both values, unless all ranks have the same options and the same
  // parameters and buffers (names, shapes, dtypes, strides); InputError when the module has no trainable parameter, is wrapped already, or
  // a plan does not cover it, or automatic buckets cannot be, and then RuntimeError on the other ranks.
  DataParallel(torch::nn::Module& module, ProcessGroup group, DataParallelOptions options = {});
  ~DataParallel();
  DataParallel(const DataParallel&) = delete;
  DataParallel& operator=(const DataParallel&) = delete;

  // Where finish_with_backward is off: completes the step of the last backward; when no gradient has come since the last call, takes part
  // in the other ranks' step without any. Where it is on: does nothing. Throws StepError when the step failed on any rank (a parameter
  // without gradient is such a failure, unless under find_unused_parameters), GroupError when a collective failed.
  void finish_gradient_synchronization();

  // Off: backward accumulates gradients on this rank only; the first backward after it is on again synchronises the sum.
  //   for (int micro = 0; micro < micros; ++micro) {
  //     ddp.set_gradient_synchronization(micro == micros - 1);
  //     loss(micro).backward();
  //   }
  // Returns what was set before.
  bool set_gradient_synchronization(bool on);

  // The same as a scope.
  //   { auto scope = ddp.no_sync(); loss(micro_batch_1).backward(); }
  class NoSync {
   public:
    explicit NoSync(Synchronizer& synchronizer);
    ~NoSync();
    NoSync(const NoSync&) = delete;
    NoSync& operator=(const NoSync&) = delete;

   private:
    Synchronizer& synchronizer_;
    bool before_;
  };
  [[nodiscard]] NoSync no_sync();

  // For ranks with different numbers of batches. The mean of a step is over the ranks that have a batch in it; a rank without one adds
  // nothing and gets the same gradients, so parameters and optimiser state stay equal everywhere. Buffers come from the first rank that has
  // data. Every rank calls finish() once it has no batch left; gradients are none afterwards.
  //   auto join = ddp.join();
  //   for (auto& batch : my_part_of_the_data) train_on(batch);
  //   join.finish([&] { optimizer.step(); });
  class Join {
   public:
    explicit Join(Synchronizer& synchronizer) : synchronizer_(synchronizer) {}

    // Takes part in the steps of the ranks that have a batch, calling `step` after each, until no rank has one. Collective. Throws
    // StepError when a step failed on another rank (call finish() again to go on), GroupError when a collective failed.
    void finish(const std::function<void()>& step);

   private:
    Synchronizer& synchronizer_;
  };
  // Throws InputError under the strategy torch.
  [[nodiscard]] Join join();

  // Strategy ordered: waits for the gradients of the last step that are still on their way. Where the optimiser has stepped already
  // (OverlappedOptimizer), their parameters are stepped too; otherwise they are the parameters' gradients now. Does nothing under other
  // strategies. Not collective. Throws GroupError when a collective failed.
  void drain();

  // The wrapped module, drained: for evaluation, checkpoints, named_parameters().
  torch::nn::Module& module();

  // This rank cannot do the step that the others are in (its forward threw, say): takes part as failed, so that every rank throws a
  // StepError with this reason from that step, and forgets this step's gradients. Does nothing when the last step failed already and no
  // gradient has come since, so that a handler may call it whatever happened; a second forward in a row that throws is not told therefore.
  // Throws GroupError when a collective fails.
  void abandon_step(const std::string& reason = "the step was abandoned");

  // Of the last step; nothing when it succeeded. The same on every rank.
  const std::optional<StepFailure>& last_failure() const;

  // Of the last finished step.
  DataParallelStats stats() const;
  // The plan in use, over stats().tensors. Empty when nothing is sent.
  const BucketPlan& plan() const;
  // The ready order in use, as DataParallelOptions::ready_order takes it.
  const std::vector<int64_t>& ready_order() const;

 private:
  friend class OverlappedOptimizer;
  void step(torch::optim::Optimizer& optimizer);

  torch::nn::Module* module_;
  std::unique_ptr<Synchronizer> synchronizer_;
};

}  // namespace firkin
