// What is asked for, on links and clocks that are made up.
#include "measuring/allreduce_schedule.h"

#include <map>

#include "../test.h"
#include "measuring/steps.h"

namespace firkin {
namespace {

// A link that takes `latency_s` a call and `byte_s` a byte; the very first call sets up connections.
struct Link {
  double latency_s = 20e-6;
  double byte_s = 1e-9;
  double set_up_s = 0;
  double check_s = 0;  // besides its calls
};

// A measurement on it, visit by visit.
struct Rehearsal {
  Rehearsal(const std::vector<TimedSize>& timed, const AllReduceScheduleOptions& options, const Link& made_of)
      : sizes(timed), link(made_of), schedule(timed, options) {
    while (const std::optional<AllReduceVisit> visit = schedule.next()) run(*visit);
  }

  void run(const AllReduceVisit& visit) {
    visits.push_back(visit);
    const double call_s = link.latency_s + link.byte_s * static_cast<double>(sizes[visit.size].bytes);
    const double queue_s = link.latency_s + link.byte_s * static_cast<double>(visit.queue * sizes[visit.size].bytes);
    const double before_s = now_s;
    if (visit.checks) now_s += link.check_s + queue_s;
    if (visit.warms_up) now_s += call_s;
    std::vector<double> seconds;
    for (int i = 0; i < visit.isolated; ++i) seconds.push_back(call_s + std::exchange(link.set_up_s, 0));
    double isolated_s = 0;
    for (const double sample : seconds) isolated_s += sample * visit.calls;
    seconds.insert(seconds.end(), static_cast<size_t>(visit.queued), queue_s);
    now_s += isolated_s + visit.queued * queue_s;
    seconds.insert(seconds.end(), {isolated_s, visit.queued * queue_s, now_s});
    longest_visit_s = std::max(longest_visit_s, now_s - before_s);
    schedule.tell(seconds);
  }

