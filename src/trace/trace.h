// Records what ran when on one rank, and how much communication overlapped computation.
//
//   TraceRecorder recorder;
//   train();
//   const std::vector<Span> spans = recorder.stop();
//   write_file_atomically("trace.json", chrome_trace({spans}).dump());
#pragma once

#include <c10/core/DeviceType.h>
#include <nlohmann/json.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace firkin {

enum class Activity {
  kPhase,       // a part of a training step that the program names: forward, backward
  kOperator,    // computation: a tensor operator, or a node of autograd's graph; with a GPU, what that runs
  kCollective,  // from when the transport starts it (Gloo: on its own thread) until its result is there
  kHost,        // with a GPU: the CPU queues work for it
};

// Times are nanoseconds since the Unix epoch.
struct Span {
  std::string name;
  Activity activity = Activity::kOperator;
  uint64_t thread = 0;  // the one on which it started
  int64_t start_ns = 0;
  int64_t end_ns = 0;
  int64_t elements = 0;  // in a collective's tensors; 0 for all else
  // What Kineto says about the first tensor of a collective, or about an AccumulateGrad's gradient; empty for all else.
  std::string type = {};  // "float", as Kineto names it
  std::vector<int64_t> dimensions = {};
};

// Seconds in which a rank computed and communicated. Overlapped communication is not free: where the transport runs on the
// cores that compute, both get slower.
struct Overlap {
  double compute_s = 0;        // at least one operator ran
  double communication_s = 0;  // at least one collective was under way
  double overlapped_s = 0;     // both
};

Overlap overlap_of(const std::vector<Span>& spans);

// The part of each span between start_ns and end_ns: a collective may begin in one step and end in the next.
std::vector<Span> spans_cut_to(const std::vector<Span>& spans, int64_t start_ns, int64_t end_ns);

struct Period {
  int64_t start_ns = 0;
  int64_t end_ns = 0;
};

double seconds_of(const Period& period);

// The times at which at least one span of `activity` ran: in order, more than least_gap_ns apart; shorter gaps are
// closed.
std::vector<Period> busy_periods(const std::vector<Span>& spans, Activity activity, int64_t least_gap_ns = 0);

// Records what LibTorch does, with Kineto, the profiler inside it.
//
// Records the thread that creates it, and the threads to which autograd carries its profiling state: operators,
// autograd's nodes, the collectives that c10d starts, and, as phases, what RECORD_USER_SCOPE names. Only one at a time
// in a process; call stop() on the thread that created it. Recording takes a few microseconds per operator. Sets
// KINETO_LOG_LEVEL in the environment, if it is not set, to silence Kineto's log.
class TraceRecorder {
 public:
  // device: on a GPU, what it runs is recorded as computation and communication, and the CPU's operators as
  // Activity::kHost.
  explicit TraceRecorder(c10::DeviceType device = c10::kCPU);
  ~TraceRecorder();
  TraceRecorder(const TraceRecorder&) = delete;
  TraceRecorder& operator=(const TraceRecorder&) = delete;

  // Ends the recording and returns its spans, sorted by start. Every collective must be complete. Call it once.
  std::vector<Span> stop();

 private:
  c10::DeviceType device_;
  bool recording_ = true;
};

// Spans as a Chrome trace: the JSON that Perfetto (ui.perfetto.dev) and chrome://tracing show ("Trace Event Format",
// Google, 2016). One process per rank: operators and phases on the threads that ran them, collectives as asynchronous
// events beside them. Times are microseconds since the first span. Categories, and the arguments of gradients and
// collectives, are Kineto's, so that a trace of ranks on CPUs can be imported (import/trace_events.h).
nlohmann::json chrome_trace(const std::vector<std::vector<Span>>& spans_by_rank);

}  // namespace firkin
