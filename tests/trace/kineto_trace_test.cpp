#include "trace/kineto_trace.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>

#include "firkin/base/json_text.h"

namespace firkin {
namespace {

using nlohmann::json;

constexpr int64_t kOrigin = 1'700'000'000'000'000'000;  // a Unix time: the trace must not lose its microseconds
constexpr uint64_t kTraining = 70;
constexpr uint64_t kAutograd = 71;

Span span_of(const std::string& name, Activity activity, int64_t start_ns, int64_t end_ns, uint64_t thread = kTraining) {
  return {.name = name, .activity = activity, .thread = thread, .start_ns = kOrigin + start_ns, .end_ns = kOrigin + end_ns, .elements = 0};
}

// Two steps. In each, two collectives are under way from 200 to 600 together, and operators beside them from 200 to 400: 50 %.
const std::vector<Span> kTwoSteps = {
    span_of("step", Activity::kPhase, 0, 1000),
    span_of("aten::linear", Activity::kOperator, 0, 400),
    span_of("aten::mm", Activity::kOperator, 100, 300),
    span_of("gloo:all_reduce", Activity::kCollective, 200, 500),
    span_of("gloo:all_reduce", Activity::kCollective, 250, 600),
    span_of("step", Activity::kPhase, 2000, 3000),
    span_of("backward", Activity::kPhase, 2000, 2400),
    span_of("MmBackward", Activity::kOperator, 2000, 2400, kAutograd),
    span_of("gloo:all_reduce", Activity::kCollective, 2200, 2600),
    span_of("gloo:all_reduce", Activity::kCollective, 2300, 2500),
};

json trace_of(const std::vector<Span>& spans) {
  return kineto_trace(spans, 1, 2, "gloo", kOrigin);
}

std::vector<json> events_in(const json& trace, const std::string& category) {
  std::vector<json> events;
  for (const json& event : trace["traceEvents"]) {
    if (event.value("cat", "") == category) events.push_back(event);
  }
  return events;
}

// What the kernels of a trace say, without its operators and phases: collectives by their stream.
std::vector<Span> kernels_as_spans(const json& trace) {
  std::vector<Span> spans;
  for (const json& kernel : events_in(trace, "kernel")) {
    const auto start_ns = std::llround(1e3 * kernel["ts"].get<double>());
    const auto end_ns = start_ns + std::llround(1e3 * kernel["dur"].get<double>());
    spans.push_back(span_of(kernel["name"], kernel["tid"] >= 100 ? Activity::kCollective : Activity::kOperator, start_ns, end_ns));
  }
  return spans;
}

TEST(KinetoTrace, KernelsAloneGiveTheOverlapOfTheSpans) {
  for (const Overlap& overlap : {overlap_of(kTwoSteps), overlap_of(kernels_as_spans(trace_of(kTwoSteps)))}) {
    EXPECT_DOUBLE_EQ(overlap.compute_s, 800e-9);
    EXPECT_DOUBLE_EQ(overlap.communication_s, 800e-9);
    EXPECT_DOUBLE_EQ(overlap.overlapped_s, 400e-9);
  }
}

TEST(KinetoTrace, DoublesAnOperatorAsAKernelUnlessItIsWithinAnother) {
  const json trace = trace_of(kTwoSteps);
  EXPECT_EQ(events_in(trace, "cpu_op").size(), 3u);
  std::vector<std::string> names;
  for (const json& kernel : events_in(trace, "kernel")) {
    EXPECT_EQ(kernel["tid"], kernel["args"]["stream"]);
    if (kernel["tid"] < 100) names.push_back(kernel["name"]);
  }
  EXPECT_EQ(names, (std::vector<std::string>{"aten::linear", "MmBackward"}));
}

TEST(KinetoTrace, OperatorsOfTwoThreadsAreOnTwoStreams) {
  const std::vector<json> kernels = events_in(
      trace_of({span_of("aten::mm", Activity::kOperator, 0, 100, kTraining), span_of("aten::add", Activity::kOperator, 10, 20, kAutograd)}),
      "kernel");
  ASSERT_EQ(kernels.size(), 2u);
  EXPECT_EQ(kernels[0]["args"]["stream"], 1);
  EXPECT_EQ(kernels[1]["args"]["stream"], 2);
}

TEST(KinetoTrace, CollectivesOfOneStreamDoNotOverlap) {
  const json trace = trace_of({span_of("gloo:a", Activity::kCollective, 0, 100), span_of("gloo:b", Activity::kCollective, 10, 50),
                               span_of("gloo:c", Activity::kCollective, 50, 70), span_of("gloo:d", Activity::kCollective, 60, 90),
                               span_of("gloo:e", Activity::kCollective, 100, 110)});
  std::map<std::string, int> stream_of;
  for (const json& kernel : events_in(trace, "kernel")) stream_of[kernel["name"]] = kernel["args"]["stream"];
  EXPECT_EQ(stream_of, (std::map<std::string, int>{{"gloo:a", 100}, {"gloo:b", 101}, {"gloo:c", 101}, {"gloo:d", 102}, {"gloo:e", 100}}));
}

TEST(KinetoTrace, KernelsBelongToTheStepThatBeganLast) {
  const json trace = trace_of(kTwoSteps);
  std::map<std::string, int> correlation_of;  // by name of a phase
  for (const json& phase : events_in(trace, "user_annotation")) {
    correlation_of[phase["name"]] = phase.contains("args") ? phase["args"]["correlation"].get<int>() : 0;
  }
  EXPECT_EQ(correlation_of, (std::map<std::string, int>{{"ProfilerStep#0", 1}, {"ProfilerStep#1", 2}, {"backward", 0}}));
  for (const json& kernel : events_in(trace, "kernel")) EXPECT_EQ(kernel["args"]["correlation"], kernel["ts"] < 2.0 ? 1 : 2);
}

TEST(KinetoTrace, WhatStartsTogetherIsTakenFromTheOutside) {
  const json trace = trace_of({span_of("aten::mm", Activity::kOperator, 0, 50), span_of("aten::linear", Activity::kOperator, 0, 100),
                               span_of("step", Activity::kPhase, 0, 200)});
  const std::vector<json> kernels = events_in(trace, "kernel");
  ASSERT_EQ(kernels.size(), 1u);
  EXPECT_EQ(kernels[0]["name"], "aten::linear");
  EXPECT_EQ(kernels[0]["args"]["correlation"], 1);
}

TEST(KinetoTrace, SaysWhoseItIsAndWhen) {
  const json trace = trace_of(kTwoSteps);
  EXPECT_EQ(trace["distributedInfo"], (json{{"backend", "gloo"}, {"rank", 1}, {"world_size", 2}}));
  EXPECT_EQ(trace["baseTimeNanoseconds"], kOrigin);
  EXPECT_NE(dump_json(trace, 0).find("\"rank\": 1"), std::string::npos);  // HTA looks for it in the text
  const json last = events_in(trace, "kernel").back();
  EXPECT_EQ(last["ts"], 2.3);
  EXPECT_EQ(last["dur"], 0.2);
}

TEST(KinetoTrace, StartsWithTheNamesOfItsProcesses) {
  const json events = trace_of(kTwoSteps)["traceEvents"];
  for (int i : {0, 1}) EXPECT_EQ(events[i]["name"], "process_name");
  std::set<int> processes;
  for (const json& event : events) processes.insert(event["pid"].get<int>());
  EXPECT_EQ(processes, (std::set<int>{events[0]["pid"], events[1]["pid"]}));
}

TEST(KinetoTrace, OfACollectiveHasItsSize) {
  Span all_reduce = span_of("gloo:all_reduce", Activity::kCollective, 0, 10);
  all_reduce.elements = 64;
  const json args = events_in(trace_of({all_reduce}), "kernel").at(0)["args"];
  EXPECT_EQ(args["Collective name"], "all_reduce");
  EXPECT_EQ(args["In msg nelems"], 64);
  EXPECT_EQ(args["Group size"], 2);
}

}  // namespace
}  // namespace firkin
