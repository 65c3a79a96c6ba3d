// The charts as data: what fills which template. That they draw is for the tests of the commands (tests/cli) and browser_test.py to say.

#include "report/charts.h"
#include "../results/example_results.h"
#include "../test.h"
#include "report/words.h"

namespace firkin {
namespace {

using nlohmann::json;

std::vector<std::string> strings_in(const json& value) {
  if (value.is_string()) return {value.get<std::string>()};
  std::vector<std::string> strings;
  if (!value.is_structured()) return strings;
  for (const json& child : value) {
    for (std::string& text : strings_in(child)) strings.push_back(std::move(text));
  }
  return strings;
}

json param(const json& spec, const std::string& name) {
  for (const json& candidate : spec["params"]) {
    if (candidate["name"] == name) return candidate["value"];
  }
  return {};
}

std::optional<Chart> find_chart(const Results& results, const std::string& id) {
  for (Chart& chart : charts_for(results)) {
    if (chart.id == id) return chart;
  }
  return std::nullopt;
}

Chart chart_of(const Results& results, const std::string& id) {
  return find_chart(results, id).value();
}

json rows_of(const Results& results, const std::string& id, const std::string& dataset) {
  return chart_of(results, id).spec["datasets"][dataset];
}

TEST(Charts, EveryColourIsAVariableOfThePage) {
  for (const auto& [name, spec] : chart_templates().items()) {
    EXPECT_THAT(strings_in(spec), Contains(StartsWith("var(--chart-"))) << name;
    EXPECT_THAT(strings_in(spec), Each(Not(StartsWith("#")))) << name;
  }
}

TEST(Charts, OnlyTheDataSetsOfATemplateCanBeFilled) {
  EXPECT_THROW(filled_chart("timeline", {{"period", json::array()}}), std::logic_error);
  EXPECT_THROW(filled_chart("allreduce", {{"points", json::array()}}), std::logic_error);
  json spec = filled_chart("curve", {{"predicted", {}}, {"measured", {}}, {"levels", {}}, {"best", {}}});
  EXPECT_THROW(set_param(spec, "fitted", 1), std::logic_error);
}

TEST(Charts, TheCurveMarksTheChosenCapAndHoldsItWithinItsAxis) {
  const Results results = tune_results();
  const json spec = chart_of(results, "curve").spec;
  const json& best = spec["datasets"]["best"];
  ASSERT_EQ(best.size(), 1);
  EXPECT_EQ(best[0]["cap_mib"], mib(results.decision->cap_bytes));
  EXPECT_EQ(best[0]["label"], "chosen: 0.5 MiB");
  const json& domain = spec["encoding"]["y"]["scale"]["domain"];
  for (const char* dataset : {"predicted", "measured", "levels", "best"}) {
    for (const json& row : spec["datasets"][dataset]) {
      EXPECT_GT(row["time_s"], domain[0]) << dataset;
      EXPECT_LT(row["time_s"], domain[1]) << dataset;
    }
  }
}

TEST(Charts, TheChosenCapIsTheDecisionsNotThePredictedBest) {
  Results results = tune_results();
  Decision& decision = *results.decision;
  decision.cap_bytes = 16 * kMiB;  // the predicted line is lower elsewhere
  decision.predicted_s = 0.370726;
  EXPECT_EQ(rows_of(results, "curve", "best")[0]["label"], "chosen: 16 MiB");
  EXPECT_THAT(chart_of(results, "curve").summary, HasSubstr("Chosen: 16 MiB, predicted at 371 ms."));
  EXPECT_EQ(remark_on(results, 16 * kMiB), "chosen");
  EXPECT_EQ(remark_on(results, 4 * kMiB), "measured best");
  decision.cap_bytes = 4 * kMiB;
  EXPECT_EQ(remark_on(results, 4 * kMiB), "chosen, measured best");
}

TEST(Charts, AnIntervalWithoutAnUpperEndIsNotDrawn) {
  Results results = tune_results();
  const json before = chart_of(results, "curve").spec["encoding"]["y"]["scale"]["domain"];
  const Interval of_too_few = {0, std::numeric_limits<double>::infinity()};
  for (CurveRow& row : results.curve) row.measured_ci_s = of_too_few;
  for (StrategyRow& row : results.strategies) row.measured_ci_s = of_too_few;
  results.best_measured->measured_ci_s = of_too_few;
  const json curve = chart_of(results, "curve").spec;
  EXPECT_GE(curve["encoding"]["y"]["scale"]["domain"][0], before[0]);
  EXPECT_LE(curve["encoding"]["y"]["scale"]["domain"][1], before[1]);
  for (const json& point : curve["datasets"]["measured"]) EXPECT_FALSE(point.contains("high")) << point;
}

TEST(Charts, TheRangeOfPredictionsIsABandThatSaysWhatItIs) {
  Results results = tune_results();
  for (CurveRow& row : results.dense_curve) row.predicted_range_s = Interval{0.9 * *row.predicted_s, 1.1 * *row.predicted_s};
  const Chart chart = chart_of(results, "curve");
  EXPECT_THAT(chart.caption, HasSubstr(kRangeHeld));
  EXPECT_EQ(chart.spec["datasets"]["predicted"][0]["low"], results.dense_curve[0].predicted_range_s->low);
  EXPECT_THAT(chart_of(tune_results(), "curve").caption, Not(HasSubstr("Band")));
}

TEST(Charts, AStrategyFarFromTheCurveIsNamedInstead) {
  Results results = tune_results();
  StrategyRow row;
  row.strategy = "by carrier pigeon";
  row.measured_s = 86400;
  results.strategies.push_back(row);
  const Chart chart = chart_of(results, "curve");
  EXPECT_THAT(chart.caption, HasSubstr("by carrier pigeon "));
  EXPECT_THAT(strings_in(chart.spec["datasets"]), Not(Contains("by carrier pigeon")));
}

TEST(Charts, TheAllReduceKeyNamesOnlyWhatIsDrawn) {
  Results results;
  results.allreduce = {{.bytes = 1024, .world_size = 2, .median_s = 1e-4}, {.bytes = 4096, .world_size = 2, .median_s = 2e-4}};
  EXPECT_EQ(param(chart_of(results, "allreduce").spec, "key").size(), 1);
  EXPECT_TRUE(chart_of(results, "allreduce").spec["datasets"]["fit"].empty());
  results.allreduce[0].gap_s = 5e-5;
  results.alpha_beta = AlphaBeta{.alpha_s = 1e-4, .beta_s_per_byte = 1e-9};
  EXPECT_EQ(param(chart_of(results, "allreduce").spec, "key").size(), 3);
  const json fit = chart_of(results, "allreduce").spec["datasets"]["fit"][0];
  EXPECT_EQ(fit["alpha_s"], 1e-4);
  EXPECT_EQ(fit["most"], 4096);
  EXPECT_EQ(fit["shortest"], 5e-5);
}

TEST(Charts, ThePredictionAloneMarksItsBestCapAndTheBestPlan) {
  Prediction prediction;
  for (const auto& [cap, seconds] : {std::pair(1, 3.0), {4, 2.0}, {16, 4.0}}) {
    PredictedCap& row = prediction.curve.emplace_back();
    row.cap_bytes = cap * int64_t{1 << 20};
    row.time_s = seconds;
  }
  prediction.best_uniform = prediction.curve[1];
  prediction.best_plan.backward_s = 1.5;
  Results results;
  results.prediction = prediction;
  EXPECT_EQ(rows_of(results, "predicted", "best")[0]["label"], "predicted best: 4 MiB");
  EXPECT_EQ(rows_of(results, "predicted", "levels")[0]["time_s"], 1.5);
  EXPECT_LT(chart_of(results, "predicted").spec["encoding"]["y"]["scale"]["domain"][0], 1.5);
}

TEST(Charts, AConfigurationOutOfMemoryIsNamed) {
  StepConfiguration fits, large;
  fits.model = {.name = "m", .batch_size = 1, .sequence_length = 8};
  fits.strategies = {{.strategy = "none", .measured_s = 0.2, .measured_ci_s = Interval{0.19, 0.21}}};
  large.model = {.name = "m", .batch_size = 64, .sequence_length = 8};
  large.status = "out of memory";
  Results results;
  results.configurations = {fits, large};
  const Chart chart = chart_of(results, "steps");
  EXPECT_THAT(chart.caption, HasSubstr("batch 64, sequence 8 (out of memory)"));
  EXPECT_EQ(chart.spec["datasets"]["steps"][1]["problem"], "out of memory");
  results.configurations = {large};
  EXPECT_FALSE(find_chart(results, "steps"));
}

}  // namespace
}  // namespace firkin
