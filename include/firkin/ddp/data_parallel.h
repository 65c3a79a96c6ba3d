// Data-parallel training: every rank holds the module and part of the batch, and all ranks step with the mean gradient.
//
//   ProcessGroup group = connect();
//   Net net;                                          // any torch::nn::Module
//   DataParallel ddp(*net, group);                    // now every rank has rank 0's parameters
//   torch::optim::SGD optimizer(net->parameters(), 0.1);
//   for (auto& batch : my_part_of_the_data) {
//     optimizer.zero_grad();
//     loss(net->forward(batch.x), batch.y).backward();  // all-reduces overlap backward
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

#include "firkin/base/error.h"
#include "firkin/comm/process_group.h"
#include "firkin/ddp/module_parameters.h"
#include "firkin/ddp/options.h"
#include "firkin/plan/bucket_plan.h"

#include <torch/nn/module.h>

namespace torch::optim {
class Optimizer;
}

namespace firkin {

class Sharded;  // internal

// A training step that failed on some rank, as every rank sees it.
struct StepFailure {
  int rank = 0;        // the first rank that failed
  int64_t step = 0;    // counted from 0, failed steps included
  std::string reason;  // on that rank

  bool operator==(const StepFailure&) const = default;
};

// Thrown from the same step on every rank. No rank has a gradient of that step, and none may step its optimiser.
class StepError : public RuntimeError {
 public:
  explicit StepError(StepFailure failure);

  const StepFailure& failure() const { return failure_; }

 private:
  StepFailure failure_;
};

// Ranks hold different parameters or optimiser states, or their optimisers have stepped differently often. Thrown from
// the same step on every rank; no rank has a gradient of that step. The message names the first tensor that differs,
// two ranks, and the last audit at which all were equal.
class AuditError : public RuntimeError {
 public:
  using RuntimeError::RuntimeError;
};

// One bucket of the last step. Times are seconds since the step's first gradient was ready.
struct BucketStats {
  int64_t tensors = 0;
  int64_t bytes = 0;          // the size of its gradients
  int64_t bytes_on_wire = 0;  // what this rank passes to the collective
  double ready_s = 0;         // when the last of its gradients was in the bucket on this rank
  double launch_s = 0;
  double end_s = 0;  // its sum was complete on this rank
};

struct DataParallelStats {
  std::vector<std::string> tensors;  // parameter names, in bucket order
  std::vector<BucketStats> buckets;  // in launch order, of the last finished step
  // From the last gradient of backward to the end of the step.
  double exposed_wait_s = 0;
  int64_t steps = 0;                                             // finished without an error
  std::chrono::steady_clock::time_point began = {}, ended = {};  // its first gradient was ready; it ended
  // Ordered, sharded: time in await_parameters() during that step's forward, ordered's optimiser included.
  double forward_wait_s = 0;
  // Ordered, sharded: bytes of buckets that a step may leave in flight, because modules await them.
  int64_t awaited_bytes = 0;
  std::optional<AutomaticPhase> automatic = {};  // progress of DataParallelOptions::buckets
};

// Guarantees: after a step, either every trainable parameter's gradient is the mean over the ranks of what each rank's
// backward produced, bit for bit equal on all ranks, or every rank has an error from that same step and no gradient. A
// step ends with backward(), or with finish_gradient_synchronization() if finish_with_backward is off. Gradients live
// in the buckets (parameter.grad() is a view, unless the program held one that backward has added to). In backward,
// grad() is undefined once its bucket has taken it. zero_grad() may set gradients to none or to zero.
//
// Errors: if a rank's backward throws, that rank's backward() rethrows it, and every other rank's step throws a
// StepError naming the rank and its reason; the next step starts clean. An exception before the first gradient, under
// no_sync(), or in forward goes unnoticed: call abandon_step() in the handler. Without it, the other ranks wait for
// this rank's next backward and treat that as their step; if an OverlappedOptimizer or ShardedOptimizer has stepped
// meanwhile, as after a loss that depends on no parameter, every rank throws an AuditError then. If a collective fails,
// the group is lost: every call throws a GroupError naming the missing ranks, which may be one step apart. End the
// process: its launcher has to start all ranks anew (docs/data_parallel.md, "After a failure").
//
// Parameters may be thawed, frozen, added and replaced during training, on every rank alike: see parameters_changed().
// Parameters differ between ranks if they were stepped with one rank's own gradients (accumulated under no_sync() and
// never synchronised) or with different learning rates; the next step or the next audit then throws on every rank.
//
// Modules wrapped on one group have their own connections. Step them in the same order on every rank; otherwise every
// rank throws, within a few seconds, a GroupError that names both modules.
//
// Higher-order gradients: backward(create_graph = true) fails the step, because an average keeps no graph.
// torch::autograd::grad(loss, ..., create_graph = true) calls no hooks: add its result to the loss before one
// backward().
//
// Under the strategy `ordered`, ranks agree on a step before all its gradients have arrived. Gradients of parameters
// that a module awaits (await_parameters.h) stay undefined after backward; OverlappedOptimizer::step() uses them on
// arrival, and drain() waits for all of them. Code that reads parameters other than in a forward that awaits them must
// use module(), or call drain() first.
//
// Under the strategy `sharded` each rank gets the mean gradient of only its part of every bucket: gradients are
// undefined after backward, and a ShardedOptimizer steps the parts (sharded_optimizer.h). As under `ordered`,
// parameters may still be in flight afterwards.
//
// Thread-safety: construction and steps are collective; every rank takes part, in the same order. One thread at a time
// may use an object; autograd may run its hooks on other threads. The destructor removes every hook and waits for
// nobody; gradients of finished steps stay valid. It must not run during a backward. An instance must not outlive the
// process group's c10d backend.
class DataParallel {
 public:
  // Throws RuntimeError on every rank, naming the first difference and both values, unless all ranks have the same
  // options and the same parameters and buffers (names, shapes, dtypes, strides). Throws InputError, and RuntimeError
  // on the other ranks, if the module has no trainable parameter or is wrapped already, or if a plan or automatic
  // buckets do not fit it.
  DataParallel(torch::nn::Module& module, const ProcessGroup& group, DataParallelOptions options = {});
  ~DataParallel();
  DataParallel(const DataParallel&) = delete;
  DataParallel& operator=(const DataParallel&) = delete;

