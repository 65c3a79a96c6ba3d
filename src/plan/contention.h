// The fluid simulation of a backward pass and its communication that slow each other down.
#pragma once

#include "firkin/plan/timeline.h"

namespace firkin {

// One call as the simulation sees it.
struct Launch {
  double host_s = 0;      // the work that the thread of backward has done when it issues the call
  double isolated_s = 0;  // a(S)
  double gap_s = 0;       // g(S)
};

// Fills launch_s, start_s, end_s and channel of timeline.buckets, which are in launch order as are the launches, and compute_end_s.
// `host_total_s`: the work of backward with all its launches; at least the last launch's.
void run_fluid(const std::vector<Launch>& launches, double host_total_s, const SimulationOptions& options, Timeline& timeline);

}  // namespace firkin
