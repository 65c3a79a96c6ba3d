// When each gradient becomes ready in the backward pass, and when forward needs its parameter, measured on the real model.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "firkin/comm/process_group.h"
#include "firkin/plan/tensor_profile.h"
#include "firkin/stats/paired.h"
#include "workload/workload.h"

namespace firkin {

struct ReadyProfileOptions {
  int warmup_steps = 3;
  int steps = 20;                                            // of each kind, alternating: bare backward, and backward with hooks
  std::function<void(const std::string& done)> on_progress;  // may be empty
};

struct ReadyProfile {
  // Ready means: the gradient is in its bucket and could be sent. The names are the module's, in gradient-ready order. Times are the median
  // over steps of the slowest rank's, made non-decreasing. The forward pass is known where modules await their parameters; what the
  // optimiser takes is shared out by bytes.
  TensorProfile tensors;
  std::vector<int64_t> ready_order;  // the same order, as DataParallelOptions::ready_order takes it
  double bare_backward_s = 0;        // backward with no hook at all, of the slowest rank: the profile's over hooked_to_bare
  PairedRatio hooked_to_bare;        // what hooks and writing gradients into buckets cost
};

// Collective: every rank gets rank 0's order and the same times. Steps the workload, optimiser included, without communicating gradients.
// Throws InputError, on every rank, for a step without backward and for a trainable parameter that gets no gradient.
ReadyProfile measure_ready_profile(const ProcessGroup& group, Workload& workload, const ReadyProfileOptions& options);

}  // namespace firkin
