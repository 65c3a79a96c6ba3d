#include "train/optimization.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "firkin/base/error.h"

namespace firkin {
namespace {

TEST(Schedule, WarmsUpInEqualPartsToThePeak) {
  const Schedule schedule{.kind = ScheduleKind::kLinear, .peak = 0.8, .warmup_steps = 4, .steps = 10};
  EXPECT_DOUBLE_EQ(learning_rate(schedule, 0), 0.2);
  EXPECT_DOUBLE_EQ(learning_rate(schedule, 1), 0.4);
  EXPECT_DOUBLE_EQ(learning_rate(schedule, 3), 0.8);
  EXPECT_DOUBLE_EQ(learning_rate(schedule, 4), 0.8);
}

TEST(Schedule, LinearGoesStraightToItsShareInTheLastStep) {
  const Schedule schedule{.kind = ScheduleKind::kLinear, .peak = 1, .warmup_steps = 0, .steps = 11, .final_share = 0.1};
  EXPECT_DOUBLE_EQ(learning_rate(schedule, 0), 1);
  EXPECT_NEAR(learning_rate(schedule, 5), 0.55, 1e-12);
  EXPECT_NEAR(learning_rate(schedule, 10), 0.1, 1e-12);
  EXPECT_NEAR(learning_rate(schedule, 1000), 0.1, 1e-12);
}

TEST(Schedule, CosineIsHalfAPeriodAbout45DegreesAQuarterDown) {
  const Schedule schedule{.kind = ScheduleKind::kCosine, .peak = 2, .warmup_steps = 2, .steps = 11, .final_share = 0};
  EXPECT_DOUBLE_EQ(learning_rate(schedule, 2), 2);
  EXPECT_NEAR(learning_rate(schedule, 4), 1 + 0.7071067811865476, 1e-12);
  EXPECT_NEAR(learning_rate(schedule, 6), 1, 1e-12);
  EXPECT_NEAR(learning_rate(schedule, 10), 0, 1e-12);
}

TEST(Schedule, ConstantStaysAtThePeak) {
  const Schedule schedule{.kind = ScheduleKind::kConstant, .peak = 3, .warmup_steps = 1, .steps = 2};
  EXPECT_DOUBLE_EQ(learning_rate(schedule, 0), 3);
  EXPECT_DOUBLE_EQ(learning_rate(schedule, 50), 3);
}

TEST(Schedule, ATrainingThatIsAllWarmUpEndsAtThePeak) {
  const Schedule schedule{.kind = ScheduleKind::kCosine, .peak = 1, .warmup_steps = 5, .steps = 5};
  EXPECT_DOUBLE_EQ(learning_rate(schedule, 4), 1);
}

TEST(Schedule, AnUnknownNameIsBadInput) {
  EXPECT_EQ(schedule_from_name("cosine"), ScheduleKind::kCosine);
  EXPECT_THAT([] { schedule_from_name("step"); }, testing::ThrowsMessage<InputError>(testing::HasSubstr("constant, linear or cosine")));
}

}  // namespace
}  // namespace firkin
