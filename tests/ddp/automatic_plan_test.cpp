// What automatic buckets decide with: all-reduces between steps, the choice, the trial.

#include "../test.h"
#include "ddp/automatic/automatic.h"
#include "ddp/ready_order.h"
#include "firkin/base/units.h"
#include "firkin/plan/decision.h"
#include "training.h"

namespace firkin {
namespace {

TEST(AllReduceSampler, GivesEveryRankTheSameCurvesAndNoneIsFasterThanTheLink) {
  const auto measure = [](const ProcessGroup& group) {
    AllReduceSampler sampler(group, 300000, 4, at::kFloat, 5);
    int visits = 1;
    while (!sampler.measure_some()) ++visits;
    EXPECT_GT(visits, 1);
    EXPECT_FALSE(sampler.is_cut_short());
    return sampler.table();
  };
  const std::vector<AllReduceTable> tables = results_of(2, measure, "100mbit,100us");
  const ModelledLink link = parse_link("100mbit,100us", 2);
  ASSERT_EQ(tables[0].size(), tables[1].size());
  for (size_t i = 0; i < tables[0].size(); ++i) {
    const AllReduceRow& row = tables[0][i];
    EXPECT_EQ(row.bytes, tables[1][i].bytes);
    EXPECT_EQ(row.median_s, tables[1][i].median_s);
    EXPECT_EQ(row.gap_s, tables[1][i].gap_s);
    EXPECT_GE(row.median_s, all_reduce_time(link, row.bytes).alone_s);
  }
  EXPECT_EQ(tables[0].back().bytes, 300000);
}

TEST(AllReduceSampler, CountsBytesOfGradientsWhenSomethingSmallerTravels) {
  run_linked_ranks(2, "100mbit,100us", [](const ProcessGroup& group) {
    AllReduceSampler sampler(group, 100000, 8, at::kBFloat16, 0.5);
    while (!sampler.measure_some()) {
    }
    const AllReduceTable table = sampler.table();
    EXPECT_EQ(table.front().bytes, 8);
    EXPECT_EQ(table.back().bytes, 100000);
    EXPECT_GE(table.back().median_s, all_reduce_time(parse_link("100mbit,100us", 2), 25000).alone_s);
  });
}

// Tensors that are ready one after another over 150 ms.
struct TimedTensors {
  std::vector<NamedTensor> parameters;
  TrainingTimes times;
  AllReduceTable table;  // over 1 Gbit/s

  explicit TimedTensors(double step_s, int64_t count = 60, int64_t elements = 100000) {
    for (int64_t i = 0; i < count; ++i) {
      parameters.push_back({fmt::format("p{}", i), at::empty({elements}, at::kFloat)});
      times.ready_s.push_back(0.150 * static_cast<double>(count - 1 - i) / static_cast<double>(count));  // in reverse
      times.needed_s.push_back(0.075 * static_cast<double>(i) / static_cast<double>(count));
    }
    times.step_s = step_s;
    times.backward_s = 0.150;
    times.forward_s = 0.075;
    times.launch_s = 30e-6;
    const ModelledLink link = parse_link("1gbit", 2);
    for (const int64_t bytes : allreduce_sizes(count * elements * kFloatBytes)) {
      const auto [alone_s, gap_s] = all_reduce_time(link, bytes);
      table.push_back({.bytes = bytes, .world_size = 2, .median_s = alone_s, .gap_s = gap_s});
    }
  }

