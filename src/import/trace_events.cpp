#include "trace_events.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>

#include "firkin/base/error.h"
#include "firkin/base/json_text.h"
#include "unzipped.h"

namespace firkin {
namespace {

constexpr const char* kExpectedTrace = "a trace that torch.profiler has exported";
constexpr double kLatest_us = 1e17;                  // far behind what any clock says
constexpr int64_t kMostElements = int64_t{1} << 40;  // of a tensor or a message

// The keys whose values are read. Outside of events, in an event, and in its "args".
enum class Key {
  kNone,
  kTraceEvents,
  kBaseTime,
  kDistributed,
  kRank,
  kWorldSize,
  kPidIsRank,
  kBackend,
  kPhase,
  kCategory,
  kName,
  kStart,
  kDuration,
  kThread,
  kProcess,
  kId,
  kArgs,
  kCorrelation,
  kExternal,
  kStream,
  kDimensions,
  kType,
  kCollective,
  kElements,
  kGroupSize,
  kDtype,
  kGroup,
  kGroupWords
};

using KeyName = std::pair<std::string_view, Key>;
constexpr KeyName kTopKeys[] = {
    {"traceEvents", Key::kTraceEvents}, {"baseTimeNanoseconds", Key::kBaseTime}, {"distributedInfo", Key::kDistributed}};
constexpr KeyName kDistributedKeys[] = {
    {"rank", Key::kRank}, {"world_size", Key::kWorldSize}, {"backend", Key::kBackend}, {"pid_is_rank", Key::kPidIsRank}};
constexpr KeyName kEventKeys[] = {{"ph", Key::kPhase},    {"cat", Key::kCategory}, {"name", Key::kName},
                                  {"ts", Key::kStart},    {"dur", Key::kDuration}, {"tid", Key::kThread},
                                  {"pid", Key::kProcess}, {"id", Key::kId},        {"args", Key::kArgs}};
constexpr KeyName kArgsKeys[] = {{"correlation", Key::kCorrelation},
                                 {"External id", Key::kExternal},
                                 {"stream", Key::kStream},
                                 {"Input Dims", Key::kDimensions},
                                 {"Input type", Key::kType},
                                 {"Collective name", Key::kCollective},
                                 {"In msg nelems", Key::kElements},
                                 {"Group size", Key::kGroupSize},
                                 {"dtype", Key::kDtype},
                                 {"Process Group Name", Key::kGroup},
                                 {"Process Group Description", Key::kGroupWords}};

Key find_key(std::span<const KeyName> keys, std::string_view name) {
  for (const auto& [text, key] : keys) {
    if (name == text) return key;
  }
  return Key::kNone;
}

// An event as it stands in the file.
struct RawEvent {
  char phase = 0;
  std::string category, name;
  double start_us = std::numeric_limits<double>::quiet_NaN(), duration_us = 0;
  int64_t thread = 0, process = 0, id = -1;
  int64_t correlation = -1, external = -1, stream = -1, elements = -1, group_size = 0;
  std::string type, collective, dtype, group, group_words;
  std::vector<int64_t> dimensions;  // of the first tensor
  bool has_dimensions = false;

