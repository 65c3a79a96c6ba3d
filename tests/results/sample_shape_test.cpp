// Outliers and two modes are marked on rows, and modes are said in a note.
#include "results/results.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace firkin {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// Twenty calls around `usual_s`; every third takes `other_s`.
std::vector<double> calls(double usual_s, double other_s) {
  std::vector<double> samples;
  for (int i = 0; i < 20; ++i) samples.push_back((i % 3 == 0 ? other_s : usual_s) * (1 + 0.01 * (i * 7 % 5)));
  return samples;
}

TEST(SampleShapes, OfAnAllReduceThatTakesTwoOrSevenMillisecondsAreMarkedAndSaid) {
  Results results;
  results.allreduce = {{.bytes = 1 << 20, .world_size = 2, .median_s = 1e-3}, {.bytes = 4 << 20, .world_size = 2, .median_s = 2e-3}};
  results.allreduce_samples = AllReduceSamples{.bytes = {1 << 20, 4 << 20}, .isolated_s = {calls(1e-3, 1e-3), calls(2e-3, 7e-3)}};
  mark_sample_shapes(results);
  EXPECT_FALSE(results.allreduce[0].modes_s);
  ASSERT_TRUE(results.allreduce[1].modes_s);
  EXPECT_NEAR(results.allreduce[1].modes_s->low, 2e-3, 1e-4);
  EXPECT_NEAR(results.allreduce[1].modes_s->high, 7e-3, 3e-4);
  EXPECT_THAT(results.notes, ElementsAre(AllOf(HasSubstr("4 MiB"), HasSubstr("2.04 ms"), HasSubstr("7.07 ms"), HasSubstr("35.0 %"))));
}

// Nine settings in 15 blocks; the fourth block takes `slow_block` times as long as the others, and one step of the last setting 3 times.
Results steps_in_blocks(double slow_block) {
  std::mt19937 random(1);
  const auto noise = [&] { return 1e-11 * static_cast<double>(random() % 1000000007); };  // uniform, up to 1 %
  std::vector<std::vector<double>> step_s;
  for (int setting = 0; setting < 9; ++setting) {
    std::vector<double> samples;
    for (int block = 0; block < 15; ++block) samples.push_back((block == 3 ? slow_block : 1) * (1 + noise() + noise() + noise()));
    step_s.push_back(samples);
  }
  step_s[8][8] *= 3;
  Results results;
  for (int i = 0; i < 8; ++i) results.strategies.push_back({.strategy = "none"});
  results.curve = {{.cap_mib = 4}};
  results.step_samples = StepSamples{.step_s = step_s};
  mark_sample_shapes(results);
  return results;
}

TEST(SampleShapes, OfStepsAreThoseOfTheSettingsOnceTheBlocksAreTakenOut) {
  const Results even = steps_in_blocks(1), uneven = steps_in_blocks(9);
  EXPECT_GE(uneven.curve[0].outliers, 1);
  const auto outliers = [](const Results& results) {
    int64_t sum = 0;
    for (const StrategyRow& row : results.strategies) sum += row.outliers.value_or(0);
    return sum;
  };
  EXPECT_LT(outliers(uneven), outliers(even) + 4);  // the slow block would be one more of each of the eight
  EXPECT_THAT(uneven.notes, IsEmpty());
}

TEST(SampleShapes, OfChunksAndConfigurationsAreMarkedAsWell) {
  Results results;
  results.chunks = {{.chunk_bytes = 4096}};
  results.chunk_totals_s = {calls(0.5, 2)};
  StepConfiguration configuration;
  configuration.strategies = {{.strategy = "bucketed", .cap_mib = 25}};
  configuration.samples.step_s = {calls(0.1, 0.3)};
  results.configurations.push_back(configuration);
  mark_sample_shapes(results);
  EXPECT_TRUE(results.chunks[0].modes_s);
  EXPECT_TRUE(results.configurations[0].strategies[0].modes_s);
  EXPECT_THAT(results.notes, ElementsAre(HasSubstr("bucketed 25 MiB"), HasSubstr("4 KiB")));
}

TEST(SampleShapes, OfAResultWithoutSamplesAreNotKnown) {
  Results results;
  results.allreduce = {{.bytes = 4, .world_size = 2, .median_s = 1}};
  results.strategies = {{.strategy = "none"}};
  mark_sample_shapes(results);
  EXPECT_FALSE(results.allreduce[0].outliers);
  EXPECT_FALSE(results.strategies[0].outliers);
}

}  // namespace
}  // namespace firkin
