// Traces of torch.profiler as a profile, and as an all-reduce table if they tell the times of single all-reduces.
//
//   const ReadTrace run = read_traces({"trace_0.json.gz", "trace_1.json.gz"});
//   write_tensors_csv("tensors.csv", run.profile);
//   for (const std::string& sentence : run.run.findings) fmt::print("{}\n", sentence);
//
// Note [The last rank to join]
// An all-reduce begins on a rank when that rank joins, and ends on all ranks at nearly the same moment. What a rank's time
// holds beyond the transfer is waiting for ranks that joined later, and the last one to join waits for nobody. So the
// least time of any rank is the time of the all-reduce, and the rest of a rank's own time is waiting. That needs the times
// of all ranks, but no common clock.
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
  // All-reduces that no other of the same rank overlapped, each with the least time of any rank (Note [The last rank to
  // join]). Empty if that is not known.
  AllReduceTable table;
  std::string why_no_table;  // a sentence, if the table is empty
  TracedRun run;
};

// One rank's trace, or those of several ranks of the same run, in any order. sizes: for traces without recorded shapes.
// Throws InputError as find_trace_steps(), and for traces of different runs.
ReadTrace read_traces(const std::vector<std::filesystem::path>& files, const std::optional<GradientSizes>& sizes = {});

// The same from the steps of each rank, of which there must be at least one.
ReadTrace combine_traces(std::vector<TraceSteps> ranks);

// A sentence if the all-reduces of `costs` are at least twice as fast as the run's ever were; empty otherwise.
std::string doubt_of_rate(const TracedRun& run, const CommCosts& costs);

}  // namespace firkin
