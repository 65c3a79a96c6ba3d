#include "bench/allreduce_bench.h"

#include <gtest/gtest.h>

#include "../comm/thread_ranks.h"

#include <torch/torch.h>

namespace firkin {
namespace {

at::Tensor values_of(int rank, int world_size, int64_t elements, at::ScalarType dtype = at::kFloat) {
  const at::Tensor buffer = at::empty({elements}, dtype);
  fill_with_known_values(buffer, rank, world_size);
  return buffer;
}

at::Tensor sum_of_ranks(int world_size, int64_t elements, at::ScalarType dtype = at::kFloat) {
  at::Tensor sum = at::zeros({elements}, dtype);
  for (int rank = 0; rank < world_size; ++rank) sum += values_of(rank, world_size, elements, dtype);
  return sum;
}

TEST(KnownSums, AreExactForAnyNumberOfRanksInAllTypesOfGradients) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble}) {
    for (const int ranks : {1, 2, 6, 127, 300}) EXPECT_EQ(count_wrong(sum_of_ranks(ranks, 5000, dtype)), 0) << ranks;
  }
  EXPECT_EQ(count_wrong(sum_of_ranks(2, (int64_t{127} << 14) + 100)), 0);
}

TEST(KnownSums, CountEveryElementThatWasCorrupted) {
  const at::Tensor sum = sum_of_ranks(2, 10000);
  sum[7] += 1;
  sum[9999] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(count_wrong(sum), 2);
}

TEST(KnownSums, OfASliceBeginAtItsFirstElement) {
  EXPECT_EQ(count_wrong(sum_of_ranks(2, 10000).narrow(0, 300, 500), 300), 0);
  EXPECT_EQ(count_wrong(sum_of_ranks(2, 10000).narrow(0, 301, 500), 300), 500);
}

TEST(KnownSums, ShowARankThatIsMissingOrThereTwiceAndDataThatMoved) {
  constexpr int64_t kElements = 9000;
  EXPECT_EQ(count_wrong(sum_of_ranks(3, kElements) - values_of(1, 3, kElements)), kElements / 3);
  EXPECT_EQ(count_wrong(sum_of_ranks(3, kElements) + values_of(0, 3, kElements)), kElements / 3);
  EXPECT_EQ(count_wrong(sum_of_ranks(3, kElements).roll(1)), kElements);
}

TEST(KnownSums, HoldForARealAllReduce) {
  run_ranks(3, [](const ProcessGroup& group) {
    const at::Tensor buffer = values_of(group.rank, 3, 100001);
    all_reduce(group, buffer);
    EXPECT_EQ(count_wrong(buffer), 0);
    all_reduce(group, buffer);  // once too often
    EXPECT_EQ(count_wrong(buffer), 100001);
  });
}

}  // namespace
}  // namespace firkin
