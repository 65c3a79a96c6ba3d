#include "bench/chunks_bench.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "../comm/thread_ranks.h"
#include "firkin/base/error.h"
#include "firkin/stats/interval.h"

namespace firkin {
namespace {

using testing::DoubleNear;
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

TEST(SetGaps, FillsTheRowsOfItsWorldBetweenSmallestAndLargestChunk) {
  AllReduceTable table;
  for (const int64_t bytes : {4, 1024, 2048, 4096, 8192}) table.push_back({.bytes = bytes, .world_size = 2, .median_s = 0.1, .gap_s = 0.9});
  table.push_back({.bytes = 2048, .world_size = 4, .median_s = 1});
  const std::vector<ChunksPoint> points = {{.chunk_bytes = 1024, .calls = 8, .full_chunks = 8, .total_s = {}, .gap_s = 0.1},
                                           {.chunk_bytes = 4096, .calls = 2, .full_chunks = 2, .total_s = {}, .gap_s = 0.25},
                                           {.chunk_bytes = 8192, .calls = 1, .full_chunks = 1, .total_s = {}, .gap_s = 0.8}};
  EXPECT_EQ(set_gaps(table, 2, points), 3);
  EXPECT_EQ(table[0].gap_s, 0.9);
  EXPECT_THAT(*table[1].gap_s, DoubleNear(0.1, 1e-12));  // (8 * 0.1 - 0.1) / 7
  EXPECT_THAT(*table[2].gap_s, DoubleNear(0.2, 1e-12));  // a third of the way from one to the other
  EXPECT_THAT(*table[3].gap_s, DoubleNear(0.4, 1e-12));  // (2 * 0.25 - 0.1) / 1
  EXPECT_EQ(table[4].gap_s, 0.9);                        // one call is no queue
  EXPECT_FALSE(table[5].gap_s.has_value());
}

TEST(SetGaps, ChangesNothingWithoutAQueue) {
  AllReduceTable table = {{.bytes = 8192, .world_size = 2, .median_s = 1}};
  EXPECT_EQ(set_gaps(table, 2, {{.chunk_bytes = 8192, .calls = 1, .full_chunks = 1, .total_s = {}, .gap_s = 0.8}}), 0);
  EXPECT_FALSE(table[0].gap_s.has_value());
}

}  // namespace
}  // namespace firkin
