// Ranks with different numbers of batches.
#include "known_gradients.h"
#include "seeded.h"

namespace firkin {
namespace {

struct Net : torch::nn::Module {
  Net() {
    hidden = register_module("hidden", torch::nn::Linear(6, 8));
    norm = register_module("norm", torch::nn::BatchNorm1d(8));
    out = register_module("out", torch::nn::Linear(8, 2));
    to(at::kDouble);
    seed_parameters(*this, 3);
  }
  at::Tensor loss(const at::Tensor& x) { return out(torch::tanh(hidden(x))).pow(2).mean(); }
  at::Tensor loss_with_norm(const at::Tensor& x) { return out(norm(hidden(x))).pow(2).mean(); }
  torch::nn::Linear hidden = nullptr;
  torch::nn::BatchNorm1d norm = nullptr;
  torch::nn::Linear out = nullptr;
};

constexpr int64_t kLocalBatch = 4;

at::Tensor batch_of(int rank, int step) {
  return seeded_randn({kLocalBatch, 6}, 1000 * static_cast<uint64_t>(rank + 1) + static_cast<uint64_t>(step));
}

// Every step on the batches of the ranks that have one, in one process.
Tensors train_alone(const std::vector<int>& batches) {
  Net net;
  torch::optim::SGD optimizer(net.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  for (int step = 0; step < *std::ranges::max_element(batches); ++step) {
    Tensors parts;
    for (size_t rank = 0; rank < batches.size(); ++rank) {
      if (step < batches[rank]) parts.push_back(batch_of(static_cast<int>(rank), step));
    }
    optimizer.zero_grad();
    net.loss(torch::cat(parts)).backward();
    optimizer.step();
  }
  return net.parameters();
}

class Join : public testing::TestWithParam<std::vector<int>> {};

TEST_P(Join, TheMeanIsOverTheRanksThatHaveData) {
  const std::vector<int> batches = GetParam();
  const Tensors expected = train_alone(batches);
  run_ranks(static_cast<int>(batches.size()), [&](const ProcessGroup& group) {
    for (const char* strategy : {"naive", "flat", "overlap", "bucketed"}) {
      SCOPED_TRACE(strategy);
      Net net;
      DataParallelOptions options = with_strategy(strategy, 256);
      options.find_unused_parameters = true;  // the norm's
      DataParallel ddp(net, group, options);
      torch::optim::SGD optimizer(net.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
      for (int step = 0; step < batches[static_cast<size_t>(group.rank)]; ++step) {
        optimizer.zero_grad();
        synchronise(ddp, net.loss(batch_of(group.rank, step)));
        optimizer.step();
      }
      ddp.join([&] { optimizer.step(); });
      EXPECT_EQ(ddp.stats().steps, *std::ranges::max_element(batches));
      const Tensors trained = net.parameters();
      for (size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(at::allclose(trained[i], expected[i], 1e-9, 1e-12)) << "parameter " << i;

      // Outside the scope every rank steps again, and what it learned of the first backward holds.
      for (int step = 100; step < 102; ++step) {
        net.zero_grad();
        synchronise(ddp, net.loss(batch_of(group.rank, step)));
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Uneven, Join,
                         testing::Values(std::vector{3, 3}, std::vector{4, 1}, std::vector{0, 3}, std::vector{2, 0, 5}, std::vector{0, 0}));

TEST(JoinScope, GradientsInPlaceAndAllParametersInUse) {
  run_ranks(2, [](const ProcessGroup& group) {
    TwoParameters net;
    DataParallel ddp(net, group);
    for (int step = 0; step < (group.rank == 0 ? 1 : 3); ++step) {
      net.zero_grad(/*set_to_none=*/false);
      synchronise(ddp, net.loss(rank_value(group)));
    }
    ddp.join([&] { net.expect_gradients(2); });
    net.expect_no_gradients();
  });
}

TEST(JoinScope, BuffersComeFromARankThatHasData) {
  run_ranks(2, [](const ProcessGroup& group) {
    Net net;
    DataParallel ddp(net, group);
    for (int step = 0; step < (group.rank == 0 ? 1 : 4); ++step) synchronise(ddp, net.loss_with_norm(batch_of(group.rank, step)));
    ddp.join([] {});
    // The first step counted rank 0's batch; then rank 1 was the only one to have any.
    EXPECT_EQ(net.norm->num_batches_tracked.item<int64_t>(), 4);
  });
}

}  // namespace
}  // namespace firkin
