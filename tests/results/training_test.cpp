#include "results/training.h"

#include <gtest/gtest.h>

namespace firkin {
namespace {

TEST(TrainingRows, ALineOfMetricsIsReadAsItWasWritten) {
  const TrainingRow row{.step = 7, .loss = 2.1234567890123456, .held_loss = 2.5, .learning_rate = 1e-3, .step_s = 0.5, .exposed_s = 0.1};
  const std::string line = metrics_line(row);
  EXPECT_EQ(line.find('\n'), std::string::npos);
  const nlohmann::json json = nlohmann::json::parse(line);
  const TrainingRow read = read_training_row(JsonFields(json, ""));
  EXPECT_EQ(read.step, 7);
  EXPECT_EQ(read.loss, row.loss);  // to the last bit
  EXPECT_EQ(metrics_line(read), line);
  EXPECT_FALSE(json.contains("gradient_norm"));
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
