// Every strategy trains as one process on the whole batch would.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "../comm/thread_ranks.h"
#include "firkin/base/error.h"
#include "firkin/ddp/data_parallel.h"
#include "seeded.h"

#include <torch/torch.h>

namespace firkin {
namespace {

using Parameters = std::vector<at::Tensor>;

torch::nn::Sequential make_mlp() {
  torch::nn::Sequential net(torch::nn::Linear(12, 24), torch::nn::Tanh(), torch::nn::Linear(24, 16), torch::nn::Tanh(),
                            torch::nn::Linear(16, 4));
  net->to(at::kDouble);
  seed_parameters(*net, 7);
  return net;
}

constexpr int64_t kGlobalBatch = 12;
constexpr int kSteps = 5;

at::Tensor batch_for_step(int step) {
  return seeded_randn({kGlobalBatch, 12}, 100 + static_cast<uint64_t>(step));
}

at::Tensor loss_of(torch::nn::Sequential& net, const at::Tensor& x) {
  return net->forward(x).pow(2).mean();
}

Parameters detached_copies(const Parameters& parameters) {
  Parameters copies;
  for (const at::Tensor& p : parameters) copies.push_back(p.detach().clone());
  return copies;
}

Parameters train_alone() {
  torch::nn::Sequential net = make_mlp();
  torch::optim::SGD optimizer(net->parameters(), 0.1);
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    loss_of(net, batch_for_step(step)).backward();
    optimizer.step();
  }
  return detached_copies(net->parameters());
}

std::vector<Parameters> train_on_ranks(int world_size, const DataParallelOptions& options) {
  std::vector<Parameters> result(static_cast<size_t>(world_size));
  run_ranks(world_size, [&](const ProcessGroup& group) {
    torch::nn::Sequential net = make_mlp();
    if (group.rank != 0) {
      for (at::Tensor& p : net->parameters()) p.detach().zero_();  // rank 0's values must arrive
    }
    DataParallel ddp(*net, group, options);
    torch::optim::SGD optimizer(net->parameters(), 0.1);
    const int64_t local = kGlobalBatch / group.size;
    for (int step = 0; step < kSteps; ++step) {
      for (at::Tensor& p : net->parameters()) p.mutable_grad().reset();  // zero_grad() fails on the torch strategy's views
      loss_of(net, batch_for_step(step).narrow(0, group.rank * local, local)).backward();
      ddp.finish_gradient_synchronization();
      optimizer.step();
    }
    result[static_cast<size_t>(group.rank)] = detached_copies(net->parameters());
  });
  return result;
}

DataParallelOptions options_for(std::string_view strategy) {
  DataParallelOptions options;
  options.strategy = find_strategy(strategy);
  options.cap = {.cap_bytes = 1500, .rule = CapRule::kAtMost, .first_cap_bytes = {}};
  if (strategy == "planned") options.plan = BucketPlan{{{0, 2}, {2, 3}, {5, 1}}, {}};
  return options;
}

void expect_equal_bits(const Parameters& a, const Parameters& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(at::equal(a[i], b[i])) << "parameter " << i;
}

class EveryStrategy : public testing::TestWithParam<std::tuple<std::string, int>> {};

TEST_P(EveryStrategy, TrainsAsOneProcessOnTheWholeBatch) {
  const auto& [strategy, world_size] = GetParam();
  const Parameters expected = train_alone();
  const std::vector<Parameters> ranks = train_on_ranks(world_size, options_for(strategy));
  for (const Parameters& parameters : ranks) {
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_TRUE(at::allclose(parameters[i], expected[i], 1e-9, 1e-12)) << "parameter " << i;
    }
    expect_equal_bits(parameters, ranks[0]);
  }
}

INSTANTIATE_TEST_SUITE_P(Worlds, EveryStrategy,
                         testing::Combine(testing::Values("naive", "flat", "overlap", "bucketed", "planned", "torch"),
                                          testing::Values(1, 2, 3, 4)),
                         [](const auto& test) { return std::get<0>(test.param) + "On" + std::to_string(std::get<1>(test.param)); });

TEST(Strategies, GiveTheSameBitsOnTwoRanks) {
  const Parameters naive = train_on_ranks(2, options_for("naive"))[0];
  for (const char* strategy : {"flat", "overlap", "bucketed", "planned", "torch"}) {
    SCOPED_TRACE(strategy);
    expect_equal_bits(train_on_ranks(2, options_for(strategy))[0], naive);
  }
}

TEST(Strategies, NoneLeavesEachRankToItself) {
  const std::vector<Parameters> ranks = train_on_ranks(2, options_for("none"));
  EXPECT_FALSE(at::equal(ranks[0][0], ranks[1][0]));
}

TEST(Strategies, AreFoundByName) {
  EXPECT_EQ(find_strategy("flat").grouping, Grouping::kOneBucket);
  EXPECT_THROW(find_strategy("fast"), InputError);
}

}  // namespace
}  // namespace firkin
