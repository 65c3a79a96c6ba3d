// Traces of torch.profiler as a profile, and as an all-reduce table if they tell the times of single all-reduces.
//
//   const ReadTrace run = read_traces({"trace_0.json.gz", "trace_1.json.gz"});
//   write_tensors_csv("tensors.csv", run.profile);
//   for (const std::string& sentence : run.run.findings) fmt::print("{}\n", sentence);
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "firkin/plan/measurements.h"
#include "trace_steps.h"
#include "traced_run.h"

namespace firkin {

struct ReadTrace {
  // Ready times are medians over the steps, of the slowest rank. Gradients have names if sizes were given.
  TensorProfile profile;
  // All-reduces that no other of the same rank overlapped, each with the least time of any rank: the last rank to join
  // waits for nobody. Empty if that is not known.
  AllReduceTable table;
  std::string why_no_table;  // a sentence, if it is empty
  TracedRun run;
};

// One rank's trace, or those of several ranks of the same run, in any order. sizes: for traces without recorded shapes.
// Throws InputError as find_trace_steps(), and for traces of different runs.
ReadTrace read_traces(const std::vector<std::filesystem::path>& files, const std::optional<GradientSizes>& sizes = {});

// The same from steps: one entry per rank.
ReadTrace combine_traces(std::vector<TraceSteps> ranks);

// A sentence if the table's all-reduces are at least twice as fast as the run's ever were; empty otherwise.
std::string doubt_of_rate(const TracedRun& run, const CommCosts& costs);

}  // namespace firkin
