#include "firkin/plan/prediction.h"

#include <gtest/gtest.h>

#include "helpers.h"

namespace firkin {
namespace {

// Twelve gradients of 1 MiB, one each 10 ms.
TensorProfile even_profile() {
  std::vector<double> ready_s;
  for (int i = 1; i <= 12; ++i) ready_s.push_back(i / 100.0);
  return make_profile(std::vector<int64_t>(12, kMiB), ready_s);
}

AllReduceTable measured_on(const std::vector<int64_t>& worlds) {
  AllReduceTable table;
  for (const int64_t world : worlds) {
    for (const int64_t bytes : {kKiB, kMiB, 64 * kMiB}) {
      const double ranks = static_cast<double>(world);
      table.push_back({.bytes = bytes, .world_size = world, .median_s = 1e-4 * ranks + 2e-9 * static_cast<double>(bytes)});
    }
  }
  return table;
}

TEST(Prediction, NoCapOfTheCurveBeatsTheBestOneAndThatNotThePlan) {
  const Prediction prediction = predict({.profile = even_profile(), .table = measured_on({4}), .world_size = 4});
  EXPECT_EQ(prediction.curve.back().cap_bytes, 16 * kMiB);  // powers of two until one holds everything
  for (const PredictedBucketing& point : prediction.curve) EXPECT_LE(prediction.best_uniform.backward_s, point.backward_s * (1 + 1e-5));
  EXPECT_LE(prediction.best_plan.backward_s, prediction.best_uniform.backward_s * (1 + 1e-5));
  EXPECT_EQ(prediction.workload.gradient_bytes, 12 * kMiB);
  EXPECT_FALSE(prediction.workload.extrapolated || prediction.best_plan.low_s);
}

TEST(Prediction, AWorldThatWasNotMeasuredHasRangesAroundItsTimes) {
  const Prediction prediction = predict({.profile = even_profile(), .table = measured_on({4, 8, 16}), .world_size = 256});
  ASSERT_TRUE(prediction.extrapolation && prediction.best_plan.low_s && prediction.curve[0].low_s);
  EXPECT_EQ(prediction.extrapolation->fitted_worlds, (std::vector<int64_t>{4, 8, 16}));
  EXPECT_LE(*prediction.best_plan.low_s, prediction.best_plan.backward_s);
  EXPECT_GE(*prediction.best_plan.high_s, prediction.best_plan.backward_s);
}

TEST(Prediction, TheSlowestRankStretchesBackward) {
  const Prediction prediction =
      predict({.profile = even_profile(), .table = measured_on({4}), .world_size = 4, .rank_times = {1, 1, 1, 1, 1.5}});
  ASSERT_TRUE(prediction.stragglers);
  EXPECT_DOUBLE_EQ(prediction.stragglers->median_backward_s, 0.12);
  EXPECT_DOUBLE_EQ(prediction.workload.backward_s, 0.12 * prediction.stragglers->factor);
}

TEST(Prediction, OneRankAloneSaysNothingAboutEight) {
  EXPECT_NE(error_of([] { predict({.profile = even_profile(), .table = measured_on({1}), .world_size = 8}); }), "no error");
}

}  // namespace
}  // namespace firkin