  // If finish_with_backward is off: completes the step of the last backward or, if no gradient has arrived since the
  // last call, takes part in the other ranks' step without any. If it is on: does nothing. Throws StepError if the step
  // failed on any rank (a parameter without gradient is such a failure, unless find_unused_parameters is set),
  // GroupError if a collective failed.
  void finish_gradient_synchronization();

  // Off: backward accumulates gradients on this rank only; the first backward after switching on synchronises the sum.
  //
  //   for (int micro = 0; micro < micros; ++micro) {
  //     ddp.set_gradient_synchronization(micro == micros - 1);
  //     loss(micro).backward();
  //   }
  //
  // Returns the previous setting.
  bool set_gradient_synchronization(bool on);

  // The same as a scope.
  //   { auto scope = ddp.no_sync(); loss(micro_batch_1).backward(); }
  class NoSync {
   public:
    explicit NoSync(DataParallel& ddp) : ddp_(ddp), before_(ddp.set_gradient_synchronization(false)) {}
    ~NoSync() { ddp_.set_gradient_synchronization(before_); }
    NoSync(const NoSync&) = delete;
    NoSync& operator=(const NoSync&) = delete;

   private:
    DataParallel& ddp_;
    bool before_;
  };
  [[nodiscard]] NoSync no_sync() { return NoSync(*this); }

  // For ranks with different numbers of batches: every rank calls it once it has no batch left. Takes part in the steps
  // of the ranks that still have one, calling `step` after each, until none has; gradients are none afterwards.
  //
  //   for (auto& batch : my_part_of_the_data) train_on(batch);
  //   ddp.join([&] { optimizer.step(); });
  //
  // A step averages over the ranks that have a batch in it; a rank without one adds nothing and receives the same
  // gradients, so parameters and optimiser state stay equal everywhere. Buffers come from the first rank with data.
  // Collective. Throws StepError if a step failed on another rank (call it again to continue), GroupError if a
  // collective failed.
  void join(const std::function<void()>& step);

