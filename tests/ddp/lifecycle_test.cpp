// Construction, destruction, errors in the middle, and unusual orders of events.
#include <latch>

#include "../test.h"
#include "known_gradients.h"
#include "layered_net.h"

#include <torch/csrc/autograd/variable.h>

namespace firkin {
namespace {

// A loss whose backward produces the gradients in the reverse of `use_order`; parameter i's gradient is scale * (i + 1) everywhere.
at::Tensor chained_loss(const Tensors& parameters, const std::vector<int64_t>& use_order, double scale) {
  at::Tensor loss = at::zeros({});
  for (const int64_t i : use_order) loss = loss + (parameters[static_cast<size_t>(i)] * (scale * static_cast<double>(i + 1))).sum();
  return loss;
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
      const std::vector<int64_t> order0 = {1, 0, 3, 2}, order1 = {2, 3, 0, 1};
      chained_loss(module.all, group.rank == 0 ? order0 : order1, rank_value(group)).backward();
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
    EXPECT_THAT([&] { chained_loss(module.all, {0}, 1).backward(); }, ThrowsMessage<RuntimeError>(HasSubstr("starts all ranks anew")));
    EXPECT_THAT([&] { ddp.finish_gradient_synchronization(); }, ThrowsMessage<RuntimeError>(HasSubstr("starts all ranks anew")));
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

// Every step on the batches of the ranks that have one, in one process.
Tensors train_alone(const std::vector<int>& batches) {
  LayeredNet net{at::TensorOptions(at::kDouble)};
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  for (int step = 0; step < *std::ranges::max_element(batches); ++step) {
    Tensors parts;
    for (size_t rank = 0; rank < batches.size(); ++rank) {
      if (step < batches[rank]) parts.push_back(batch_of(step, static_cast<int>(rank), at::kDouble));
    }
    optimizer.zero_grad();
    net->forward(torch::cat(parts)).pow(2).mean().backward();
    optimizer.step();
  }
  return net->parameters();
}

class Join : public testing::TestWithParam<std::vector<int>> {};

TEST_P(Join, TheMeanIsOverTheRanksThatHaveData) {
  const std::vector<int> batches = GetParam();
  const Tensors expected = train_alone(batches);
  run_ranks(static_cast<int>(batches.size()), [&](const ProcessGroup& group) {
    for (const char* strategy : {"naive", "flat", "overlap", "bucketed"}) {
      SCOPED_TRACE(strategy);
      LayeredNet net{at::TensorOptions(at::kDouble)};
      DataParallel ddp(*net, group, with_strategy(strategy, 256));
      torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
      for (int step = 0; step < batches[static_cast<size_t>(group.rank)]; ++step) {
        optimizer.zero_grad();
        synchronise(ddp, net->forward(batch_of(step, group.rank, at::kDouble)).pow(2).mean());
        optimizer.step();
      }
      ddp.join([&] { optimizer.step(); });
      EXPECT_EQ(ddp.stats().steps, *std::ranges::max_element(batches));
      const Tensors trained = net->parameters();
      for (size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(at::allclose(trained[i], expected[i], 1e-9, 1e-12)) << "parameter " << i;

      // Outside the scope every rank steps again, and what it learned of the first backward holds.
      for (int step = 100; step < 102; ++step) {
        net->zero_grad();
        synchronise(ddp, net->forward(batch_of(step, group.rank, at::kDouble)).pow(2).mean());
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Uneven, Join,
                         Values(std::vector{3, 3}, std::vector{4, 1}, std::vector{0, 3}, std::vector{2, 0, 5}, std::vector{0, 0}));

TEST(JoinScope, BuffersComeFromARankThatHasData) {
  run_ranks(2, [](const ProcessGroup& group) {
    torch::nn::BatchNorm1d net(6);
    net->to(at::kDouble);
    DataParallel ddp(*net, group);
    for (int step = 0; step < (group.rank == 0 ? 1 : 4); ++step)
      synchronise(ddp, net->forward(batch_of(step, group.rank, at::kDouble)).pow(2).mean());
    ddp.join([] {});
    // The first step counted rank 0's batch; then rank 1 was the only one to have any.
    EXPECT_EQ(net->num_batches_tracked.item<int64_t>(), 4);
  });
}

}  // namespace
}  // namespace firkin
