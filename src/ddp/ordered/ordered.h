// The strategy ordered: gradients go on arriving while the next forward runs, and each module waits for its own.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "ddp/forward_overlap.h"
#include "ddp/optimizer_state.h"

#include <torch/optim/optimizer.h>

namespace firkin {

// Steps of optimisers that run later, for a few parameters at a time. Optimisers skip parameters without a gradient and
// keep their state per parameter, so run() defines only the gradients of these: the result is that of one step over all
// parameters. Not thread-safe.
class DeferredSteps {
 public:
  // Defers the rest of this step until clear(). The optimiser must live until then.
  void add(StepInParts step) { steps_.push_back(std::move(step)); }
  bool empty() const { return steps_.empty(); }
  void clear() { steps_.clear(); }

  // Steps all optimisers, in the order in which they were added, with only the gradients that `set_gradients` sets.
  // Restores the gradients of their parameters; those of others stay set for an optimiser that steps later.
  void run(c10::function_ref<void()> set_gradients);

 private:
  std::vector<StepInParts> steps_;
};

// A step and the forward behind it, by the clock of the CPU or of a device.
struct TimedStep {
  std::vector<std::pair<int64_t, BucketTimes>> buckets;  // with their indices, in launch order
  DeviceTime began, backward_ended;
  ForwardTimes forward;
  std::vector<int64_t> first_use;  // as forward's, by bucket
};

// The first step runs as with `bucketed` and shows which modules await. In the next two, buckets are launched as they
// become ready, and waited for. After 4, 8, ... steps, and every 64, all ranks choose a launch order from what recent
// steps have shown (plan/ordered_plan.h), unless the plan has one: communication and late steps of the optimiser change
// when gradients come. On a device events time those steps, and the CPU waits for them only where it chooses; not run
// on a GPU yet. From the first choice on, when a step ends:
//   - the agreement has come, over connections of its own, so that it does not wait behind the buckets: all ranks know
//     that the step is good;
//   - buckets whose parameters are all awaited by some module are left in flight; the others are waited for;
//   - step() runs the optimiser on what has arrived; a module's await, or drain(), receives and steps the rest.
class Ordered final : public ForwardOverlap {
 public:
  // All must outlive this, but for the pipe, which renewed() replaces.
  Ordered(StepProtocol& protocol, const StepSetup& setup, GradientPipe& pipe);
  ~Ordered() override;

  void step(torch::optim::Optimizer& optimizer);
  // Forgets what steps have shown with the buckets in use, because these are replaced.
  void forget_buckets();
  // The last forward that was observed.
  const ForwardTimes& last_forward() const { return last_forward_; }

  void receive_rest() override;
  void begin() override;
  void before_comparison() override {
    if (!are_unclaimed_) receive_all();  // otherwise nobody has stepped with what is in flight
  }
  void received(const StepAgreement& agreement, bool is_first) override;
  void renewed(GradientPipe& pipe) override;

 private:
  void receive_all() override;
  void receive_those(const std::vector<size_t>& parameters) override;
  bool may_be_late(int64_t bucket) const override;
  void check_unchanged() const;
  void receive_late(const std::vector<int64_t>& buckets);
  void receive_in_turn(const std::vector<int64_t>& buckets);
  void observe();
  bool chooses_order() const;
  const at::Tensor& tensor_of(size_t parameter) const { return setup_.parameters[parameter].tensor; }

  std::vector<TimedStep> timed_;            // the last ones, with these buckets
  std::optional<c10::Stream> timing_;       // if all parameters are on one device: of that one
  int64_t steps_ = 0;                       // finished with these buckets
  std::vector<int64_t> next_launch_order_;  // for the next step on; empty: no change
  ForwardTimes last_forward_;
  bool is_forward_observed_ = false;  // a step has ended well, and its forward runs
  std::vector<Trace> traces_;         // by parameter: of its gradient, when that arrived
  bool are_unclaimed_ = false;        // nobody has asked for the gradients that were in flight when the last step ended
  DeferredSteps deferred_;
  // Set while an optimiser steps: a Python signal handler may then ask for gradients in flight,
  // which must wait for the step's end.
  bool is_stepping_ = false;
};

}  // namespace firkin
