// Construction, destruction, errors in the middle, and unusual orders of events.
#include <latch>
#include <numeric>
#include <random>

#include "known_gradients.h"

#include <torch/csrc/autograd/variable.h>

namespace firkin {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

// A loss whose backward produces the gradients in the reverse of `use_order`; parameter i's gradient is scale * (i + 1) everywhere.
at::Tensor chained_loss(const Tensors& parameters, const std::vector<int64_t>& use_order, double scale) {
  at::Tensor loss = at::zeros({});
  for (const int64_t i : use_order) loss = loss + (parameters[static_cast<size_t>(i)] * (scale * static_cast<double>(i + 1))).sum();
  return loss;
}

std::vector<int64_t> shuffled(size_t count, std::mt19937_64& random) {
  std::vector<int64_t> order(count);
  std::iota(order.begin(), order.end(), 0);
  std::ranges::shuffle(order, random);
  return order;
}

void expect_mean_gradients(const Tensors& parameters) {
  for (size_t i = 0; i < parameters.size(); ++i) {
    EXPECT_TRUE(at::equal(parameters[i].grad(), at::full_like(parameters[i], kMean * static_cast<double>(i + 1)))) << "parameter " << i;
  }
}

TEST(Lifecycle, BucketsFollowRank0sObservedOrderAfterTheFirstStep) {
  run_ranks(2, [](const ProcessGroup& group) {
    Parameters module({4, 4, 4, 4});
    DataParallel ddp(module, group, with_strategy("bucketed", 32));
    const std::vector<int64_t> order0 = {2, 0, 3, 1};
    const std::vector<int64_t> order1 = {0, 1, 2, 3};
    for (int step = 0; step < 3; ++step) {
      module.zero_grad();
      chained_loss(module.all, group.rank == 0 ? order0 : order1, rank_value(group)).backward();
      ddp.finish_gradient_synchronization();
      expect_mean_gradients(module.all);
      EXPECT_THAT(ddp.ready_order(), ElementsAre(1, 3, 0, 2));
    }
    EXPECT_THAT(ddp.stats().tensors, ElementsAre("p1", "p3", "p0", "p2"));
  });
}

TEST(Lifecycle, AnExplicitPlanIsKeptAsGiven) {
  run_ranks(2, [](const ProcessGroup& group) {
    Parameters module({4, 4, 4, 4});
    DataParallelOptions options;
    options.strategy = find_strategy("planned");
    options.plan = BucketPlan{{{0, 1}, {1, 3}}, {1, 0}};  // launched in the reverse of the ready order
    DataParallel ddp(module, group, options);
    for (int step = 0; step < 3; ++step) {
      module.zero_grad();
      chained_loss(module.all, {1, 0, 3, 2}, rank_value(group)).backward();
      ddp.finish_gradient_synchronization();
      expect_mean_gradients(module.all);
      EXPECT_EQ(ddp.plan(), *options.plan);
      EXPECT_THAT(ddp.ready_order(), ElementsAre(3, 2, 1, 0));
    }
    EXPECT_EQ(ddp.stats().buckets[0].tensors, 3);
  });
}

TEST(Lifecycle, StatsTellOfTheLastStepThatHasEnded) {
  run_ranks(2, [](const ProcessGroup& group) {
    Parameters module({100, 50, 10});
    DataParallelOptions options = with_strategy("bucketed", 240);
    options.finish_with_backward = false;
    DataParallel ddp(module, group, options);
    EXPECT_TRUE(ddp.stats().buckets.empty());
    for (int step = 0; step < 2; ++step) {
      module.zero_grad();
      chained_loss(module.all, {0, 1, 2}, rank_value(group)).backward();
      EXPECT_EQ(ddp.stats().steps, step);
      EXPECT_EQ(ddp.stats().buckets.size(), step == 0 ? 0 : 2);
      ddp.finish_gradient_synchronization();
    }
    const DataParallelStats stats = ddp.stats();
    EXPECT_EQ(stats.steps, 2);
    ASSERT_EQ(stats.buckets.size(), 2);
    EXPECT_EQ(stats.buckets[0].bytes, 240);
    EXPECT_EQ(stats.buckets[1].bytes, 400);
    EXPECT_EQ(stats.buckets[1].bytes_on_wire, 400);
    for (const BucketStats& bucket : stats.buckets) {
      EXPECT_GE(bucket.launch_s, 0);
      EXPECT_GT(bucket.end_s, bucket.launch_s);
    }
    EXPECT_LE(stats.buckets[0].launch_s, stats.buckets[1].launch_s);
    EXPECT_GT(stats.exposed_wait_s, 0);
  });
}

TEST(Lifecycle, ABucketThatTakesLongerThanTheTimeoutIsAnError) {
  std::latch rank0_gave_up(1);
  run_ranks(2, [&](const ProcessGroup& group) {
    Parameters module({3});
    DataParallelOptions options = with_strategy("bucketed", 1 << 20);
    options.timeout = std::chrono::seconds(2);  // the constructor has no more
    DataParallel ddp(module, group, options);
    if (group.rank == 1) return rank0_gave_up.wait();
    EXPECT_THAT([&] { chained_loss(module.all, {0}, 1).backward(); },
                ThrowsMessage<RuntimeError>(AllOf(HasSubstr("rank 1 ("), HasSubstr("did not reach bucket 0 (p0, 12 B) of step 0"))));
    EXPECT_THAT([&] { chained_loss(module.all, {0}, 1).backward(); }, ThrowsMessage<RuntimeError>(HasSubstr("create a new one")));
    EXPECT_THAT([&] { ddp.finish_gradient_synchronization(); }, ThrowsMessage<RuntimeError>(HasSubstr("create a new one")));
    rank0_gave_up.count_down();
  });
}

TEST(Lifecycle, TheDestructorRemovesEveryHookAndWrappingAgainWorks) {
  run_ranks(2, [](const ProcessGroup& group) {
    Parameters module({4, 4});
    for (int wrap = 0; wrap < 3; ++wrap) {
      DataParallel ddp(module, group, with_strategy("bucketed", 16));
      for (int step = 0; step < 2; ++step) {
        module.zero_grad();
        chained_loss(module.all, {0, 1}, rank_value(group)).backward();
        ddp.finish_gradient_synchronization();
        expect_mean_gradients(module.all);
      }
    }
    module.zero_grad();
    chained_loss(module.all, {0, 1}, rank_value(group)).backward();  // alone again
    EXPECT_TRUE(at::equal(module.all[0].grad(), at::full({4}, rank_value(group))));
    for (const at::Tensor& parameter : module.all) EXPECT_TRUE(torch::autograd::impl::hooks(parameter).empty());
  });
}

TEST(Lifecycle, ARankThatSkipsABatchWithoutAWordJoinsTheStepWithItsNextOne) {
  run_ranks(2, [](const ProcessGroup& group) {
    Parameters module({4, 4});
    DataParallel ddp(module, group, with_strategy("bucketed", 16));
    for (int step = 0; step < 4; ++step) {
      module.zero_grad();
      if (group.rank == 1 && step == 1) continue;  // its forward threw, and nobody was told
      chained_loss(module.all, {0, 1}, rank_value(group)).backward();
      expect_mean_gradients(module.all);
    }
    module.zero_grad();
    if (group.rank == 1) chained_loss(module.all, {0, 1}, rank_value(group)).backward();  // so that rank 0 has its four steps
  });
}

TEST(RandomModels, ReduceEveryGradientOnce) {
  run_ranks(2, [](const ProcessGroup& group) {
    std::mt19937_64 random(42);  // the same on both ranks
    const auto below = [&random](uint64_t n) { return static_cast<int64_t>(random() % n); };
    for (int m = 0; m < 30; ++m) {
      SCOPED_TRACE(m);
      std::vector<int64_t> sizes(static_cast<size_t>(1 + below(60)));
      for (int64_t& size : sizes) size = below(4) == 0 ? below(100001) : below(100);
      Parameters module(sizes);
      DataParallelOptions options = with_strategy("bucketed", 4 + below(400000));
      options.cap.rule = below(2) == 0 ? CapRule::kAtMost : CapRule::kCloseWhenFull;
      if (below(2) == 0) options.cap.first_cap_bytes = 1 + below(1000);
      if (below(3) == 0) {
        options.strategy = find_strategy("planned");
        BucketPlan plan;
        for (auto left = static_cast<int64_t>(sizes.size()), first = int64_t{0}; left > 0;) {
          const int64_t count = 1 + below(static_cast<uint64_t>(left));
          plan.buckets.push_back({first, count});
          first += count;
          left -= count;
        }
        if (below(2) == 0) plan.launch_order = shuffled(plan.buckets.size(), random);
        options.plan = plan;
      }
      const std::vector<int64_t> use_order0 = shuffled(sizes.size(), random);
      const std::vector<int64_t> use_order1 = below(2) == 0 ? use_order0 : shuffled(sizes.size(), random);
      DataParallel ddp(module, group, options);
      for (int step = 0; step < 3; ++step) {
        module.zero_grad();
        chained_loss(module.all, group.rank == 0 ? use_order0 : use_order1, rank_value(group)).backward();
        ddp.finish_gradient_synchronization();
        expect_mean_gradients(module.all);
      }
    }
  });
}

}  // namespace
}  // namespace firkin
