// Which ranks are paired, and that every rank learns the same times; how fast anything was is never checked.
#include "bench/pairs_bench.h"

#include "../comm/thread_ranks.h"
#include "../torch.h"

namespace firkin {
namespace {

TEST(PairsBench, EveryPlaceHasTheNextTwoOfARing) {
  EXPECT_THAT(ring_pairs(2), ElementsAre(Pair(0, 1)));
  EXPECT_THAT(ring_pairs(3), ElementsAre(Pair(0, 1), Pair(0, 2), Pair(1, 2)));
  EXPECT_THAT(ring_pairs(4), SizeIs(6));
  EXPECT_THAT(ring_pairs(5), SizeIs(10));
  EXPECT_THAT(ring_pairs(6), SizeIs(12));
  EXPECT_THAT(ring_pairs(1000), SizeIs(2000));
}

TEST(PairsBench, TimesOnlyTheChosenRanksAndTellsAll) {
  const auto results = results_of(3, [](const ProcessGroup& group) {
    return measure_pairs(group, {.ranks = {0, 2}, .bytes = 4096, .seconds = 0.1});
  });
  ASSERT_THAT(results[0], SizeIs(1));
  const PairRow& pair = results[0][0];
  EXPECT_EQ(pair.rank, 0);
  EXPECT_EQ(pair.other, 2);
  EXPECT_EQ(pair.bytes, 4096);
  EXPECT_GE(pair.samples, 2);
  EXPECT_THAT(pair.samples_s, AllOf(SizeIs(pair.samples), Each(Ge(pair.seconds)), Contains(pair.seconds)));
  for (const auto& result : results) EXPECT_EQ(result.at(0).samples_s, pair.samples_s);
}

}  // namespace
}  // namespace firkin
