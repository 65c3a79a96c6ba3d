// Small traces as torch.profiler writes them, with made-up times.
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <string>
#include <vector>

namespace firkin {

// A trace that grows event by event; times in microseconds.
class TraceText {
 public:
  std::string head = R"("distributedInfo": {"backend": "gloo", "rank": 0, "world_size": 2}, "baseTimeNanoseconds": 1790000000000000000)";

  TraceText& add(const std::string& category, const std::string& name, double start_us, double duration_us, const std::string& args = "",
                 int thread = 1) {
    events_.push_back(fmt::format(R"({{"ph": "X", "cat": "{}", "name": "{}", "pid": 7, "tid": {}, "ts": {}, "dur": {}, "args": {{{}}}}})",
                                  category, name, thread, start_us, duration_us, args));
    return *this;
  }
  TraceText& forward(double start_us, double duration_us) {
    return add("user_annotation", "DistributedDataParallel.forward", start_us, duration_us);
  }
  TraceText& node(double start_us) { return add("cpu_op", "autograd::engine::evaluate_function: MmBackward0", start_us, 10); }
  TraceText& gradient(double start_us, const std::string& dimensions, const std::string& type = "float") {
    return add("cpu_op", "torch::autograd::AccumulateGrad", start_us, 5, shape("[" + dimensions + "]", type));
  }
  // On a thread of Gloo's.
  TraceText& gloo(double start_us, double duration_us, int elements, const std::string& type = "float", const char* what = "all_reduce") {
    return add("user_annotation", fmt::format("gloo:{}", what), start_us, duration_us, shape(fmt::format("[{}]", elements), type), 9);
  }

  static std::string shape(const std::string& dimensions, const std::string& type) {
    return fmt::format(R"("Input Dims": [{}], "Input type": ["{}"])", dimensions, type);
  }

  // The rest of the head is as torch.profiler leaves it out.
  TraceText& of_rank(int rank, int world_size = 2, const char* backend = "gloo") {
    head = fmt::format(R"("distributedInfo": {{"backend": "{}", "rank": {}, "world_size": {}}})", backend, rank, world_size);
    return *this;
  }

  std::string text() const {
    return fmt::format("{{\"schemaVersion\": 1, {}, \"displayTimeUnit\": \"ms\",\n\"traceEvents\": [\n{}\n]}}\n", head,
                       fmt::join(events_, ",\n"));
  }

  std::vector<std::string>& events() { return events_; }

 private:
  std::vector<std::string> events_;
};

// One step under DistributedDataParallel, 1 ms long: backward begins at 310 us, gradients of 1000, 200 and 50 elements
// are ready at 400, 500 and 600 us, and travel in two all-reduces, the first until 720 us.
inline void add_step(TraceText& trace, double start_us, double first_ready_us = 400) {
  trace.forward(start_us, 300).node(start_us + 310);
  trace.gradient(start_us + first_ready_us, "1000").gradient(start_us + 500, "20, 10").gradient(start_us + 600, "50");
  trace.gloo(start_us + 510, 210, 1200).gloo(start_us + 610, 90, 50);
}

inline TraceText trace_of_steps(int steps) {
  TraceText trace;
  for (int i = 0; i < steps; ++i) add_step(trace, 1000.0 * i);
  return trace;
}

}  // namespace firkin
