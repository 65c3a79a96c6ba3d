// In which order settings run, and for how long, on a clock that is made up.
#include "measuring/steps.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <string>

namespace firkin {
namespace {

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
