// When each gradient becomes ready in the backward pass, and when forward needs its parameter, measured on the real
// model.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ddp/buckets.h"
#include "firkin/comm/process_group.h"
#include "firkin/ddp/module_parameters.h"
#include "results/results.h"
#include "workload/workload.h"

namespace firkin {

struct ReadyProfileOptions {
  int warmup_steps = 3;
  int steps = 20;                                                 // pairs of steps: a bare backward, and one with hooks
  std::function<void(const std::string& done)> on_progress = {};  // may be empty
  // Asked after each pair whether that many suffice, on every rank; all must answer alike. May be empty.
  std::function<bool(int done)> is_enough = {};
};

// The fewest that give medians and a ratio.
inline constexpr int kFewestProfileSteps = 4;

struct ReadyProfile {
  // Ready means: the gradient is in its bucket and could be sent. The names are the module's, in gradient-ready order.
  // Times are the median over steps of the slowest rank's, made non-decreasing. The forward pass is known if modules
  // await their parameters; the optimiser's time is shared out by bytes.
  MeasuredProfile profile;           // its hook_perturbation is the cost of hooks and of writing gradients into buckets
  std::vector<int64_t> ready_order;  // the same order, as DataParallelOptions::ready_order takes it
};

// Collective: every rank gets rank 0's order and the same times. Steps the workload, optimiser included, without
// communicating gradients. Throws InputError, on every rank, for a step without backward and for a trainable parameter
// that gets no gradient.
ReadyProfile measure_ready_profile(const ProcessGroup& group, Workload& workload, const ReadyProfileOptions& options);

// ---- Observers

enum class ReadyWhen {
  kAccumulated,  // autograd has finished the gradient
  kInBucket,     // and it was written into its bucket, as DataParallel does, so that it could be sent
};

// Hooks on all parameters, for as long as it lives.
class ReadyRecorder {
 public:
  // Throws what ParameterHooks throws.
  ReadyRecorder(const std::vector<NamedTensor>& parameters, ReadyWhen when);

  // Per parameter: when it was ready in the last backward that reached it.
  const std::vector<DeviceTime>& ready() const { return ready_; }

 private:
  std::unique_ptr<GradientBuckets> buckets_;  // none for kAccumulated
  std::vector<DeviceTime> ready_;
  ParameterHooks hooks_;  // last, so that no hook runs when the rest is gone
};

// ---- An observed step

// What a step took on this rank, in seconds.
struct ProfiledStep {
  int backward_passes = 1;
  double forward_s = 0;  // includes reading the batch and the loss
  double backward_s = 0;
  double update_s = 0;
  std::vector<double> ready_s;   // per parameter, from when backward began; empty without a recorder
  std::vector<double> needed_s;  // per parameter, from when forward began; only in measure_ready_profile()

  double whole_s() const { return forward_s + backward_s + update_s; }
};

// Steps the workload, optimiser included, without communicating gradients, with a barrier before backward. Collective.
// recorder: what observes the step, or null.
ProfiledStep profiled_step(const ProcessGroup& group, Workload& workload, int64_t step, const ReadyRecorder* recorder);

}  // namespace firkin
