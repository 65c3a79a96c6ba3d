#include "../../src/ddp/ready_order.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace firkin {
namespace {

using testing::ElementsAre;
using Arrival = ReadyCounter::Arrival;

TEST(ReadyCounter, TheFirstStepShowsTheOrderOfLastGradientsAndHowManyEachGets) {
  ReadyCounter counter(4);
  counter.begin_step();
  for (const size_t parameter : {2, 0, 1, 2}) EXPECT_EQ(counter.count(parameter), Arrival::kIncomplete);
  EXPECT_THAT(counter.observed_order(), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(counter.received(), ElementsAre(1, 1, 2, 0));
}

TEST(ReadyCounter, AParameterIsCompleteWithItsLastExpectedGradient) {
  ReadyCounter counter(2);
  counter.learn({1, 2});
  counter.begin_step();
  EXPECT_EQ(counter.count(0), Arrival::kComplete);
  EXPECT_EQ(counter.count(1), Arrival::kIncomplete);
  EXPECT_EQ(counter.count(1), Arrival::kComplete);
}

TEST(ReadyCounter, OneGradientTooManyIsExpectedFromThenOn) {
  ReadyCounter counter(1);
  counter.learn({1});
  counter.begin_step();
  EXPECT_EQ(counter.count(0), Arrival::kComplete);
  EXPECT_EQ(counter.count(0), Arrival::kTooMany);
  counter.begin_step();
  EXPECT_EQ(counter.count(0), Arrival::kIncomplete);
  EXPECT_EQ(counter.count(0), Arrival::kComplete);
}

TEST(ReadyCounter, AParameterWithoutGradientInTheFirstStepIsLearnedWhenItGetsSome) {
  ReadyCounter counter(2);
  counter.learn({1, 0});
  counter.begin_step();
  counter.count(0);
  EXPECT_EQ(counter.count(1), Arrival::kIncomplete);
  EXPECT_EQ(counter.count(1), Arrival::kIncomplete);
  counter.learn(counter.received());
  counter.begin_step();
  EXPECT_EQ(counter.count(1), Arrival::kIncomplete);
  EXPECT_EQ(counter.count(1), Arrival::kComplete);
}

}  // namespace
}  // namespace firkin