  // Keeps the memory of the texts, of which an event has half a dozen.
  void clear() {
    for (std::string* text : {&category, &name, &type, &collective, &dtype, &group, &group_words}) text->clear();
    dimensions.clear();
    phase = 0;
    start_us = std::numeric_limits<double>::quiet_NaN();
    duration_us = 0;
    thread = process = 0;
    id = correlation = external = stream = elements = -1;
    group_size = 0;
    has_dimensions = false;
  }
};

int64_t product(const std::vector<int64_t>& dimensions) {
  int64_t elements = 1;
  for (const int64_t size : dimensions) {
    if (size < 0 || (size > 0 && elements > kMostElements / size)) return -1;
    elements *= size;
  }
  return elements;
}

bool holds(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

// "all_reduce" for allreduce, c10d::allreduce_ and all_reduce; other names as they are.
std::string collective_name(std::string name) {
  if (name.starts_with("allreduce") && !holds(name, "coalesced")) return "all_reduce";
  return name;
}

// A name of NCCL's or RCCL's kernels: ncclDevKernel_AllReduce_..., ncclKernel_AllReduce_..., rcclKernel...
bool is_collective_kernel(std::string_view name) {
  return holds(name, "ncclDevKernel") || holds(name, "ncclKernel") || holds(name, "rcclKernel");
}

// Sorts one rank's events as they come into those that are kept.
class Sorter {
 public:
  void add(const RawEvent& event) {
    if (!std::isfinite(event.start_us) || !std::isfinite(event.duration_us)) return;
    if (event.phase == 'X') add_whole(event, {event.start_us, event.start_us + event.duration_us});
    if (event.phase == 'b' && event.id >= 0) begun_[event.id] = event;
    if (event.phase != 'e') return;
    const auto begun = begun_.find(event.id);
    if (begun == begun_.end()) return;
    add_whole(begun->second, {begun->second.start_us, std::max(begun->second.start_us, event.start_us)});
    begun_.erase(begun);
  }

  // Sorts the events by their start, and joins what the host and the GPU say about one collective.
  TraceEvents finish() {
    join();
    return std::move(events_);
  }

 private:
  void add_whole(const RawEvent& event, const TraceSpan& span) {
    if (event.category == "cpu_op") {
      add_operator(event, span);
    } else if (event.category == "user_annotation") {
      add_annotation(event, span);
    } else if (event.category == "kernel" || event.category == "gpu_memset" || event.category == "gpu_memcpy") {
      add_gpu_work(event, span);
    } else if (event.correlation >= 0 && (event.category.ends_with("_runtime") || event.category.ends_with("_driver"))) {
      events_.launches.push_back({span.start_us, event.thread, event.correlation});
    }
  }

  void join() {
    const auto sort = [](auto& spans) { std::ranges::sort(spans, {}, [](const auto& span) { return span.start_us; }); };
    sort(events_.launches);
    std::unordered_map<int64_t, double> launched;
    for (const TraceLaunch& launch : events_.launches) launched.emplace(launch.correlation, launch.start_us);
    for (TraceCollective& collective : events_.collectives) {
      const auto record = records_.find(collective.record);
      if (collective.elements < 0 && record != records_.end()) {
        collective.elements = record->second.elements;
        collective.type = record->second.type;
        collective.group = record->second.group;
        collective.group_size = record->second.group_size;
        collective.name = record->second.name;
      }
      const auto launch = launched.find(collective.correlation);
      collective.launched_us = launch == launched.end() || !collective.on_gpu() ? collective.start_us : launch->second;
    }
    sort(events_.forwards);
    sort(events_.steps);
    sort(events_.optimizers);
    sort(events_.nodes);
    sort(events_.operators);
    sort(events_.gradients);
    sort(events_.collectives);
    sort(events_.kernels);
  }

  void add_operator(const RawEvent& event, const TraceSpan& span) {
    if (event.name == "torch::autograd::AccumulateGrad") {
      TraceGradient& gradient = events_.gradients.emplace_back(TraceGradient{span, event.thread});
      if (event.has_dimensions && !event.type.empty() && product(event.dimensions) >= 0) {
        gradient.type = event.type;
        gradient.dimensions = event.dimensions;
      }
    } else if (event.name == "record_param_comms") {
      records_[event.external] = described(event, span);
    } else if (event.name.starts_with("autograd::engine::evaluate_function")) {
      events_.nodes.push_back(span);
    } else {
      events_.operators.push_back(span);
    }
  }

  void add_annotation(const RawEvent& event, const TraceSpan& span) {
    if (event.name == "DistributedDataParallel.forward") {
      events_.forwards.push_back(span);
    } else if (event.name.starts_with("ProfilerStep#")) {
      events_.steps.push_back(span);
    } else if (event.name.starts_with("Optimizer.step#")) {
      events_.optimizers.push_back(span);
    } else if (event.name.starts_with("gloo:") || event.name.starts_with("mpi:")) {
      TraceCollective collective = described(event, span);
      collective.name = event.name.substr(event.name.find(':') + 1);
      if (event.has_dimensions) collective.elements = product(event.dimensions);
      collective.type = event.type;
      collective.stream = -1;
      events_.collectives.push_back(std::move(collective));
    }
  }

  void add_gpu_work(const RawEvent& event, const TraceSpan& span) {
    if (event.category != "kernel" || !is_collective_kernel(event.name)) {
      events_.kernels.push_back({span, event.stream, event.correlation});
      return;
    }
    TraceCollective collective = described(event, span);
    if (collective.name.empty()) collective.name = holds(event.name, "AllReduce") ? "all_reduce" : "another collective";
    collective.stream = std::max<int64_t>(0, event.stream);
    events_.collectives.push_back(std::move(collective));
  }

  static TraceCollective described(const RawEvent& event, const TraceSpan& span) {
    TraceCollective collective{span,
                               collective_name(event.collective),
                               event.group_words.empty() ? event.group : event.group_words,
                               event.dtype,
                               event.elements,
                               event.group_size};
    collective.correlation = event.correlation;
    collective.record = event.external;
    return collective;
  }

  TraceEvents events_;
  std::unordered_map<int64_t, RawEvent> begun_;           // by id, until they end
  std::unordered_map<int64_t, TraceCollective> records_;  // what the host says of a collective of the GPU
};

// Makes events from what nlohmann::json's parser finds, value by value.
class EventReader {
 public:
  bool null() { return true; }
  bool boolean(bool value) {
    if (in_distributed() && key_ == Key::kPidIsRank) pid_is_rank_ = value;
    return true;
  }
  bool number_integer(int64_t value) { return number(static_cast<double>(value), value); }
  bool number_unsigned(uint64_t value) {
    return number(static_cast<double>(value), static_cast<int64_t>(std::min<uint64_t>(value, std::numeric_limits<int64_t>::max())));
  }
  bool number_float(double value, const std::string&) {
    return number(value, std::abs(value) < static_cast<double>(kMostElements) ? static_cast<int64_t>(value) : -1);
  }
  bool binary(nlohmann::json::binary_t&) { return true; }

  bool string(std::string& value) {
    if (in_event()) {
      if (key_ == Key::kPhase) event_.phase = value.size() == 1 ? value[0] : 0;
      if (key_ == Key::kCategory) event_.category = value;
      if (key_ == Key::kName) event_.name = value;
    } else if (in_args()) {
      if (key_ == Key::kCollective) event_.collective = value;
      if (key_ == Key::kDtype) event_.dtype = value;
      if (key_ == Key::kGroup) event_.group = value;
      if (key_ == Key::kGroupWords) event_.group_words = value;
    } else if (inside_args() && args_key_ == Key::kType) {
      if (event_.type.empty()) event_.type = value;
    } else if (in_distributed() && key_ == Key::kBackend) {
      about_.backend = value;
    }
    return true;
  }

  bool key(std::string& name) {
    key_ = Key::kNone;
    if (in_event()) {
      key_ = find_key(kEventKeys, name);
    } else if (in_args()) {
      args_key_ = key_ = find_key(kArgsKeys, name);
    } else if (in_distributed()) {
      key_ = find_key(kDistributedKeys, name);
    } else if (depth_ == 1) {
      top_key_ = key_ = find_key(kTopKeys, name);
    }
    return true;
  }

  bool start_object(size_t) {
    if (events_depth_ && depth_ == *events_depth_) event_.clear();
    if (in_event()) is_args_ = key_ == Key::kArgs;
    return open();
  }
  bool end_object() {
    --depth_;
    if (events_depth_ && depth_ == *events_depth_) ranks_[pid_is_rank_ ? event_.process : kOnlyRank].add(event_);
    return true;
  }
  bool start_array(size_t) {
    const bool is_events = !events_depth_ && (depth_ == 0 || (depth_ == 1 && key_ == Key::kTraceEvents));
    if (in_args() && key_ == Key::kDimensions) dimensions_are_read_ = false;
    if (in_event()) is_args_ = false;
    open();
    if (is_events) events_depth_ = depth_;
    leaf_ = true;
    return true;
  }
  bool end_array() {
    // The first list without a list inside has the dimensions of the first tensor: "Input Dims": [[1024, 256], []].
    if (inside_args() && args_key_ == Key::kDimensions && leaf_ && depth_ > *events_depth_ + 3) {
      dimensions_are_read_ = event_.has_dimensions = true;
    }
    leaf_ = false;
    --depth_;
    if (events_depth_ && depth_ < *events_depth_) {
      events_depth_.reset();
      had_events_ = true;
    }
    return true;
  }

  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception& error) {
    error_ = error.what();
    return false;
  }

  const std::string& error() const { return error_; }
  bool had_events() const { return had_events_; }
  bool is_too_deep() const { return too_deep_; }
  bool is_empty() const { return ranks_.empty(); }

  std::vector<TraceEvents> finish(const std::string& file) {
    std::vector<TraceEvents> ranks;
    for (auto& [rank, sorter] : ranks_) {
      TraceEvents& events = ranks.emplace_back(sorter.finish());
      events.file = file;
      events.base_us = about_.base_us;
      events.rank = pid_is_rank_ ? rank : about_.rank;
      events.world_size = about_.world_size;
      events.backend = about_.backend;
      events.is_firkins = pid_is_rank_;
    }
    return ranks;
  }

 private:
  // Where the parser is: directly in an event, directly in its "args", deeper inside these.
  bool in_event() const { return events_depth_ && depth_ == *events_depth_ + 1; }
  bool in_args() const { return events_depth_ && is_args_ && depth_ == *events_depth_ + 2; }
  bool inside_args() const { return events_depth_ && is_args_ && depth_ > *events_depth_ + 2; }
  bool in_distributed() const { return !events_depth_ && depth_ == 2 && top_key_ == Key::kDistributed; }

  bool open() {
    too_deep_ = ++depth_ > kDeepestJson;
    return !too_deep_;
  }

  bool number(double value, int64_t whole) {
    if (in_event()) {
      if (std::abs(value) > kLatest_us) value = std::numeric_limits<double>::quiet_NaN();  // such an event is dropped
      if (key_ == Key::kStart) event_.start_us = value;
      if (key_ == Key::kDuration) event_.duration_us = value >= 0 ? value : std::numeric_limits<double>::quiet_NaN();
      if (key_ == Key::kThread) event_.thread = whole;
      if (key_ == Key::kProcess) event_.process = whole;
      if (key_ == Key::kId) event_.id = whole;
    } else if (in_args()) {
      if (key_ == Key::kCorrelation) event_.correlation = whole;
      if (key_ == Key::kExternal) event_.external = whole;
      if (key_ == Key::kStream) event_.stream = whole;
      if (key_ == Key::kElements) event_.elements = whole <= kMostElements ? whole : -1;
      if (key_ == Key::kGroupSize) event_.group_size = whole;
      if (key_ == Key::kGroup) event_.group = fmt::format("{}", whole);
    } else if (inside_args() && args_key_ == Key::kDimensions) {
      if (!dimensions_are_read_) event_.dimensions.push_back(whole);
    } else if (in_distributed()) {
      if (key_ == Key::kRank) about_.rank = whole;
      if (key_ == Key::kWorldSize) about_.world_size = whole;
    } else if (depth_ == 1 && key_ == Key::kBaseTime) {
      about_.base_us = value * 1e-3;
    }
    return true;
  }

  static constexpr int64_t kOnlyRank = -1;

  TraceEvents about_;         // what the file says about itself: its rank, its clock
  bool pid_is_rank_ = false;  // as in what firkin trace writes
  std::map<int64_t, Sorter> ranks_;
  RawEvent event_;
  size_t depth_ = 0;                    // open objects and lists
  std::optional<size_t> events_depth_;  // of the list of events, while it is open
  Key key_ = Key::kNone, top_key_ = Key::kNone, args_key_ = Key::kNone;
  bool is_args_ = false;              // whether what is open in the event is its "args"
  bool dimensions_are_read_ = false;  // of the first tensor
  bool leaf_ = false;                 // whether the innermost list has no list inside so far
  bool had_events_ = false, too_deep_ = false;
  std::string error_;
};

// Characters that come in pieces, for nlohmann::json.
struct Text {
  std::function<std::string_view()> next;
  const char* at = nullptr;
  const char* end = nullptr;
  const char* begin = nullptr;
  int64_t lines_before = 0;  // in earlier pieces

