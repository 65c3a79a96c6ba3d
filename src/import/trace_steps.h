// The training steps in one rank's trace: when each gradient was ready, and the all-reduces that carried them.
//
//   const TraceSteps rank = find_trace_steps(read_trace_events("trace_0.json.gz")[0], {});
//   rank.steps[0].gradients[0].ready_s;
//
// A step is a pass of backward whose gradients are reduced; passes under no_sync() only count to the step's length. On a
// CPU a gradient is ready where its AccumulateGrad begins. On a GPU it is ready when the last kernel ends that the same
// thread had launched by then: the host is far ahead of the GPU.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "trace_events.h"

namespace firkin {

// What a trace without recorded shapes does not say. In gradient-ready order.
struct GradientSizes {
  std::string source;  // "--model gpt2"
  std::vector<std::string> names;
  std::vector<int64_t> sizes;
  bool are_bytes = false;  // or elements
};

// Seconds from the start of the step's backward.
struct StepGradient {
  double ready_s = 0;
  double host_s = 0;  // when the host got there
};
struct StepReduce {
  double launched_s = 0;  // when the host asked for it
  double start_s = 0, end_s = 0;
  int64_t elements = 0;
  int64_t stream = -1;
  bool is_alone = true;  // whether no other collective of this rank ran at the same time

  double seconds() const { return end_s - start_s; }
};

struct TraceStep {
  double begin_us = 0;                // on the trace's clock: of the pass, with its forward
  double backward_us = 0;             // start of backward; on a GPU of its first kernel
  std::optional<double> step_s = {};  // from this pass to that of the next step; none for the last
  std::vector<StepGradient> gradients;
  std::vector<StepReduce> reduces;

  double backward_s() const { return gradients.back().ready_s; }
};

struct TraceSteps {
  int64_t rank = -1, world_size = 0;  // as in TraceEvents; the group's size where only that is said
  double begin_us = 0, end_us = 0;    // of the trace, in microseconds since 1970 if the trace says so
  bool has_date = false;
  bool on_gpu = false;
  std::string file, backend;
  int64_t element_bytes = 0;
  int64_t odd_steps = 0;           // those with other gradients or buckets, which were left out
  std::vector<std::string> names;  // of the gradients, in the order in which they become ready
  std::vector<int64_t> elements;   // of each
  std::vector<TraceStep> steps;    // at least two, all with the same gradients and buckets
  // Other collectives: calls by name and group.
  std::map<std::pair<std::string, std::string>, int64_t> others;
  std::vector<TraceSpan> computing;  // in order, on the trace's clock: operators, on a GPU its kernels
  bool reduces_on_computing_stream = false;
};

// Throws InputError, which begins with the file, for a trace without backward, without all-reduces that carry its
// gradients, without the gradients' sizes, or with fewer than two steps.
TraceSteps find_trace_steps(TraceEvents events, const std::optional<GradientSizes>& sizes);

}  // namespace firkin
