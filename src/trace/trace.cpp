#include "trace/trace.h"

#include <ATen/record_function.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <map>
#include <numeric>

#include <torch/csrc/autograd/profiler_kineto.h>

namespace firkin {
namespace {

double total_seconds(const std::vector<Period>& periods) {
  int64_t sum_ns = 0;
  for (const Period& period : periods) sum_ns += period.end_ns - period.start_ns;
  return seconds_of({0, sum_ns});
}

std::vector<Period> common_periods(const std::vector<Period>& a, const std::vector<Period>& b) {
  std::vector<Period> common;
  for (size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    const Period both{std::max(a[i].start_ns, b[j].start_ns), std::min(a[i].end_ns, b[j].end_ns)};
    if (both.start_ns < both.end_ns) common.push_back(both);
    a[i].end_ns < b[j].end_ns ? ++i : ++j;
  }
  return common;
}

namespace profiler = torch::autograd::profiler;
using torch::profiler::impl::ActivityType;
using torch::profiler::impl::ProfilerConfig;
using torch::profiler::impl::ProfilerState;

int64_t element_count(const profiler::KinetoEvent& event) {
  int64_t elements = 0;
  for (const std::vector<int64_t>& shape : event.shapes()) {
    elements += std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
  }
  return elements;
}

void describe_first_tensor(const profiler::KinetoEvent& event, Span& span) {
  if (event.shapes().empty() || event.dtypes().empty()) return;
  span.dimensions = event.shapes()[0];
  span.type = event.dtypes()[0];
}

// Kineto's ActivityType::GPU_USER_ANNOTATION: a phase of the program, which Kineto draws on the GPU as well.
constexpr uint8_t kGpuUserAnnotation = 2;

// The number of stream 0 among the threads of a trace. It lies above those of the system's threads.
constexpr uint64_t kFirstStream = uint64_t{1} << 40;

Span span_on_gpu(const profiler::KinetoEvent& event) {
  Span span{.name = event.name(),
            .thread = kFirstStream + static_cast<uint64_t>(event.deviceResourceId()),
            .start_ns = static_cast<int64_t>(event.startNs()),
            .end_ns = static_cast<int64_t>(event.endNs())};
  // ncclDevKernel_AllReduce_..., or what stands for it (comm/device_time.h).
  for (const char* name : {"nccl", "modelled_link"}) {
    if (span.name.starts_with(name)) span.activity = Activity::kCollective;
  }
  return span;
}

Span span_of(const profiler::KinetoEvent& event) {
  Span span{.name = event.name(),
            .thread = event.startThreadId(),
            .start_ns = static_cast<int64_t>(event.startNs()),
            .end_ns = static_cast<int64_t>(event.endNs())};
  if (span.name.starts_with("gloo:") || span.name.starts_with("nccl:")) {  // as in "gloo:all_reduce"
    span.activity = Activity::kCollective;
    span.elements = element_count(event);
    describe_first_tensor(event, span);
  } else if (span.name == "torch::autograd::AccumulateGrad") {
    describe_first_tensor(event, span);
  } else if (event.scope() == static_cast<uint8_t>(at::RecordScope::USER_SCOPE)) {
    span.activity = Activity::kPhase;
  }
  return span;
}

using nlohmann::json;

// The span's category in Kineto's traces.
const char* category_of(const Span& span) {
  if (span.activity == Activity::kPhase || span.activity == Activity::kCollective) return "user_annotation";
  return span.thread >= kFirstStream ? "kernel" : "cpu_op";
}

// What Kineto says of gradients and collectives, and a collective's size.
json arguments_of(const Span& span) {
  json arguments = json::object();
  if (span.activity == Activity::kCollective) arguments["elements"] = span.elements;
  if (span.type.empty()) return arguments;
  arguments["Input Dims"] = json::array({span.dimensions});
  arguments["Input type"] = {span.type};
  return arguments;
}

// Names a process or a thread: "process_name", "thread_name".
json name_event(const char* what, size_t rank, size_t thread, const std::string& name) {
  return {{"ph", "M"}, {"name", what}, {"pid", rank}, {"tid", thread}, {"args", {{"name", name}}}};
}

}  // namespace

double seconds_of(const Period& period) {
  constexpr double kNanosecond = 1e-9;
  return static_cast<double>(period.end_ns - period.start_ns) * kNanosecond;
}

std::vector<Period> busy_periods(const std::vector<Span>& spans, Activity activity, int64_t least_gap_ns) {
  std::vector<Period> periods;
  for (const Span& span : spans) {
    if (span.activity == activity && span.start_ns < span.end_ns) periods.push_back({span.start_ns, span.end_ns});
  }
  std::ranges::sort(periods, {}, &Period::start_ns);
  std::vector<Period> merged;
  for (const Period& period : periods) {
    if (merged.empty() || period.start_ns - merged.back().end_ns > least_gap_ns) {
      merged.push_back(period);
    } else {
      merged.back().end_ns = std::max(merged.back().end_ns, period.end_ns);
    }
  }
  return merged;
}

Overlap overlap_of(const std::vector<Span>& spans) {
  const std::vector<Period> compute = busy_periods(spans, Activity::kOperator);
  const std::vector<Period> communication = busy_periods(spans, Activity::kCollective);
  return {total_seconds(compute), total_seconds(communication), total_seconds(common_periods(compute, communication))};
}

std::vector<Span> spans_cut_to(const std::vector<Span>& spans, int64_t start_ns, int64_t end_ns) {
  std::vector<Span> within;
  for (const Span& span : spans) {
    if (span.start_ns >= end_ns || span.end_ns <= start_ns) continue;
    within.push_back(span);
    within.back().start_ns = std::max(span.start_ns, start_ns);
    within.back().end_ns = std::min(span.end_ns, end_ns);
  }
  return within;
}

TraceRecorder::TraceRecorder(c10::DeviceType device) : device_(device) {
  setenv("KINETO_LOG_LEVEL", "6", /*overwrite=*/0);  // silent: Kineto reports its start and stop on stderr
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
    Span& span = spans.emplace_back(span_of(event));
    // With a GPU, operators on the CPU compute nothing, and NCCL's collectives are only begun there.
    const bool only_begins = span.activity == Activity::kOperator || span.name.starts_with("nccl:");
    if (device_ != c10::kCPU && only_begins) span.activity = Activity::kHost;
  }
  std::ranges::stable_sort(spans, {}, &Span::start_ns);
  return spans;
}

