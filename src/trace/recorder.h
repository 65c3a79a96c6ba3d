// Records what LibTorch does, with Kineto, the profiler inside it.
//
//   TraceRecorder recorder;
//   train();
//   const std::vector<Span> spans = recorder.stop();
#pragma once

#include <c10/core/DeviceType.h>

#include <vector>

#include "trace/span.h"

namespace firkin {

// Records the thread that makes it, and the threads to which autograd carries its state: operators, autograd's nodes, the collectives that
// c10d starts, and as phases what RECORD_USER_SCOPE names. One at a time in a process; stop() on the thread that made it. Recording takes
// a few microseconds an operator. Sets KINETO_LOG_LEVEL in the environment, if it is not set, to
// silence Kineto's log.
class TraceRecorder {
 public:
  // device: on a GPU also what that runs; there it is the computation and the communication, and the CPU's operators are Activity::kHost.
  explicit TraceRecorder(c10::DeviceType device = c10::kCPU);
  ~TraceRecorder();
  TraceRecorder(const TraceRecorder&) = delete;
  TraceRecorder& operator=(const TraceRecorder&) = delete;

  // By start. Every collective must be complete. Call it once.
  std::vector<Span> stop();

 private:
  c10::DeviceType device_;
  bool recording_ = true;
};

}  // namespace firkin
