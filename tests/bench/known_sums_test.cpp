#include "bench/allreduce_bench.h"

#include <gtest/gtest.h>

#include "../comm/thread_ranks.h"
#include "firkin/base/error.h"

#include <torch/torch.h>

namespace firkin {
namespace {

at::Tensor values_of(int rank, int64_t elements) {
  const at::Tensor buffer = at::empty({elements}, at::kFloat);
  fill_with_known_values(buffer, rank);
  return buffer;
}

at::Tensor sum_of_ranks(int world_size, int64_t elements) {
  at::Tensor sum = at::zeros({elements}, at::kFloat);
  for (int rank = 0; rank < world_size; ++rank) sum += values_of(rank, elements);
  return sum;
}

TEST(KnownSums, AreExactUpToTheMostRanks) {
  for (const int ranks : {1, 2, 6, 100, kMostSummedRanks}) EXPECT_EQ(count_wrong(sum_of_ranks(ranks, 5000), ranks), 0) << ranks;
  EXPECT_THROW(count_wrong(sum_of_ranks(1, 4), kMostSummedRanks + 1), InputError);
}

TEST(KnownSums, CountEveryElementThatWasCorrupted) {
  const at::Tensor sum = sum_of_ranks(2, 10000);
  sum[7] += 1;
  sum[9999] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(count_wrong(sum, 2), 2);
}

TEST(KnownSums, ShowARankThatIsMissingOrThereTwiceAndDataThatMoved) {
  constexpr int64_t kElements = 10000;
  EXPECT_EQ(count_wrong(sum_of_ranks(3, kElements) - values_of(1, kElements), 3), kElements);
  EXPECT_EQ(count_wrong(sum_of_ranks(3, kElements) + values_of(0, kElements) - values_of(1, kElements), 3), kElements);
  EXPECT_EQ(count_wrong(sum_of_ranks(3, kElements).roll(1), 3), kElements);
  EXPECT_EQ(count_wrong(values_of(0, kElements), 3), kElements);
}

TEST(KnownSums, HoldForARealAllReduce) {
  run_ranks(3, [](const ProcessGroup& group) {
    const at::Tensor buffer = values_of(group.rank, 100001);
    all_reduce(group, buffer);
    EXPECT_EQ(count_wrong(buffer, group.size), 0);
    all_reduce(group, buffer);  // once too often
    EXPECT_EQ(count_wrong(buffer, group.size), 100001);
  });
}

TEST(KnownSums, RefuseOtherTypesAndStrides) {
  EXPECT_THROW(fill_with_known_values(at::empty({4}, at::kDouble), 0), InputError);
  EXPECT_THROW(count_wrong(at::empty({4, 4}, at::kFloat).t().narrow(0, 0, 2), 1), InputError);
}

}  // namespace
}  // namespace firkin
