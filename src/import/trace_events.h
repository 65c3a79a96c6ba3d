// The events of a torch.profiler trace (Kineto's Chrome trace) that say when gradients were ready and when they
// travelled. The file is read as a stream, unzipped if gzip made it; everything else in it is dropped at once.
//
//   const std::vector<TraceEvents> ranks = read_trace_events("trace_0.json.gz");
//   ranks[0].collectives.front().elements;
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

namespace firkin {

inline constexpr double kSecond_us = 1e6;  // microseconds

// Microseconds on the trace's own clock.
struct TraceSpan {
  double start_us = 0;
  double end_us = 0;
};

// AccumulateGrad of one tensor, on the host. Without recorded shapes there are neither dimensions nor a type.
struct TraceGradient : TraceSpan {
  int64_t thread = 0;
  std::string type = {};  // "float", "c10::Half"; empty: not recorded
  std::vector<int64_t> dimensions = {};
};

// One collective: a kernel of NCCL or RCCL, or what Gloo did on a thread of its own.
struct TraceCollective : TraceSpan {
  std::string name = {};  // "all_reduce", as c10d calls it
  std::string group = {};
  std::string type = {};     // as a TraceGradient's, or as NCCL names it: "Float"
  int64_t elements = -1;     // -1: not said
  int64_t group_size = 0;    // ranks; 0: not said
  int64_t stream = -1;       // of the GPU; -1: on a CPU
  double launched_us = 0;    // when the host asked for it; start_us if that is not known
  int64_t correlation = -1;  // of a GPU's work with what launched it; -1: none
  int64_t record = -1;       // the event of the host that describes it; -1: none
  bool on_gpu() const { return stream >= 0; }
};

// A call of the host that gave the GPU work to do, and that work; both have the same `correlation`.
struct TraceLaunch {
  double start_us = 0;
  int64_t thread = 0, correlation = 0;
};
struct TraceKernel : TraceSpan {
  int64_t stream = 0, correlation = 0;
};

struct TraceEvents {
  std::string file;
  double base_us = 0;                 // of the trace's clock, in microseconds since 1970; 0: not said
  int64_t rank = -1;                  // -1: not said
  int64_t world_size = 0;             // 0: not said
  std::string backend;                // "nccl"; empty: not said
  bool is_firkins = false;            // recorded by firkin trace
  std::vector<TraceSpan> forwards;    // of DistributedDataParallel
  std::vector<TraceSpan> steps;       // of the profiler: ProfilerStep#N
  std::vector<TraceSpan> optimizers;  // Optimizer.step
  std::vector<TraceSpan> nodes;       // of autograd's graph, as backward visits them
  std::vector<TraceSpan> operators;   // of the host
  std::vector<TraceGradient> gradients;
  std::vector<TraceCollective> collectives;
  std::vector<TraceLaunch> launches;  // in the order of their start, as everything above
  std::vector<TraceKernel> kernels;   // of computation
};

// Whether a file that begins so is a trace.
bool is_trace_text(std::string_view beginning);

// One rank's events; those of every rank for a file of `firkin trace`, which has them all. Throws InputError, with file
// and line, for a file that cannot be read, ends early or is no trace.
std::vector<TraceEvents> read_trace_events(const std::filesystem::path& path);

// The same for the text of a file. `file`: the name used in errors.
std::vector<TraceEvents> parse_trace_events(std::string_view text, const std::string& file);

}  // namespace firkin
