// The strategy sharded: a part of the optimiser on every rank, and what travels (late_test.cpp, strategies_test.cpp: that it trains as
// bucketed).
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "ddp/sharded/slices.h"
#include "training.h"

namespace firkin {
namespace {

TEST(Sharded, ARankKeepsItsPartOfTheOptimizersState) {
  for (const char* optimizer : {"SGD", "AdamW"}) {
    const TrainingSetup setup{.optimizer = optimizer, .steps = 2};
    const Trained alone = train_on_ranks(1, {setup})[0][0];
    const int64_t plain = alone.state_elements, largest = std::ranges::max(alone.parameters, {}, &at::Tensor::numel).numel();
    for (const int world_size : {2, 4}) {
      const std::vector<TrainedRanks> trained = train_on_ranks(world_size, under({kSharded.begin(), kSharded.end()}, setup));
      for (size_t i = 0; i < trained.size(); ++i) {
        int64_t sum = 0;
        for (const Trained& rank : trained[i]) {
          const int64_t uneven = kSharded[i] == kWhole ? largest : 1500 / 8;  // a bucket's
          EXPECT_LE(rank.state_elements, plain / world_size + uneven) << kSharded[i];
          sum += rank.state_elements;
        }
        EXPECT_EQ(sum, plain);
      }
    }
  }
}

// It sends nothing, its parameters are all its own, and both halves of a step take the link's time.
TEST(Sharded, OneRankThatStandsForManyTrainsAsAloneAndWaitsForTheLink) {
  const ModelledLink link = parse_link(kLateLink, 4);
  for (const std::string& strategy : kSharded) {
    SCOPED_TRACE(strategy);
    const TrainingSetup setup{.strategy = strategy, .steps = 4};
    const Trained alone = train_on_ranks(1, {setup})[0][0];
    Trained of_many;
    run_ranks_with(1, {.timeout = std::chrono::seconds(60), .link = link},
                   [&](const ProcessGroup& group) { of_many = train(group, setup); });
    EXPECT_TRUE(same_bits(of_many.parameters, alone.parameters));
    ASSERT_FALSE(of_many.stats.buckets.empty());
    for (const BucketStats& bucket : of_many.stats.buckets) {
      EXPECT_GE(bucket.end_s - bucket.launch_s, share_time(link, bucket.bytes_on_wire).alone_s);
    }
    EXPECT_EQ(alone.stats.forward_wait_s, 0);
    EXPECT_GT(of_many.stats.forward_wait_s, 0) << "no module waited for the parameters that its bucket gathers";
  }
}

// The bucket's sum over three ranks is `sum`, of which each rank first has its slice, and then everything.
void expect_sum_in_slices(const ProcessGroup& group, SlicedBucket slices, const at::Tensor& sum) {
  const at::Tensor bucket = sum * std::vector<double>{0.5, 0.25, 0.25}[static_cast<size_t>(group.rank)];
  const BucketReduction reduction = slices.launch(group, bucket);
  if (reduction.finish) reduction.finish();
  wait(group, reduction.work, "slices");
  slices.finish(group, bucket);
  const at::Tensor own = slices.own(group, bucket).clone();
  EXPECT_TRUE(at::equal(own, slices.own(group, sum)));
  bucket.fill_(-1);
  slices.own(group, bucket).copy_(own);
  slices.gather(group, bucket);
  slices.wait_for_gather(group, [] { return std::string("slices"); });
  EXPECT_TRUE(at::equal(bucket, sum));
}

TEST(Slices, OfAnyLengthsTravelAndAddUp) {
  run_ranks(3, [](const ProcessGroup& group) {
    for (const SliceLengths& lengths : {SliceLengths{4, 2, 4}, SliceLengths{6, 0, 4}, SliceLengths{0, 10, 0}}) {
      expect_sum_in_slices(group, SlicedBucket(lengths), at::arange(10, at::kDouble));
    }
    expect_sum_in_slices(group, SlicedBucket(), at::arange(3 * 1'000'003, at::kInt).to(at::kFloat));  // in two pieces of unequal length
  });
}

}  // namespace
}  // namespace firkin
