// Profiles of tensors and tables of all-reduces: their files, and what makes no sense in them.
#include "firkin/plan/measurements.h"

#include "../base/temporary_folder.h"
#include "../test.h"
#include "firkin/base/units.h"
#include "helpers.h"

namespace firkin {
namespace {

std::string tensors_error(const std::string& text) {
  return error_of([&] { parse_tensors_csv(text, "t.csv"); });
}

TEST(TensorsCsv, HoldsNameBytesAndReadyTime) {
  const TensorProfile profile = parse_tensors_csv("name,bytes,ready_s\nhead,400,0.25\nbody,16,0.5\n", "t.csv");
  EXPECT_THAT(profile.names, ElementsAre("head", "body"));
  EXPECT_THAT(profile.bytes, ElementsAre(400, 16));
  EXPECT_THAT(profile.ready_s, ElementsAre(0.25, 0.5));
  EXPECT_EQ(profile.backward_s, 0.5);
}

TEST(TensorsCsv, IsReadBackExactlyAsItWasWritten) {
  TensorProfile profile = make_profile({400, 0, 7}, {0.1, 0.1, 1.0 / 3});
  profile.names[1] = "block, \"0\"";
  const TemporaryFolder folder;
  write_tensors_csv(folder.path / "t.csv", profile);
  const TensorProfile again = read_tensors_csv(folder.path / "t.csv");
  EXPECT_EQ(again.names, profile.names);
  EXPECT_EQ(again.bytes, profile.bytes);
  EXPECT_EQ(again.ready_s, profile.ready_s);
}

TEST(TensorsCsv, MaySayWhenForwardNeedsATensorAndWhatItsUpdateTakes) {
  const TensorProfile profile =
      parse_tensors_csv("name,bytes,ready_s,needed_s,update_s\nhead,400,0.25,0.125,1e-3\nbody,16,0.5,,0\n", "t.csv");
  EXPECT_THAT(profile.needed_s, ElementsAre(0.125, 0));  // not known: before forward begins
  EXPECT_THAT(profile.update_s, ElementsAre(1e-3, 0));
  EXPECT_EQ(profile.forward_s, 0.125);
  const TensorProfile again = parse_tensors_csv(tensors_csv(profile), "t.csv");
  EXPECT_EQ(again.needed_s, profile.needed_s);
  EXPECT_EQ(again.update_s, profile.update_s);
}

TEST(TensorsCsv, WithoutTheForwardPassKnowsNothingOfIt) {
  const TensorProfile profile = parse_tensors_csv("name,bytes,ready_s\nhead,400,0.25\n", "t.csv");
  EXPECT_FALSE(profile.knows_forward());
  EXPECT_TRUE(profile.update_s.empty());
  EXPECT_EQ(profile.forward_s, 0);
  EXPECT_EQ(tensors_csv(profile), "name,bytes,ready_s\nhead,400,0.25\n");
}

TEST(TensorsCsv, RejectsMalformedLinesByFileAndLine) {
  EXPECT_EQ(tensors_error("name,bytes\n"), "t.csv:1: no column 'ready_s'; expected name,bytes,ready_s");
  EXPECT_EQ(tensors_error("name,bytes,ready_s\n"), "t.csv:1: no tensors; expected lines of name,bytes,ready_s");
  EXPECT_EQ(tensors_error("name,bytes,ready_s\na,-1,0\n"), "t.csv:2: bytes is -1; expected at least 0");
  EXPECT_EQ(tensors_error("name,bytes,ready_s\na,1.5,0\n"), "t.csv:2: bytes is '1.5'; expected a whole number");
  EXPECT_EQ(tensors_error("name,bytes,ready_s\na,1,nan\n"), "t.csv:2: ready_s is 'nan'; expected a number");
  EXPECT_EQ(tensors_error("name,bytes,ready_s\na,1,-2\n"), "t.csv:2: ready_s is -2; expected seconds, at least 0");
  EXPECT_EQ(tensors_error("name,bytes,ready_s\na,1,2\nb,1,1\n"), "t.csv:3: ready_s is 1 after 2; expected gradient-ready order");
  EXPECT_EQ(tensors_error("name,bytes,ready_s\na,1,2\na,1,2\n"), "t.csv:3: tensor 'a' appears twice");
  EXPECT_EQ(tensors_error("name,bytes,ready_s,needed_s\na,1,2,-1\n"), "t.csv:2: needed_s is -1; expected seconds, at least 0");
  EXPECT_EQ(tensors_error("name,bytes,ready_s,update_s\na,1,2,\n"), "t.csv:2: update_s is ''; expected a number");
  EXPECT_EQ(tensors_error("name,bytes,ready_s\n,1,2\n"), "t.csv:2: the name is empty; expected the tensor's name");
  EXPECT_EQ(tensors_error("name,bytes,ready_s\na,9007199254740992,0\nb,1,0\n"), "t.csv:3: the total exceeds 9007199254740992 bytes");
}

TEST(CheckProfile, NamesWhatIsWrong) {
  const std::pair<std::function<void(TensorProfile&)>, const char*> changes[] = {
      {[](auto& profile) { profile.bytes.pop_back(); },
       "the profile has 2 names, 1 sizes and 2 ready times; expected the same number of each"},
      {[](auto& profile) {
         profile.ready_s = {1, 0};
       },
       "tensor 't1': ready_s is 0 after 1; expected gradient-ready order"},
      {[](auto& profile) { profile.backward_s = 0.5; }, "backward_s is 0.5; expected at least the last ready time, 1"},
      {[](auto& profile) {
         profile.needed_s = {2, 1}, profile.forward_s = 1.5;
       },
       "forward_s is 1.5; expected at least the largest needed_s, 2"},
      {[](auto& profile) { profile.needed_s = {1}; }, "the profile has 2 names and 1 needed_s; expected as many"},
      {[](auto& profile) { profile.names[1] = "t0"; }, "tensor 't0' appears twice"},
  };
  for (const auto& [change, error] : changes) {
    TensorProfile profile = make_profile({1, 2}, {0, 1});
    change(profile);
    EXPECT_EQ(error_of([&] { check_profile(profile); }), error);
  }
}

TEST(WithForward, NeedsTensorsAtTimesThatMirrorBackward) {
  EXPECT_THAT(with_forward(make_profile({8, 8, 8}, {1, 3, 4}), 8).needed_s, ElementsAre(6, 2, 0));
}

std::string allreduce_error(const std::string& text) {
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
  for (const std::string column : {"median_s", "time_s", "mean_s"}) {
    EXPECT_EQ(parse_allreduce_csv("bytes,world_size," + column + "\n8,2,0.5\n", "a.csv")[0].median_s, 0.5);
  }
}

TEST(AllReduceCsv, IsReadBackExactlyAsItWasWritten) {
  AllReduceTable table(2);
  table[0] = {
      .bytes = 4, .world_size = 2, .median_s = 0.1, .gap_s = 1.0 / 3, .mean_s = 2, .stdev_s = 0, .min_s = 1, .max_s = 3, .samples = 9};
  table[0].stderr_s = 0.5;
  table[0].gap_stderr_s = 0.25;
  table[1] = {.bytes = 8, .world_size = 4, .median_s = 0.2};
  const TemporaryFolder folder;
  write_allreduce_csv(folder.path / "a.csv", table);
  const AllReduceTable again = read_allreduce_csv(folder.path / "a.csv");
  ASSERT_EQ(again.size(), 2u);
  EXPECT_EQ(again[0].gap_s, 1.0 / 3);
  EXPECT_EQ(again[0].samples, 9);
  EXPECT_EQ(again[0].stderr_s, 0.5);
  EXPECT_EQ(again[0].gap_stderr_s, 0.25);
  EXPECT_FALSE(again[1].gap_s);
  EXPECT_EQ(again[1].median_s, 0.2);
}

TEST(AllReduceCsv, RejectsMalformedLinesByFileAndLine) {
  EXPECT_EQ(allreduce_error("bytes,world_size\n8,2\n"),
            "a.csv:1: no time column; expected median_s (or one of time_s, mean_s, min_s, max_s)");
  EXPECT_EQ(allreduce_error("bytes,world_size,median_s\n"), "a.csv:1: no measurements; expected lines of bytes,world_size,median_s");
  EXPECT_EQ(allreduce_error("bytes,world_size,median_s\n0,2,1\n"), "a.csv:2: bytes is 0; expected at least 1");
  EXPECT_EQ(allreduce_error("bytes,world_size,median_s\n8,0,1\n"), "a.csv:2: world_size is 0; expected at least 1");
  EXPECT_EQ(allreduce_error("bytes,world_size,median_s\n8,2,0\n"), "a.csv:2: median_s is 0; expected seconds, more than 0");
  EXPECT_EQ(allreduce_error("bytes,world_size,median_s\n8,2,\n"), "a.csv:2: median_s is ''; expected a number");
  EXPECT_EQ(allreduce_error("bytes,world_size,median_s,gap_s\n8,2,1,-1\n"), "a.csv:2: gap_s is -1; expected seconds, more than 0");
  EXPECT_EQ(allreduce_error("bytes,world_size,median_s,stdev_s\n8,2,1,-1\n"), "a.csv:2: stdev_s is -1; expected at least 0");
  EXPECT_EQ(allreduce_error("bytes,world_size,median_s,samples\n8,2,1,0\n"), "a.csv:2: samples is 0; expected at least 1");
}

TEST(CommCosts, AreTheCurvesAtOneWorldSize) {
  const AllReduceTable table = parse_allreduce_csv("bytes,world_size,median_s,gap_s\n8,2,1,0.5\n16,2,2,\n8,4,3,1\n", "a.csv");
  const CommCosts costs = comm_costs(table, 2);
  EXPECT_EQ(costs.isolated.points().size(), 2u);
  EXPECT_EQ(costs.isolated(8), 1);
  EXPECT_EQ(costs.gap(8), 0.5);
  EXPECT_THAT(world_sizes(table), ElementsAre(2, 4));
  EXPECT_THAT(error_of([&] { only_world(table, "a.csv", "--world"); }),
              HasSubstr("a.csv: several world sizes; expected --world with one of 2, 4"));
  EXPECT_EQ(only_world({table[0], table[1]}, "a.csv", "--world"), 2);
}

struct Gaps {
  const char* what;
  std::string rows;
  std::vector<std::pair<int64_t, double>> expected;
};

TEST(CommCosts, TakeGapsThatAreNeitherSlowerThanACallAloneNorFasterThanTheLink) {
  const Gaps cases[] = {
      {"none is the time alone", "8,2,1,\n16,2,3,\n", {{16, 3}}},
      {"at most the slowest call up to that size", "8,2,1,2\n16,2,4,2\n32,2,3,5\n", {{8, 1}, {16, 2}, {32, 4}}},
      // A queue that took no longer than one call did on a busy machine: as if four of five calls cost nothing.
      {"at least half of what the bytes take at the best rate", "8,2,1,0.001\n64,2,4,3\n128,2,4,3\n", {{8, 0.125}, {64, 3}, {128, 3}}},
  };
  for (const auto& [what, rows, expected] : cases) {
    const CommCosts costs = comm_costs(parse_allreduce_csv("bytes,world_size,median_s,gap_s\n" + rows, "a.csv"), 2);
    for (const auto& [bytes, gap_s] : expected) EXPECT_EQ(costs.gap(static_cast<double>(bytes)), gap_s) << what;
  }
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
  for (const auto& [first, last, factor] : {std::tuple{0, 64, 4}, {-4, 64, 4}, {6, 64, 4}, {64, 4, 4}, {4, 64, 1}}) {
    EXPECT_THROW(sizes_between(first, last, factor), InputError);
  }
}

TEST(AllReduceSizes, GrowByFourUpToTheLargestWhichIsThere) {
  EXPECT_THAT(allreduce_sizes(100), ElementsAre(4, 16, 100));
  EXPECT_THAT(allreduce_sizes(64), ElementsAre(4, 16, 64));
  EXPECT_THAT(allreduce_sizes(3), ElementsAre(4));
}

}  // namespace
}  // namespace firkin
