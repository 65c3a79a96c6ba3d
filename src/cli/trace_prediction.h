// What the performance model says of a traced step, to be drawn beside it.
#pragma once

#include <vector>

#include "bench/ready_profile.h"
#include "firkin/plan/allreduce_table.h"
#include "results/traces.h"
#include "step_matrix.h"

namespace firkin::cli {

// What the model needs to know.
struct ModelInputs {
  TensorProfile profile;
  AllReduceTable allreduce;
};

// Steps the workload a few times and spends `seconds` on all-reduces. Collective: every rank gets the same.
ModelInputs measure_model_inputs(const ProcessGroup& group, Workload& workload, double seconds, uint64_t seed);

// When the step computes and communicates, in seconds since it began; backward_start_s: when its backward did, but under the strategy
// ordered, whose forward is predicted as well. Uncalibrated: an idle processor beside an idle link.
std::vector<BusyPeriod> predicted_timeline(const ModelInputs& inputs, int world_size, const DataParallelOptions& options,
                                           double backward_start_s);

}  // namespace firkin::cli
