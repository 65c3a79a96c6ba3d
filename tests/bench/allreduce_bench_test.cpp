// Bookkeeping of the all-reduce benchmark, and sums that are known; how fast anything was is never checked.
#include "bench/allreduce_bench.h"

#include "../comm/thread_ranks.h"
#include "../torch.h"
#include "firkin/base/units.h"
#include "firkin/stats/estimates.h"

namespace firkin {
namespace {

// In less a busy machine has no time for queues of calls, from which gaps are taken.
constexpr double kTimeForQueues = 1.5;  // seconds

TEST(AllReduceBench, GivesEveryRankTheSameSamplesAndFindsNothingWrong) {
  int rounds = 0;
  const auto results = results_of(2, [&](const ProcessGroup& group) {
    AllReduceBenchOptions options{.sizes = {1 << 20, 4, 4096}, .seconds = kTimeForQueues, .on_progress = {}};
    if (group.rank == 0) options.on_progress = [&rounds](const std::string&) { ++rounds; };
    return measure_allreduce(group, options);
  });
  EXPECT_GE(rounds, AllReduceSchedule::kFewestRounds);
  EXPECT_LE(rounds, AllReduceSchedule::kMostRounds);
  ASSERT_THAT(results[0], SizeIs(3));
  for (size_t i = 0; i < 3; ++i) {
    const AllReduceSeries& size = results[0][i];
    EXPECT_EQ(size.wrong, 0);
    EXPECT_GE(size.isolated_s.size(), static_cast<size_t>(rounds));
    EXPECT_GE(size.gap_s.size(), static_cast<size_t>(rounds));
    EXPECT_THAT(size.isolated_s, Each(Gt(0)));
    EXPECT_EQ(size.isolated_s, results[1][i].isolated_s);
    EXPECT_EQ(size.gap_s, results[1][i].gap_s);
  }
  EXPECT_EQ(results[0][0].bytes, 1 << 20);
}

TEST(AllReduceBench, SumsWhatGradientsAreMadeOf) {
  run_ranks(2, [](const ProcessGroup& group) {
    for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf, at::kDouble}) {
      const auto series = measure_allreduce(group, {.sizes = {8, 4096}, .dtype = dtype, .seconds = 0.1, .on_progress = {}});
      for (const AllReduceSeries& size : series) EXPECT_EQ(size.wrong, 0);
    }
  });
}

TEST(Collectives, OfEverySizeAreMeasuredInTurnsAndGiveEveryRankItsSumsAndEverybodysSlices) {
  for (const int ranks : {2, 3}) {
    const AllReduceBenchOptions options{
        .sizes = {24, 48'000}, .collectives = {kCollectives.begin(), kCollectives.end()}, .seconds = kTimeForQueues, .on_progress = {}};
    const auto results = results_of(ranks, [&](const ProcessGroup& group) { return measure_allreduce(group, options); });
    ASSERT_THAT(results[0], SizeIs(6));
    for (size_t i = 0; i < 6; ++i) {
      const AllReduceSeries& one = results[0][i];
      EXPECT_EQ(one.collective, kCollectives[i % 3]);
      EXPECT_EQ(one.bytes, i < 3 ? 24 : 48'000);
      EXPECT_EQ(one.wrong, 0) << i;
      EXPECT_GE(one.isolated_s.size(), static_cast<size_t>(AllReduceSchedule::kFewestRounds));
      EXPECT_GE(one.gap_s.size(), static_cast<size_t>(AllReduceSchedule::kFewestRounds));
      EXPECT_THAT(one.gap_s, Each(Gt(0)));
      EXPECT_EQ(one.block_s.size(), results[0][0].block_s.size());
      EXPECT_EQ(one.isolated_s, results[1][i].isolated_s);
    }
  }
}

TEST(SlicedSizes, GiveEveryRankWholeElementsAndAreDistinct) {
  EXPECT_THAT(sliced_sizes({4, 8, 4096, 4100}, 3), ElementsAre(12, 4104));
  EXPECT_THAT(sliced_sizes({4096, 4104}, 2, at::kDouble), ElementsAre(4096, 4112));
  EXPECT_THAT(sliced_sizes({6}, 2, at::kBFloat16), ElementsAre(8));
}

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

TEST(ChunkCount, RoundsUpAndIsBounded) {
  EXPECT_EQ(chunk_count(60'000'000, 4096), 58594);
  EXPECT_EQ(chunk_count(1024, 4096), 1);
  EXPECT_EQ(chunk_count(1025, 4096), 2);
  EXPECT_EQ(chunk_count(kMostChunks, 4), kMostChunks);
  EXPECT_THROW(chunk_count(kMostChunks + 1, 4), InputError);
}

TEST(ChunkSizes, EndWithEverythingInOneCallWhenTheyReachThatFar) {
  EXPECT_THAT(chunk_sizes({4, 16, 64, 256, 1024}, 25), ElementsAre(4, 16, 64, 100));
  EXPECT_THAT(chunk_sizes({4, 16, 64}, 25), ElementsAre(4, 16, 64));
  EXPECT_THAT(chunk_sizes({4, 16, 100}, 25), ElementsAre(4, 16, 100));
  EXPECT_THAT(chunk_sizes({1024}, 25), ElementsAre(100));
}

TEST(ChunksBench, SumsEveryElementAndGivesEveryRankTheSameSamples) {
  const auto results = results_of(2, [](const ProcessGroup& group) {
    return measure_chunks(group, {.elements = 10'001, .chunk_bytes = {16, 4096, 40'004}, .seconds = 0.5, .on_progress = {}});
  });
  ASSERT_THAT(results[0], SizeIs(3));
  EXPECT_EQ(results[0][0].calls, 2501);  // more than kMostInFlight
  EXPECT_EQ(results[0][1].calls, 10);
  EXPECT_EQ(results[0][2].calls, 1);
  for (size_t i = 0; i < 3; ++i) {
    const ChunksPoint& point = results[0][i];
    EXPECT_EQ(point.wrong, 0);
    EXPECT_THAT(point.total_s, Each(Gt(0)));
    EXPECT_EQ(point.total_s, results[1][i].total_s);
  }
  EXPECT_GT(results[0][0].gap_s, 0);
}

size_t samples_taken(double seconds) {
  size_t samples = 0;
  run_ranks(2, [&](const ProcessGroup& group) {
    ChunksBenchOptions options{.elements = 1000, .chunk_bytes = {400, 4000}, .seconds = seconds, .on_progress = {}};
    if (group.rank == 0) options.on_progress = [&samples](const std::string&, double) { ++samples; };
    measure_chunks(group, options);
  });
  return samples;
}

TEST(ChunksBench, MeasuresEverySizeOnceEvenWithoutTimeAndMoreOftenWhereThereIsSome) {
  EXPECT_EQ(samples_taken(1e-9), 2);
  EXPECT_GT(samples_taken(1), 2 * kFewestSamples);
}

}  // namespace
}  // namespace firkin
