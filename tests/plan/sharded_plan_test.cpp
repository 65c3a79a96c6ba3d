#include "firkin/plan/sharded_plan.h"

#include <ranges>

#include "../test.h"
#include "helpers.h"

namespace firkin {
namespace {

constexpr int64_t kTwoRanks = 2;

// Stepping them takes two ranks 1 s and 0.5 s.
TensorProfile stepped_tensors() {
  TensorProfile profile = two_tensors();
  profile.update_s = {2, 1};
  return profile;
}

const CommCosts kTwoSeconds = linear_costs(1, 0.125), kOneSecond = linear_costs(0.5, 0.0625), kFourSeconds = linear_costs(3, 0.125);

TEST(SimulateSharded, StepsWhatForwardNeedsFirstAndGathersItUnderTheOthers) {
  // Sums arrive at 3 and 5. Bucket 1 is stepped until 5.5 and gathered until 6.5; bucket 0 until 6.5 and 7.5. Forward runs from 6.5.
  const Pipeline step = simulate_sharded(stepped_tensors(), kTwoBuckets, {kTwoSeconds, kOneSecond}, kTwoRanks);
  EXPECT_DOUBLE_EQ(step.period_s, 10.5);
  EXPECT_DOUBLE_EQ(step.forward_end_s, 4);
  EXPECT_DOUBLE_EQ(step.backward_end_s, 6);
  EXPECT_DOUBLE_EQ(step.waited_s, 3);
  EXPECT_DOUBLE_EQ(step.computation_s, 7.5);
  EXPECT_DOUBLE_EQ(step.communication_s, 6);
}

TEST(SimulateSharded, ForwardWaitsForParametersThatAreNotThere) {
  // Gathered until 9.5 and 13.5; forward stops at 6.5 and at 12.5.
  const Pipeline step = simulate_sharded(stepped_tensors(), kTwoBuckets, {kTwoSeconds, kFourSeconds}, kTwoRanks);
  EXPECT_DOUBLE_EQ(step.period_s, 14.5);
  EXPECT_DOUBLE_EQ(step.waited_s, 3 + 3 + 1);
}

TEST(SimulateSharded, RefusesNoRanks) {
  const ShardedCosts costs = {kTwoSeconds, kOneSecond};
  EXPECT_EQ(error_of([&] { simulate_sharded(stepped_tensors(), kTwoBuckets, costs, 0); }), "sharded among 0 ranks; expected at least 1");
}

// From the words in timeline.h, tensor by tensor, without contention.
double slow_period(const TensorProfile& profile, const BucketPlan& plan, const ShardedCosts& costs, double ranks,
                   const SimulationOptions& options) {
  const std::vector<int64_t> bytes = bucket_bytes(plan, profile.bytes);
  const auto tensors = [](const Bucket& bucket) { return std::views::iota(bucket.first, bucket.first + bucket.count); };
  const auto at = [](const std::vector<double>& values, int64_t i) { return values.empty() ? 0 : values[static_cast<size_t>(i)]; };
  double link = -std::numeric_limits<double>::infinity(), launch = 0, calls_s = 0;
  std::vector<double> needed(plan.buckets.size(), std::numeric_limits<double>::infinity()), arrival(plan.buckets.size());
  for (size_t k = 0; k < plan.buckets.size(); ++k) {
    calls_s += options.overhead_s;
    for (const int64_t i : tensors(plan.buckets[k])) {
      launch = std::max(launch, at(profile.ready_s, i));
      needed[k] = std::min(needed[k], at(profile.needed_s, i));
    }
    const auto size = static_cast<double>(bytes[k]);
    link = std::max(launch + calls_s + costs.reduce_scatter.isolated(size), link + costs.reduce_scatter.gap(size));
  }
  double now = std::max(profile.backward_s + calls_s + options.agreement_s, link);
  std::vector<size_t> order(plan.buckets.size());
  std::iota(order.rbegin(), order.rend(), size_t{0});
  std::ranges::stable_sort(order, {}, [&](size_t k) { return needed[k]; });
  for (const size_t k : order) {
    now += options.overhead_s;
    for (const int64_t i : tensors(plan.buckets[k])) now += at(profile.update_s, i) / ranks;
    const auto size = static_cast<double>(bytes[k]);
    link = arrival[k] = std::max(now + costs.all_gather.isolated(size), link + costs.all_gather.gap(size));
  }
  const double forward_start = now;
  double late = 0;  // how far forward is behind its times without waits
  std::vector<std::pair<double, double>> uses;
  for (size_t k = 0; k < plan.buckets.size(); ++k) uses.emplace_back(needed[k], arrival[k]);
  std::ranges::sort(uses);
  for (const auto& [needed_s, arrives] : uses) late = std::max(late, arrives - forward_start - needed_s);
  return forward_start + profile.forward_s + late;
}

TEST(SimulateSharded, EqualsTheWordsAndIsNeverBelowTheBound) {
  for (uint64_t seed = 0; seed < 500; ++seed) {
    RandomInstance random(seed);
    const int64_t tensors = random.integer(1, 15), ranks = random.integer(1, 9);
    const TensorProfile profile = random.profile_with_forward(tensors);
    const BucketPlan plan = random.plan(tensors);
    const ShardedCosts costs = {random.costs(), random.costs()};
    SimulationOptions options;
    if (seed % 2 == 0) options = {.overhead_s = 2e-3, .agreement_s = 3e-3};
    const double period_s = simulate_sharded(profile, plan, costs, ranks, options).period_s;
    const double expected = slow_period(profile, plan, costs, static_cast<double>(ranks), options);
    EXPECT_NEAR(period_s, expected, 1e-9 * expected) << "seed " << seed;
    EXPECT_LE(sharded_bound_s(profile, costs, ranks, options), period_s * (1 + 1e-12)) << "seed " << seed;
  }
}

TEST(SimulateSharded, ContentionNeverMakesItFaster) {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    RandomInstance random(seed);
    const TensorProfile profile = random.profile_with_forward(10);
    const BucketPlan plan = random.plan(10);
    const ShardedCosts costs = {random.costs(), random.costs()};
    const SimulationOptions contended = {.compute_slowdown = 1.5};
    const double period_s = simulate_sharded(profile, plan, costs, 4, contended).period_s;
    EXPECT_GE(period_s * (1 + 1e-12), simulate_sharded(profile, plan, costs, 4).period_s) << "seed " << seed;
    EXPECT_GE(period_s * (1 + 1e-12), sharded_bound_s(profile, costs, 4, contended)) << "seed " << seed;
  }
}

TEST(FindShardedCap, NoCapIsAThousandthFasterAndItMakesThePlan) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    RandomInstance random(seed);
    const TensorProfile profile = random.profile_with_forward(random.integer(1, 12));
    const ShardedCosts costs = {random.costs(), random.costs()};
    ShardedSearch search = {.ranks = 4, .search = {.simulation = {.agreement_s = 1e-3}}};
    search.rule.rule = seed % 2 == 0 ? CapRule::kAtMost : CapRule::kCloseWhenFull;
    const ShardedCap best = find_sharded_cap(profile, costs, search);
    CapOptions rule = search.rule;
    rule.cap_bytes = best.cap_bytes;
    EXPECT_EQ(assign_buckets(profile.bytes, rule), best.plan) << "seed " << seed;
    for (rule.cap_bytes = 1; rule.cap_bytes < 3 * profile.total_bytes() + 2; rule.cap_bytes += 1 + rule.cap_bytes / 3) {
      const Pipeline other = simulate_sharded(profile, assign_buckets(profile.bytes, rule), costs, 4, {.agreement_s = 1e-3});
      EXPECT_LE(best.pipeline.period_s, other.period_s * (1 + 1.01e-3)) << "seed " << seed << ", cap " << rule.cap_bytes;
    }
  }
}

