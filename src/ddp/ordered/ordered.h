// The strategy ordered: sums go on arriving while the next forward runs, and each module waits for its own.
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

// Steps of optimisers that are made later, for a few parameters at a time. In run() only these parameters have a
// gradient. Since optimisers skip parameters without one and keep their state per parameter, all runs together have the
// result of one step over all parameters. Not thread-safe.
class DeferredSteps {
 public:
  // Each run() now continues this step too, until clear(). The optimiser must live until then.
  void add(StepInParts step) { steps_.push_back(std::move(step)); }
  bool empty() const { return steps_.empty(); }
  void clear() { steps_.clear(); }

  // Steps all optimisers, in the order in which they were added, with only the gradients that `set_gradients` sets, and
  // then restores the gradients that their parameters had. What `set_gradients` sets for other parameters stays, for an
  // optimiser that steps later.
  void run(c10::function_ref<void()> set_gradients);

 private:
  std::vector<StepInParts> steps_;
};

// A step and the forward behind it, by the clock of the CPU or of a device.
struct TimedStep {
  std::vector<std::pair<int64_t, BucketTimes>> buckets;  // with their indices, in launch order
  DeviceTime began, backward_ended;
  ForwardTimes forward;
  std::vector<int64_t> first_use;  // by bucket: the pause of `forward` before its first use
};

// The first step runs as under `bucketed`, and shows which modules await. The next two launch buckets as they become
// ready, and wait for all. After the third step all ranks choose a launch order from what recent steps have shown
// (plan/ordered_plan.h), unless the plan has one. They choose again 4, 8, ... 64 steps after the first, and every 64
// from then on: communication, and steps of the optimiser within forward, change when gradients arrive. On a device,
// events time those steps, and the CPU waits for the device only where ranks choose; this has not run on a GPU yet.
//
// From the first choice on, when a step ends:
//   - All ranks have agreed that the step is good. The agreement has connections of its own, so it need not wait behind
//     buckets.
//   - Buckets of which modules await every parameter may still be in flight. The others have been received.
//   - step() runs the optimiser on what has arrived. The await of a module, or drain(), receives and steps the rest.
class Ordered final : public ForwardOverlap {
 public:
  // All must outlive this, except the pipe, which renewed() replaces.
  Ordered(StepProtocol& protocol, const StepSetup& setup, GradientPipe& pipe);
  ~Ordered() override;

  void step(torch::optim::Optimizer& optimizer);
  // Call it before other buckets replace those in use: forgets what steps with these have shown.
  void forget_buckets();
  // The last forward that was observed.
  const ForwardTimes& last_forward() const { return last_forward_; }

  void receive_rest() override;
  void begin() override;
  void before_comparison() override {
    if (!are_unclaimed_) receive_all();  // otherwise no optimiser has stepped, and what is in flight changes no parameter
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

  std::vector<TimedStep> timed_;            // the last steps with these buckets
  std::optional<c10::Stream> timing_;       // a stream of the parameters' device; none for a CPU, or several devices
  int64_t steps_ = 0;                       // finished with these buckets
  std::vector<int64_t> next_launch_order_;  // for the next step on; empty: no change
  ForwardTimes last_forward_;
  bool is_forward_observed_ = false;  // a step has ended well, and its forward runs
  std::vector<Trace> traces_;         // by parameter: of its gradient, when that arrived
  bool are_unclaimed_ = false;        // nobody has asked for gradients that were in flight when the last step ended
  DeferredSteps deferred_;
  // An optimiser is stepping. A Python signal handler may then ask for gradients in flight, which have to wait.
  bool is_stepping_ = false;
};

}  // namespace firkin