  // Call it on every rank, between steps, after parameters were added, replaced, thawed or frozen: the next step uses
  // the module as it is now, and new parameters get rank 0's values. Collective. Throws RuntimeError on every rank,
  // naming the first difference, unless all ranks train the same parameters, and if options.plan or options.ready_order
  // refer to others.
  //
  // Without this call the next step notices. It includes new parameters if all ranks have the same values; otherwise it
  // gives them rank 0's and throws a StepError on every rank, and the step after it works.
  void parameters_changed();

  // Compares checksums across ranks: of all parameters; of buffers, if options.broadcast_buffers is on, as the last
  // step has left them; of what audited optimisers keep; of a ShardedOptimizer's options. A step does the same every
  // options.audit_every steps, with the state that its first gradient finds. Call between steps. Collective. Throws
  // AuditError on every rank if any differ.
  void audit();
  // Audits the optimiser's state too, and tensors that it steps outside the module (those of another wrapped module
  // excepted). It must outlive this object. (OverlappedOptimizer calls this for its own.)
  void audit_optimizer(const torch::optim::Optimizer& optimizer);
  // The same for state kept elsewhere: `tensors` returns it with the same names in the same order on every rank. An
  // exception from it loses the group.
  void audit_tensors(std::function<std::vector<NamedTensor>()> tensors);

  // Strategy ordered: waits for gradients of the last step that are still in flight. If the optimiser has stepped
  // already (OverlappedOptimizer), their parameters are stepped too; otherwise they become the parameters' gradients.
  // Strategy sharded: waits for parameters in flight. Does nothing under other strategies. Not collective. Throws
  // GroupError if a collective failed.
  void drain();

  // The same for the parameters of one part of the module. A forward that reads them before it calls that part (a
  // momentum encoder) has to call this first: otherwise it silently reads old values.
  void receive_parameters(const torch::nn::Module& part);

  // The wrapped module, after drain(): for evaluation, checkpoints, named_parameters().
  torch::nn::Module& module();

  // Call it if this rank cannot do the step the others are in, for example because its forward threw. The rank takes
  // part as failed: every rank throws a StepError with this reason from that step and drops its gradients. Does nothing
  // if the last step failed already and no gradient has arrived since, so a handler may always call it. If it is called
  // in the handler itself (inside catch), for every exception that a step throws, it also recognises a second exception
  // that comes before any gradient: two bad batches in a row. Throws GroupError if a collective fails.
  void abandon_step(const std::string& reason = "the step was abandoned");

  // The last step's failure; nothing if it succeeded. The same on every rank.
  const std::optional<StepFailure>& last_failure() const;

  // Statistics of the last finished step.
  DataParallelStats stats() const;
  // Calls `observer` after each step that ends without an error, on the thread that ends it; null removes it. It may
  // call stats(); an exception from it loses the group. Call between steps. Watch uses it.
  void observe_steps(std::function<void()> observer);
  // The plan in use, over stats().tensors; empty if nothing is sent. This reference and the next stay valid until the
  // module's parameters change.
  const BucketPlan& plan() const;
  // The ready order in use, in the form of DataParallelOptions::ready_order.
  const std::vector<int64_t>& ready_order() const;

 protected:
  // Call it when an optimiser other than an OverlappedOptimizer or a ShardedOptimizer has stepped parameters of the
  // module: the next step then fails unless optimisers have stepped equally often on all ranks. optimizer: an address
  // of its own.
  void count_optimizer_step(const void* optimizer);
  // Call it between steps if the module may now hold these parameters: a backward that reaches one of them then begins
  // a step, even if it reaches no parameter that is trained so far. That step finds out what the module holds.
  void add_hooks_to_others(const std::vector<NamedTensor>& parameters);

 private:
  friend class OverlappedOptimizer;
  friend class ShardedOptimizer;
  Sharded& sharded();
  void step(torch::optim::Optimizer& optimizer);
  void forget_audited(const torch::optim::Optimizer& optimizer);

  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace firkin