  std::vector<TimedSize> sizes;
  Link link;
  AllReduceSchedule schedule;
  std::vector<AllReduceVisit> visits;
  double now_s = 0;
  double longest_visit_s = 0;
};

std::vector<TimedSize> sizes_to(int64_t largest) {
  std::vector<TimedSize> sizes;
  for (const int64_t bytes : allreduce_sizes(largest)) sizes.push_back({.bytes = bytes});
  return sizes;
}

TEST(AllReduceSchedule, SpendsItsBudgetOnTenRoundsWhereCallsAreShort) {
  for (const double seconds : {1.0, 3.0}) {
    const Rehearsal run(sizes_to(kMiB), {.seconds = seconds}, {.check_s = 0.001});
    EXPECT_EQ(run.schedule.rounds(), AllReduceSchedule::kMostRounds);
    EXPECT_NEAR(run.now_s, seconds, 0.15 * seconds);
    for (const AllReduceSeries& size : run.schedule.series()) EXPECT_THAT(size.block_s, SizeIs(10));
  }
}

TEST(AllReduceSchedule, KeepsToTheBudgetOnASlowLinkAndHasThreeSamplesOfEverySize) {
  const Rehearsal run(sizes_to(64 * kMiB), {.seconds = 10}, {.byte_s = 8e-9});  // 0.54 s for the largest
  EXPECT_LT(run.now_s, 12);
  for (const AllReduceSeries& size : run.schedule.series()) EXPECT_THAT(size.isolated_s, SizeIs(Ge(3)));
}

TEST(AllReduceSchedule, ExceedsTheBudgetByTwoRoundsAtMost) {
  const Rehearsal run({{.bytes = 4}, {.bytes = 64 * kMiB}}, {.seconds = 1}, {.byte_s = 80e-9});  // 5.4 s for the largest
  EXPECT_EQ(run.schedule.rounds(), AllReduceSchedule::kFewestRounds);
  EXPECT_THAT(run.schedule.series()[1].isolated_s, SizeIs(3));
  EXPECT_THAT(run.schedule.series()[1].gap_s, IsEmpty());  // not even two calls fit
  EXPECT_LT(run.now_s, 6 * 5.4);                           // a probe, a check, the first visit, two rounds
}

TEST(AllReduceSchedule, TimesShortCallsSeveralInARowAndNotByTheOneThatSetsUpConnections) {
  const Rehearsal run({{.bytes = 4}, {.bytes = 4 * kMiB}}, {.seconds = 1}, {.set_up_s = 0.8});
  const std::vector<AllReduceSeries> series = run.schedule.series();
  EXPECT_EQ(series[0].calls_per_sample, 25);  // of 20 us
  EXPECT_EQ(series[1].calls_per_sample, 1);
  EXPECT_THAT(series[0].isolated_s, Each(Le(30e-6)));
}

TEST(AllReduceSchedule, QueuesAsManyAsMemoryAndTimeAllow) {
  struct Case {
    int64_t bytes;
    double byte_s;
    int queue;
  };
  for (const Case& each : {Case{4, 0, 4}, {64 * kMiB, 0, 4}, {100 * kMiB, 0, 2}, {200 * kMiB, 0, 1}, {16 * kMiB, 20e-9, 2}}) {
    const Rehearsal run({{.bytes = each.bytes}}, {.seconds = 10}, {.byte_s = each.byte_s});
    for (const AllReduceVisit& visit : run.visits) EXPECT_LE(visit.queue * visit.queued, each.queue * visit.queued);
    EXPECT_EQ(run.visits.back().queue, each.queue) << each.bytes;
    EXPECT_EQ(run.schedule.series()[0].gap_s.empty(), each.queue == 1);
  }
}

TEST(AllReduceSchedule, ChecksEverySizeBeforeAndAfterButALongOneOnce) {
  const Rehearsal run({{.bytes = 4}, {.bytes = 64 * kMiB}}, {.seconds = 10}, {.byte_s = 2e-9});
  std::map<size_t, int> checks;
  for (const AllReduceVisit& visit : run.visits) checks[visit.size] += visit.checks ? 1 : 0;
  EXPECT_EQ(checks[0], 2);
  EXPECT_EQ(checks[1], 1);
  const Rehearsal unchecked(sizes_to(kMiB), {.seconds = 1, .checks = false}, {});
  for (const AllReduceVisit& visit : unchecked.visits) EXPECT_FALSE(visit.checks);
}

TEST(AllReduceSchedule, TakesSizesInTurnsAndShufflesEveryRound) {
  const Rehearsal run(sizes_to(kMiB), {.seconds = 1, .seed = 7}, {});
  const size_t count = run.sizes.size();
  const size_t prepared = 3 * count;  // two probes and the first visit each
  std::vector<std::vector<size_t>> rounds(AllReduceSchedule::kMostRounds);
  for (size_t i = 0; i < count * rounds.size(); ++i) rounds[i / count].push_back(run.visits[prepared + i].size);
  for (size_t i = 0; i < rounds.size(); ++i) {
    EXPECT_THAT(rounds[i], testing::UnorderedElementsAreArray(rounds[0]));
    if (i > 0) {
      EXPECT_NE(rounds[i], rounds[i - 1]);
    }
  }
}

TEST(AllReduceSchedule, BetweenStepsNoVisitTakesMuchLongerThanTheDelayAndTheBudgetIsKept) {
  for (const double byte_s : {1e-9, 10e-9, 100e-9, 1e-6}) {
    const Rehearsal run(sizes_to(64 * kMiB), {.seconds = 3, .checks = false, .delay_s = 0.25}, {.byte_s = byte_s});
    EXPECT_LE(run.now_s, 3);
    EXPECT_LE(run.longest_visit_s, 0.4) << byte_s;
    EXPECT_FALSE(run.schedule.is_cut_short());
    const auto series = run.schedule.series();
    EXPECT_LE(static_cast<double>(series.back().bytes) * byte_s, 0.25);
    for (const AllReduceSeries& size : series) EXPECT_THAT(size.isolated_s, SizeIs(AllOf(Ge(1), Le(11))));
  }
}

TEST(AllReduceSchedule, BetweenStepsABudgetThatEndsBeforeAllSizesHadTheirTurnIsCutShort) {
  const Rehearsal run(sizes_to(64 * kMiB), {.seconds = 0.2, .checks = false, .delay_s = 0.25}, {.byte_s = 5e-9});
  EXPECT_TRUE(run.schedule.is_cut_short());
  EXPECT_LE(run.now_s, 0.25);
  for (const AllReduceSeries& size : run.schedule.series()) EXPECT_THAT(size.isolated_s, SizeIs(1));
}

TEST(AllReduceSchedule, TellsTheGapOfAQueue) {
  const Rehearsal run({{.bytes = kMiB}}, {.seconds = 1}, {.latency_s = 1e-3, .byte_s = 1e-9});
  EXPECT_THAT(run.schedule.series()[0].gap_s, Each(DoubleNear(1e-9 * kMiB, 1e-9)));
}

TEST(AllReduceSchedule, WantsATimeForEverySample) {
  AllReduceSchedule schedule({{.bytes = 4}}, {});
  EXPECT_THROW(schedule.tell(std::vector<double>{1, 1, 1}), std::invalid_argument);
  EXPECT_FALSE(AllReduceSchedule({}, {}).next());
}

TEST(AllReduceSeriesTable, HasTheMediansAndNoGapWhereNoneWasMeasured) {
  const AllReduceTable table = allreduce_table(
      {{.bytes = 4, .isolated_s = {3, 1, 2}, .gap_s = {0.5, 0.7, 0.6}}, {.bytes = 1024, .isolated_s = {4, 8}, .gap_s = {}, .wrong = 7}}, 6);
  ASSERT_THAT(table, SizeIs(2));
  EXPECT_EQ(table[0].world_size, 6);
  EXPECT_EQ(table[0].median_s, 2);
  EXPECT_EQ(table[0].gap_s, 0.6);
  EXPECT_EQ(table[0].samples, 3);
  EXPECT_EQ(table[1].median_s, 6);
  EXPECT_EQ(table[1].max_s, 8);
  EXPECT_EQ(table[1].wrong, 7);
  EXPECT_FALSE(table[1].gap_s.has_value());
}

TEST(CollectiveRows, AreComparedWithTheAllReduceOfTheirSizeBlockByBlock) {
  const std::vector<double> slow = {2, 4, 2, 4, 2, 4, 2}, fast = {1, 2, 1, 2, 1, 2, 1};
  const std::vector<CollectiveRow> rows =
      collective_rows({{.collective = Collective::kAllGather, .bytes = 8, .isolated_s = fast, .block_s = fast, .gap_s = {}},
                       {.bytes = 4, .isolated_s = fast, .block_s = fast, .gap_s = {}},
                       {.bytes = 8, .isolated_s = slow, .block_s = slow, .gap_s = {}},
                       {.collective = Collective::kReduceScatter, .bytes = 16, .isolated_s = fast, .block_s = fast, .gap_s = {}}},
                      2);
  EXPECT_EQ(rows[0].collective, "all_gather");
  EXPECT_DOUBLE_EQ(rows[0].ratio_to_allreduce.value(), 0.5);
  for (const size_t without : {1, 2, 3}) EXPECT_FALSE(rows[without].ratio_to_allreduce);
}

// Settings by letter, a block a word; every visit takes a second.
std::string run(const StepBlocks& blocks, size_t settings = 3, int enough = 1 << 30) {
  StepSchedule schedule(std::vector<StepCounts>(settings), blocks);
  std::string order;
  double now_s = 0;
  while (const auto visit = schedule.next()) {
    order += static_cast<char>('a' + visit->setting);
    if (visit->ends_block) order += ' ';
    schedule.tell(++now_s, visit->block + 1 >= enough);
  }
  return order;
}

TEST(StepSchedule, RunsEverySettingOnceABlockInAnOrderThatTheSeedShuffles) {
  const std::string order = run({.most = 40, .seed = 1});
  ASSERT_EQ(order.size(), 40 * 4u);
  for (const char setting : {'a', 'b', 'c'}) {
    int first = 0;
    for (size_t block = 0; block < 40; ++block) {
      EXPECT_NE(order.substr(4 * block, 3).find(setting), std::string::npos);
      first += order[4 * block] == setting ? 1 : 0;
    }
    EXPECT_GT(first, 4);
  }
  EXPECT_EQ(order, run({.most = 40, .seed = 1}));
  EXPECT_NE(order, run({.most = 40, .seed = 2}));
}

TEST(StepSchedule, MirrorsItsBlocksWithoutASeed) {
  EXPECT_EQ(run({.most = 4}, 2), "ab ba ab ba ");
  EXPECT_EQ(run({.most = 3}), "abc cba abc ");
}

TEST(StepSchedule, BeginsNoBlockThatWouldEndAfterTheTimeButTheFewest) {
  struct Case {
    StepBlocks blocks;
    size_t ran;
  };
  for (const auto& [blocks, ran] : {Case{{.most = 5}, 5},
                                    {{.most = 9, .seconds = 12}, 4},
                                    {{.most = 9, .seconds = 11.9}, 3},
                                    {{.fewest = 6, .most = 9, .seconds = -1}, 6},
                                    {{.fewest = 6, .most = 2, .seconds = 0}, 2}}) {
    EXPECT_EQ(run(blocks).size(), 4 * ran);
  }
  EXPECT_EQ(run({.fewest = 6, .most = 9}, 3, 2).size(), 4 * 2u);  // enough is enough
}

TEST(StepSchedule, SaysHowManySteps) {
  StepSchedule schedule({{.warmup_steps = 3, .timed_steps = 1}, {}}, {.most = 1});
  EXPECT_EQ(schedule.next()->steps.warmup_steps, 3);
  schedule.tell();
  EXPECT_EQ(schedule.next()->steps.timed_steps, 2);
  EXPECT_THROW(StepSchedule({}, {}), std::invalid_argument);
  EXPECT_THROW(StepSchedule({{}}, {.most = 0}), std::invalid_argument);
}

}  // namespace
}  // namespace firkin