  void refill() {
    lines_before += std::count(begin, end, '\n');
    const std::string_view piece = next();
    at = begin = piece.data();
    end = at + piece.size();
  }
  int64_t line() const { return 1 + lines_before + std::count(begin, at, '\n'); }
};

struct TextIterator {
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  Text* text = nullptr;

  reference operator*() const { return *text->at; }
  TextIterator& operator++() {
    if (++text->at == text->end) text->refill();
    return *this;
  }
  // Holds at the end; nlohmann::json compares iterators with nothing else.
  bool operator==(const TextIterator&) const { return text->at == text->end; }
};

std::vector<TraceEvents> parse_pieces(std::function<std::string_view()> next, const std::string& file) {
  Text text{std::move(next)};
  text.refill();
  const bool is_empty = text.at == text.end;
  EventReader reader;
  const auto fail = [&](const std::string& what) {
    throw InputError(fmt::format("{}:{}: {}; expected {}", file, text.line(), what, kExpectedTrace));
  };
  if (is_empty) fail("the file is empty");
  const bool is_whole = nlohmann::json::sax_parse(TextIterator{&text}, TextIterator{&text}, &reader);
  if (reader.is_too_deep()) fail(fmt::format("more than {} values within each other", kDeepestJson));
  if (!is_whole && text.at == text.end) fail("the trace is cut off");
  if (is_whole && text.at != text.end) fail("not JSON");  // a byte of 0, which nlohmann::json takes for the end
  if (!is_whole) fail(holds(reader.error(), "out_of_range") ? "a number is too large" : "not JSON");
  if (!reader.had_events() || reader.is_empty()) fail("no events");
  return reader.finish(file);
}

}  // namespace

bool is_trace_text(std::string_view beginning) {
  const size_t first = beginning.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos || (beginning[first] != '{' && beginning[first] != '[')) return false;
  for (const char* word : {"\"traceEvents\"", "\"schemaVersion\"", "\"deviceProperties\"", "\"displayTimeUnit\"", "\"ph\""}) {
    if (holds(beginning, word)) return true;
  }
  return false;
}

std::vector<TraceEvents> read_trace_events(const std::filesystem::path& path) {
  UnzippedFile file(path);
  return parse_pieces([&] { return file.next(); }, path.string());
}

std::vector<TraceEvents> parse_trace_events(std::string_view text, const std::string& file) {
  bool is_given = false;
  return parse_pieces([&] { return std::exchange(is_given, true) ? std::string_view() : text; }, file);
}

}  // namespace firkin
