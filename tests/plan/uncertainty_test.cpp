#include "firkin/plan/uncertainty.h"

#include "../stats/synthetic_noise.h"
#include "../test.h"
#include "firkin/stats/estimates.h"
#include "helpers.h"

namespace firkin {
namespace {

constexpr CapOptions kRule = {.rule = CapRule::kAtMost};
const TensorProfile kFourTensors = even_profile(4, 8, 4);

TEST(RedrawCosts, SpreadAsTheStandardErrorOfAMedian) {
  // 1.2533 * 0.2 / sqrt(100): 2.5 % of the median.
  const AllReduceTable table = {
      {.bytes = kMiB, .world_size = 4, .median_s = 1, .gap_s = 0.5, .stdev_s = 0.2, .samples = 100},
      {.bytes = 2 * kMiB, .world_size = 4, .median_s = 3},
      {.bytes = kMiB, .world_size = 8, .median_s = 7, .stdev_s = 1, .samples = 4},
  };
  const std::vector<CommCosts> draws = redraw_costs(table, 4);
  ASSERT_EQ(draws.size(), static_cast<size_t>(kDraws));
  std::vector<double> logs;
  for (const CommCosts& draw : draws) {
    logs.push_back(std::log(draw.isolated(kMiB)));
    EXPECT_NEAR(draw.gap(kMiB), draw.isolated(kMiB) / 2, 1e-12);  // whatever made the call slow slows the queue
    EXPECT_DOUBLE_EQ(draw.isolated(2 * kMiB), 3);                 // of one sample nothing is known
  }
  EXPECT_NEAR(stdev(logs), 0.025, 0.005);
  EXPECT_NEAR(mean(logs), 0, 0.01);
}

TEST(RedrawCosts, SpreadAsMuchAsASeriesThatWandersWasWrong) {
  // Two hundred series of an all-reduce that stays slow or fast for a while: what their medians say, and what each expects of itself.
  SyntheticNoise noise(1);
  std::vector<double> medians, expected;
  for (int series = 0; series < 200; ++series) {
    std::vector<double> samples;
    double level = noise.normal();
    for (int i = 0; i < 60; ++i) {
      level = 0.8 * level + 0.6 * noise.normal();
      samples.push_back(std::exp(0.1 * level));
    }
    const AllReduceRow row = row_of_samples(kMiB, 4, samples, samples);
    medians.push_back(std::log(row.median_s));
    std::vector<double> isolated, gaps;
    for (const CommCosts& draw : redraw_costs({row}, 4)) {
      isolated.push_back(std::log(draw.isolated(kMiB)));
      gaps.push_back(std::log(draw.gap(kMiB)));
    }
    expected.push_back(stdev(isolated));
    EXPECT_NE(isolated, gaps);  // a queue has an error of its own
  }
  EXPECT_GT(median(expected) / stdev(medians), 0.7);  // of independent samples it is 0.4
  EXPECT_LT(median(expected) / stdev(medians), 1.8);
}

TEST(RedrawCosts, OfCallsOfWhichOneTookAThousandTimesAsLongStayNearTheMedian) {
  const AllReduceTable table = {
      {.bytes = kMiB, .world_size = 4, .median_s = 1e-3, .mean_s = 0.1, .stdev_s = 0.5, .min_s = 0.9e-3, .max_s = 2.5, .samples = 25}};
  std::vector<double> times;
  for (const CommCosts& costs : redraw_costs(table, 4)) times.push_back(costs.isolated(kMiB));
  EXPECT_GE(quantile(times, 0), 0.9e-3);
  EXPECT_LT(quantile(times, 0.975), 5e-3);
}

TEST(RedrawCosts, OfMediansAloneSayNothing) {
  EXPECT_TRUE(redraw_costs({{.bytes = kMiB, .world_size = 4, .median_s = 1}}, 4).empty());
  EXPECT_TRUE(redraw_costs({{.bytes = kMiB, .world_size = 4, .median_s = 1, .stdev_s = 0.1, .samples = 1}}, 4).empty());
}

TEST(WithModelErrors, HasEachErrorOfTheModelInTurn) {
  const InputDraw nominal{.costs = linear_costs(1, 1)};
  const std::vector<InputDraw> draws = with_model_errors({}, nominal);
  ASSERT_EQ(draws.size(), 7u);
  EXPECT_DOUBLE_EQ(draws[0].costs.isolated(8), 9);
  EXPECT_NEAR(draws[1].costs.isolated(8), 10, 1e-9);  // twice the latency
  EXPECT_DOUBLE_EQ(draws.back().compute_factor, std::exp(-0.1));
  EXPECT_EQ(with_model_errors(std::vector<InputDraw>(20, nominal), nominal).size(), 20u);
  EXPECT_DOUBLE_EQ(with_model_errors({}, nominal, 0.01).back().compute_factor, std::exp(-0.05));  // calibrated: half as wrong
}

TEST(PossibleInputs, HaveWhatTwoFilesCannotSayUnlessItIsKnown) {
  const SimulationOptions known = {.overhead_s = 0.01, .compute_slowdown = 1.5};
  const auto draws_of_latency = [](const std::vector<InputDraw>& draws) {
    std::vector<double> logs;
    for (const InputDraw& draw : draws) logs.push_back(std::log(draw.costs.isolated(1)));
    return stdev(logs);
  };
  const std::vector<InputDraw> guesses = possible_inputs({linear_costs(1, 1e-9)}, {}, false);
  ASSERT_EQ(guesses.size(), static_cast<size_t>(kDraws));
  EXPECT_NEAR(draws_of_latency(guesses), 0.35, 0.05);
  for (const InputDraw& draw : guesses) {
    EXPECT_GT(draw.simulation.compute_slowdown, 1);
    EXPECT_TRUE(draw.simulation.overhead_s > 0 && draw.simulation.overhead_s < 0.5 + 1e-6);
  }
  for (const InputDraw& draw : possible_inputs({linear_costs(1, 1e-9)}, known, true)) EXPECT_EQ(draw.simulation.overhead_s, 0.01);
  for (const InputDraw& draw : possible_inputs({linear_costs(1, 1e-9)}, {}, true)) EXPECT_EQ(draw.simulation.compute_slowdown, 1);
  EXPECT_EQ(error_of([] { possible_inputs({}, {}, false); }), "no all-reduce times to draw from; expected at least one curve");
}

TEST(PossibleInputs, OfAssumedComputingReachFarOnTheSlowerSideAlone) {
  const std::vector<InputDraw> measured = possible_inputs({linear_costs(1, 1e-9)}, {}, false);
  const std::vector<InputDraw> assumed = possible_inputs({linear_costs(1, 1e-9)}, {}, false, true);
  std::vector<double> factors;
  for (size_t draw = 0; draw < assumed.size(); ++draw) {
    const double factor = measured[draw].compute_factor;
    factors.push_back(assumed[draw].compute_factor);
    EXPECT_NEAR(assumed[draw].compute_factor, factor < 1 ? factor : std::pow(factor, kOfAssumedCompute / 0.15), 1e-9 * factors.back());
    EXPECT_EQ(assumed[draw].costs.isolated(8), measured[draw].costs.isolated(8));
  }
  EXPECT_GT(quantile(factors, 0.95), 9.1);  // what a course measured in float32
}

// Two buckets of 8 bytes and one of 16 take the same time; what errs is the time of either size alone.
TEST(PossibleInputs, AnErrorOfOneSizeOfBucketsIsNotOneOfAnother) {
  InputDraw draw{.costs = linear_costs(0, 1)};
  draw.by_bucket_bytes[3] = std::log(2);
  const TensorProfile profile = make_profile({8, 8}, {0, 0});
  EXPECT_NEAR(drawn_times(profile, one_bucket(2), {draw})[0], 16, 1e-9);
  EXPECT_NEAR(drawn_times(profile, one_tensor_per_bucket(2), {draw})[0], 32, 1e-9);
}

TEST(CapOdds, OfAPlanThatIsAlwaysBestAreExactlyOneWithoutRegret) {
  const CommCosts costs = linear_costs(0.25, 1.0 / 32);
  for (const size_t draws : {1u, 9u, 10u, 49u}) {  // 9, 10 and 49 times its share, added up, is above 1, below and above
    const CapOdds odds(kFourTensors, draws_of(std::vector<CommCosts>(draws, costs)), kRule);
    const BucketPlan named = odds.least_regret().plan;
    EXPECT_EQ(named, find_best_uniform_cap(kFourTensors, costs, kRule).plan) << draws;
    EXPECT_EQ(odds.of(named).expected_regret, 0) << draws;
    EXPECT_EQ(odds.of(named).near_best, 1) << draws;
  }
}

TEST(CapOdds, WeighWhatIsLostByHowOftenItIs) {
  // Under the fast draw one bucket ends at 4 + 1.25, two at 4.75, four at 4.5; under the slow one (16 s a call) at 21, 35 and 66.
  const CommCosts fast = linear_costs(0.25, 1.0 / 32), slow = linear_costs(16, 1.0 / 32);
  const CapOdds even(kFourTensors, draws_of({fast, slow}), kRule);
  const BucketPlan named = even.least_regret().plan;
  EXPECT_EQ(named.buckets.size(), 1u);
  EXPECT_NEAR(even.of(named).expected_regret, (5.25 / 4.5 - 1) / 2, 1e-12);
  EXPECT_NEAR(even.of(named).near_best, 0.5, 1e-12);
  // One slow draw in a hundred does not pay for a bucket that is always late: three tensors and one end at 4.5, and at 36.
  std::vector<CommCosts> rarely(100, fast);
  rarely[7] = slow;
  EXPECT_EQ(CapOdds(kFourTensors, draws_of(rarely), kRule).least_regret().plan.buckets.size(), 2u);
}

TEST(DrawnTimes, HoldMostOfTheDraws) {
  std::vector<CommCosts> costs;
  for (int i = 0; i <= 100; ++i) costs.push_back(linear_costs(0.25 + i / 100.0, 1.0 / 32));
  const std::vector<double> times = drawn_times(kFourTensors, one_bucket(4), draws_of(costs));
  EXPECT_NEAR(quantile(times, 0.025), 4 + 1.25 + 0.025, 1e-9);
  EXPECT_NEAR(quantile(times, 0.975), 4 + 1.25 + 0.975, 1e-9);
}

TEST(CapOdds, RejectNoDraws) {
  EXPECT_EQ(error_of([] { CapOdds(make_profile({8}, {1}), {}, kRule); }), "no draw of the inputs; expected at least one");
}

}  // namespace
}  // namespace firkin
