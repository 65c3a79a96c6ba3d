#include "trace/trace.h"

#include "../torch.h"

#include <ATen/record_function.h>

#include <map>

namespace firkin {
namespace {

using nlohmann::json;

constexpr int64_t kStart = 1'700'000'000'000'000'000;  // a Unix time: the trace must not lose its microseconds

const std::vector<std::vector<Span>> kTwoRanks = {
    {{.name = "step", .activity = Activity::kPhase, .thread = 70, .start_ns = kStart, .end_ns = kStart + 9000},
     {.name = "aten::mm", .activity = Activity::kOperator, .thread = 70, .start_ns = kStart + 1500, .end_ns = kStart + 2750},
     {.name = "gloo:all_reduce",
      .activity = Activity::kCollective,
      .thread = 70,
      .start_ns = kStart + 2000,
      .end_ns = kStart + 8000,
      .elements = 64}},
    {{.name = "aten::add", .activity = Activity::kOperator, .thread = 71, .start_ns = kStart + 500, .end_ns = kStart + 600},
     {.name = "gloo:all_reduce",
      .activity = Activity::kCollective,
      .thread = 72,
      .start_ns = kStart + 700,
      .end_ns = kStart + 8100,
      .elements = 64}}};

std::vector<json> events_of(const json& trace, const std::string& phase) {
  std::vector<json> events;
  for (const json& event : trace["traceEvents"]) {
    if (event["ph"] == phase) events.push_back(event);
  }
  return events;
}

TEST(ChromeTrace, HasOperatorsInMicrosecondsSinceTheFirst) {
  const std::vector<json> complete = events_of(chrome_trace(kTwoRanks), "X");
  ASSERT_EQ(complete.size(), 3u);
  EXPECT_EQ(complete[0]["ts"], 0.0);
  EXPECT_EQ(complete[0]["cat"], "user_annotation");
  EXPECT_EQ(complete[1]["cat"], "cpu_op");
  EXPECT_EQ(complete[1]["name"], "aten::mm");
  EXPECT_EQ(complete[1]["ts"], 1.5);
  EXPECT_EQ(complete[1]["dur"], 1.25);
  EXPECT_EQ(complete[1]["pid"], 0);
  EXPECT_EQ(complete[2]["ts"], 0.5);
  EXPECT_EQ(complete[2]["pid"], 1);
}

TEST(ChromeTrace, HasEachCollectiveFromItsStartToItsEnd) {
  const json trace = chrome_trace(kTwoRanks);
  std::map<int, json> begun;
  for (const json& event : events_of(trace, "b")) begun[event["id"]] = event;
  ASSERT_EQ(begun.size(), 2u);  // no two share an id, on whatever rank
  for (const json& end : events_of(trace, "e")) {
    const json& begin = begun.at(end["id"]);
    for (const char* same : {"name", "cat", "pid"}) EXPECT_EQ(begin[same], end[same]);
    EXPECT_EQ(begin["args"]["elements"], 64);
    EXPECT_DOUBLE_EQ(end["ts"].get<double>() - begin["ts"].get<double>(), begin["pid"] == 0 ? 6.0 : 7.4);
  }
}

TEST(ChromeTrace, NamesRanksAndThreads) {
  std::vector<std::string> names;
  for (const json& event : events_of(chrome_trace(kTwoRanks), "M")) names.push_back(event["args"]["name"]);
  EXPECT_EQ(names, (std::vector<std::string>{"rank 0", "training", "rank 1", "training", "thread 2"}));
}

TEST(ChromeTrace, OfNothingIsEmpty) {
  EXPECT_EQ(chrome_trace({})["traceEvents"], json::array());
}

const Span* find(const std::vector<Span>& spans, const std::string& name) {
  const auto found = std::ranges::find(spans, name, &Span::name);
  return found == spans.end() ? nullptr : &*found;
}

TEST(TraceRecorder, SeesOperatorsOfForwardAndBackwardInTheirPhases) {
  const torch::Tensor weight = torch::ones({16, 16}, torch::requires_grad());
  TraceRecorder recorder;
  {
    RECORD_USER_SCOPE("whole");
    torch::ones({4, 16}).mm(weight).sum().backward();
  }
  const std::vector<Span> spans = recorder.stop();
  const Span* whole = find(spans, "whole");
  const Span* forward = find(spans, "aten::mm");
  const Span* backward = find(spans, "MmBackward0");
  ASSERT_TRUE(whole != nullptr && forward != nullptr && backward != nullptr);
  EXPECT_EQ(whole->activity, Activity::kPhase);
  EXPECT_EQ(forward->activity, Activity::kOperator);
  EXPECT_EQ(backward->activity, Activity::kOperator);
  EXPECT_LE(whole->start_ns, forward->start_ns);
  EXPECT_LE(forward->end_ns, backward->start_ns);
  EXPECT_LE(backward->end_ns, whole->end_ns);
  EXPECT_EQ(whole->thread, forward->thread);
  EXPECT_TRUE(std::ranges::is_sorted(spans, {}, &Span::start_ns));
}

TEST(TraceRecorder, SaysWhenInUnixTime) {
  const auto now_ns = [] {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch()).count();
  };
  const int64_t before_ns = now_ns();
  TraceRecorder recorder;
  torch::ones({2}).add(1);
  const std::vector<Span> spans = recorder.stop();
  ASSERT_FALSE(spans.empty());
  constexpr int64_t kMillisecond = 1'000'000;  // the profiler converts from the processor's counter
  EXPECT_GE(spans.front().start_ns, before_ns - kMillisecond);
  EXPECT_LE(spans.back().end_ns, now_ns() + kMillisecond);
}

TEST(TraceRecorder, RecordsOnceMoreAfterOneThatWasDropped) {
  { const TraceRecorder dropped; }
  TraceRecorder recorder;
  torch::ones({2}).add(1);
  EXPECT_NE(find(recorder.stop(), "aten::add"), nullptr);
}

Span compute(int64_t start_ns, int64_t end_ns) {
  return {.name = "aten::mm", .activity = Activity::kOperator, .start_ns = start_ns, .end_ns = end_ns};
}
Span collective(int64_t start_ns, int64_t end_ns) {
  return {.name = "gloo:all_reduce", .activity = Activity::kCollective, .start_ns = start_ns, .end_ns = end_ns};
}
Span phase(int64_t start_ns, int64_t end_ns) {
  return {.name = "backward", .activity = Activity::kPhase, .start_ns = start_ns, .end_ns = end_ns};
}

TEST(Overlap, IsTheTimeInWhichBothRun) {
  const struct {
    const char* what;
    std::vector<Span> spans;
    double compute_ns, communication_ns, overlapped_ns;
  } rows[] = {
      {"5 and 5 in common", {compute(0, 10), collective(5, 25), compute(20, 30)}, 20, 20, 10},
      {"operators in operators and collectives side by side count once",
       {compute(0, 100), compute(10, 20), compute(15, 40), collective(50, 80), collective(60, 120)},
       100,
       70,
       50},
      {"a phase is no computation", {phase(0, 100), compute(0, 10), collective(20, 100)}, 10, 80, 0},
      {"many operators beside one collective", {collective(0, 100), compute(10, 20), compute(30, 40), compute(90, 130)}, 60, 100, 30},
      {"nothing", {}, 0, 0, 0},
  };
  for (const auto& [what, spans, compute_ns, communication_ns, overlapped_ns] : rows) {
    const Overlap overlap = overlap_of(spans);
    EXPECT_DOUBLE_EQ(overlap.compute_s, compute_ns * 1e-9) << what;
    EXPECT_DOUBLE_EQ(overlap.communication_s, communication_ns * 1e-9) << what;
    EXPECT_DOUBLE_EQ(overlap.overlapped_s, overlapped_ns * 1e-9) << what;
  }
}

// Where they begin and end.
template <typename Spans>
std::vector<std::pair<int64_t, int64_t>> ends_of(const Spans& spans) {
  std::vector<std::pair<int64_t, int64_t>> ends;
  for (const auto& span : spans) ends.emplace_back(span.start_ns, span.end_ns);
  return ends;
}

TEST(BusyPeriods, AreMergedAndInOrder) {
  const std::vector<Span> spans = {compute(30, 40), compute(0, 10), compute(10, 20), collective(0, 50)};
  EXPECT_THAT(ends_of(busy_periods(spans, Activity::kOperator)), ElementsAre(Pair(0, 20), Pair(30, 40)));
}

TEST(BusyPeriods, CloseGapsUpToTheLeast) {
  const std::vector<Span> spans = {compute(0, 10), compute(15, 20), compute(26, 30)};
  EXPECT_THAT(ends_of(busy_periods(spans, Activity::kOperator, 5)), ElementsAre(Pair(0, 20), Pair(26, 30)));
}

TEST(SpansCutTo, KeepsWhatLiesInsideOfEverySpan) {
  const std::vector<Span> spans = {compute(0, 100), compute(5, 10), compute(8, 12), compute(20, 25), compute(30, 31)};
  EXPECT_THAT(ends_of(spans_cut_to(spans, 10, 30)), ElementsAre(Pair(10, 30), Pair(10, 12), Pair(20, 25)));
}

}  // namespace
}  // namespace firkin
