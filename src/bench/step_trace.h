// What ran when in training steps, on every rank.
//
//   const StepTrace trace = trace_steps(group, workload, DataParallelOptions(), {});
//   write_file_atomically("trace.json", chrome_trace(trace.ranks).dump());
#pragma once

#include <optional>
#include <vector>

#include "firkin/comm/process_group.h"
#include "firkin/ddp/data_parallel.h"
#include "trace/trace.h"
#include "workload/workload.h"

namespace firkin {

struct StepTraceOptions {
  int warmup_steps = 3;  // not recorded; at least 1, because a first step does not overlap
  int steps = 3;         // recorded
};

struct StepTrace {
  std::vector<std::vector<Span>> ranks;  // what lies in a step, in order of start
  std::vector<BucketStats> buckets;      // of the last step, on this rank
};

// Steps the workload under these options (StepRunner) and records the steps, a barrier before each. Every rank gets the spans of all. Ranks
// on several machines differ by what their clocks differ. Recording makes steps slower: for times without it use measure_steps().
// Collective. One at a time in a process. Throws what StepRunner throws.
StepTrace trace_steps(const ProcessGroup& group, Workload& workload, const DataParallelOptions& options, const StepTraceOptions& trace);

// The share of backward in which the link was idle although a bucket was ready and had not been launched: the price of a launch order that
// expects gradients too early. Nothing where no bucket says when it was ready (the strategy torch).
std::optional<double> idle_though_ready(const std::vector<BucketStats>& buckets);

// One recorded step of one rank.
struct TracedStep {
  Period period;
  Overlap overlap;
};

// In the order in which they ran. `spans`: of one rank, by start.
std::vector<TracedStep> traced_steps(const std::vector<Span>& spans);

}  // namespace firkin
