#include "results/results.h"

#include <gtest/gtest.h>

#include "firkin/base/json_text.h"

namespace firkin {
namespace {

TEST(TrainingRows, ALineOfMetricsIsReadAsItWasWritten) {
  const TrainingRow row{.step = 7, .loss = 2.1234567890123456, .held_loss = 2.5, .learning_rate = 1e-3, .step_s = 0.5, .exposed_s = 0.1};
  const std::string line = dump_json(json_of(row));
  EXPECT_EQ(line.find('\n'), std::string::npos);
  const nlohmann::json json = nlohmann::json::parse(line);
  const auto read = from_json<TrainingRow>(json, "");
  EXPECT_EQ(read.step, 7);
  EXPECT_EQ(read.loss, row.loss);  // to the last bit
  EXPECT_EQ(dump_json(json_of(read)), line);
  EXPECT_FALSE(json.contains("gradient_norm"));
}

TEST(TrainingRows, ALineOfTheTableHasAFieldForEveryHeading) {
  EXPECT_EQ(csv_lines(csv_names<TrainingRow>(), {}),
            "step,loss,held_loss,learning_rate,gradient_norm,tokens_per_s,step_s,exposed_s,data_s,checkpoint_s,skipped\n");
  TrainingRow row{.step = 7, .loss = 2.125, .learning_rate = 0.5, .step_s = 0.25};
  EXPECT_EQ(csv_lines(csv_line(row), {}), "7,2.125,,0.5,,,0.25,0.0,0.0,,\n");
  row.skipped = "rank 1: loss nan, which \"is\" none";
  EXPECT_EQ(csv_lines(csv_line(row), {}), "7,2.125,,0.5,,,0.25,0.0,0.0,,\"rank 1: loss nan, which \"\"is\"\" none\"\n");
}

TEST(Trainings, SideBySideHaveARowEachUnderTheirNames) {
  const Table table = trainings_table({"a", "b"}, {{.steps = 5, .last_loss = 2}, {.steps = 6}}, kPage);
  ASSERT_EQ(table.rows.size(), 2U);
  EXPECT_EQ(table.columns[0].title, "run");
  EXPECT_EQ(table.rows[1].cells[0], "b");
  EXPECT_EQ(table.rows[1].cells[1], "6");
}

TEST(TrainingRows, OfALongTrainingSomeStayAndAllThatWereEvaluated) {
  std::vector<TrainingRow> rows;
  for (int64_t step = 0; step < 1000; ++step) rows.push_back({.step = step});
  rows[333].held_loss = 1;
  const std::vector<TrainingRow> kept = thinned(rows, 10);
  EXPECT_EQ(kept.size(), 12U);
  EXPECT_EQ(kept.front().step, 0);
  EXPECT_EQ(kept[4].step, 333);
  EXPECT_EQ(kept.back().step, 999);
  EXPECT_EQ(thinned(rows, 5000).size(), 1000U);
  EXPECT_TRUE(thinned({}, 10).empty());
}

}  // namespace
}  // namespace firkin
