// What ran when in training steps, on every rank.
//
//   const auto ranks = trace_steps(group, workload, DataParallelOptions(), {});
//   write_file_atomically("trace.json", chrome_trace(ranks).dump());
#pragma once

#include <vector>

#include "bench/step_bench.h"
#include "firkin/comm/process_group.h"
#include "results/results.h"
#include "trace/trace.h"
#include "workload/workload.h"

namespace firkin {

struct StepTraceOptions {
  int warmup_steps = 3;  // not recorded; at least 1, because a first step does not overlap
  int steps = 3;         // recorded
};

// Steps the workload under these options (StepRunner), a barrier before each step, and records it. Returns on every rank
// the spans of all ranks that begin in a step, in order of start; between machines they are off by as much as clocks
// differ. Recording slows steps down: measure_steps() has their times. Collective; one at a time in a process. Throws
// what StepRunner throws.
std::vector<std::vector<Span>> trace_steps(const ProcessGroup& group, Workload& workload, const DataParallelOptions& options,
                                           const StepTraceOptions& trace);

// The steps of one rank, in the order in which they ran, and what they took. `spans`: by start.
std::vector<Period> steps_in(const std::vector<Span>& spans);
TraceFigures figures_of(const std::vector<Span>& spans);

// Every rank's figures, and the last step of rank 0; without a file.
TraceRow row_of(const std::vector<std::vector<Span>>& ranks, const StepSetting& setting);

}  // namespace firkin
