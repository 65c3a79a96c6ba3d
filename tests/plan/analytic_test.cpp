#include "firkin/plan/analytic.h"

#include <gtest/gtest.h>

#include <cmath>

#include "firkin/plan/optimal_plan.h"
#include "firkin/plan/uniform_cap.h"
#include "helpers.h"

namespace firkin {
namespace {

// `count` equal tensors, made at an even rate.
TensorProfile even_profile(const EvenWorkload& workload, int64_t count) {
  std::vector<double> ready_s;
  for (int64_t i = 1; i <= count; ++i) ready_s.push_back(workload.backward_s * static_cast<double>(i) / static_cast<double>(count));
  return make_profile(std::vector<int64_t>(static_cast<size_t>(count), static_cast<int64_t>(workload.total_bytes) / count), ready_s);
}

CommCosts costs_of(const EvenWorkload& workload) {
  return linear_costs(workload.overhead_s, 1 / workload.bandwidth_bytes_s);
}

// 4 GB in 1 s of backward, over links of half, the same, and twice that rate; 1 ms a call.
const EvenWorkload kSlowLink = {.total_bytes = 4e9, .backward_s = 1, .overhead_s = 1e-3, .bandwidth_bytes_s = 2e9};
const EvenWorkload kBalanced = {.total_bytes = 4e9, .backward_s = 1, .overhead_s = 1e-3, .bandwidth_bytes_s = 4e9};
const EvenWorkload kFastLink = {.total_bytes = 4e9, .backward_s = 1, .overhead_s = 1e-3, .bandwidth_bytes_s = 8e9};

TEST(BalancedBuckets, AreTheClosedFormOfCs336) {
  // sqrt(4e9 * 1e-3 * 4e9) = 1.265e8 bytes, sqrt(4e9 / (1e-3 * 4e9)) = 31.6 buckets, 2 sqrt(4e9 * 1e-3 / 4e9) = 63.2 ms.
  const EqualBuckets best = best_balanced_buckets(kBalanced);
  EXPECT_NEAR(best.bucket_bytes, 1.2649110640673517e8, 1);
  EXPECT_NEAR(best.count, 31.622776601683793, 1e-9);
  EXPECT_NEAR(best.exposed_s, 0.06324555320336758, 1e-12);
  EXPECT_NEAR(balanced_exposed_s(kBalanced, best.count), best.exposed_s, 1e-12);
}

TEST(BalancedBuckets, AnyOtherNumberExposesMore) {
  const EqualBuckets best = best_balanced_buckets(kBalanced);
  EXPECT_GT(balanced_exposed_s(kBalanced, best.count * 1.1), best.exposed_s);
  EXPECT_GT(balanced_exposed_s(kBalanced, best.count / 1.1), best.exposed_s);
}

TEST(BalancedBuckets, AreWhatTheSimulationFinds) {
  for (const int64_t buckets : {1, 10, 32, 100, 1000}) {
    const TensorProfile profile = even_profile(kBalanced, buckets);
    const double exposed_s = simulate(profile, assign_buckets(profile.bytes, {.cap_bytes = 1}), costs_of(kBalanced)).exposed_s;
    EXPECT_NEAR(exposed_s, balanced_exposed_s(kBalanced, static_cast<double>(buckets)), 1e-9) << buckets << " buckets";
  }
}

TEST(EvenBuckets, AreWhatTheSimulationFindsAtAnyRatioOfTheRates) {
  for (const EvenWorkload& workload : {kSlowLink, kBalanced, kFastLink}) {
    for (const int64_t buckets : {1, 4, 20, 50, 400}) {
      const TensorProfile profile = even_profile(workload, buckets);
      const double end_s = simulate(profile, assign_buckets(profile.bytes, {.cap_bytes = 1}), costs_of(workload)).end_s;
      EXPECT_NEAR(end_s, even_backward_s(workload, workload.total_bytes / static_cast<double>(buckets)), 1e-9);
    }
  }
}

TEST(EvenBuckets, TheBestIsTheBestUniformCapOfManySmallTensors) {
  for (const EvenWorkload& workload : {kSlowLink, kBalanced, kFastLink}) {
    const EqualBuckets best = best_even_buckets(workload);
    const UniformCap found = find_best_uniform_cap(even_profile(workload, 4000), costs_of(workload), {.rule = CapRule::kAtMost});
    EXPECT_NEAR(found.timeline.exposed_s, best.exposed_s, 0.02 * best.exposed_s);
    EXPECT_NEAR(static_cast<double>(found.plan.buckets.size()), best.count, 0.1 * best.count);
  }
}

TEST(EvenBuckets, OnAFastLinkAreAsSmallAsTheLinkKeepsUpWith) {
  // o / (1/r - 1/w) = 1e-3 / (0.25e-9 - 0.125e-9) = 8 MB; the last one is exposed: 1 ms + 8e6 / 8e9 s.
  const EqualBuckets best = best_even_buckets(kFastLink);
  EXPECT_NEAR(best.bucket_bytes, 8e6, 1e-3);
  EXPECT_NEAR(best.exposed_s, 2e-3, 1e-12);
}

TEST(EvenBuckets, AreNeverLargerThanEverything) {
  const EvenWorkload slow_calls = {.total_bytes = 1e6, .backward_s = 1e-3, .overhead_s = 1, .bandwidth_bytes_s = 1e9};
  EXPECT_DOUBLE_EQ(best_even_buckets(slow_calls).bucket_bytes, 1e6);
}

TEST(GrowingBuckets, GrowByTheRatioOfTheRates) {
  const GrowingBuckets best = best_growing_buckets(kSlowLink);
  ASSERT_GE(best.bucket_bytes.size(), 3u);
  double total = 0;
  for (size_t k = 0; k < best.bucket_bytes.size(); ++k) {
    total += best.bucket_bytes[k];
    if (k == 0) continue;
    // Twice the one before, and what is computed in one overhead: 4 MB.
    EXPECT_NEAR(best.bucket_bytes[k], 2 * best.bucket_bytes[k - 1] + 4e6, 1);
  }
  EXPECT_NEAR(total, 4e9, 1);
}

TEST(GrowingBuckets, AreWhatTheOptimalPlanLooksLike) {
  const GrowingBuckets best = best_growing_buckets(kSlowLink);
  const TensorProfile profile = even_profile(kSlowLink, 4000);
  const PlannedBuckets found = find_optimal_plan(profile, costs_of(kSlowLink));
  // The plan's tensors cannot be cut, so it is a little later than the continuous one.
  EXPECT_GE(found.timeline.end_s, best.backward_s - 1e-9);
  EXPECT_LE(found.timeline.end_s, best.backward_s * 1.001);
  EXPECT_EQ(found.plan.buckets.size(), best.bucket_bytes.size());
  const std::vector<int64_t> bytes = bucket_bytes(found.plan, profile.bytes);
  EXPECT_NEAR(static_cast<double>(bytes.back()) / static_cast<double>(bytes[bytes.size() - 2]), 2, 0.1);
}

TEST(GrowingBuckets, BeatEveryUniformCap) {
  EXPECT_LT(best_growing_buckets(kSlowLink).backward_s, kSlowLink.backward_s + best_even_buckets(kSlowLink).exposed_s);
}

TEST(GrowingBuckets, NeedCommunicationThatTakesLonger) {
  EXPECT_EQ(error_of([] { best_growing_buckets(kFastLink); }), "computation takes longer than communication (by 2); expected the contrary");
}

TEST(Analytic, RejectsAWorkloadWithoutSize) {
  EXPECT_EQ(error_of([] { best_even_buckets({.total_bytes = 1, .backward_s = 1, .overhead_s = 0, .bandwidth_bytes_s = 1}); }),
            "the analytic model has an overhead of 0; expected more than 0");
}

}  // namespace
}  // namespace firkin
