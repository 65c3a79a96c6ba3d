// What a trace says about the run that made it, beyond times: which cap made its buckets, and why nothing overlaps.
#pragma once

#include <optional>

#include "firkin/plan/bucket_plan.h"
#include "trace_steps.h"
#include "traced_run.h"

namespace firkin {

// Which gradients each all-reduce carries, if they are neighbours in the order in which they become ready.
std::optional<BucketPlan> plan_of_reduces(const TraceSteps& rank);

// Sets the run's cap, if some cap makes its buckets, and says so if they were never rebuilt.
void set_cap(const TraceSteps& rank, const std::optional<BucketPlan>& plan, TracedRun& run);

// Adds sentences about the run. Its figures and buckets must be there.
void add_findings(const TraceSteps& rank, TracedRun& run);

}  // namespace firkin
