// Data-parallel training: every rank holds the module and a part of the batch, and all ranks step with the mean gradient.
//
//   ProcessGroup group = connect(*rank_info_from_environment(), {});
//   Net net;                                          // any torch::nn::Module
//   DataParallel ddp(*net, group);                    // now every rank has rank 0's parameters
//   torch::optim::SGD optimizer(net->parameters(), 0.1);
//   for (auto& batch : my_part_of_the_data) {
//     optimizer.zero_grad();
//     loss(net->forward(batch.x), batch.y).backward();  // buckets of gradients are summed meanwhile
//     ddp.finish_gradient_synchronization();            // now every rank has the mean gradient
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

#include "firkin/comm/process_group.h"
#include "firkin/ddp/gradient_hook.h"
#include "firkin/ddp/strategy.h"
#include "firkin/plan/bucket_assignment.h"
#include "firkin/plan/bucket_plan.h"

#include <torch/nn/module.h>

namespace firkin {

struct DataParallelOptions {
  Strategy strategy = find_strategy("bucketed");
  CapOptions cap;                  // for Grouping::kCap
  std::optional<BucketPlan> plan;  // for Grouping::kPlan: over the tensors in ready order
  // The order in which gradients become ready, as indices of the trainable parameters in registration order. Without it: the reverse of
  // registration, and, once the first backward has shown it, rank 0's observed order. Given, it is kept.
  std::vector<int64_t> ready_order;
  GradientHook gradient_hook = plain_all_reduce();
  std::optional<std::chrono::milliseconds> timeout;  // of the all-reduce of a bucket; without: the group's
  bool find_unused_parameters = false;               // allow parameters that a rank's backward does not reach
  bool broadcast_buffers = true;                     // rank 0's buffers (batch norm's statistics) to all after every step
  bool broadcast_parameters = true;                  // rank 0's parameters and buffers to all at construction
  bool torch_bucket_views = true;                    // strategy torch only: gradients are views into the Reducer's buckets
};

// One bucket in the last step. Seconds since the first gradient of the step was ready.
struct BucketStats {
  int64_t tensors = 0;
  int64_t bytes = 0;
  int64_t bytes_on_wire = 0;
  double launch_s = 0;
  double end_s = 0;  // its sum was complete on this rank
};

struct DataParallelStats {
  std::vector<std::string> tensors;  // parameter names in the order in which they lie in the buckets
  std::vector<BucketStats> buckets;  // in launch order, of the last finished step
  double exposed_wait_s = 0;         // time that the last finish_gradient_synchronization() blocked
  int64_t steps = 0;                 // finished
};

// Guarantees: after finish_gradient_synchronization() every trainable parameter's gradient is the mean over the ranks of what
// each rank's backward produced, the same bits on every rank. Gradients live in the buckets (parameter.grad() is a view); zero_grad() may
// set them to none or to zero. The destructor removes every hook; gradients stay valid.
//
// Construction and finish_gradient_synchronization() are collective: every rank calls them, in the same order. One thread at a time may use
// an object; autograd may run its hooks on other threads. An instance must not outlive the process group's c10d backend.
class DataParallel {
  class Impl;

 public:
  // Throws RuntimeError on every rank, naming the first parameter that differs, unless all ranks have the same parameters (names, shapes,
  // dtypes, strides); InputError when the module has no trainable parameter, is wrapped already, or a plan does not cover it.
  DataParallel(torch::nn::Module& module, ProcessGroup group, DataParallelOptions options = {});
  ~DataParallel();
  DataParallel(const DataParallel&) = delete;
  DataParallel& operator=(const DataParallel&) = delete;

  // Completes the gradients of one backward. Blocks the calling thread on CPU, the current stream on a GPU.
  // Throws RuntimeError when a collective fails or times out, and when a parameter received no gradient, naming it (not under
  // find_unused_parameters). After a throw the next step starts clean.
  void finish_gradient_synchronization();

  // While the scope lives, backward accumulates gradients on this rank only; the first backward after it synchronises the sum.
  //   { auto scope = ddp.no_sync(); loss(micro_batch_1).backward(); }
  class NoSync {
   public:
    explicit NoSync(bool& synchronizes) : synchronizes_(synchronizes), before_(synchronizes) { synchronizes = false; }
    ~NoSync() { synchronizes_ = before_; }
    NoSync(const NoSync&) = delete;
    NoSync& operator=(const NoSync&) = delete;

   private:
    bool& synchronizes_;
    bool before_;
  };
  // Throws InputError under the strategy torch.
  [[nodiscard]] NoSync no_sync();

  // While the scope lives, ranks may have different numbers of batches. The mean of a step is over the ranks that have a batch in it; a
  // rank without one adds nothing and gets the same gradients, so parameters and optimiser state stay equal everywhere. Buffers come from
  // the first rank that has data. Every rank opens the scope, and closes it with finish(). One small all-reduce more per step.
  //   {
  //     auto join = ddp.join();
  //     for (auto& batch : my_part_of_the_data) train_on(batch);
  //     join.finish([&] { optimizer.step(); });
  //   }
  class Join {
   public:
    explicit Join(Impl& owner);
    ~Join();
    Join(const Join&) = delete;
    Join& operator=(const Join&) = delete;

    // This rank has no batch left: takes part in the steps of the ranks that have, calling `step` after each, until no rank has one.
    // Collective. Throws RuntimeError when a collective fails or times out.
    void finish(const std::function<void()>& step);

   private:
    Impl& owner_;
  };
  // Throws InputError under the strategy torch.
  [[nodiscard]] Join join();

  // Call it when backward threw and the gradients are then zeroed in place: takes part in the collectives that the other ranks
  // expect of this step, and forgets its gradients. Without it the next backward does the same.
  void abandon_step();

  // Of the last finished step.
  DataParallelStats stats() const;
  // The plan in use, over stats().tensors. Empty when nothing is sent.
  const BucketPlan& plan() const;
  // The ready order in use, as DataParallelOptions::ready_order takes it.
  const std::vector<int64_t>& ready_order() const;

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace firkin
