#include "firkin/plan/timeline.h"

#include <map>

#include "../test.h"
#include "helpers.h"

namespace firkin {
namespace {

const BucketPlan kByNeed = {kTwoBuckets.buckets, {1, 0}};  // the later bucket first

TensorProfile with_updates(TensorProfile profile, std::vector<double> update_s) {
  profile.update_s = std::move(update_s);
  return profile;
}

// Of 8 bytes, ready at 1 s, needed after so much of a forward pass of 5 s.
TensorProfile one_tensor(double needed_s) {
  TensorProfile profile = make_profile({8}, {1});
  profile.needed_s = {needed_s};
  profile.forward_s = 5;
  return profile;
}

TEST(SimulatePipeline, ForwardWaitsForWhatItNeedsAndHidesTheRest) {
  const struct {
    const char* what;
    TensorProfile profile;
    BucketPlan plan;
    SimulationOptions options;
    double period_s, waited_s;
  } rows[] = {
      {"bucket 0 arrives at 3, bucket 1 at 5: forward begins at 2, waits until 5, and ends at 9", two_tensors(), kTwoBuckets, {}, 9, 3},
      {"bucket 1 arrives at 4, bucket 0 at 6, when forward needs it at 7 at the earliest", two_tensors(), kByNeed, {}, 8, 2},
      {"while forward, at 2, waits for bucket 1 until 5, the update of bucket 0 takes the second from 3 to 4",
       with_updates(two_tensors(), {1, 0.5}),
       kTwoBuckets,
       {},
       9.5,
       2},
      {"the agreement, over at 3.5, delays forward and not the bucket, which comes at 4",
       two_tensors(),
       kByNeed,
       {.agreement_s = 1.5},
       8,
       0.5},
      {"during a bucket's 2 s a contended forward computes 1 s", one_tensor(5), one_bucket(1), {.compute_slowdown = 2}, 1 + 2 + 4, 0},
      {"a forward that stands still does not slow the link", one_tensor(0), one_bucket(1), {.compute_slowdown = 2}, 1 + 2 + 5, 2},
  };
  for (const auto& [what, profile, plan, options, period_s, waited_s] : rows) {
    const Pipeline step = simulate_pipeline(profile, plan, kCosts, options);
    EXPECT_DOUBLE_EQ(step.period_s, period_s) << what;
    EXPECT_DOUBLE_EQ(step.waited_s, waited_s) << what;
  }
}

TEST(SimulatePipeline, SpansAreSecondsFromTheStartOfForward) {
  const Pipeline step = simulate_pipeline(two_tensors(), kByNeed, kCosts);
  EXPECT_DOUBLE_EQ(step.computation_s, 6);
  EXPECT_DOUBLE_EQ(step.communication_s, 4);
  EXPECT_DOUBLE_EQ(step.forward_end_s, 6);
  EXPECT_DOUBLE_EQ(step.backward_end_s, 8);
  ASSERT_EQ(step.buckets.size(), 2U);
  EXPECT_EQ(step.buckets[0].bucket, 1);
  EXPECT_EQ(step.buckets[0].bytes, 8);
  EXPECT_DOUBLE_EQ(step.buckets[0].ready_s, 8);
  EXPECT_DOUBLE_EQ(step.buckets[0].start_s, 8);
  EXPECT_DOUBLE_EQ(step.buckets[0].end_s, 10);  // in the next step's forward
  EXPECT_DOUBLE_EQ(step.buckets[1].ready_s, 7);
  EXPECT_DOUBLE_EQ(step.buckets[1].start_s, 10);
  EXPECT_DOUBLE_EQ(step.buckets[1].end_s, 12);
}

TEST(SimulatePipeline, WithoutAKnownForwardIsBackwardThenUpdatesThenForward) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    RandomInstance random(seed);
    const int64_t tensors = random.integer(1, 20);
    TensorProfile profile = random.profile(tensors);
    profile.forward_s = random.uniform(0, 1);
    const BucketPlan plan = random.plan(tensors, seed % 2 == 0);
    SimulationOptions simulation;
    if (seed % 3 > 0) simulation = {.overhead_s = 1e-3};
    if (seed % 5 > 2) simulation.compute_slowdown = random.uniform(1, 2);
    const CommCosts costs = random.costs();
    const Timeline backward = simulate(profile, plan, costs, simulation);
    const Pipeline step = simulate_pipeline(profile, plan, costs, simulation);
    EXPECT_NEAR(step.period_s, backward.end_s + profile.forward_s, 1e-9 * step.period_s) << "seed " << seed;
    EXPECT_NEAR(step.backward_end_s - step.forward_end_s, backward.compute_end_s, 1e-9 * step.period_s) << "seed " << seed;
    for (size_t k = 0; k < backward.buckets.size(); ++k) {
      EXPECT_NEAR(step.buckets[k].start_s - step.forward_end_s, backward.buckets[k].start_s, 1e-9 * step.period_s) << "seed " << seed;
      EXPECT_NEAR(step.buckets[k].end_s - step.forward_end_s, backward.buckets[k].end_s, 1e-9 * step.period_s) << "seed " << seed;
    }
  }
}

