#include "results/results.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "firkin/base/error.h"

namespace firkin {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::string parse_error(const std::string& text) {
  try {
    parse_rank_times(text, "r");
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

std::string results_with(const std::string& samples) {
  return "{\"schema\": \"firkin.results/1\",\n\"samples\": " + samples + "}";
}

TEST(RankTimes, AreAColumnOfSeconds) {
  EXPECT_THAT(parse_rank_times("seconds\n0.5\n0.25\n", "r"), ElementsAre(ElementsAre(0.5, 0.25)));
}

TEST(RankTimes, OfSeveralRanksHaveAColumnThatTellsThemApart) {
  EXPECT_THAT(parse_rank_times("rank,seconds\n0,1\n1,2\n0,3\n1,4\n", "r"), ElementsAre(ElementsAre(1, 3), ElementsAre(2, 4)));
  EXPECT_EQ(parse_error("rank,seconds\n0,1\n1,2\n0,3\n"), "r:4: rank 1 has 1 times; expected 2, one per step, as rank 0 has");
}

TEST(RankTimes, OfAResultsFileAreThoseWithoutCommunication) {
  const std::string text = results_with(R"({"settings": ["naive", "none"], "raw_step_s_by_rank": [[[9, 9]], [[0.1, 0.2], [0.3, 0.4]]]})");
  EXPECT_THAT(parse_rank_times(text, "r"), ElementsAre(ElementsAre(0.1, 0.3), ElementsAre(0.2, 0.4)));
}

TEST(RankTimes, RejectsMalformedLinesByFileAndLine) {
  EXPECT_EQ(parse_error("time\n1\n"), "r:1: no column 'seconds'; expected seconds");
  EXPECT_EQ(parse_error("seconds\n1\nfast\n"), "r:3: seconds is 'fast'; expected a number");
  EXPECT_EQ(parse_error("seconds\n1\n-1\n"), "r:3: seconds is -1; expected seconds, more than 0");
  EXPECT_EQ(parse_error("seconds\n"), "r:1: no times; expected lines of seconds");
}

TEST(RankTimes, RejectsMalformedResultsByFileAndLine) {
  EXPECT_THAT(parse_error("{}"), HasSubstr("r:1: results: samples: missing"));
  EXPECT_THAT(parse_error(results_with("{}")), HasSubstr("r:2: results: samples.settings: no times of the setting 'none'"));
  EXPECT_THAT(parse_error(results_with(R"({"settings": ["naive"], "raw_step_s_by_rank": [[[1]]]})")),
              HasSubstr("r:2: results: samples.settings: no times of the setting 'none'"));
  EXPECT_THAT(parse_error(results_with(R"({"settings": ["none"], "raw_step_s_by_rank": [[]]})")), HasSubstr("no times"));
  EXPECT_THAT(parse_error(results_with(R"({"settings": ["none"], "raw_step_s_by_rank": [[[1, 1], [1]]]})")),
              HasSubstr("r:2: results: samples.raw_step_s_by_rank[0][1]: times of 1 ranks; expected as many as in the first step"));
  EXPECT_THAT(parse_error(results_with("{\"settings\": [\"none\"], \"raw_step_s_by_rank\": [[[1],\n[0]]]}")),
              HasSubstr("r:3: results: samples.raw_step_s_by_rank[0][1]: a time is 0"));
}

}  // namespace
}  // namespace firkin
