#include "trace/kineto_trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

namespace firkin {
namespace {

using nlohmann::json;

constexpr int kFirstCollectiveStream = 100;
constexpr int kStreamsProcess = 1000;      // plus the rank: the process that stands for the device
constexpr const char* kStepName = "step";  // what workload/, a room above, calls a training step

json process_event(int process, const std::string& name) {
  return {{"ph", "M"}, {"name", "process_name"}, {"pid", process}, {"tid", 0}, {"ts", 0.0}, {"args", {{"name", name}}}};
}

class KinetoEvents {
 public:
  KinetoEvents(int rank, int world_size, int64_t origin_ns) : rank_(rank), world_size_(world_size), origin_ns_(origin_ns) {
    // First: HTA takes a correlation with the event of index 0 for none.
    events_.push_back(process_event(rank, fmt::format("rank {}", rank)));
    events_.push_back(process_event(kStreamsProcess + rank, fmt::format("rank {}: busy", rank)));
  }

  // In order of start, what encloses others before them.
  void add(const Span& span) {
    switch (span.activity) {
      case Activity::kPhase:
        return add_phase(span);
      case Activity::kOperator:
      case Activity::kHost:
        return add_operator(span);
      case Activity::kCollective:
        return add_collective(span);
    }
  }

  json take() { return std::move(events_); }

 private:
  json event(const Span& span, const char* category, int process, int track) const {
    const auto microseconds = [](int64_t ns) { return static_cast<double>(ns) / 1e3; };
    return {{"ph", "X"},
            {"cat", category},
            {"name", span.name},
            {"pid", process},
            {"tid", track},
            {"ts", microseconds(span.start_ns - origin_ns_)},
            {"dur", microseconds(span.end_ns - span.start_ns)}};
  }

  json kernel(const Span& span, int stream) const {
    json kernel = event(span, "kernel", kStreamsProcess + rank_, stream);
    kernel["args"] = {{"stream", stream}, {"correlation", steps_}};
    return kernel;
  }

  void add_phase(const Span& span) {
    json phase = event(span, "user_annotation", rank_, track_of(span.thread));
    if (span.name == kStepName) {
      phase["name"] = fmt::format("ProfilerStep#{}", steps_++);
      phase["args"] = {{"correlation", steps_}};
    }
    events_.push_back(std::move(phase));
  }

  void add_operator(const Span& span) {
    const int track = track_of(span.thread);
    events_.push_back(event(span, "cpu_op", rank_, track));
    int64_t& busy_until_ns = busy_until_ns_.try_emplace(track, span.start_ns).first->second;
    if (span.end_ns > busy_until_ns) events_.push_back(kernel(span, track));
    busy_until_ns = std::max(busy_until_ns, span.end_ns);
  }

  void add_collective(const Span& span) {
    size_t lane = 0;
    while (lane < lanes_until_ns_.size() && lanes_until_ns_[lane] > span.start_ns) ++lane;
    if (lane == lanes_until_ns_.size()) lanes_until_ns_.push_back(0);
    lanes_until_ns_[lane] = span.end_ns;
    json collective = kernel(span, kFirstCollectiveStream + static_cast<int>(lane));
    collective["args"]["Collective name"] = span.name.substr(span.name.find(':') + 1);
    collective["args"]["In msg nelems"] = span.elements;
    collective["args"]["Group size"] = world_size_;
    events_.push_back(std::move(collective));
  }

  // Threads are numbered in order of appearance, as in chrome_trace().
  int track_of(uint64_t thread) { return track_of_.try_emplace(thread, static_cast<int>(track_of_.size()) + 1).first->second; }

  int rank_;
  int world_size_;
  int64_t origin_ns_;
  int steps_ = 0;
  std::map<uint64_t, int> track_of_;
  std::map<int, int64_t> busy_until_ns_;  // by track: when its outermost operator ends
  std::vector<int64_t> lanes_until_ns_;
  json events_ = json::array();
};

}  // namespace

json kineto_trace(const std::vector<Span>& spans, int rank, int world_size, const std::string& backend, int64_t origin_ns) {
  std::vector<Span> sorted = spans;
  std::ranges::stable_sort(sorted, [](const Span& a, const Span& b) {
    return a.start_ns != b.start_ns ? a.start_ns < b.start_ns : a.end_ns > b.end_ns;  // at equal starts the enclosing one first
  });
  KinetoEvents events(rank, world_size, origin_ns);
  for (const Span& span : sorted) events.add(span);
  return {{"schemaVersion", 1},
          {"deviceProperties", json::array()},
          {"distributedInfo", {{"backend", backend}, {"rank", rank}, {"world_size", world_size}}},
          {"displayTimeUnit", "ms"},
          {"baseTimeNanoseconds", origin_ns},
          {"traceEvents", events.take()}};
}

}  // namespace firkin
