// From what ranks saw of their steps to what is named.
#include "firkin/plan/watched_steps.h"

#include "../test.h"

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
    rank.bucket_bytes = {4000, 10000};  // 1 byte a microsecond
    rank.last_bytes = 500;
    for (RankStep& step : rank.steps) step.sent_s = {0.015, 0.01};
  }
  WatchSummary summary = summarize(ranks);
  EXPECT_THAT(summary.bytes_per_s, DoubleNear(1e6, 1));
  EXPECT_THAT(summary.gain_at_most_s, DoubleNear(0.002, kHalfMicrosecond));  // 14 ms to send, of which 6 fit beside the gradients
  for (RankSteps& rank : ranks) rank.last_bytes = 9000;
  EXPECT_THAT(summarize(ranks).gain_at_most_s, DoubleNear(0.001, kHalfMicrosecond));
  for (RankStep& step : ranks[1].steps) step.sent_s = {0.015, 0.005};  // a later launch: 2 bytes a microsecond
  EXPECT_THAT(summarize(ranks).bytes_per_s, DoubleNear(2e6, 1));
  ranks[1].steps.pop_back();
  ranks[1].steps[0].sent_s.pop_back();  // other buckets
  EXPECT_EQ(summarize(ranks).steps, 8);
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

TEST(WatchedSteps, TravelAsText) {
  const RankSteps rank = ranks_with({{2, 8, 5, 5}})[0];
  EXPECT_EQ(rank_steps_text(parse_rank_steps(rank_steps_text(rank))), rank_steps_text(rank));
  EXPECT_THROW(parse_rank_steps("{"), InputError);
  EXPECT_THAT(summary_text(summarize({rank})), HasSubstr("\"lines\":\"steps 1 to 10, 1 ranks: 20 ms a step"));
}

}  // namespace
}  // namespace firkin