json chrome_trace(const std::vector<std::vector<Span>>& spans_by_rank) {
  int64_t first_ns = std::numeric_limits<int64_t>::max();
  for (const auto& spans : spans_by_rank) {
    for (const Span& span : spans) first_ns = std::min(first_ns, span.start_ns);
  }
  const auto microseconds = [](int64_t ns) { return static_cast<double>(ns) * 1e-3; };
  json events = json::array();
  int64_t collectives = 0;
  for (size_t rank = 0; rank < spans_by_rank.size(); ++rank) {
    events.push_back(name_event("process_name", rank, 0, fmt::format("rank {}", rank)));
    std::map<uint64_t, size_t> tracks;  // threads are numbered in order of appearance; the first one trains
    for (const Span& span : spans_by_rank[rank]) {
      const auto [track, is_new] = tracks.try_emplace(span.thread, tracks.size() + 1);
      if (is_new) {
        const std::string name = track->second == 1 ? "training" : fmt::format("thread {}", track->second);
        events.push_back(name_event("thread_name", rank, track->second, name));
      }
      json event = {{"name", span.name},
                    {"cat", category_of(span)},
                    {"pid", rank},
                    {"tid", track->second},
                    {"ts", microseconds(span.start_ns - first_ns)}};
      if (json arguments = arguments_of(span); !arguments.empty()) event["args"] = std::move(arguments);
      if (span.activity == Activity::kCollective) {  // several may be under way at once, which events of one thread cannot show
        event.update({{"id", ++collectives}, {"ph", "b"}});
        events.push_back(event);
        event.update({{"ph", "e"}, {"ts", microseconds(span.end_ns - first_ns)}});
        event.erase("args");
      } else {
        event.update({{"ph", "X"}, {"dur", microseconds(span.end_ns - span.start_ns)}});
      }
      events.push_back(std::move(event));
    }
  }
  const json ranks = {{"world_size", spans_by_rank.size()}, {"pid_is_rank", true}};
  return {{"displayTimeUnit", "ms"}, {"distributedInfo", ranks}, {"traceEvents", std::move(events)}};
}

}  // namespace firkin
