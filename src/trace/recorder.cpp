#include "trace/recorder.h"

#include <ATen/record_function.h>

#include <algorithm>
#include <cstdlib>
#include <numeric>

#include <torch/csrc/autograd/profiler_kineto.h>

namespace firkin {
namespace {

namespace profiler = torch::autograd::profiler;
using torch::profiler::impl::ActivityType;
using torch::profiler::impl::ProfilerConfig;
using torch::profiler::impl::ProfilerState;

// c10d names a collective "gloo:all_reduce", "nccl:broadcast".
bool is_collective(const std::string& name) {
  return name.starts_with("gloo:") || name.starts_with("nccl:");
}

int64_t element_count(const profiler::KinetoEvent& event) {
  int64_t elements = 0;
  for (const std::vector<int64_t>& shape : event.shapes()) {
    elements += std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
  }
  return elements;
}

// A phase of the program, drawn on the GPU as well. Kineto's ActivityType::GPU_USER_ANNOTATION.
constexpr uint8_t kGpuUserAnnotation = 2;

// Threads of a trace: those of streams come after those of the system.
constexpr uint64_t kFirstStream = uint64_t{1} << 40;

Span span_on_gpu(const profiler::KinetoEvent& event) {
  Span span{.name = event.name(),
            .thread = kFirstStream + static_cast<uint64_t>(event.deviceResourceId()),
            .start_ns = static_cast<int64_t>(event.startNs()),
            .end_ns = static_cast<int64_t>(event.endNs())};
  if (span.name.starts_with("nccl")) span.activity = Activity::kCollective;  // ncclDevKernel_AllReduce_...
  return span;
}

// With a GPU the CPU's operators compute nothing, and NCCL's collectives are only begun there.
void count_as_host(Span& span) {
  if (span.activity == Activity::kOperator || span.name.starts_with("nccl:")) span.activity = Activity::kHost;
}

Span span_of(const profiler::KinetoEvent& event) {
  Span span{.name = event.name(),
            .thread = event.startThreadId(),
            .start_ns = static_cast<int64_t>(event.startNs()),
            .end_ns = static_cast<int64_t>(event.endNs())};
  if (is_collective(span.name)) {
    span.activity = Activity::kCollective;
    span.elements = element_count(event);
  } else if (event.scope() == static_cast<uint8_t>(at::RecordScope::USER_SCOPE)) {
    span.activity = Activity::kPhase;
  }
  return span;
}

}  // namespace

TraceRecorder::TraceRecorder(c10::DeviceType device) : device_(device) {
  setenv("KINETO_LOG_LEVEL", "6", /*overwrite=*/0);  // silent; it says on stderr that it starts and stops
  const ProfilerConfig config(ProfilerState::KINETO, /*report_input_shapes=*/true);
  std::set<ActivityType> activities{ActivityType::CPU};
  if (device_ == c10::kCUDA) activities.insert(ActivityType::CUDA);
  profiler::prepareProfiler(config, activities);
  profiler::enableProfiler(config, activities,
                           {at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION, at::RecordScope::USER_SCOPE});
}

TraceRecorder::~TraceRecorder() {
  if (recording_) profiler::disableProfiler();
}

std::vector<Span> TraceRecorder::stop() {
  recording_ = false;
  const auto result = profiler::disableProfiler();
  std::vector<Span> spans;
  for (const profiler::KinetoEvent& event : result->events()) {
    if (event.isHiddenEvent()) continue;
    if (event.deviceType() != c10::kCPU) {
      if (event.activityType() != kGpuUserAnnotation) spans.push_back(span_on_gpu(event));
      continue;
    }
    spans.push_back(span_of(event));
    if (device_ != c10::kCPU) count_as_host(spans.back());
  }
  std::ranges::stable_sort(spans, {}, &Span::start_ns);
  return spans;
}

}  // namespace firkin
