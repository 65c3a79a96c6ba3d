#include "results/field.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "firkin/base/error.h"

namespace firkin {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

struct Ride {
  std::string name;
  int64_t bytes = 1;
  double time_s = 1;
  std::optional<double> share;
  std::optional<Interval> time_ci_s;
  std::vector<std::string> words;
};

constexpr Field<Ride> kRideFields[] = {{"name", &Ride::name, Unit::kText, "ride"},
                                       {"bytes", &Ride::bytes, Unit::kBytes, "size"},
                                       {"time_s", &Ride::time_s, Unit::kSeconds, "time"},
                                       {"share", &Ride::share, Unit::kShare, "share", kFirstTable | kCsv},
                                       {"time_ci_s", &Ride::time_ci_s, Unit::kSeconds, "95 % interval"},
                                       {"words", &Ride::words, Unit::kText, "", kHidden},
                                       {"twice_s", [](const Ride& ride) { return Value(2 * ride.time_s); }, Unit::kSeconds, "", kHidden}};

const Ride kRide = {.name = "a, b", .bytes = 2048, .time_s = 0.0015, .share = 0.25, .time_ci_s = Interval{0.001, 0.002}, .words = {"x"}};

Ride read(const json& document) {
  return from_json<Ride>(kRideFields, JsonFields(document, "rides[0]"));
}

TEST(Field, ARowIsReadAsItWasWritten) {
  const json document = to_json<Ride>(kRideFields, kRide);
  EXPECT_EQ(document["twice_s"], 0.003);
  EXPECT_EQ(to_json<Ride>(kRideFields, read(document)), document);
}

TEST(Field, OnlyAnOptionalOneMayBeMissing) {
  json document = to_json<Ride>(kRideFields, kRide);
  document.erase("share");
  EXPECT_FALSE(read(document).share);
  document.erase("time_s");
  EXPECT_THAT([&] { read(document); }, ThrowsMessage<InputError>(HasSubstr("rides[0].time_s: missing; expected a positive number")));
}

TEST(Field, AValueThatItsUnitDoesNotAllowIsRefused) {
  json document = to_json<Ride>(kRideFields, kRide);
  document["time_s"] = -1;
  EXPECT_THAT([&] { read(document); }, ThrowsMessage<InputError>(HasSubstr("rides[0].time_s: -1; expected a positive number")));
  document["time_s"] = 1;
  document["bytes"] = 0;
  EXPECT_THROW(read(document), InputError);
  document["bytes"] = 1.5;
  EXPECT_THROW(read(document), InputError);
  document["bytes"] = 1;
  document["time_ci_s"] = {{"low", 3}, {"high", 2}};
  EXPECT_THAT([&] { read(document); }, ThrowsMessage<InputError>(HasSubstr("expected low <= high")));
}

TEST(Field, TheTerminalsTableHasUnitsAndLeavesColumnsWithoutAValueOut) {
  const Table table = table_of<Ride>(kRideFields, {kRide}, Medium::kTerminal, kFirstTable);
  EXPECT_THAT(table.rows[0].cells, ElementsAre("a, b", "2 KiB", "1.5 ms", "25.0 %", "1 ms - 2 ms"));
  Ride bare = kRide;
  bare.share = std::nullopt;
  EXPECT_EQ(table_of<Ride>(kRideFields, {bare}, Medium::kTerminal, kFirstTable).columns.size(), 4);
  EXPECT_EQ(table_of<Ride>(kRideFields, {bare, kRide}, Medium::kTerminal, kFirstTable).rows[0].cells[3], "-");
}

TEST(Field, ACsvLineHasAnIntervalsTwoEndsAndQuotesText) {
  EXPECT_THAT(csv_names<Ride>(kRideFields), ElementsAre("name", "bytes", "time_s", "share", "time_low_s", "time_high_s"));
  EXPECT_THAT(csv_line<Ride>(kRideFields, kRide), ElementsAre("\"a, b\"", "2048", "0.0015", "0.25", "0.001", "0.002"));
  Ride open = kRide;
  open.time_ci_s = Interval{0, HUGE_VAL};
  EXPECT_EQ(csv_line<Ride>(kRideFields, open)[5], "");
}

}  // namespace
}  // namespace firkin
