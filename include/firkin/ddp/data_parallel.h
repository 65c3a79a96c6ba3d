// Data-parallel training: every rank holds the module and a part of the batch, and all ranks step with the mean gradient.
//
//   ProcessGroup group = connect();
//   Net net;                                          // any torch::nn::Module
//   DataParallel ddp(*net, group);                    // now every rank has rank 0's parameters
//   torch::optim::SGD optimizer(net->parameters(), 0.1);
//   for (auto& batch : my_part_of_the_data) {
//     optimizer.zero_grad();
//     loss(net->forward(batch.x), batch.y).backward();  // all-reduces overlap backward; on return gradients are averaged
//     optimizer.step();
//   }
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "firkin/base/error.h"
#include "firkin/comm/group_error.h"
#include "firkin/comm/process_group.h"
#include "firkin/ddp/module_parameters.h"
#include "firkin/ddp/options.h"
#include "firkin/plan/bucket_plan.h"

#include <torch/nn/module.h>

namespace torch::optim {
class Optimizer;
}

namespace firkin {

// A training step that failed on some rank, as every rank hears of it.
struct StepFailure {
  int rank = 0;        // the first that failed
  int64_t step = 0;    // counted from 0; failed steps count
  std::string reason;  // on that rank

  bool operator==(const StepFailure&) const = default;
};

// Thrown from the same step on every rank: no rank has a gradient of it, and none may step its optimiser.
class StepError : public RuntimeError {
 public:
  explicit StepError(StepFailure failure);

  const StepFailure& failure() const { return failure_; }

 private:
  StepFailure failure_;
};

// Ranks hold different parameters, or optimiser states. Thrown from the same step on every rank, which has no gradient of it. The message
// names the first tensor that differs, two ranks, and the audit at which all was still equal.
class AuditError : public RuntimeError {
 public:
  using RuntimeError::RuntimeError;
};

// One bucket in the last step. Seconds since the first gradient of the step was ready.
struct BucketStats {
  int64_t tensors = 0;
  int64_t bytes = 0;          // of the gradients in it
  int64_t bytes_on_wire = 0;  // that this rank hands to the collective
  double ready_s = 0;         // its gradients were in it on this rank
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
// Parameters may be thawed, frozen, added and replaced while training goes on, on every rank alike: see parameters_changed(). Parameters
// that were stepped with gradients of this rank alone (accumulated under no_sync(), and taken by no step since), or by different learning
// rates, differ between ranks: the next step, or the next audit, throws on every rank.
//
// Modules wrapped on one group have connections of their own. Every rank must step them in the same order; where ranks do not, every rank
// throws a GroupError that names both modules, within a few seconds.
//
// Gradients of gradients: backward(create_graph = true) fails the step, for an average keeps no graph. torch::autograd::grad(loss, ...,
// create_graph = true) calls no hooks: put what is made from it into the loss before one backward().
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
    explicit NoSync(DataParallel& ddp) : ddp_(ddp), before_(ddp.set_gradient_synchronization(false)) {}
    ~NoSync() { ddp_.set_gradient_synchronization(before_); }
    NoSync(const NoSync&) = delete;
    NoSync& operator=(const NoSync&) = delete;

   private:
    DataParallel& ddp_;
    bool before_;
  };
  [[nodiscard]] NoSync no_sync() { return NoSync(*this); }

  // For ranks with different numbers of batches. The mean of a step is over the ranks that have a batch in it; a rank without one adds
  // nothing and gets the same gradients, so parameters and optimiser state stay equal everywhere. Buffers come from the first rank that has
  // data. Every rank calls finish() once it has no batch left; gradients are none afterwards.
  //   auto join = ddp.join();
  //   for (auto& batch : my_part_of_the_data) train_on(batch);
  //   join.finish([&] { optimizer.step(); });
  class Join {
   public:
    explicit Join(DataParallel& ddp) : ddp_(ddp) {}

    // Takes part in the steps of the ranks that have a batch, calling `step` after each, until no rank has one. Collective. Throws
    // StepError when a step failed on another rank (call finish() again to go on), GroupError when a collective failed.
    void finish(const std::function<void()>& step);

   private:
    DataParallel& ddp_;
  };
  [[nodiscard]] Join join() { return Join(*this); }

  // Call it on every rank after parameters were added, replaced, thawed or frozen: the next step takes the module as it is now, and new
  // parameters get rank 0's values. Between steps. Collective. Throws RuntimeError on every rank, naming the first difference, unless all
  // ranks train the same parameters, and where options.plan or options.ready_order speaks of others.
  //
  // Without this call the next step notices. Where new parameters have the same values on all ranks, it includes them; where not, it gives
  // them rank 0's and throws a StepError on every rank, and the step after it works.
  void parameters_changed();

  // Compares checksums of all parameters, and of the states of audited optimisers, over the ranks; every options.audit_every steps that
  // happens as part of a step. Not of buffers, which broadcast_buffers keeps equal. Between steps. Collective. Throws AuditError on every
  // rank when any differs.
  void audit();
  // The optimiser's state is audited as well. It must outlive this object. (OverlappedOptimizer calls this for its own.)
  void audit_optimizer(const torch::optim::Optimizer& optimizer);
  // The same for state that is kept elsewhere: `tensors` names them, the same names in the same order on every rank. What it throws loses
  // the group.
  void audit_tensors(std::function<std::vector<NamedTensor>()> tensors);

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
  // The plan in use, over stats().tensors. Empty when nothing is sent. This reference and the next hold until the module's parameters
  // change.
  const BucketPlan& plan() const;
  // The ready order in use, as DataParallelOptions::ready_order takes it.
  const std::vector<int64_t>& ready_order() const;

 private:
  friend class OverlappedOptimizer;
  void step(torch::optim::Optimizer& optimizer, double clip_each_norm);
  void forget_audited(const torch::optim::Optimizer& optimizer);

  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace firkin
