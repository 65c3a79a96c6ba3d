#include "firkin/plan/measurements.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "firkin/base/error.h"
#include "firkin/base/units.h"
#include "helpers.h"

namespace firkin {
namespace {

using testing::ElementsAre;

std::string parse_error(const std::string& text) {
  return error_of([&] { parse_allreduce_csv(text, "a.csv"); });
}

TEST(AllReduceCsv, HoldsTheMeasuredTimes) {
  const AllReduceTable table = parse_allreduce_csv(
      "bytes,world_size,median_s,gap_s,mean_s,stdev_s,min_s,max_s,samples,stderr_s,gap_stderr_s\n"
      "1024,2,0.5,0.25,0.6,0,0.4,0.9,7,0.01,0\n"
      "2048,2,1,,,,,,,,\n",
      "a.csv");
  ASSERT_EQ(table.size(), 2u);
  EXPECT_EQ(table[0].bytes, 1024);
  EXPECT_EQ(table[0].world_size, 2);
  EXPECT_EQ(table[0].median_s, 0.5);
  EXPECT_EQ(table[0].gap_s, 0.25);
  EXPECT_EQ(table[0].stdev_s, 0);
  EXPECT_EQ(table[0].samples, 7);
  EXPECT_EQ(table[0].stderr_s, 0.01);
  EXPECT_EQ(table[0].gap_stderr_s, 0);
  EXPECT_FALSE(table[1].gap_s || table[1].mean_s || table[1].stdev_s || table[1].min_s || table[1].max_s || table[1].samples);
}

TEST(AllReduceCsv, MayHaveOneTimeColumnOnly) {
  EXPECT_EQ(parse_allreduce_csv("bytes,world_size,median_s\n8,2,0.5\n", "a.csv")[0].median_s, 0.5);
  EXPECT_EQ(parse_allreduce_csv("bytes,world_size,time_s\n8,2,0.5\n", "a.csv")[0].median_s, 0.5);
  EXPECT_EQ(parse_allreduce_csv("bytes,world_size,mean_s\n8,2,0.5\n", "a.csv")[0].median_s, 0.5);
}

TEST(AllReduceCsv, IsReadBackExactlyAsItWasWritten) {
  AllReduceTable table(2);
  table[0] = {
      .bytes = 4, .world_size = 2, .median_s = 0.1, .gap_s = 1.0 / 3, .mean_s = 2, .stdev_s = 0, .min_s = 1, .max_s = 3, .samples = 9};
  table[0].stderr_s = 0.5;
  table[0].gap_stderr_s = 0.25;
  table[1] = {.bytes = 8, .world_size = 4, .median_s = 0.2};
  const auto path = std::filesystem::path(testing::TempDir()) / "allreduce_table_test.csv";
  write_allreduce_csv(path, table);
  const AllReduceTable again = read_allreduce_csv(path);
  ASSERT_EQ(again.size(), 2u);
  EXPECT_EQ(again[0].gap_s, 1.0 / 3);
  EXPECT_EQ(again[0].samples, 9);
  EXPECT_EQ(again[0].stderr_s, 0.5);
  EXPECT_EQ(again[0].gap_stderr_s, 0.25);
  EXPECT_FALSE(again[1].gap_s);
  EXPECT_EQ(again[1].median_s, 0.2);
}

TEST(AllReduceCsv, RejectsMalformedLinesByFileAndLine) {
  EXPECT_EQ(parse_error("bytes,world_size\n8,2\n"), "a.csv:2: no time column; expected median_s (or one of time_s, mean_s, min_s, max_s)");
  EXPECT_EQ(parse_error("bytes,world_size,median_s\n"), "a.csv:1: no measurements; expected lines of bytes,world_size,median_s");
  EXPECT_EQ(parse_error("bytes,world_size,median_s\n0,2,1\n"), "a.csv:2: bytes is 0; expected at least 1");
  EXPECT_EQ(parse_error("bytes,world_size,median_s\n8,0,1\n"), "a.csv:2: world_size is 0; expected at least 1");
  EXPECT_EQ(parse_error("bytes,world_size,median_s\n8,2,0\n"), "a.csv:2: median_s is 0; expected seconds, more than 0");
  EXPECT_EQ(parse_error("bytes,world_size,median_s\n8,2,\n"), "a.csv:2: median_s is ''; expected a number");
  EXPECT_EQ(parse_error("bytes,world_size,median_s,gap_s\n8,2,1,-1\n"), "a.csv:2: gap_s is -1; expected seconds, more than 0");
  EXPECT_EQ(parse_error("bytes,world_size,median_s,stdev_s\n8,2,1,-1\n"), "a.csv:2: stdev_s is -1; expected at least 0");
  EXPECT_EQ(parse_error("bytes,world_size,median_s,samples\n8,2,1,0\n"), "a.csv:2: samples is 0; expected at least 1");
}

TEST(CommCosts, AreTheCurvesAtOneWorldSize) {
  const AllReduceTable table = parse_allreduce_csv("bytes,world_size,median_s,gap_s\n8,2,1,0.5\n16,2,2,\n8,4,3,1\n", "a.csv");
  const CommCosts costs = comm_costs(table, 2);
  EXPECT_EQ(costs.isolated.points().size(), 2u);
  EXPECT_EQ(costs.isolated(8), 1);
  EXPECT_EQ(costs.gap(8), 0.5);
  EXPECT_THAT(world_sizes(table), ElementsAre(2, 4));
}

TEST(CommCosts, TakeTheIsolatedCurveWhereNoGapWasMeasured) {
  const CommCosts costs = comm_costs(parse_allreduce_csv("bytes,world_size,median_s\n8,2,1\n16,2,3\n", "a.csv"), 2);
  EXPECT_EQ(costs.gap(16), 3);
}

TEST(CommCosts, TakeNoGapThatIsMoreThanTheSlowestCallUpToThatSizeAlone) {
  const CommCosts costs = comm_costs(parse_allreduce_csv("bytes,world_size,median_s,gap_s\n8,2,1,2\n16,2,4,2\n32,2,3,5\n", "a.csv"), 2);
  EXPECT_EQ(costs.gap(8), 1);
  EXPECT_EQ(costs.gap(16), 2);
  EXPECT_EQ(costs.gap(32), 4);
}

// A queue that took no longer than one call did on a busy machine: as if four of five calls cost nothing.
TEST(CommCosts, TakeNoGapThatIsLessThanHalfOfWhatItsBytesTakeAtTheBestRate) {
  const CommCosts costs =
      comm_costs(parse_allreduce_csv("bytes,world_size,median_s,gap_s\n8,2,1,0.001\n64,2,4,3\n128,2,4,3\n", "a.csv"), 2);
  EXPECT_EQ(costs.gap(8), 0.125);
  EXPECT_EQ(costs.gap(64), 3);
  EXPECT_EQ(costs.gap(128), 3);
}

TEST(CommCosts, NameTheWorldSizesThereAre) {
  const AllReduceTable table = parse_allreduce_csv("bytes,world_size,median_s\n8,2,1\n8,4,1\n", "a.csv");
  EXPECT_EQ(error_of([&] { comm_costs(table, 3); }), "no all-reduce was measured at world size 3; expected one of 2, 4");
}

TEST(QueuedGap, IsTheSlopeOverTheLengthOfTheQueueWhateverThatIs) {
  // 5 ms for a call alone, 2 ms for each that waits behind another.
  for (const double calls : {2.0, 3.5, 16.0}) EXPECT_NEAR(queued_gap_s(5e-3 + (calls - 1) * 2e-3, 5e-3, calls), 2e-3, 1e-12) << calls;
}

TEST(QueuedGap, IsNeverFree) {
  EXPECT_DOUBLE_EQ(queued_gap_s(4e-3, 5e-3, 2), 2e-5);
}

TEST(SizesBetween, GrowByTheFactorAndStopAtTheEndAsInNcclTests) {
  EXPECT_THAT(sizes_between(4, 64, 4), ElementsAre(4, 16, 64));
  EXPECT_THAT(sizes_between(4, 63, 4), ElementsAre(4, 16));
  EXPECT_THAT(sizes_between(8, 8, 2), ElementsAre(8));
  EXPECT_THAT(sizes_between(kMiB, kGiB, 10), ElementsAre(kMiB, 10 * kMiB, 100 * kMiB, 1000 * kMiB));
  EXPECT_THAT(sizes_between(4, int64_t{1} << 62, int64_t{1} << 40), ElementsAre(4, int64_t{1} << 42));
}

TEST(SizesBetween, RefusesWhatIsNoRange) {
  EXPECT_THROW(sizes_between(0, 64, 4), InputError);
  EXPECT_THROW(sizes_between(-4, 64, 4), InputError);
  EXPECT_THROW(sizes_between(6, 64, 4), InputError);
  EXPECT_THROW(sizes_between(64, 4, 4), InputError);
  EXPECT_THROW(sizes_between(4, 64, 1), InputError);
}

TEST(AllReduceSizes, GrowByFourUpToTheLargestWhichIsThere) {
  EXPECT_THAT(allreduce_sizes(100), ElementsAre(4, 16, 100));
  EXPECT_THAT(allreduce_sizes(64), ElementsAre(4, 16, 64));
  EXPECT_THAT(allreduce_sizes(3), ElementsAre(4));
}

}  // namespace
}  // namespace firkin
