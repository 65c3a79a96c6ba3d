#include "trace/trace.h"

#include <gtest/gtest.h>

namespace firkin {
namespace {

constexpr double kNanosecond = 1e-9;

Span compute(int64_t start_ns, int64_t end_ns) {
  return {.name = "aten::mm", .activity = Activity::kOperator, .start_ns = start_ns, .end_ns = end_ns};
}
Span collective(int64_t start_ns, int64_t end_ns) {
  return {.name = "gloo:all_reduce", .activity = Activity::kCollective, .start_ns = start_ns, .end_ns = end_ns};
}
Span phase(int64_t start_ns, int64_t end_ns) {
  return {.name = "backward", .activity = Activity::kPhase, .start_ns = start_ns, .end_ns = end_ns};
}

TEST(Overlap, IsTheTimeInWhichBothRun) {
  // compute 0-10 and 20-30, communication 5-25: 5 and 5 in common.
  const Overlap overlap = overlap_of({compute(0, 10), collective(5, 25), compute(20, 30)});
  EXPECT_DOUBLE_EQ(overlap.compute_s, 20 * kNanosecond);
  EXPECT_DOUBLE_EQ(overlap.communication_s, 20 * kNanosecond);
  EXPECT_DOUBLE_EQ(overlap.overlapped_s, 10 * kNanosecond);
}

TEST(Overlap, CountsOperatorsInOperatorsAndCollectivesSideBySideOnce) {
  const Overlap overlap = overlap_of({compute(0, 100), compute(10, 20), compute(15, 40), collective(50, 80), collective(60, 120)});
  EXPECT_DOUBLE_EQ(overlap.compute_s, 100 * kNanosecond);
  EXPECT_DOUBLE_EQ(overlap.communication_s, 70 * kNanosecond);
  EXPECT_DOUBLE_EQ(overlap.overlapped_s, 50 * kNanosecond);
}

TEST(Overlap, DoesNotTakeAPhaseForComputation) {
  const Overlap overlap = overlap_of({phase(0, 100), compute(0, 10), collective(20, 100)});
  EXPECT_DOUBLE_EQ(overlap.compute_s, 10 * kNanosecond);
  EXPECT_DOUBLE_EQ(overlap.overlapped_s, 0);
}

TEST(Overlap, OfOneCollectiveBesideManyOperatorsIsTheirSum) {
  const Overlap overlap = overlap_of({collective(0, 100), compute(10, 20), compute(30, 40), compute(90, 130)});
  EXPECT_DOUBLE_EQ(overlap.overlapped_s, 30 * kNanosecond);
}

TEST(Overlap, OfNothingIsNothing) {
  const Overlap overlap = overlap_of({});
  EXPECT_EQ(overlap.compute_s, 0);
  EXPECT_EQ(overlap.communication_s, 0);
  EXPECT_EQ(overlap.overlapped_s, 0);
}

TEST(BusyPeriods, AreMergedAndInOrder) {
  const std::vector<Period> periods =
      busy_periods({compute(30, 40), compute(0, 10), compute(10, 20), collective(0, 50)}, Activity::kOperator);
  ASSERT_EQ(periods.size(), 2u);
  EXPECT_EQ(periods[0].start_ns, 0);
  EXPECT_EQ(periods[0].end_ns, 20);
  EXPECT_EQ(periods[1].start_ns, 30);
}

TEST(BusyPeriods, CloseGapsUpToTheLeast) {
  const std::vector<Period> periods = busy_periods({compute(0, 10), compute(15, 20), compute(26, 30)}, Activity::kOperator, 5);
  ASSERT_EQ(periods.size(), 2u);
  EXPECT_EQ(periods[0].end_ns, 20);
  EXPECT_EQ(periods[1].start_ns, 26);
}

TEST(SpansCutTo, KeepsWhatLiesInsideOfEverySpan) {
  const std::vector<Span> within =
      spans_cut_to({compute(0, 100), compute(5, 10), compute(8, 12), compute(20, 25), compute(30, 31)}, 10, 30);
  ASSERT_EQ(within.size(), 3);
  EXPECT_EQ(within[0].start_ns, 10);
  EXPECT_EQ(within[0].end_ns, 30);
  EXPECT_EQ(within[1].start_ns, 10);
  EXPECT_EQ(within[1].end_ns, 12);
  EXPECT_EQ(within[2].start_ns, 20);
  EXPECT_EQ(within[2].end_ns, 25);
}

}  // namespace
}  // namespace firkin
