// Every strategy trains as one process on the whole batch would: every kind of model, optimiser and precision, on 1 to 4 ranks.

#include "../pairwise.h"
#include "../test.h"
#include "training.h"

namespace firkin {
namespace {

using Row = std::tuple<std::string, std::string, int, at::ScalarType>;  // model, optimiser, ranks, precision

class EveryStrategy : public testing::TestWithParam<Row> {};

// Relative, after five steps. AdamW divides by the gradient's own size, which blows rounding up where the gradient is small.
double tolerance_of(const TrainingSetup& setup) {
  if (setup.dtype == at::kDouble) return 1e-9;
  return setup.optimizer == "AdamW" ? 1e-4 : 1e-5;
}

void divide_in_two_buckets(DataParallelOptions& options, const std::string& model) {
  const auto tensors = static_cast<int64_t>(trainable_parameters(*make_test_model(model, at::kFloat).module).size());
  if (options.strategy.name == "planned") options.plan = BucketPlan{{{0, 1}, {1, tensors - 1}}, {}};
}

// Up to two ranks, where a sum has one order only, to the last bit.
TEST_P(EveryStrategy, TrainsAsOneProcessOnTheWholeBatch) {
  const std::vector<std::string> strategies = {"naive", "flat", "overlap", "bucketed", "planned", "ordered", "sharded", kWhole};
  const auto& [model, optimizer, world_size, dtype] = GetParam();
  const TrainingSetup setup{.model = model, .optimizer = optimizer, .dtype = dtype, .steps = 5, .set = [&](DataParallelOptions& options) {
                              divide_in_two_buckets(options, model);
                            }};
  const Trained alone = train_on_ranks(1, under({"none"}, setup))[0][0];
  const std::vector<TrainedRanks> trained = train_on_ranks(world_size, under(strategies, setup));
  const Trained& naive = trained[0][0];
  for (size_t i = 0; i < strategies.size(); ++i) {
    SCOPED_TRACE(strategies[i]);
    const Trained& rank_0 = trained[i][0];
    EXPECT_LE(relative_difference(rank_0.parameters, alone.parameters), tolerance_of(setup));
    expect_equal_ranks(trained[i]);
    if (world_size <= 2) {
      EXPECT_TRUE(same_bits(rank_0.parameters, naive.parameters));
    }
    if (with_strategy(strategies[i]).strategy.shards) continue;
    EXPECT_LE(relative_difference(rank_0.first_gradients, naive.first_gradients), 1e-6);
  }
}

const std::vector<std::string> kOptimizers = {"SGD", "AdamW"};
const std::vector<int> kWorlds = {1, 2, 3, 4};
const std::vector<at::ScalarType> kDtypes = {at::kDouble, at::kFloat};

const auto name_of_row = [](const auto& test) {
  const auto& [model, optimizer, world_size, dtype] = test.param;
  return fmt::format("{}{}With{}On{}", model, c10::toString(dtype), optimizer, world_size);
};

INSTANTIATE_TEST_SUITE_P(Pairs, EveryStrategy, ValuesIn(pairwise(test_model_names(), kOptimizers, kWorlds, kDtypes)), name_of_row);
INSTANTIATE_TEST_SUITE_P(Full, EveryStrategy,
                         Combine(ValuesIn(test_model_names()), ValuesIn(kOptimizers), ValuesIn(kWorlds), ValuesIn(kDtypes)), name_of_row);

TEST(Strategies, AGradientHasTheStridesOfItsParameter) {
  run_ranks(2, [](const ProcessGroup& group) {
    for (const char* strategy : {"naive", "flat", "overlap", "bucketed"}) {
      const TestModel model = make_test_model("convolutional", at::kDouble);
      DataParallel ddp(*model.module, group, with_strategy(strategy));
      for (int step = 0; step < 3; ++step) {
        model.module->zero_grad();
        model.loss(step, 0, 4).backward();
        for (const at::Tensor& p : model.module->parameters()) EXPECT_EQ(p.grad().strides(), p.strides()) << strategy;
      }
    }
  });
}

TEST(Strategies, NoneLeavesEachRankToItself) {
  const TrainedRanks ranks = train_on_ranks(2, {{.strategy = "none", .model = "mlp", .steps = 5}})[0];
  EXPECT_FALSE(same_bits(ranks[0].parameters, ranks[1].parameters));
}

TEST(Strategies, AreFoundByName) {
  EXPECT_EQ(find_strategy("flat").grouping, Grouping::kOneBucket);
  EXPECT_THROW(find_strategy("fast"), InputError);
}

}  // namespace
}  // namespace firkin