TEST(FindShardedCap, OfManyCapsThatMakeTheBucketsAHighOneIsNamed) {
  const TensorProfile profile = with_forward(make_profile({1024, 1 << 20, 1 << 20}, {1, 2, 3}), 3);
  const ShardedCap best = find_sharded_cap(profile, halves_of(linear_costs(1e-9, 1e-6)), {});
  EXPECT_EQ(best.plan.buckets.size(), 2U);  // a bucket closes once it is full: of 1025 bytes, or of a MiB
  EXPECT_EQ(best.caps.lowest_cap_bytes, 1025);
  EXPECT_GE(best.cap_bytes, 1 << 19);
  EXPECT_LE(best.cap_bytes, best.caps.highest_cap_bytes);
}

TEST(PredictSharded, ComparesPeriodsAndCountsElements) {
  const PredictedSharded sharded = predict_sharded(stepped_tensors(), {kTwoSeconds, kOneSecond}, {.ranks = 2}, 6);
  EXPECT_DOUBLE_EQ(sharded.bucketed_period_s, 4 + 6 + 3);
  EXPECT_DOUBLE_EQ(sharded.gain(), 1 - sharded.period_s / 13);
  EXPECT_GE(sharded.period_s, sharded.bound_s);
  EXPECT_EQ(sharded.plain.total(), 16 + 16 + 32);
  EXPECT_EQ(error_of([] { predict_sharded(stepped_tensors(), halves_of(kTwoSeconds), {.search = {.most_buckets = 0}}, 6); }),
            "no cap makes at most 0 buckets; expected more");
}

