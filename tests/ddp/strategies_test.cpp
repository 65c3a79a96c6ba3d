// Every strategy trains as one process on the whole batch would: every kind of model, optimiser and precision, on 1 to 4 ranks.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <span>
#include <string_view>

#include "../comm/thread_ranks.h"
#include "../pairwise.h"
#include "firkin/base/error.h"
#include "firkin/ddp/data_parallel.h"
#include "firkin/ddp/module_parameters.h"
#include "tensors.h"
#include "test_models.h"

#include <torch/torch.h>

namespace firkin {
namespace {

constexpr int kSteps = 5;
constexpr std::array kStrategies = {"naive", "flat", "overlap", "bucketed", "planned"};

// What a run left behind.
struct Trained {
  Tensors first_gradients;  // of the first step: at the same parameters in every run
  Tensors parameters;
};

// How a run is set up, apart from the strategy and the ranks.
struct RunSetup {
  std::string model;
  std::string optimizer;
  at::ScalarType dtype = at::kDouble;

  // Relative, after kSteps. AdamW divides by the gradient's own size, which blows rounding up where the gradient is small.
  double tolerance() const {
    if (dtype == at::kDouble) return 1e-9;
    return optimizer == "AdamW" ? 1e-4 : 1e-5;
  }
};

std::unique_ptr<torch::optim::Optimizer> make_optimizer(const std::string& name, const Tensors& parameters) {
  if (name == "AdamW") return std::make_unique<torch::optim::AdamW>(parameters, torch::optim::AdamWOptions(1e-3));
  return std::make_unique<torch::optim::SGD>(parameters, torch::optim::SGDOptions(0.1).momentum(0.9));
}

Tensors copies_of_defined(const Tensors& tensors) {
  Tensors result;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.defined()) result.push_back(tensor.detach().clone());
  }
  return result;
}

Tensors gradients_of(const torch::nn::Module& module) {
  Tensors gradients;
  for (const at::Tensor& parameter : module.parameters()) gradients.push_back(parameter.grad());
  return copies_of_defined(gradients);
}

// Trains on this rank's part of each global batch; `synchronize` runs between backward and the optimiser.
Trained train(TestModel& model, const std::string& optimizer_name, int rank, int world_size, const std::function<void()>& synchronize) {
  auto optimizer = make_optimizer(optimizer_name, model.module->parameters());
  const int64_t local = kGlobalBatch / world_size;
  Trained trained;
  for (int step = 0; step < kSteps; ++step) {
    optimizer->zero_grad();
    model.loss(step, rank * local, local).backward();
    synchronize();
    if (step == 0) trained.first_gradients = gradients_of(*model.module);
    optimizer->step();
  }
  trained.parameters = copies_of_defined(model.module->parameters());
  return trained;
}

Trained train_alone(const RunSetup& setup) {
  TestModel model = make_test_model(setup.model, setup.dtype);
  return train(model, setup.optimizer, 0, 1, [] {});
}

DataParallelOptions options_for(std::string_view strategy, const torch::nn::Module& module) {
  DataParallelOptions options;
  options.strategy = find_strategy(strategy);
  options.cap = {.cap_bytes = 1500, .rule = CapRule::kAtMost, .first_cap_bytes = {}};
  if (strategy == "planned") {
    const auto tensors = static_cast<int64_t>(trainable_parameters(module).size());
    options.plan = BucketPlan{{{0, 1}, {1, tensors - 1}}, {}};
  }
  return options;
}

// For each of `strategies` what each rank trained: all on one group, because making it takes longer than training.
std::vector<std::vector<Trained>> train_on_ranks(int world_size, std::span<const char* const> strategies, const RunSetup& setup) {
  std::vector<std::vector<Trained>> result(strategies.size(), std::vector<Trained>(static_cast<size_t>(world_size)));
  run_ranks(world_size, [&](const ProcessGroup& group) {
    for (size_t i = 0; i < strategies.size(); ++i) {
      TestModel model = make_test_model(setup.model, setup.dtype);
      if (group.rank != 0) {
        for (at::Tensor& p : model.module->parameters()) p.detach().zero_();  // rank 0's values must arrive
      }
      DataParallel ddp(*model.module, group, options_for(strategies[i], *model.module));
      result[i][static_cast<size_t>(group.rank)] =
          train(model, setup.optimizer, group.rank, group.size, [&ddp] { ddp.finish_gradient_synchronization(); });
    }
  });
  return result;
}

class EveryStrategy : public testing::TestWithParam<std::tuple<std::string, std::string, int, at::ScalarType>> {};

TEST_P(EveryStrategy, TrainsAsOneProcessOnTheWholeBatch) {
  const auto& [model, optimizer, world_size, dtype] = GetParam();
  const RunSetup setup{.model = model, .optimizer = optimizer, .dtype = dtype};
  const Trained alone = train_alone(setup);
  const std::vector<std::vector<Trained>> trained = train_on_ranks(world_size, kStrategies, setup);
  static_assert(std::string_view(kStrategies[0]) == "naive");
  const Trained& naive = trained[0][0];
  for (size_t i = 0; i < kStrategies.size(); ++i) {
    SCOPED_TRACE(kStrategies[i]);
    const std::vector<Trained>& ranks = trained[i];
    EXPECT_LE(relative_difference(ranks[0].parameters, alone.parameters), setup.tolerance());
    EXPECT_LE(relative_difference(ranks[0].first_gradients, naive.first_gradients), 1e-6);
    for (const Trained& rank : ranks) EXPECT_TRUE(same_bits(rank.parameters, ranks[0].parameters));
    if (world_size <= 2) {
      EXPECT_TRUE(same_bits(ranks[0].parameters, naive.parameters));
    }
  }
}

const std::vector<std::string> kOptimizers = {"SGD", "AdamW"};
const std::vector<int> kWorlds = {1, 2, 3, 4};
const std::vector<at::ScalarType> kDtypes = {at::kDouble, at::kFloat};

const auto name_of_training = [](const auto& test) {
  const auto& [model, optimizer, world_size, dtype] = test.param;
  return fmt::format("{}{}With{}On{}", model, c10::toString(dtype), optimizer, world_size);
};

INSTANTIATE_TEST_SUITE_P(Pairs, EveryStrategy, testing::ValuesIn(pairwise(test_model_names(), kOptimizers, kWorlds, kDtypes)),
                         name_of_training);
INSTANTIATE_TEST_SUITE_P(Full, EveryStrategy,
                         testing::Combine(testing::ValuesIn(test_model_names()), testing::ValuesIn(kOptimizers), testing::ValuesIn(kWorlds),
                                          testing::ValuesIn(kDtypes)),
                         name_of_training);

TEST(Strategies, NoneLeavesEachRankToItself) {
  const std::vector<Trained> ranks = train_on_ranks(2, std::array{"none"}, {.model = "mlp", .optimizer = "SGD"})[0];
  EXPECT_FALSE(same_bits(ranks[0].parameters, ranks[1].parameters));
}

TEST(Strategies, AreFoundByName) {
  EXPECT_EQ(find_strategy("flat").grouping, Grouping::kOneBucket);
  EXPECT_THROW(find_strategy("fast"), InputError);
}

}  // namespace
}  // namespace firkin
