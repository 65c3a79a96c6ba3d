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

TraceRecorder::TraceRecorder() {
  setenv("KINETO_LOG_LEVEL", "6", /*overwrite=*/0);  // silent; it says on stderr that it starts and stops
  const ProfilerConfig config(ProfilerState::KINETO, /*report_input_shapes=*/true);
  const std::set<ActivityType> activities{ActivityType::CPU};
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
    if (!event.isHiddenEvent()) spans.push_back(span_of(event));
  }
  std::ranges::stable_sort(spans, {}, &Span::start_ns);
  return spans;
}

}  // namespace firkin
