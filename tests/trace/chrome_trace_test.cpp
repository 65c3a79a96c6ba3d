#include "trace/trace.h"

#include <gtest/gtest.h>

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
  EXPECT_EQ(complete[0]["cat"], "phase");
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

}  // namespace
}  // namespace firkin
