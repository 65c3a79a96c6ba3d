// When buckets leave and arrive, with contention and overhead too: against hand-computed cases and an independent simulation in small time
// steps.
#include "firkin/plan/timeline.h"

#include <deque>

#include "../test.h"
#include "firkin/plan/bucket_plan.h"
#include "helpers.h"

namespace firkin {
namespace {

struct Travel {
  const char* what;
  TensorProfile profile;
  BucketPlan plan;
  std::vector<std::array<double, 3>> buckets;  // ready, start and end, in launch order
  double exposed_s;
  CommCosts costs = kCosts;
};

TensorProfile backward_of(TensorProfile profile, double backward_s) {
  profile.backward_s = backward_s;
  return profile;
}

TEST(Simulate, BucketsTravelInTheirOrderWhenTheyAreReadyAndTheLinkIsFree) {
  const CommCosts queued = {linear_curve(1, 0.125), linear_curve(0.25, 0.03125)};  // a = 2 s, g = 0.5 s at 8 bytes
  const Travel travels[] = {
      {"an idle link takes a bucket when it is ready", make_profile({8, 8}, {1, 6}), kTwoBuckets, {{1, 1, 3}, {6, 6, 8}}, 2},
      {"a busy link takes one after another", make_profile({8, 8}, {1, 2}), kTwoBuckets, {{1, 1, 3}, {2, 3, 5}}, 3},
      {"a bucket is ready with its last tensor", make_profile({8, 16}, {1, 2}), one_bucket(2), {{2, 2, 6}}, 4},
      {"queued buckets are a gap apart",
       make_profile({8, 8, 8}, {0, 0.25, 0.5}),
       one_tensor_per_bucket(3),
       {{0, 0, 2}, {0.25, 2, 2.5}, {0.5, 2.5, 3}},
       2.5,
       queued},
      {"none is faster than on an idle link: 2.25 + 2, not 2 + 0.5",
       make_profile({8, 8}, {0, 2.25}),
       kTwoBuckets,
       {{0, 0, 2}, {2.25, 2.25, 4.25}},
       2,
       queued},
      {"what backward hides is not exposed", backward_of(make_profile({8}, {1}), 5), one_bucket(1), {{1, 1, 3}}, 0},
      {"one that is not ready holds up those launched after it",
       make_profile({8, 8}, {1, 4}),
       {kTwoBuckets.buckets, {1, 0}},
       {{4, 4, 6}, {1, 6, 8}},
       4},
  };
  for (const Travel& travel : travels) {
    SCOPED_TRACE(travel.what);
    const Timeline timeline = simulate(travel.profile, travel.plan, travel.costs);
    ASSERT_EQ(timeline.buckets.size(), travel.buckets.size());
    for (size_t k = 0; k < travel.buckets.size(); ++k) {
      const std::vector<int64_t> bytes = bucket_bytes(travel.plan, travel.profile.bytes);
      EXPECT_EQ(timeline.buckets[k].bytes, bytes[static_cast<size_t>(timeline.buckets[k].bucket)]);
      EXPECT_DOUBLE_EQ(timeline.buckets[k].ready_s, travel.buckets[k][0]) << k;
      EXPECT_DOUBLE_EQ(timeline.buckets[k].start_s, travel.buckets[k][1]) << k;
      EXPECT_DOUBLE_EQ(timeline.buckets[k].end_s, travel.buckets[k][2]) << k;
    }
    EXPECT_DOUBLE_EQ(timeline.compute_end_s, travel.profile.backward_s);
    EXPECT_DOUBLE_EQ(timeline.exposed_s, travel.exposed_s);
    EXPECT_DOUBLE_EQ(timeline.end_s, travel.profile.backward_s + travel.exposed_s);
  }
}

TEST(Simulate, WithoutTensorsThereIsOnlyBackward) {
  EXPECT_DOUBLE_EQ(simulate(backward_of({}, 3), {}, kCosts).end_s, 3);
}

TEST(Contention, SlowsBackwardOnlyWhileAnAllReduceRuns) {
  // From 1 to 3 s backward does one second's work of the two that are left; the last one takes until 4.
  const Timeline timeline = simulate(backward_of(make_profile({8}, {1}), 3), one_bucket(1), kCosts, {.compute_slowdown = 2});
  EXPECT_DOUBLE_EQ(timeline.buckets[0].end_s, 3);
  EXPECT_DOUBLE_EQ(timeline.compute_end_s, 4);
  EXPECT_DOUBLE_EQ(timeline.end_s, 4);
  EXPECT_DOUBLE_EQ(timeline.exposed_s, 1);
}

TEST(SimulationOptions, RejectValuesWithoutMeaning) {
  const auto error = [](const SimulationOptions& options) { return error_of([&] { check_options(options); }); };
  EXPECT_EQ(error({.overhead_s = -1}), "the overhead per call is -1; expected at least 0");
  EXPECT_EQ(error({.agreement_s = -1}), "the time to agree is -1; expected at least 0");
  EXPECT_EQ(error({.compute_slowdown = 0.5}), "the slowdown of computation is 0.5; expected at least 1");
  EXPECT_EQ(error({.compute_slowdown = std::nan("")}), "the slowdown of computation is nan; expected at least 1");
}

// end_k = max over m <= k of launch_m + a(S_m) + the gaps of m + 1 .. k: the recursion, written out.
double last_end_written_out(const TensorProfile& profile, const BucketPlan& plan, const CommCosts& costs) {
  const std::vector<int64_t> bytes = bucket_bytes(plan, profile.bytes);
  std::vector<size_t> order;
  for (size_t k = 0; k < plan.buckets.size(); ++k)
    order.push_back(plan.launch_order.empty() ? k : static_cast<size_t>(plan.launch_order[k]));
  double last = 0;
  for (size_t m = 0; m < order.size(); ++m) {
    double launch = 0;
    for (size_t i = 0; i <= m; ++i) {
      const Bucket& bucket = plan.buckets[order[i]];
      launch = std::max(launch, profile.ready_s[static_cast<size_t>(bucket.first + bucket.count - 1)]);
    }
    double end = launch + costs.isolated(static_cast<double>(bytes[order[m]]));
    for (size_t i = m + 1; i < order.size(); ++i) end += costs.gap(static_cast<double>(bytes[order[i]]));
    last = std::max(last, end);
  }
  return std::max(last, profile.backward_s);
}

TEST(Simulate, EqualsTheRecursionWrittenOut) {
  for (uint64_t seed = 0; seed < 500; ++seed) {
    RandomInstance random(seed);
    const int64_t tensors = random.integer(1, 30);
    const TensorProfile profile = random.profile(tensors);
    const CommCosts costs = random.costs();
    const BucketPlan plan = random.plan(tensors, seed % 2 == 0);
    const double expected = last_end_written_out(profile, plan, costs);
    EXPECT_NEAR(simulate(profile, plan, costs).end_s, expected, 1e-12 * expected) << "seed " << seed;
  }
}

struct SlowResult {
  double compute_end_s = 0;
  double end_s = 0;
};

// The same model in time steps of dt: everything that happens within a step happens at its end.
SlowResult simulate_in_steps(const TensorProfile& profile, const BucketPlan& plan, const CommCosts& costs, const SimulationOptions& options,
                             double dt) {
  const std::vector<int64_t> bytes = bucket_bytes(plan, profile.bytes);
  SlowResult result;
  struct Call {
    double isolated_left;
    double gap_left;
  };
  std::deque<Call> queue;  // one channel; the gap's clock starts when the call becomes the first of the queue
  double host = 0, host_total = profile.backward_s;
  size_t next = 0;
  double next_work = 0;
  const auto work_of = [&](size_t k) {  // host work from the launch before to the launch of bucket k
    const auto last = static_cast<size_t>(plan.buckets[k].first + plan.buckets[k].count - 1);
    const double previous_ready = k == 0 ? 0 : profile.ready_s[static_cast<size_t>(plan.buckets[k].first - 1)];
    return profile.ready_s[last] - previous_ready + options.overhead_s;
  };
  host_total += static_cast<double>(plan.buckets.size()) * options.overhead_s;
  bool first_call = true;
  double now = 0;
  for (; host < host_total || !queue.empty() || next < plan.buckets.size(); now += dt) {
    const bool computing = host < host_total;
    const bool communicating = !queue.empty();
    if (computing) host += dt / (communicating ? options.compute_slowdown : 1);
    if (computing && host >= host_total) result.compute_end_s = now + dt;
    for (Call& call : queue) call.isolated_left -= dt;
    if (communicating) {
      queue.front().gap_left -= dt;
      if (queue.front().isolated_left <= 0 && queue.front().gap_left <= 0) queue.pop_front();
    }
    while (next < plan.buckets.size() && host >= next_work + work_of(next) - 1e-12) {
      next_work += work_of(next);
      const auto size = static_cast<double>(bytes[next]);
      // A call that finds the link idle has its gap behind it unless the last call ended this very moment; a(S) then decides as g <= a
      // here.
      queue.push_back({costs.isolated(size), first_call ? 0 : costs.gap(size)});
      first_call = false;
      ++next;
    }
  }
  result.end_s = now;
  return result;
}

TEST(Contention, AgreesWithASimulationInSmallTimeSteps) {
  constexpr double kStep = 2e-5;
  for (uint64_t seed = 0; seed < 40; ++seed) {
    RandomInstance random(seed);
    const int64_t tensors = random.integer(1, 12);
    const TensorProfile profile = random.profile(tensors);
    const CostCurve curve = random.curve();
    const CommCosts costs = {curve, curve};  // g = a, so that a gap never outlasts its call
    const BucketPlan plan = random.plan(tensors);
    const SimulationOptions options = {.overhead_s = random.uniform(0, 0.02), .compute_slowdown = random.uniform(1, 2)};
    const Timeline timeline = simulate(profile, plan, costs, options);
    const SlowResult slow = simulate_in_steps(profile, plan, costs, options, kStep);
    const double tolerance = 6 * kStep * static_cast<double>(plan.buckets.size() + 1);
    EXPECT_NEAR(timeline.end_s, slow.end_s, tolerance) << "seed " << seed;
    EXPECT_NEAR(timeline.compute_end_s, slow.compute_end_s, tolerance) << "seed " << seed;
  }
}

TEST(Contention, WithoutSlowdownIsTheFormula) {
  // A slowdown of one part in 10^12 takes the fluid simulation; the result must be the formula's.
  for (uint64_t seed = 0; seed < 200; ++seed) {
    RandomInstance random(seed);
    const int64_t tensors = random.integer(1, 20);
    const TensorProfile profile = random.profile(tensors);
    const CommCosts costs = random.costs();
    const BucketPlan plan = random.plan(tensors, seed % 3 == 0);
    SimulationOptions options = {.overhead_s = random.uniform(0, 0.01)};
    const Timeline formula = simulate(profile, plan, costs, options);
    options.compute_slowdown = 1 + 1e-12;
    const Timeline fluid = simulate(profile, plan, costs, options);
    EXPECT_NEAR(fluid.end_s, formula.end_s, 1e-9 * formula.end_s) << "seed " << seed;
    for (size_t k = 0; k < plan.buckets.size(); ++k) {
      EXPECT_NEAR(fluid.buckets[k].start_s, formula.buckets[k].start_s, 1e-9 * formula.end_s) << "seed " << seed;
      EXPECT_NEAR(fluid.buckets[k].end_s, formula.buckets[k].end_s, 1e-9 * formula.end_s) << "seed " << seed;
    }
  }
}

}  // namespace
}  // namespace firkin
