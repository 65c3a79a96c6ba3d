// What ran when in training steps, on every rank.
//
//   const StepTrace trace = trace_steps(group, workload, DataParallelOptions(), {});
//   write_file_atomically("trace.json", chrome_trace(trace.ranks).dump());
#pragma once

#include <vector>

#include "bench/step_bench.h"
#include "firkin/comm/process_group.h"
#include "firkin/ddp/data_parallel.h"
#include "firkin/plan/measurements.h"
#include "results/results.h"
#include "trace/trace.h"
#include "workload/workload.h"

namespace firkin {

struct StepTraceOptions {
  int warmup_steps = 3;  // not recorded; at least 1, because a first step does not overlap
  int steps = 3;         // recorded
};

struct StepTrace {
  std::vector<std::vector<Span>> ranks;  // what lies in a step, in order of start
  std::vector<BucketStats> buckets;      // from the last step, on this rank
};

// Steps the workload under these options (StepRunner) and records the steps, a barrier before each. Every rank gets the
// spans of all. Spans of ranks on several machines are off by as much as their clocks differ. Recording makes steps
// slower: for times without it use measure_steps(). Collective. One at a time in a process. Throws what StepRunner
// throws.
StepTrace trace_steps(const ProcessGroup& group, Workload& workload, const DataParallelOptions& options, const StepTraceOptions& trace);

// One recorded step of one rank.
struct TracedStep {
  Period period;
  Overlap overlap;
};

// The steps in the order in which they ran. `spans`: of one rank, by start.
std::vector<TracedStep> traced_steps(const std::vector<Span>& spans);

// Every rank's figures, and the last step of rank 0; without a file, and without a prediction.
TraceRow row_of(const StepTrace& trace, const StepSetting& setting);

// What a step is predicted from.
struct ModelInputs {
  TensorProfile profile;
  AllReduceTable allreduce;
};

// Steps the workload a few times and spends `seconds` on all-reduces. Collective: every rank gets the same.
ModelInputs measure_model_inputs(const ProcessGroup& group, Workload& workload, double seconds, uint64_t seed);

// When a step computes and communicates, in seconds since it began. Its backward begins when that of the last traced
// step did; for the strategy ordered, forward is predicted as well. Not calibrated: an idle processor beside an idle
// link. Empty for the strategy sharded, which sends no all-reduce.
std::vector<BusyPeriod> predicted_timeline(const ModelInputs& inputs, int64_t world_size, const DataParallelOptions& options,
                                           const StepTrace& trace);

}  // namespace firkin