  PlanChoice choose(const DataParallelOptions& options = with_strategy("bucketed", 25 * kMiB)) {
    std::vector<int64_t> reverse(parameters.size());
    for (size_t i = 0; i < reverse.size(); ++i) reverse[i] = static_cast<int64_t>(reverse.size() - 1 - i);
    const CommunicationPlan in_use = plan_communication(parameters, reverse, options);
    PlanChoice choice = choose_plan(parameters, options, times, table, 2, in_use);
    check_plan(choice.plan.plan, std::ssize(parameters));
    return choice;
  }
};

TEST(PlanChoice, BeatsOneBucketOfEverything) {
  TimedTensors training(0.400);
  const PlanChoice choice = training.choose();
  check_communication(training.parameters, choice.plan.order, choice.plan.plan);
  EXPECT_NEAR(choice.in_use_s, training.times.step_s, 1e-9);
  EXPECT_LT(choice.step_s, 0.75 * choice.in_use_s);
  EXPECT_GT(choice.plan.plan.buckets.size(), 10u);
  EXPECT_EQ(choice.plan.order.front(), 59);
}

// 190 ms of communication beside 225 of computation: a wait for the last bucket costs, and one in the next forward does not.
TEST(PlanChoice, UnderOrderedKnowsWhatTheNextForwardHides) {
  TimedTensors training(0.400);
  const PlanChoice bucketed = training.choose();
  const PlanChoice ordered = training.choose(with_strategy("ordered", 25 * kMiB));
  check_communication(training.parameters, ordered.plan.order, ordered.plan.plan);
  EXPECT_EQ(ordered.plan.plan.launch_order.size(), ordered.plan.plan.buckets.size());
  EXPECT_NEAR(ordered.in_use_s, training.times.step_s, 1e-9);
  EXPECT_LT(ordered.step_s, bucketed.step_s);
}

// With more and with fewer tensors than the exact search takes with the time of a launch.
TEST(PlanChoice, BeatsABucketOfEachOfManySmallTensors) {
  for (const int64_t count : {400, 1200}) {
    TimedTensors training(0.250, count, 1000);
    const PlanChoice choice = training.choose(with_strategy("bucketed", kKiB));
    check_communication(training.parameters, choice.plan.order, choice.plan.plan);
    EXPECT_LT(choice.step_s, 0.97 * choice.in_use_s);
    EXPECT_LT(choice.plan.plan.buckets.size(), 100u);
  }
}

TEST(PlanChoice, OfTheBestFindsNothingBetter) {
  TimedTensors training(0.300);
  const PlanChoice best = training.choose();
  const PlanChoice again =
      choose_plan(training.parameters, with_strategy("bucketed", 25 * kMiB), training.times, training.table, 2, best.plan);
  EXPECT_NEAR(again.step_s / again.in_use_s, 1, 2e-3);
}

// The model of `tune` without a calibration; the best plan may be better still.
TEST(PlanChoice, IsAsGoodAsTheCapThatTuneDecidesOn) {
  TimedTensors training(0.400);
  const DataParallelOptions options = with_strategy("bucketed", 25 * kMiB);
  std::vector<int64_t> order(training.parameters.size());
  std::iota(order.rbegin(), order.rend(), 0);
  const TensorProfile profile = profile_in_order(training.parameters, order, training.times.ready_s, training.times.backward_s);
  const StepModel model{.profile = profile,
                        .costs = comm_costs(training.table, 2),
                        .simulation = {.overhead_s = training.times.launch_s},
                        .none_step_s = 0.225,
                        .bare_backward_s = profile.backward_s};
  const std::vector<PredictedCap> caps = caps_to_race(model, options.cap, {});
  const PredictedCap& tuned = caps[weigh(caps).choice];
  const PlanChoice choice = training.choose(options);
  EXPECT_LE(predict_step(model, choice.plan.plan), 1.001 * tuned.time_s) << format_bytes(tuned.cap_bytes);
}

TEST(PlanChoice, WithSeveralDtypesIsACapAndMixesNone) {
  TimedTensors training(0.400);
  for (size_t i = 0; i < training.parameters.size(); i += 3) training.parameters[i].tensor = at::empty({50000}, at::kDouble);
  const PlanChoice choice = training.choose();
  check_communication(training.parameters, choice.plan.order, choice.plan.plan);
  EXPECT_THAT(choice.name, HasSubstr("caps"));
  EXPECT_LT(choice.step_s, choice.in_use_s);
}

TEST(PlanChoice, KeepsAReadyOrderThatIsGiven) {
  TimedTensors training(0.400);
  DataParallelOptions options = with_strategy("bucketed", 25 * kMiB);
  for (int64_t i = 0; i < 60; ++i) options.ready_order.push_back((i + 30) % 60);
  EXPECT_EQ(training.choose(options).plan.order, options.ready_order);
}

TEST(PlanTrial, TheFirstStepOfABlockDoesNotCountAndAnOutlierDecidesNothing) {
  PlanTrial trial(8, 5);
  std::vector<double> period_s;
  for (int64_t step = 0; !trial.is_over(); ++step) {
    const bool is_first = step % 5 == 0;
    const double noise = 1 + 0.001 * static_cast<double>(step * 7 % 11);
    period_s.push_back(is_first || step == 17 ? 9 : (trial.uses_new() ? 0.9 : 1.0) * noise);
    trial.step_ended();
  }
  const PlanTrial::Verdict verdict = trial.judge(period_s);
  EXPECT_NEAR(verdict.new_to_old.ratio, 0.9, 0.005);
  EXPECT_LT(verdict.new_to_old.interval.high, 1);
  EXPECT_NEAR(verdict.old_s, 1, 0.02);
  EXPECT_NEAR(verdict.new_s, 0.9, 0.02);
}

TEST(PlanOfRank0, HasItsOrdersAndBuckets) {
  const CommunicationPlan plan = {{2, 0, 1}, {{{0, 1}, {1, 2}}, {1, 0}}};
  run_ranks(2, [&](const ProcessGroup& group) {
    const std::optional<CommunicationPlan> ours = group.rank == 0 ? std::optional(plan) : std::nullopt;
    EXPECT_EQ(plan_of_rank_0(group, ours), plan);
    EXPECT_EQ(plan_of_rank_0(group, std::nullopt), std::nullopt);
  });
}

}  // namespace
}  // namespace firkin
