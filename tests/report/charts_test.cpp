// The charts as data: what fills which template. That the templates draw is chart_templates_test.py's and browser_test.py's to say.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "firkin/base/file.h"
#include "report/chart_builders.h"
#include "report/chart_parts.h"

namespace firkin {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::Contains;
using testing::Each;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

Results tune_results() {
  return results_from_json(json::parse(read_file(FIRKIN_SOURCE_DIR "/tests/report/data/tune.json")));
}

std::vector<std::string> strings_in(const json& value) {
  if (value.is_string()) return {value.get<std::string>()};
  std::vector<std::string> strings;
  if (!value.is_structured()) return strings;
  for (const json& child : value) {
    for (std::string& text : strings_in(child)) strings.push_back(std::move(text));
  }
  return strings;
}

json examples_of(const std::string& name) {
  return chart_template(name).at("datasets");
}

json param(const json& spec, const std::string& name) {
  for (const json& candidate : spec["params"]) {
    if (candidate["name"] == name) return candidate["value"];
  }
  return {};
}

CurveRow predicted_row(double cap_mib, double seconds) {
  CurveRow row;
  row.cap_mib = cap_mib;
  row.predicted_s = seconds;
  return row;
}

TEST(Charts, EveryTemplateHasExampleRows) {
  for (const std::string& name : chart_template_names()) {
    const json examples = examples_of(name);
    for (const auto& [dataset, rows] : examples.items()) EXPECT_FALSE(rows.empty()) << name << ": " << dataset;
  }
}

TEST(Charts, EveryColourOfATemplateBecomesAVariableOfThePage) {
  for (const std::string& name : chart_template_names()) {
    const std::vector<std::string> strings = strings_in(filled_chart(name, examples_of(name)));
    EXPECT_THAT(strings, Contains(StartsWith("var(--chart-"))) << name;
    EXPECT_THAT(strings, Each(Not(StartsWith("#")))) << name;
  }
}

TEST(Charts, AnImageFileHasTheColoursOfTheTemplate) {
  for (const std::string& name : chart_template_names()) {
    const json spec = standalone_spec({name, name, "", "", filled_chart(name, examples_of(name))});
    for (const char* part : {"layer", "encoding", "width", "height", "datasets"}) {
      EXPECT_EQ(spec.value(part, json()), chart_template(name).value(part, json())) << name;
    }
    EXPECT_THAT(strings_in(spec), Each(Not(HasSubstr("var(--")))) << name;
  }
}

TEST(Charts, OnlyTheDataSetsOfATemplateCanBeFilled) {
  EXPECT_THROW(filled_chart("chunks", {{"chunk", json::array()}}), std::logic_error);
  EXPECT_THROW(filled_chart("ready", {{"tensors", json::array()}}), std::logic_error);
  json spec = filled_chart("chunks", {{"chunks", json::array()}});
  EXPECT_THROW(set_param(spec, "fitted", 1), std::logic_error);
}

TEST(Charts, RowsHaveTheFieldsOfTheExamples) {
  for (const Chart& chart : charts_for(tune_results())) {
    const json examples = examples_of(chart.id);
    for (const auto& [dataset, rows] : chart.spec["datasets"].items()) {
      json known;
      for (const json& example : examples.at(dataset)) known.update(example);
      for (const json& row : rows) {
        for (const auto& [field, value] : row.items()) EXPECT_TRUE(known.contains(field)) << chart.id << ": " << dataset << ": " << field;
      }
    }
  }
}

TEST(Charts, TheCurveMarksBothBestCapsAndHoldsThemWithinItsAxis) {
  const Results results = tune_results();
  const json spec = curve_chart(results)->spec;
  const json& best = spec["datasets"]["best"];
  ASSERT_EQ(best.size(), 2);
  EXPECT_EQ(best[0]["cap_mib"], results.answer->best_measured.cap_mib);
  EXPECT_EQ(best[1]["cap_mib"], results.answer->best_predicted.cap_mib);
  EXPECT_NE(best[0]["row"], best[1]["row"]);
  const json& domain = spec["encoding"]["y"]["scale"]["domain"];
  for (const char* dataset : {"predicted", "measured", "levels", "best"}) {
    for (const json& row : spec["datasets"][dataset]) {
      EXPECT_GT(row["time_s"], domain[0]) << dataset;
      EXPECT_LT(row["time_s"], domain[1]) << dataset;
    }
  }
}

TEST(Charts, TheRangeOfPredictionsIsABandThatSaysWhatItIs) {
  Results results = tune_results();
  for (CurveRow& row : results.dense_curve) row.predicted_range_s = Interval{0.9 * *row.predicted_s, 1.1 * *row.predicted_s};
  const Chart chart = *curve_chart(results);
  EXPECT_THAT(chart.caption, HasSubstr("95 % of the validation study's caps"));
  EXPECT_EQ(chart.spec["datasets"]["predicted"][0]["low"], results.dense_curve[0].predicted_range_s->low);
  EXPECT_THAT(curve_chart(tune_results())->caption, Not(HasSubstr("Band")));
}

TEST(Charts, AStrategyFarFromTheCurveIsNamedInstead) {
  Results results = tune_results();
  StrategyRow row;
  row.strategy = "by carrier pigeon";
  row.measured_s = 86400;
  results.strategies.push_back(row);
  const Chart chart = *curve_chart(results);
  EXPECT_THAT(chart.caption, HasSubstr("by carrier pigeon "));
  EXPECT_THAT(strings_in(chart.spec["datasets"]), Not(Contains("by carrier pigeon")));
}

TEST(Charts, TheAllReduceKeyNamesOnlyWhatIsDrawn) {
  Results results;
  results.allreduce = {{.bytes = 1024, .world_size = 2, .median_s = 1e-4}, {.bytes = 4096, .world_size = 2, .median_s = 2e-4}};
  EXPECT_EQ(param(allreduce_chart(results)->spec, "key").size(), 1);
  EXPECT_TRUE(allreduce_chart(results)->spec["datasets"]["fit"].empty());
  results.allreduce[0].gap_s = 5e-5;
  results.alpha_beta = AlphaBeta{.alpha_s = 1e-4, .beta_s_per_byte = 1e-9};
  EXPECT_EQ(param(allreduce_chart(results)->spec, "key").size(), 3);
  const json fit = allreduce_chart(results)->spec["datasets"]["fit"][0];
  EXPECT_EQ(fit["alpha_s"], 1e-4);
  EXPECT_EQ(fit["most"], 4096);
  EXPECT_EQ(fit["shortest"], 5e-5);
}

// Vega would warn of the infinite extent of a field that no row has.
TEST(Charts, ALayerWithoutAnythingToDrawIsLeftOut) {
  const auto layers = [](const Results& results) { return allreduce_chart(results)->spec["layer"].size(); };
  const size_t all = chart_template("allreduce")["layer"].size();
  Results results;
  results.allreduce = {{.bytes = 1024, .world_size = 2, .median_s = 1e-4}, {.bytes = 4096, .world_size = 2, .median_s = 2e-4}};
  EXPECT_EQ(layers(results), 1);  // the points
  results.alpha_beta = AlphaBeta{.alpha_s = 1e-4, .beta_s_per_byte = 1e-9};
  EXPECT_EQ(layers(results), 2);
  results.allreduce[0].min_s = 9e-5;
  results.allreduce[0].max_s = 3e-4;
  EXPECT_EQ(layers(results), 3);
  results.allreduce[1].world_size = 4;
  EXPECT_EQ(layers(results), all);
}

TEST(Charts, TheTimelineShowsThePredictionBesideTheMeasurement) {
  const std::vector<TimelineRow> rows = {
      {"bucketed", {{"compute", 0, 2}, {"communication", 1, 3}}, {{"compute", 0, 2}, {"communication", 1, 2.5}}}, {"none", {}, {}}};
  const json periods = timeline_chart_of(rows)->spec["datasets"]["periods"];
  ASSERT_EQ(periods.size(), 4);
  EXPECT_EQ(periods[0]["kind"], "computation");
  EXPECT_EQ(periods[3]["kind"], "predicted communication");
  EXPECT_EQ(periods[3]["to_s"], 2.5);
}

TEST(Charts, ThePredictionAloneMarksItsBestCapAndTheBestPlan) {
  const std::vector<CurveRow> curve = {predicted_row(1, 3), predicted_row(4, 2), predicted_row(16, 4)};
  const Chart chart = *predicted_chart(curve, curve[1], 1.5);
  EXPECT_EQ(chart.spec["datasets"]["best"][0]["label"], "predicted best: 4 MiB");
  EXPECT_EQ(chart.spec["datasets"]["levels"][0]["time_s"], 1.5);
  EXPECT_LT(chart.spec["encoding"]["y"]["scale"]["domain"][0], 1.5);
  EXPECT_FALSE(predicted_chart({}, {}, 1.5));
}

TEST(Charts, LayersWithoutForwardHaveBackwardOnly) {
  const Chart chart = *layers_chart({{"embedding", {}, 0.25}, {"head", {}, 0.5}});
  EXPECT_THAT(chart.title, Not(HasSubstr("forward")));
  EXPECT_THAT(chart.summary, HasSubstr("head at 500 ms"));
  EXPECT_FALSE(chart.spec["datasets"]["layers"][0].contains("forward"));
  EXPECT_FALSE(layers_chart({}));
}

TEST(Charts, AConfigurationOutOfMemoryIsNamed) {
  const std::vector<StepDot> steps = {{"batch 1", "none", 0.2, Interval{0.19, 0.21}, ""}, {"batch 64", "", {}, {}, "out of memory"}};
  const Chart chart = *step_matrix_chart(steps);
  EXPECT_THAT(chart.caption, HasSubstr("batch 64 (out of memory)"));
  EXPECT_EQ(chart.spec["datasets"]["steps"][1]["problem"], "out of memory");
  EXPECT_FALSE(step_matrix_chart({steps[1]}));
}

TEST(Charts, ARatioSaysWhichRunIsFaster) {
  ComparedSetting faster;
  faster.a.name = faster.b.name = "none";
  faster.ratio = 0.5;
  faster.ratio_interval = Interval{0.4, 0.6};
  faster.verdict = Verdict::kFaster;
  const json row = ratios_chart({faster})->spec["datasets"]["settings"][0];
  EXPECT_EQ(row["verdict"], "B is faster");
  EXPECT_EQ(row["change"], "−50.0 %");
  EXPECT_EQ(row["high"], 0.6);
}

TEST(Charts, RatiosAreNamedByWhatTellsThemApart) {
  ComparedSetting first, second;
  first.a.configuration = "demo, batch 1, sequence 32, fp32";
  second.a.configuration = "demo, batch 2, sequence 32, fp32";
  first.a.name = second.a.name = "naive";
  const auto name_of_first = [](const Chart& chart) { return chart.spec["datasets"]["settings"][0]["setting"]; };
  EXPECT_EQ(name_of_first(*ratios_chart({first, second})), "batch 1: naive");
  EXPECT_EQ(name_of_first(*ratios_chart({first})), "naive");
}

TEST(Charts, ATrainingIsItsLossAndWhereTheTimeOfItsStepsWent) {
  TrainingSection training{.steps = 3, .planned_steps = 3, .tokens_per_step = 64, .exposed_share = 0.25};
  for (const int64_t step : {0, 1, 2}) {
    training.rows.push_back({.step = step, .loss = 3.0 - static_cast<double>(step), .step_s = 0.4, .exposed_s = 0.1});
  }
  training.rows[1].loss.reset();  // no finite number
  training.rows[2].held_loss = 1.5;
  Results results;
  results.training = training;
  const Chart loss = loss_chart(results).value();
  EXPECT_EQ(loss.spec["datasets"]["loss"].size(), 2U);
  EXPECT_EQ(loss.spec["datasets"]["held"][0]["loss"], 1.5);
  EXPECT_EQ(loss.summary, "Loss over 3 steps, from 3.0000 to 1.0000.");
  const json parts = pace_chart(results)->spec["datasets"]["pace"];
  ASSERT_EQ(parts.size(), 6U);
  EXPECT_DOUBLE_EQ(parts[0]["time_s"], 0.4 - 0.1);
  EXPECT_EQ(parts[1]["part"], "exposed communication");
  EXPECT_FALSE(loss_chart(Results()).has_value());
  EXPECT_FALSE(pace_chart(Results()).has_value());
}

}  // namespace
}  // namespace firkin
