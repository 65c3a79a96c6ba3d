#include "bench/allreduce_bench.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "../comm/thread_ranks.h"
#include "firkin/base/error.h"
#include "firkin/stats/estimates.h"

namespace firkin {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::Gt;
using testing::SizeIs;

TEST(ChunkCount, RoundsUpAndIsBounded) {
  EXPECT_EQ(chunk_count(60'000'000, 4096), 58594);
  EXPECT_EQ(chunk_count(1024, 4096), 1);
  EXPECT_EQ(chunk_count(1025, 4096), 2);
  EXPECT_EQ(chunk_count(kMostChunks, 4), kMostChunks);
  EXPECT_THROW(chunk_count(kMostChunks + 1, 4), InputError);
  EXPECT_THROW(chunk_count(0, 4), InputError);
  EXPECT_THROW(chunk_count(10, 0), InputError);
  EXPECT_THROW(chunk_count(10, 6), InputError);
}

TEST(ChunkSizes, EndWithEverythingInOneCallWhenTheyReachThatFar) {
  EXPECT_THAT(chunk_sizes({4, 16, 64, 256, 1024}, 25), ElementsAre(4, 16, 64, 100));
  EXPECT_THAT(chunk_sizes({4, 16, 64}, 25), ElementsAre(4, 16, 64));
  EXPECT_THAT(chunk_sizes({4, 16, 100}, 25), ElementsAre(4, 16, 100));
  EXPECT_THAT(chunk_sizes({1024}, 25), ElementsAre(100));
}

TEST(ChunksBench, SumsEveryElementAndGivesEveryRankTheSameSamples) {
  std::array<std::vector<ChunksPoint>, 2> results;
  run_ranks(2, [&](const ProcessGroup& group) {
    results[static_cast<size_t>(group.rank)] =
        measure_chunks(group, {.elements = 10'001, .chunk_bytes = {16, 4096, 40'004}, .seconds = 0.5, .on_progress = {}});
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
