#include "trace/chrome_trace.h"

#include <fmt/format.h>

#include <map>

namespace firkin {
namespace {

using nlohmann::json;

const char* category_of(Activity activity) {
  switch (activity) {
    case Activity::kPhase:
      return "phase";
    case Activity::kOperator:
      return "operator";
    case Activity::kCollective:
      return "communication";
    case Activity::kHost:
      return "host";
  }
  return "";
}

// Names a process or a thread: "process_name", "thread_name".
json name_event(const char* what, int rank, int thread, const std::string& name) {
  return {{"ph", "M"}, {"name", what}, {"pid", rank}, {"tid", thread}, {"args", {{"name", name}}}};
}

class Events {
 public:
  explicit Events(int64_t origin_ns) : origin_ns_(origin_ns) {}

  void add_rank(int rank, const std::vector<Span>& spans) {
    rank_ = rank;
    track_of_.clear();
    events_.push_back(name_event("process_name", rank, 0, fmt::format("rank {}", rank)));
    for (const Span& span : spans) add(span);
  }

  json take() { return std::move(events_); }

 private:
  void add(const Span& span) {
    json event = {{"name", span.name},
                  {"cat", category_of(span.activity)},
                  {"pid", rank_},
                  {"tid", track_of(span.thread)},
                  {"ts", microseconds(span.start_ns - origin_ns_)}};
    if (span.activity == Activity::kCollective) {
      add_async(std::move(event), span);
      return;
    }
    event["ph"] = "X";
    event["dur"] = microseconds(span.end_ns - span.start_ns);
    events_.push_back(std::move(event));
  }

  static double microseconds(int64_t ns) { return static_cast<double>(ns) * 1e-3; }

  // Several collectives may be under way at once, which events of one thread cannot.
  void add_async(json event, const Span& span) {
    event["id"] = ++collectives_;
    event["ph"] = "b";
    event["args"] = {{"elements", span.elements}};
    events_.push_back(event);
    event["ph"] = "e";
    event["ts"] = microseconds(span.end_ns - origin_ns_);
    event.erase("args");
    events_.push_back(std::move(event));
  }

  // Threads are numbered in order of appearance; the first one trains.
  int track_of(uint64_t thread) {
    const auto [track, is_new] = track_of_.try_emplace(thread, static_cast<int>(track_of_.size()) + 1);
    if (is_new) {
      const std::string name = track->second == 1 ? "training" : fmt::format("thread {}", track->second);
      events_.push_back(name_event("thread_name", rank_, track->second, name));
    }
    return track->second;
  }

  int rank_ = 0;
  int64_t origin_ns_;
  int64_t collectives_ = 0;
  std::map<uint64_t, int> track_of_;
  json events_ = json::array();
};

}  // namespace

json chrome_trace(const std::vector<std::vector<Span>>& spans_by_rank) {
  Events events(first_start_ns(spans_by_rank));
  for (size_t rank = 0; rank < spans_by_rank.size(); ++rank) events.add_rank(static_cast<int>(rank), spans_by_rank[rank]);
  return {{"displayTimeUnit", "ms"}, {"traceEvents", events.take()}};
}

}  // namespace firkin
