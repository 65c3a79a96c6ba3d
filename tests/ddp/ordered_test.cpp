// The strategy ordered: gradients that arrive behind the next forward train as those that arrive before it, to the last bit.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "../comm/thread_ranks.h"
#include "firkin/base/error.h"
#include "firkin/ddp/await_parameters.h"
#include "firkin/ddp/data_parallel.h"
#include "firkin/ddp/module_parameters.h"
#include "firkin/ddp/overlapped_optimizer.h"
#include "tensors.h"
#include "test_models.h"

#include <torch/torch.h>

namespace firkin {
namespace {

using testing::HasSubstr;

// A link over which the test models' gradients are still on their way when the next forward begins.
constexpr const char* kSlowLink = "8mbit,200us";

struct RunSetup {
  std::string strategy = "ordered";
  std::string optimizer = "SGD";
  at::ScalarType dtype = at::kDouble;
  bool compresses = false;
  int micro_batches = 1;
  int steps = 12;
  std::optional<BucketPlan> plan = {};
  double max_norm = 0;  // of the gradients; 0: not clipped
  std::optional<double> launch_slack = {};
  bool zeroes_in_place = false;
};

std::unique_ptr<torch::optim::Optimizer> make_optimizer(const std::string& name, const Tensors& parameters) {
  if (name == "AdamW") return std::make_unique<torch::optim::AdamW>(parameters, torch::optim::AdamWOptions(1e-3));
  return std::make_unique<torch::optim::SGD>(parameters, torch::optim::SGDOptions(0.1).momentum(0.9));
}

DataParallelOptions options_for(const RunSetup& setup) {
  DataParallelOptions options;
  options.strategy = find_strategy(setup.strategy);
  options.cap = {.cap_bytes = 1500, .rule = CapRule::kAtMost, .first_cap_bytes = {}};
  options.plan = setup.plan;
  options.launch_slack = setup.launch_slack;
  if (setup.compresses) options.gradient_hook = bf16_compression();
  return options;
}

void halve_learning_rate(torch::optim::Optimizer& optimizer) {
  for (auto& group : optimizer.param_groups()) group.options().set_lr(group.options().get_lr() * 0.5);
}

// What the ranks' programs end with, and how often a parameter was stepped only after its step had ended.
struct Trained {
  Tensors parameters;
  int64_t late = 0;
  int64_t awaited_bytes = 0;
  BucketPlan plan;
};

Trained train(const ProcessGroup& group, const RunSetup& setup) {
  TestModel model = make_test_model("transformer", setup.dtype);
  DataParallel ddp(*model.module, group, options_for(setup));
  const auto optimizer = make_optimizer(setup.optimizer, model.module->parameters());
  OverlappedOptimizer overlapped(ddp, *optimizer);
  const int64_t local = kGlobalBatch / group.size / setup.micro_batches;
  Trained trained;
  for (int step = 0; step < setup.steps; ++step) {
    optimizer->zero_grad(!setup.zeroes_in_place);
    const int64_t first = group.rank * local * setup.micro_batches;
    for (int micro = 0; micro < setup.micro_batches; ++micro) {
      ddp.set_gradient_synchronization(micro == setup.micro_batches - 1);
      (model.loss(step, first + micro * local, local) / setup.micro_batches).backward();
    }
    if (setup.max_norm > 0) overlapped.clip_gradients(setup.max_norm);
    overlapped.step();
    const Tensors at_step_end = copies(model.module->parameters());
    if (step % 5 == 4) halve_learning_rate(*optimizer);  // of the steps to come, not of this one
    if (step % 4 != 3) continue;
    for (size_t i = 0; const at::Tensor& parameter : ddp.module().parameters())
      trained.late += at::equal(parameter, at_step_end[i++]) ? 0 : 1;
  }
  overlapped.drain();
  trained.parameters = copies(model.module->parameters());
  trained.awaited_bytes = ddp.stats().awaited_bytes;
  trained.plan = ddp.plan();
  return trained;
}

std::vector<Trained> train_on_ranks(int world_size, const RunSetup& setup) {
  std::vector<Trained> result(static_cast<size_t>(world_size));
  run_linked_ranks(world_size, kSlowLink,
                   [&](const ProcessGroup& group) { result[static_cast<size_t>(group.rank)] = train(group, setup); });
  return result;
}

struct Kind {
  const char* name;
  RunSetup setup;
};

class BitForBit : public testing::TestWithParam<std::tuple<Kind, int>> {};

TEST_P(BitForBit, IsBucketed) {
  RunSetup setup = std::get<Kind>(GetParam()).setup;
  setup.steps = std::get<int>(GetParam());
  const std::vector<Trained> ordered = train_on_ranks(2, setup);
  setup.strategy = "bucketed";
  const std::vector<Trained> bucketed = train_on_ranks(2, setup);
  for (const Trained& rank : ordered) EXPECT_TRUE(same_bits(rank.parameters, bucketed[0].parameters));
  EXPECT_GT(ordered[0].late, 0) << "nothing was under way when a step ended: this test has shown nothing";
  EXPECT_GT(ordered[0].awaited_bytes, 0);
  EXPECT_EQ(bucketed[0].late, 0);
}

const auto kKinds =
    testing::Values(Kind{"sgd", {.optimizer = "SGD", .dtype = at::kFloat}}, Kind{"adamw", {.optimizer = "AdamW", .dtype = at::kFloat}},
                    Kind{"sgd_zeroes_in_place", {.optimizer = "SGD", .dtype = at::kFloat, .zeroes_in_place = true}},
                    Kind{"sgd_bf16", {.optimizer = "SGD", .dtype = at::kFloat, .compresses = true}},
                    Kind{"adamw_bf16", {.optimizer = "AdamW", .dtype = at::kFloat, .compresses = true}},
                    Kind{"sgd_accumulates", {.optimizer = "SGD", .dtype = at::kFloat, .micro_batches = 3}},
                    Kind{"adamw_accumulates_bf16", {.optimizer = "AdamW", .dtype = at::kFloat, .compresses = true, .micro_batches = 2}});
const auto name_of_kind = [](const auto& test) { return std::string(std::get<Kind>(test.param).name); };

INSTANTIATE_TEST_SUITE_P(TwelveSteps, BitForBit, testing::Combine(kKinds, testing::Values(12)), name_of_kind);
INSTANTIATE_TEST_SUITE_P(Full, BitForBit, testing::Combine(kKinds, testing::Values(50)), name_of_kind);

TEST(Ordered, TrainsAsOneProcessOnOneToFourRanks) {
  for (const auto& [optimizer, world_size] : {std::pair("SGD", 1), {"AdamW", 2}, {"AdamW", 3}, {"SGD", 4}}) {
    const Tensors alone = train_on_ranks(1, {.strategy = "none", .optimizer = optimizer})[0].parameters;
    const std::vector<Trained> ranks = train_on_ranks(world_size, {.optimizer = optimizer});
    for (const Trained& rank : ranks) {
      EXPECT_TRUE(same_bits(rank.parameters, ranks[0].parameters));
      for (size_t i = 0; i < alone.size(); ++i) EXPECT_TRUE(at::allclose(rank.parameters[i], alone[i], 1e-9, 1e-9));
    }
  }
}

TEST(Ordered, LaunchesEarlyLayersFirstOnceBackwardIsOver) {
  const BucketPlan plan = train_on_ranks(2, {})[0].plan;
  ASSERT_GT(plan.buckets.size(), 3u);
  ASSERT_EQ(plan.launch_order.size(), plan.buckets.size());
  // The embedding's gradient is ready last and needed first: over a slow link others still wait then.
  EXPECT_NE(plan.launch_order.back(), static_cast<int64_t>(plan.buckets.size()) - 1);
}

TEST(Ordered, KeepsTheSlackThatItIsGiven) {
  const auto order = [](double slack) { return train_on_ranks(2, {.launch_slack = slack})[0].plan.launch_order; };
  const std::vector<int64_t> by_need = order(0), as_ready = order(1e9);
  const auto last = static_cast<int64_t>(by_need.size()) - 1;
  EXPECT_EQ(by_need.front(), last);  // the embedding's
  EXPECT_EQ(as_ready.back(), last);
}

TEST(Ordered, TakesAPlanWithSplitTensorsInAnyLaunchOrder) {
  const BucketPlan whole = train_on_ranks(2, {.strategy = "bucketed"})[0].plan;
  BucketPlan split;
  const auto tensors = whole.buckets.back().first + whole.buckets.back().count;
  split.buckets.push_back({0, 1, 0, 3});
  split.buckets.push_back({0, 1, 1, 3});
  split.buckets.push_back({0, 1, 2, 3});
  split.buckets.push_back({1, tensors - 2});
  split.buckets.push_back({tensors - 1, 1, 0, 2});
  split.buckets.push_back({tensors - 1, 1, 1, 2});
  split.launch_order = {1, 3, 5, 0, 4, 2};
  for (const bool compresses : {false, true}) {
    const auto bucketed = train_on_ranks(2, {.strategy = "bucketed", .dtype = at::kFloat, .compresses = compresses});
    const auto ordered = train_on_ranks(2, {.dtype = at::kFloat, .compresses = compresses, .plan = split});
    const auto planned = train_on_ranks(2, {.strategy = "planned", .dtype = at::kFloat, .compresses = compresses, .plan = split});
    EXPECT_TRUE(same_bits(ordered[0].parameters, bucketed[0].parameters));
    EXPECT_TRUE(same_bits(ordered[1].parameters, bucketed[0].parameters));
    EXPECT_TRUE(same_bits(planned[0].parameters, bucketed[0].parameters));
    EXPECT_GT(ordered[0].late, 0);
  }
}

TEST(Ordered, ClipsByTheNormOfAllGradients) {
  const auto ordered = train_on_ranks(2, {.dtype = at::kFloat, .max_norm = 0.05});
  const auto bucketed = train_on_ranks(2, {.strategy = "bucketed", .dtype = at::kFloat, .max_norm = 0.05});
  EXPECT_TRUE(same_bits(ordered[0].parameters, bucketed[0].parameters));
  EXPECT_EQ(ordered[0].late, 0);
}

// Two layers, of which the second may be told to forget its await.
struct TwoLayers : torch::nn::Module {
  struct Layer : torch::nn::Module {
    explicit Layer(int64_t width) { linear = register_module("linear", torch::nn::Linear(width, width)); }
    at::Tensor forward(const at::Tensor& x) {
      if (awaits) await_parameters(*this);
      return torch::tanh(linear->forward(x));
    }
    torch::nn::Linear linear = nullptr;
    bool awaits = true;
  };
  explicit TwoLayers(int64_t width = 32) {
    first = register_module("first", std::make_shared<Layer>(width));
    second = register_module("second", std::make_shared<Layer>(width));
    last = register_module("last", torch::nn::Linear(width, 2));
    to(at::kDouble);
    seed_parameters(*this, 3);
  }
  at::Tensor loss(int step, int rank) {
    const at::Tensor x = seeded_randn({4, 32}, static_cast<uint64_t>(10 * step + rank));
    return last->forward(second->forward(first->forward(x))).pow(2).mean();
  }
  std::shared_ptr<Layer> first, second;
  torch::nn::Linear last = nullptr;
};

constexpr int kStepsToLearn = 3;  // after them gradients may come late

DataParallelOptions ordered_options() {
  DataParallelOptions options;
  options.strategy = find_strategy("ordered");
  options.cap = {.cap_bytes = 4096, .rule = CapRule::kAtMost, .first_cap_bytes = {}};
  return options;
}

TEST(Ordered, LeavesOnlyWhatIsAwaitedOnItsWay) {
  run_linked_ranks(2, kSlowLink, [](const ProcessGroup& group) {
    TwoLayers net;
    DataParallelOptions options = ordered_options();
    options.cap.cap_bytes = 1;  // a bucket that holds something that is not awaited would be waited for
    DataParallel ddp(net, group, options);
    torch::optim::SGD optimizer(net.parameters(), 0.1);
    OverlappedOptimizer overlapped(ddp, optimizer);
    for (int step = 0; step < kStepsToLearn + 2; ++step) {
      net.loss(step, group.rank).backward();
      EXPECT_TRUE(net.last->weight.grad().defined()) << "step " << step;
      if (step >= kStepsToLearn) {
        EXPECT_FALSE(net.first->linear->weight.grad().defined());
      }
      overlapped.step();
      optimizer.zero_grad();
    }
    const int64_t layer = (32 * 32 + 32) * 8;
    EXPECT_EQ(ddp.stats().awaited_bytes, 2 * layer);
    EXPECT_GT(ddp.stats().forward_wait_s, 0);
  });
}

TEST(Ordered, AModuleThatStopsAwaitingFailsTheStepOnAllRanks) {
  run_linked_ranks(2, kSlowLink, [](const ProcessGroup& group) {
    TwoLayers net;
    DataParallel ddp(net, group, ordered_options());
    torch::optim::SGD optimizer(net.parameters(), 0.1);
    OverlappedOptimizer overlapped(ddp, optimizer);
    for (int step = 0; step < kStepsToLearn + 2; ++step) {
      net.loss(step, group.rank).backward();
      overlapped.step();
    }
    net.second->awaits = group.rank != 1;
    std::string error;
    try {
      net.loss(4, group.rank).backward();
    } catch (const RuntimeError& thrown) {
      error = thrown.what();
    }
    EXPECT_THAT(error, HasSubstr("second did not call await_parameters()"));
    ASSERT_TRUE(ddp.last_failure());
    EXPECT_EQ(ddp.last_failure()->rank, 1);
    net.second->awaits = true;
    net.loss(5, group.rank).backward();
    overlapped.step();
    const Tensors parameters = copies(ddp.module().parameters());
    at::Tensor sum = at::zeros({}, at::kDouble);
    for (const at::Tensor& parameter : parameters) sum += parameter.sum();
    const auto sums = all_gather(group, {sum.item<double>()});
    EXPECT_EQ(sums[0], sums[1]);
  });
}

TEST(Ordered, PlainOptimizerStepsAreNotSilentlyWithoutEffect) {
  run_linked_ranks(2, kSlowLink, [](const ProcessGroup& group) {
    TwoLayers net;
    DataParallel ddp(net, group, ordered_options());
    torch::optim::SGD optimizer(net.parameters(), 0.1);
    std::string error;
    for (int step = 0; step < kStepsToLearn + 2 && error.empty(); ++step) {
      try {
        net.loss(step, group.rank).backward();
        optimizer.step();
        optimizer.zero_grad();
      } catch (const RuntimeError& thrown) {
        error = thrown.what();
      }
    }
    EXPECT_THAT(error, HasSubstr("OverlappedOptimizer::step()"));
  });
}

TEST(Ordered, GradientsAreThereAfterADrainBeforeTheStep) {
  run_linked_ranks(2, kSlowLink, [](const ProcessGroup& group) {
    TwoLayers net;
    DataParallel ddp(net, group, ordered_options());
    torch::optim::SGD optimizer(net.parameters(), 0.1);
    OverlappedOptimizer overlapped(ddp, optimizer);
    for (int step = 0; step < kStepsToLearn + 2; ++step) {
      net.loss(step, group.rank).backward();
      if (step == kStepsToLearn) {
        overlapped.drain();
        for (const at::Tensor& parameter : net.parameters()) EXPECT_TRUE(parameter.grad().defined());
      }
      overlapped.step();
      optimizer.zero_grad();
    }
  });
}

TEST(Ordered, SeveralOptimizersAndParametersOfNobodyElseStepOnceEach) {
  Tensors of_strategy[2];
  for (const char* strategy : {"ordered", "bucketed"}) {
    Tensors& result = of_strategy[strategy == std::string("ordered")];
    run_linked_ranks(2, kSlowLink, [&](const ProcessGroup& group) {
      TwoLayers net;
      at::Tensor scale = at::ones({}, at::kDouble).requires_grad_();  // not of the module: every rank for itself
      DataParallelOptions options = ordered_options();
      options.strategy = find_strategy(strategy);
      DataParallel ddp(net, group, options);
      Tensors some = net.first->parameters();
      some.push_back(scale);
      Tensors others = net.second->parameters();
      for (const at::Tensor& parameter : net.last->parameters()) others.push_back(parameter);
      torch::optim::SGD sgd(some, torch::optim::SGDOptions(0.1).momentum(0.9));
      torch::optim::AdamW adam(others, torch::optim::AdamWOptions(0.01));
      OverlappedOptimizer first(ddp, sgd);
      OverlappedOptimizer second(ddp, adam);
      for (int step = 0; step < 8; ++step) {
        (net.loss(step, group.rank) * scale).backward();
        first.step();
        second.step();
        sgd.zero_grad();
        adam.zero_grad();
      }
      if (group.rank == 0) result = copies(ddp.module().parameters());
      if (group.rank == 0) result.push_back(scale.detach().clone());
    });
  }
  EXPECT_TRUE(same_bits(of_strategy[0], of_strategy[1]));
}

TEST(Ordered, RefusesAnOptimizerThatNeedsAllGradientsTogether) {
  run_linked_ranks(2, kSlowLink, [](const ProcessGroup& group) {
    TwoLayers net;
    DataParallel ddp(net, group, ordered_options());
    torch::optim::SGD sgd(net.parameters(), 0.1);
    {
      OverlappedOptimizer overlapped(ddp, sgd);
      for (int step = 0; step < 3; ++step) {
        net.loss(step, group.rank).backward();
        overlapped.step();
      }
    }
    net.loss(3, group.rank).backward();
    torch::optim::LBFGS lbfgs(net.parameters(), torch::optim::LBFGSOptions(0.1));
    OverlappedOptimizer overlapped(ddp, lbfgs);
    EXPECT_THROW(overlapped.step(), InputError);
    overlapped.drain();
  });
}

TEST(Ordered, ALostGroupComesOutOfTheForwardThatAwaits) {
  run_linked_ranks(2, kSlowLink, [](const ProcessGroup& group) {
    TwoLayers net(32);
    DataParallel ddp(net, group, ordered_options());
    torch::optim::SGD optimizer(net.parameters(), 0.1);
    OverlappedOptimizer overlapped(ddp, optimizer);
    for (int step = 0; step < 3; ++step) {
      net.loss(step, group.rank).backward();
      overlapped.step();
    }
    if (group.rank == 1) {
      EXPECT_THROW(give_up(group, "on purpose"), GroupError);
      return;
    }
    const auto train_on = [&] {
      for (int step = 3; step < 6; ++step) {
        net.loss(step, group.rank).backward();
        overlapped.step();
      }
    };
    EXPECT_THROW(train_on(), GroupError);
    EXPECT_THROW(net.loss(6, group.rank).backward(), GroupError);
  });
}

TEST(Ordered, AwaitingIsHarmlessWhereNothingIsWrapped) {
  TwoLayers net;
  net.loss(0, 0).backward();
  EXPECT_TRUE(net.first->linear->weight.grad().defined());
}

}  // namespace
}  // namespace firkin
