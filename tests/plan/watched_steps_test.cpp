// From what ranks saw of their steps to what is named.
#include "firkin/plan/watched_steps.h"

#include "../test.h"
#include "firkin/base/units.h"

namespace firkin {
namespace {

constexpr double kHalfMicrosecond = 5e-7, kMs = 1e-3;

// Ten steps of 20 ms. ms: of each rank, before forward, forward, backward, exposed.
std::vector<RankSteps> ranks_with(const std::vector<std::vector<double>>& ms, bool broadcasts = false) {
  std::vector<RankSteps> ranks;
  for (const std::vector<double>& times : ms) {
    RankSteps& rank = ranks.emplace_back();
    rank.host = "a";
    rank.cpus = {0, 1, 2, 3};
    rank.phases = {"before forward", "forward", "backward"};
    rank.broadcasts_in_forward = broadcasts;
    for (int step = 1; step <= 10; ++step) {
      rank.steps.push_back({step, {times[0] * kMs, times[1] * kMs, times[2] * kMs}, times[3] * kMs, (times[2] + times[3]) * kMs, {}});
    }
  }
  return ranks;
}

struct Case {
  const char* what;
  std::vector<std::vector<double>> ms;
  bool broadcasts;
  std::vector<std::string> causes;
  double exposed_s, waiting_s;
  const char* last_in;
};

TEST(WatchedSteps, NamesWhatTakesTime) {
  const std::vector<Case> cases = {
      {"nothing", {{2, 8, 9.9, 0.1}, {2, 8, 9.9, 0.1}}, false, {}, 1e-4, 0, "before forward"},
      {"communication", {{2, 8, 5, 5}, {2, 8, 5, 5}}, false, {"communication"}, 5e-3, 0, "before forward"},
      {"a slow rank, whose peers wait at the end",
       {{2, 2, 9.9, 6.1}, {2, 8, 9.9, 0.1}, {2, 2, 9.9, 6.1}},
       false,
       {"slow rank"},
       1e-4,
       4e-3,
       "forward"},
      {"both, the larger first", {{2, 2, 5.9, 10.1}, {2, 8, 5.9, 4.1}}, false, {"slow rank", "communication"}, 4.1e-3, 3e-3, "forward"},
      {"a rank late before forward, for whose buffers others wait in forward",
       {{2, 14, 3.9, 0.1}, {8, 8, 3.9, 0.1}},
       true,
       {"slow rank"},
       1e-4,
       3e-3,
       "before forward"},
  };
  for (const Case& each : cases) {
    SCOPED_TRACE(each.what);
    const WatchSummary summary = summarize(ranks_with(each.ms, each.broadcasts));
    EXPECT_EQ(summary.causes, each.causes);
    EXPECT_THAT(summary.exposed_s, DoubleNear(each.exposed_s, kHalfMicrosecond));
    EXPECT_THAT(summary.waiting_s, DoubleNear(each.waiting_s, kHalfMicrosecond));
    EXPECT_THAT(summary.step_s, DoubleNear(0.02, kHalfMicrosecond));
    EXPECT_EQ(summary.last_in, each.last_in);
    EXPECT_THAT(summary.notes, IsEmpty());
  }
}

TEST(WatchedSteps, BoundsTheGainByTheLastTensorAndByTheWindow) {
  std::vector<RankSteps> ranks = ranks_with({{0, 4, 6, 10}, {0, 4, 6, 10}});
  for (RankSteps& rank : ranks) {
    rank.bucket_bytes = {4 * kMiB, 10 * kMiB};  // 1 MiB a millisecond
    rank.last_bytes = kMiB / 2;
    for (RankStep& step : rank.steps) step.sent_s = {0.015, 0.01};
  }
  WatchSummary summary = summarize(ranks);
  EXPECT_THAT(summary.bytes_per_s, DoubleNear(1000 * kMiB, 1));
  EXPECT_THAT(summary.gain_at_most_s, DoubleNear(0.002, kHalfMicrosecond));  // 14 ms to send, of which 6 fit beside the gradients
  for (RankSteps& rank : ranks) rank.last_bytes = 9 * kMiB;
  EXPECT_THAT(summarize(ranks).gain_at_most_s, DoubleNear(0.001, kHalfMicrosecond));
  for (RankStep& step : ranks[1].steps) step.sent_s = {0.015, 0.005};  // a later launch: 2 MiB a millisecond
  EXPECT_THAT(summarize(ranks).bytes_per_s, DoubleNear(2000 * kMiB, 1));
  ranks[1].steps.pop_back();
  ranks[1].steps[0].sent_s.pop_back();  // other buckets
  EXPECT_EQ(summarize(ranks).steps, 8);
}

// 100 buckets of 10 KiB and a millisecond each: their rate says nothing about that of one bucket.
TEST(WatchedSteps, ManySmallBucketsBoundNoGain) {
  std::vector<RankSteps> ranks = ranks_with({{0, 4, 30, 80}, {0, 4, 30, 80}});
  for (RankSteps& rank : ranks) {
    rank.bucket_bytes.assign(100, 10 * kKiB);
    rank.last_bytes = 10 * kKiB;
    for (RankStep& step : rank.steps) step.sent_s.assign(100, 0.1);
  }
  const WatchSummary summary = summarize(ranks);
  EXPECT_EQ(summary.gain_at_most_s, summary.exposed_s);
  EXPECT_THAT(summary.next, ElementsAre(HasSubstr("firkin.tune")));
}

TEST(WatchedSteps, CountsOnlyWhatAllRanksHaveSeenAndSaysWhenTheyShareCores) {
  std::vector<RankSteps> ranks = ranks_with({{2, 8, 5, 5}, {2, 8, 5, 5}});
  ranks[0].steps.erase(ranks[0].steps.begin());
  ranks[1].steps.pop_back();
  for (RankSteps& rank : ranks) rank.threads = 3;
  const WatchSummary summary = summarize(ranks);
  EXPECT_EQ(summary.first_step, 2);
  EXPECT_EQ(summary.last_step, 9);
  EXPECT_EQ(summary.steps, 8);
  EXPECT_THAT(summary.notes, ElementsAre(HasSubstr("2 ranks with 6 threads share 4 cores on a")));
  EXPECT_THAT(describe(summary), HasSubstr("steps 2 to 9, 2 ranks: 20 ms a step\n  communication not hidden     5 ms, 25.0 %\n"));
  ranks[1].steps.clear();
  EXPECT_EQ(describe(summarize(ranks)), "no steps yet that all 2 ranks have seen\n");
}

// Of ranks that expose half of each step; bytes: of their buckets, first_s: how long before the end the first was sent.
std::vector<RankSteps> exposing(const std::vector<int64_t>& bytes, double first_s) {
  std::vector<RankSteps> ranks = ranks_with({{0, 4, 6, 10}, {0, 4, 6, 10}});
  for (RankSteps& rank : ranks) {
    rank.bucket_bytes = bytes;
    for (RankStep& step : rank.steps) step.sent_s.assign(bytes.size(), 0.01), step.sent_s[0] = first_s;
  }
  return ranks;
}

TEST(WatchedSteps, SayWhyNothingIsHiddenWhereThatIsSeen) {
  EXPECT_THAT(summarize(exposing({4000}, 0.0101)).reasons,
              ElementsAre("all gradients are in one bucket of 3.91 KiB, sent after the last of them"));
  std::vector<RankSteps> ranks = exposing({4000, 4000}, 0.0101);
  EXPECT_THAT(summarize(ranks).reasons, ElementsAre("all 2 buckets are sent after the last gradient"));
  ranks[0].keeps_first_buckets = true;
  EXPECT_THAT(summarize(ranks).reasons, ElementsAre(HasSubstr("; with find_unused_parameters=True PyTorch does not rebuild")));
  EXPECT_THAT(summarize(exposing({4000, 4000}, 0.015)).reasons, IsEmpty()) << "half of backward hides the first bucket";
  ranks = exposing({4000, 4000}, 0.015);
  ranks[0].keeps_first_buckets = true;
  EXPECT_THAT(summarize(ranks).reasons, IsEmpty()) << "what is hidden needs no reason";
}

TEST(WatchedSteps, SayThatNoSyncIsMissingOnlyIfMostPassesChangeNoParameter) {
  std::vector<RankSteps> ranks = exposing({4000, 4000}, 0.015);
  for (const auto& [averaged, updated, is_said] : std::vector<std::tuple<int64_t, int64_t, bool>>{
           {0, 0, false}, {100, 0, false}, {100, 99, false}, {100, 51, false}, {100, 50, true}, {100, 25, true}}) {
    ranks[0].averaged = averaged;
    ranks[0].updated = updated;
    EXPECT_EQ(summarize(ranks).reasons.size(), is_said ? 1 : 0) << averaged << ", " << updated;
  }
  EXPECT_THAT(summarize(ranks).reasons[0],
              StartsWith("parameters changed after 25 of 100 passes, and gradients were averaged in all: no_sync()"));
  for (RankSteps& rank : ranks) {
    for (RankStep& step : rank.steps) step.exposed_s = 1e-4;
  }
  EXPECT_THAT(summarize(ranks).reasons, IsEmpty()) << "where communication is no cause";
}

TEST(WatchedSteps, SayWhichSettingsKeepGpusFromOverlapping) {
  std::vector<RankSteps> ranks = ranks_with({{0, 4, 6, 10}, {0, 4, 6, 10}});
  ranks[0].settings = {"TORCH_NCCL_ENABLE_TIMING=1", "CUDA_DEVICE_MAX_CONNECTIONS=1", "OTHER=1"};
  EXPECT_THAT(summarize(ranks).reasons, ElementsAre(StartsWith("CUDA_DEVICE_MAX_CONNECTIONS=1 is set, which lets all streams"),
                                                    StartsWith("TORCH_NCCL_ENABLE_TIMING=1 is set, which records")));
}

TEST(WatchedSteps, SayWhatToDoNext) {
  EXPECT_THAT(summarize(ranks_with({{2, 8, 9.9, 0.1}, {2, 8, 9.9, 0.1}})).next, IsEmpty());
  std::vector<RankSteps> ranks = exposing({4 * kMiB}, 0.01);
  const std::string tune = "firkin.tune(net, step) tries other bucket sizes",
                    pairs = "firkin bench pairs tells whether one host's link is slow";
  EXPECT_THAT(summarize(ranks).next, ElementsAre(tune));
  ranks.push_back(ranks[0]);
  EXPECT_THAT(summarize(ranks).next, ElementsAre(tune)) << "three ranks of one host";
  ranks[1].host = "b";
  ranks[2].host = "c";
  EXPECT_THAT(summarize(ranks).next, ElementsAre(tune, pairs));
  EXPECT_THAT(describe(summarize(ranks)),
              HasSubstr("\n  why: all gradients are in one bucket of 4 MiB, sent after the last of them\n  next: " + tune));
  EXPECT_THAT(describe(summarize(ranks)), HasSubstr("communication not hidden    10 ms, 50.0 %   all-reduces at 419 MB/s or more\n"));
  EXPECT_THAT(summarize(ranks_with({{2, 2, 9.9, 6.1}, {2, 8, 9.9, 0.1}})).next, Contains("see what rank 1 on a does in \"forward\""));
}

// Rank 1 works 6 ms longer than rank 0, whose bucket of 8 MiB travels for `exposed_ms` beyond that.
std::vector<RankSteps> slow_and_exposing(double exposed_ms) {
  std::vector<RankSteps> ranks = ranks_with({{2, 2, 5, 6 + exposed_ms}, {2, 8, 5, exposed_ms}});
  for (RankSteps& rank : ranks) {
    rank.bucket_bytes = {8 * kMiB};
    for (RankStep& step : rank.steps) step.sent_s = {step.exposed_s};
  }
  return ranks;
}

TEST(WatchedSteps, SayFirstWhatToDoAboutTheLargestCause) {
  const auto tune = HasSubstr("firkin.tune"), see = HasSubstr("see what rank 1");
  EXPECT_THAT(summarize(slow_and_exposing(2)).next, ElementsAre(see, tune));
  EXPECT_THAT(summarize(slow_and_exposing(7)).next, ElementsAre(tune, see));
  // In one of ten steps rank 1 works another 200 ms longer, so that rank 0 waits for 6 ms in the median, and for 26 in the mean.
  std::vector<RankSteps> ranks = slow_and_exposing(7);
  ranks[1].steps[0].phases_s[1] += 0.2;
  ranks[0].steps[0].exposed_s += 0.2;
  EXPECT_THAT(summarize(ranks).next, ElementsAre(see, tune));
  EXPECT_THAT(
      describe(summarize(ranks)),
      HasSubstr("13 ms, 59.1 %   on average; rank 1 is last in 100 % of the steps, by 6 ms in the median, most of it in \"forward\"\n"));
}

TEST(WatchedSteps, AdviseNoTuningWhereNothingCanBeSplit) {
  const WatchSummary small = summarize(exposing({16 * kKiB}, 0.01));
  EXPECT_GT(small.gain_at_most_s, kWorthTuning * small.step_s);
  EXPECT_THAT(small.next, IsEmpty());
  EXPECT_THAT(describe(small), HasSubstr(": not worth a firkin.tune, since PyTorch's default has all 16 KiB in one bucket too\n"));
  for (const std::vector<int64_t>& bytes : {std::vector<int64_t>{kMiB + 4}, {8 * kKiB, 8 * kKiB}}) {
    EXPECT_THAT(summarize(exposing(bytes, 0.01)).next, ElementsAre(HasSubstr("firkin.tune"))) << bytes.size();
  }
}

// Two of every four steps take `slower_s` longer; 6 of 20 ms could be gained.
WatchSummary scattered_by(double slower_s) {
  std::vector<RankSteps> ranks = exposing({2 * kMiB, 8 * kMiB}, 0.01);
  for (RankSteps& rank : ranks) {
    rank.last_bytes = kMiB;
    for (size_t step = 0; step < rank.steps.size(); ++step) rank.steps[step].phases_s[0] += step % 4 < 2 ? slower_s : 0;
  }
  return summarize(ranks);
}

TEST(WatchedSteps, AdviseNoTuningForLessThanTheErrorOfTheStep) {
  EXPECT_THAT(scattered_by(0.0001).next, ElementsAre(HasSubstr("firkin.tune")));
  const WatchSummary scattered = scattered_by(0.05);
  EXPECT_GT(scattered.gain_at_most_s, kWorthTuning * scattered.step_s);
  EXPECT_THAT(scattered.next, IsEmpty());
  EXPECT_THAT(describe(scattered), HasSubstr(": not worth a firkin.tune, since it is less than the error of the median step, "));
}

TEST(WatchedSteps, CountOneRankAsOne) {
  std::vector<RankSteps> ranks = ranks_with({{2, 8, 5, 5}});
  ranks[0].threads = 5;
  EXPECT_THAT(describe(summarize(ranks)), StartsWith("steps 1 to 10, 1 rank: 20 ms a step\n"));
  EXPECT_THAT(summarize(ranks).notes, ElementsAre("1 rank has 5 threads for 4 cores on a, and is then slow without another cause"));
  ranks[0].steps.clear();
  EXPECT_EQ(describe(summarize(ranks)), "no steps yet\n");
}

TEST(WatchedSteps, TravelAsText) {
  const RankSteps rank = ranks_with({{2, 8, 5, 5}})[0];
  EXPECT_EQ(rank_steps_text(parse_rank_steps(rank_steps_text(rank))), rank_steps_text(rank));
  EXPECT_THROW(parse_rank_steps("{"), InputError);
  EXPECT_THAT(summary_text(summarize({rank})), HasSubstr("\"lines\":\"steps 1 to 10, 1 rank: 20 ms a step"));
}

}  // namespace
}  // namespace firkin
