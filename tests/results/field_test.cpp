#include "results/field.h"

#include "../test.h"

namespace firkin {
namespace {

using nlohmann::json;

struct Leg {
  std::string from = "here";
  double km = 1;
};

struct Ride {
  std::string name;
  int64_t bytes = 1;
  double time_s = 1;
  std::optional<double> share;
  std::optional<Interval> time_ci_s;
  std::vector<std::string> words;
  Leg first;  // its fields stand among those of the ride
  std::vector<Leg> legs = {};
  std::optional<Leg> back = {};
  std::vector<std::vector<double>> heights = {};
};

}  // namespace

template <>
constexpr auto kFields<Leg> = std::tuple(Field("from", &Leg::from, Unit::kText, "from"), Field("km", &Leg::km, Unit::kRatio, "km"));

template <>
constexpr auto kFields<Ride> = std::tuple(
    Field("name", &Ride::name, Unit::kText, "ride"), Field("bytes", &Ride::bytes, Unit::kBytes, "size"),
    Field("time_s", &Ride::time_s, Unit::kSeconds, "time"), Field("share", &Ride::share, Unit::kShare, "share", kFirstTable),
    Field("time_ci_s", &Ride::time_ci_s, Unit::kSeconds, "95 % interval"), Field("words", &Ride::words, Unit::kText, "", kHidden),
    Field(
        "twice_s", +[](const Ride& ride) { return 2 * ride.time_s; }, Unit::kSeconds, "", kHidden),
    Field("", &Ride::first, Unit::kText, "", kHidden), Field("legs", &Ride::legs, Unit::kText, "", kIfAny), Field("back", &Ride::back),
    Field("heights", &Ride::heights, Unit::kPlain, "", kIfAny | kHidden));

namespace {

const Ride kRide = {
    .name = "a, b", .bytes = 2048, .time_s = 0.0015, .share = 0.25, .time_ci_s = Interval{0.001, 0.002}, .words = {"x"}, .first = {}};

Ride read(const json& document) {
  return value_from_json<Ride>(document, "rides[0]");
}

std::string refusal(const json& document) {
  return message_of<InputError>([&] { read(document); });
}

TEST(Field, ARowIsReadAsItWasWritten) {
  const json document = json_of(kRide);
  EXPECT_EQ(document["twice_s"], 0.003);
  EXPECT_EQ(json_of(read(document)), document);
}

TEST(Field, OnlyAnOptionalOneMayBeMissing) {
  json document = json_of(kRide);
  document.erase("share");
  EXPECT_FALSE(read(document).share);
  document.erase("time_s");
  EXPECT_THAT(refusal(document), HasSubstr("rides[0].time_s: missing; expected a positive number"));
}

TEST(Field, AValueThatItsUnitDoesNotAllowIsRefused) {
  for (const auto& [name, value, error] :
       {std::tuple<const char*, json, const char*>{"time_s", -1, "rides[0].time_s: -1; expected a positive number"},
        {"bytes", 0, "rides[0].bytes"},
        {"bytes", 1.5, "rides[0].bytes"},
        {"time_ci_s", {{"low", 3}, {"high", 2}}, "expected low <= high"}}) {
    json document = json_of(kRide);
    document[name] = value;
    EXPECT_THAT(refusal(document), HasSubstr(error));
  }
}

TEST(Field, StructsNestAsObjectsListsAndAmongTheRowsOwnFields) {
  Ride ride = kRide;
  ride.first = {.from = "home", .km = 3};
  json document = json_of(ride);
  EXPECT_EQ(document["from"], "home");
  EXPECT_FALSE(document.contains("legs") || document.contains("back") || document.contains("heights"));
  ride.legs = {{.from = "a", .km = 1}, {.from = "b", .km = 2}};
  ride.back = Leg{.from = "c", .km = 4};
  ride.heights = {{1, 2}, {}};
  document = json_of(ride);
  EXPECT_EQ(document["legs"][1], (json{{"from", "b"}, {"km", 2.0}}));
  EXPECT_EQ(json_of(read(document)), document);
  document["legs"][1]["km"] = -1;
  EXPECT_THAT(refusal(document), HasSubstr("rides[0].legs[1].km: -1; expected a positive number"));
  document["legs"] = "none";
  EXPECT_THAT(refusal(document), HasSubstr("rides[0].legs: \"none\"; expected an array"));
  document["legs"] = json::array();
  document["heights"][0][1] = "high";
  EXPECT_THAT(refusal(document), HasSubstr("rides[0].heights[0][1]: \"high\"; expected a number"));
  document["heights"] = json::array();
  document["back"] = 5;
  EXPECT_THAT(refusal(document), HasSubstr("rides[0].back: 5; expected an object"));
}

TEST(Field, ATableHasUnitsAndLeavesColumnsWithoutAValueOut) {
  const Table table = table_of<Ride>({kRide}, kFirstTable);
  EXPECT_THAT(table.rows[0].cells, ElementsAre("a, b", "2 KiB", "1.5 ms", "25.0 %", "1 ms – 2 ms"));
  Ride bare = kRide;
  bare.share = std::nullopt;
  EXPECT_EQ(table_of<Ride>({bare}, kFirstTable).columns.size(), 4);
  EXPECT_EQ(table_of<Ride>({bare, kRide}, kFirstTable).rows[0].cells[3], "–");
}

TEST(Table, ColumnsAreAsWideAsTheirWidestCellAndNumbersStandOnTheRight) {
  const Table table{"", {{"name", false}, {"step"}}, {{{"naive", "12 ms"}}, {{"b", "345 µs"}}}};
  EXPECT_EQ(terminal_table(table, {"", "< best"}), "name     step\nnaive   12 ms\nb      345 µs  < best\n");
}

TEST(Table, WordsAreWrappedAtEightyColumnsUnderTheirHead) {
  std::string words;
  for (int i = 0; i < 30; ++i) words += "word ";
  words.pop_back();
  const std::string text = wrapped("  * ", words);
  EXPECT_EQ(text.find('\n'), 4 + 15 * 5 - 1);
  EXPECT_EQ(text.substr(text.find('\n') + 1, 8), "    word");
}

}  // namespace
}  // namespace firkin