TEST(HalvesOf, AddUpToTheAllReduce) {
  const ShardedCosts halves = halves_of({linear_curve(1, 0.5), linear_curve(0.5, 0.5)});
  EXPECT_NEAR(halves.reduce_scatter.isolated(10) + halves.all_gather.isolated(10), 6, 1e-9);
  EXPECT_NEAR(halves.reduce_scatter.gap(10) + halves.all_gather.gap(10), 5.5, 1e-9);
}

TEST(ShardedCosts, QueuedCallsGainWhatAllReducesGain) {
  std::vector<CollectiveRow> rows = {{.collective = "all_reduce", .bytes = 8, .seconds = 9},
                                     {.collective = "reduce_scatter", .bytes = 8, .seconds = 2},
                                     {.collective = "all_gather", .bytes = 8, .seconds = 3}};
  const ShardedCosts measured = sharded_costs(rows);
  const ShardedCosts costs = calibrated(measured, {linear_curve(8, 1), linear_curve(4, 0.5)}, 1);
  EXPECT_DOUBLE_EQ(costs.reduce_scatter.isolated(8), 2);
  EXPECT_NEAR(costs.reduce_scatter.gap(8), 1, 1e-12);
  EXPECT_NEAR(costs.all_gather.gap(8), 1.5, 1e-12);
  EXPECT_DOUBLE_EQ(calibrated(measured, {linear_curve(4, 1), linear_curve(9, 1)}, 1).all_gather.gap(8), 3);
  rows[1].gap_s = 1.75;
  const ShardedCosts half = calibrated(sharded_costs(rows), {linear_curve(8, 1), linear_curve(4, 0.5)}, 1);
  EXPECT_DOUBLE_EQ(half.reduce_scatter.gap(8), 1.75);
  EXPECT_NEAR(half.all_gather.gap(8), 1.5, 1e-12);
  rows.pop_back();
  EXPECT_EQ(error_of([&] { sharded_costs(rows); }), "no all_gather was measured; expected both reduce_scatter and all_gather");
}

TEST(ShardedMemory, DividesTheStateAndKeepsReceivedSlices) {
  const TrainedMemory adamw = {.elements = 100};
  EXPECT_EQ(plain_memory(adamw).total(), 400 + 400 + 800);
  const RankMemory of_8 = sharded_memory(adamw, 8);  // 13 elements at most
  EXPECT_EQ(of_8.optimizer, 2 * 4 * 13);
  EXPECT_EQ(of_8.received, 400);
  EXPECT_EQ(of_8.total(), 400 + 400 + 400 + 104);
  EXPECT_EQ(sharded_memory(adamw, 1).total(), plain_memory(adamw).total());
  EXPECT_EQ(error_of([&] { sharded_memory(adamw, 0); }), "memory of 0 ranks; expected at least 1");
}

TEST(ShardedMemory, MastersAndTheirStateAreInFloat32) {
  const TrainedMemory bf16 = {.elements = 100, .element_bytes = 2};
  EXPECT_EQ(plain_memory(bf16).total(), 200 + 200 + 800 + 400);
  EXPECT_EQ(sharded_memory(bf16, 2).total(), 200 + 200 + 200 + 400 + 200);
}

}  // namespace
}  // namespace firkin