// Several steps one after another without contention, each tensor on its own, from the words in pipeline.h.
class ConsecutiveSteps {
 public:
  ConsecutiveSteps(const TensorProfile& profile, const BucketPlan& plan, const CommCosts& costs, const SimulationOptions& options)
      : profile_(profile), plan_(plan), costs_(costs), options_(options), bytes_(bucket_bytes(plan, profile.bytes)) {}

  // The time between the starts of the last two of `steps` steps.
  double last_period(int steps) {
    double previous = 0;
    for (int step = 0; step < steps; ++step) {
      previous = now_;
      backward();
      now_ += options_.agreement_s;
      forward();
    }
    return now_ - previous;
  }

 private:
  void backward() {
    EXPECT_TRUE(arrival_.empty());  // all have been awaited: the link is idle, and starts anew
    double link_free = -std::numeric_limits<double>::infinity();
    double launch = now_, host_extra = 0;
    for (size_t position = 0; position < plan_.buckets.size(); ++position) {
      const size_t k = plan_.launch_order.empty() ? position : static_cast<size_t>(plan_.launch_order[position]);
      host_extra += options_.overhead_s;
      const Bucket& bucket = plan_.buckets[k];
      launch = std::max(launch, now_ + profile_.ready_s[static_cast<size_t>(bucket.first + bucket.count - 1)]);
      const auto bytes = static_cast<double>(bytes_[k]);
      link_free = std::max(launch + host_extra + costs_.isolated(bytes), link_free + costs_.gap(bytes));
      arrival_[static_cast<int64_t>(k)] = link_free;
    }
    now_ += profile_.backward_s + host_extra;
  }

  void run_update(int64_t key) {
    const Bucket& bucket = plan_.buckets[static_cast<size_t>(key)];
    for (int64_t i = bucket.first; i < bucket.first + bucket.count; ++i) {
      now_ += profile_.update_s.empty() ? 0 : profile_.update_s[static_cast<size_t>(i)];
    }
    arrival_.erase(key);
  }

  void forward() {
    std::vector<size_t> tensors(profile_.bytes.size());
    std::iota(tensors.begin(), tensors.end(), size_t{0});
    std::ranges::stable_sort(tensors, {}, [&](size_t i) { return profile_.needed_s[i]; });
    double computed = 0;
    for (const size_t tensor : tensors) {
      now_ += profile_.needed_s[tensor] - computed;
      computed = profile_.needed_s[tensor];
      const auto holder = std::ranges::find_if(plan_.buckets, [&](const Bucket& bucket) {
        return bucket.first <= static_cast<int64_t>(tensor) && static_cast<int64_t>(tensor) < bucket.first + bucket.count;
      });
      const int64_t key = holder - plan_.buckets.begin();
      while (arrival_.contains(key)) {
        const auto first = std::ranges::min_element(arrival_, {}, [](const auto& item) { return item.second; });
        if (arrival_[key] <= now_) {
          run_update(key);
        } else if (first->second <= now_) {
          run_update(first->first);
        } else {
          now_ = first->second;
        }
      }
    }
    now_ += profile_.forward_s - computed;
  }

  const TensorProfile& profile_;
  const BucketPlan& plan_;
  const CommCosts& costs_;
  const SimulationOptions& options_;
  std::vector<int64_t> bytes_;
  std::map<int64_t, double> arrival_;  // by bucket
  double now_ = 0;
};

TEST(SimulatePipeline, EqualsManyConsecutiveStepsSimulatedTensorByTensor) {
  for (uint64_t seed = 0; seed < 500; ++seed) {
    RandomInstance random(seed);
    const int64_t tensors = random.integer(1, 15);
    const TensorProfile profile = random.profile_with_forward(tensors);
    const BucketPlan plan = random.plan(tensors, true);
    const CommCosts costs = random.costs();
    SimulationOptions options;
    if (seed % 2 == 0) options = {.overhead_s = 2e-3, .agreement_s = 3e-3};
    const double expected = ConsecutiveSteps(profile, plan, costs, options).last_period(5);
    EXPECT_NEAR(simulate_pipeline(profile, plan, costs, options).period_s, expected, 1e-9 * expected) << "seed " << seed;
  }
}

TEST(PipelineBound, NoPlanIsFaster) {
  for (uint64_t seed = 0; seed < 500; ++seed) {
    RandomInstance random(seed);
    const int64_t tensors = random.integer(1, 15);
    const TensorProfile profile = random.profile_with_forward(tensors);
    const CommCosts costs = random.costs();
    const SimulationOptions options = {.overhead_s = 1e-3, .agreement_s = 1e-3};
    const double period = simulate_pipeline(profile, random.plan(tensors, true), costs, options).period_s;
    EXPECT_LE(pipeline_bound_s(profile, costs, options), period * (1 + 1e-12)) << "seed " << seed;
  }
}

TEST(PipelineBound, IsTheLargerOfComputationAndCommunication) {
  EXPECT_DOUBLE_EQ(pipeline_bound_s(two_tensors(), kCosts), 6);
  EXPECT_DOUBLE_EQ(pipeline_bound_s(two_tensors(), linear_costs(1, 2)), 33);  // the sixteen bytes in one call
}

}  // namespace
}  // namespace firkin
