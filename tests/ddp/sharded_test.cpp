// The strategy sharded trains as bucketed does, with a part of the optimiser on every rank.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "../comm/thread_ranks.h"
#include "../pairwise.h"
#include "ddp/sharded/sharded.h"
#include "sharded_training.h"
#include "test_models.h"

#include <torch/torch.h>

namespace firkin {
namespace {

struct RunSetup {
  std::string model = "transformer";
  std::string optimizer = "SGD";
  at::ScalarType dtype = at::kDouble;
  int steps = 12;
  int micro_batches = 1;
  double max_norm = 0;  // 0: not clipped
  std::string link = {};
  int64_t cap_bytes = 1500;
};

struct Trained {
  Tensors parameters;
  int64_t late = 0;  // parameters that changed after step() had returned, over all steps
  int64_t awaited_bytes = 0;
  double forward_wait_s = 0;
  std::vector<BucketStats> buckets;  // of the last step
  int64_t state_elements = 0;
};

int64_t elements_of_state(const torch::optim::Optimizer& optimizer) {
  int64_t elements = 0;
  for (const auto& [tensor, state] : optimizer.state()) {
    if (const auto* sgd = dynamic_cast<const torch::optim::SGDParamState*>(state.get())) elements += sgd->momentum_buffer().numel();
    if (const auto* adam = dynamic_cast<const torch::optim::AdamWParamState*>(state.get())) elements += adam->exp_avg().numel();
  }
  return elements;
}

Trained train(const ProcessGroup& group, const std::string& strategy, const RunSetup& setup) {
  TestModel model = make_test_model(setup.model, setup.dtype);
  if (group.rank != 0) {
    for (at::Tensor& parameter : model.module->parameters()) parameter.detach().zero_();  // rank 0's values must arrive
  }
  ShardedTraining training(*model.module, group, sharded_options(strategy, setup.cap_bytes), setup.optimizer,
                           {.whole_parameters = strategy == kWhole});
  const int64_t local = kGlobalBatch / group.size / setup.micro_batches;
  Trained trained;
  for (int step = 0; step < setup.steps; ++step) {
    const int64_t first = group.rank * local * setup.micro_batches;
    if (training.plain) training.zero_grad();
    for (int micro = 0; micro < setup.micro_batches; ++micro) {
      training.ddp.set_gradient_synchronization(micro == setup.micro_batches - 1);
      (model.loss(step, first + micro * local, local) / setup.micro_batches).backward();
    }
    if (setup.max_norm > 0) training.clip(setup.max_norm);
    training.step();
    for (auto& groups : training.optimizer().param_groups()) groups.options().set_lr(groups.options().get_lr() * 0.99);
    if (step % 4 != 3) continue;
    const Tensors at_step_end = copies(model.module->parameters());
    for (size_t i = 0; const at::Tensor& parameter : training.ddp.module().parameters()) {
      trained.late += at::equal(parameter, at_step_end[i++]) ? 0 : 1;
    }
  }
  trained.parameters = copies(training.ddp.module().parameters());
  const DataParallelStats stats = training.ddp.stats();
  trained.awaited_bytes = stats.awaited_bytes;
  trained.forward_wait_s = stats.forward_wait_s;
  trained.buckets = stats.buckets;
  trained.state_elements = elements_of_state(training.optimizer());
  EXPECT_EQ(stats.steps, setup.steps);
  return trained;
}

std::vector<Trained> train_on_ranks(int world_size, const std::string& strategy, const RunSetup& setup) {
  std::vector<Trained> result(static_cast<size_t>(world_size));
  const auto body = [&](const ProcessGroup& group) { result[static_cast<size_t>(group.rank)] = train(group, strategy, setup); };
  setup.link.empty() ? run_ranks(world_size, body) : run_linked_ranks(world_size, setup.link, body);
  return result;
}

class ShardedSteps : public testing::TestWithParam<std::tuple<std::string, std::string, int, int>> {};

TEST_P(ShardedSteps, AreThoseOfBucketedToTheLastBitOnTwoRanks) {
  const auto& [model, optimizer, world_size, steps] = GetParam();
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat}) {
    if (dtype == at::kFloat && world_size % 2 == 1) continue;  // sums of two ranks, and of four
    SCOPED_TRACE(c10::toString(dtype));
    const int64_t cap_bytes = model == "transformer" ? 6000 : 1500;  // a few buckets each
    const RunSetup setup{.model = model, .optimizer = optimizer, .dtype = dtype, .steps = steps, .cap_bytes = cap_bytes};
    const std::vector<Trained> sharded = train_on_ranks(world_size, "sharded", setup);
    const std::vector<Trained> bucketed = train_on_ranks(world_size, "bucketed", setup);
    for (const Trained& rank : sharded) EXPECT_TRUE(same_bits(rank.parameters, sharded[0].parameters));
    const std::vector<Trained> whole = train_on_ranks(world_size, kWhole, setup);
    for (const Trained& rank : whole) EXPECT_TRUE(same_bits(rank.parameters, whole[0].parameters));
    if (world_size <= 2) {
      EXPECT_TRUE(same_bits(whole[0].parameters, bucketed[0].parameters));
      EXPECT_TRUE(same_bits(sharded[0].parameters, bucketed[0].parameters));
    } else if (dtype == at::kDouble) {
      EXPECT_LE(relative_difference(sharded[0].parameters, bucketed[0].parameters), 1e-12);
      EXPECT_LE(relative_difference(whole[0].parameters, bucketed[0].parameters), 1e-12);
    } else {
      EXPECT_LE(relative_difference(sharded[0].parameters, bucketed[0].parameters), optimizer == "SGD" ? 1e-5 : 1e-3);
    }
  }
}

const std::vector<std::string> kOptimizers = {"SGD", "AdamW"};
const std::vector<int> kWorlds = {1, 2, 3, 4};

const auto name_of_steps = [](const auto& test) {
  const auto& [model, optimizer, world_size, steps] = test.param;
  return fmt::format("{}With{}On{}", model, optimizer, world_size);
};

INSTANTIATE_TEST_SUITE_P(Pairs, ShardedSteps, testing::ValuesIn(pairwise(test_model_names(), kOptimizers, kWorlds, std::vector{10})),
                         name_of_steps);
INSTANTIATE_TEST_SUITE_P(Full, ShardedSteps,
                         testing::Combine(testing::ValuesIn(test_model_names()), testing::ValuesIn(kOptimizers), testing::ValuesIn(kWorlds),
                                          testing::Values(50)),
                         name_of_steps);

TEST(Sharded, EveryKnownOptimizerAndGroupsOfParametersTrainAsUnderBucketed) {
  for (const char* optimizer : {"Adam", "RMSprop", "Adagrad", "Groups"}) {
    SCOPED_TRACE(optimizer);
    const RunSetup setup{.optimizer = optimizer};
    const Tensors bucketed = train_on_ranks(2, "bucketed", setup)[0].parameters;
    for (const std::string& strategy : kSharded)
      EXPECT_TRUE(same_bits(train_on_ranks(2, strategy, setup)[1].parameters, bucketed)) << strategy;
  }
}

void expect_late_parameters_of_bucketed(int steps) {
  for (const char* optimizer : {"SGD", "AdamW"}) {
    const RunSetup setup{.optimizer = optimizer, .dtype = at::kFloat, .steps = steps, .link = kLateLink};
    const std::vector<Trained> bucketed = train_on_ranks(2, "bucketed", setup);
    for (const std::string& strategy : kSharded) {
      for (const Trained& rank : train_on_ranks(2, strategy, setup)) {
        EXPECT_TRUE(same_bits(rank.parameters, bucketed[0].parameters));
        EXPECT_GT(rank.late, 0) << "nothing was under way when a step ended: this test has shown nothing";
        EXPECT_GT(rank.awaited_bytes, 0);
        EXPECT_GT(rank.forward_wait_s, 0);
      }
    }
  }
}

TEST(Sharded, ParametersThatArriveBehindTheNextForwardAreThoseOfBucketed) {
  expect_late_parameters_of_bucketed(12);
}

TEST(ShardedFull, ParametersThatArriveBehindTheNextForwardAreThoseOfBucketedAfterFiftySteps) {
  expect_late_parameters_of_bucketed(50);
}

TEST(Sharded, AccumulatesAsBucketed) {
  const RunSetup setup{.dtype = at::kFloat, .micro_batches = 3, .link = kLateLink};
  EXPECT_TRUE(same_bits(train_on_ranks(2, "sharded", setup)[1].parameters, train_on_ranks(2, "bucketed", setup)[0].parameters));
}

TEST(Sharded, ClipsByTheGlobalNorm) {
  const RunSetup setup{.max_norm = 0.05};
  for (const int world_size : {1, 2, 3}) {
    const std::vector<Trained> sharded = train_on_ranks(world_size, "sharded", setup);
    const std::vector<Trained> bucketed = train_on_ranks(world_size, "bucketed", setup);
    for (const Trained& rank : sharded) EXPECT_TRUE(same_bits(rank.parameters, sharded[0].parameters));
    EXPECT_LE(relative_difference(sharded[0].parameters, bucketed[0].parameters), 1e-12);
  }
}

TEST(Sharded, ARankKeepsItsPartOfTheOptimizersState) {
  for (const char* optimizer : {"SGD", "AdamW"}) {
    const Trained alone = train_on_ranks(1, "bucketed", {.optimizer = optimizer})[0];
    const int64_t plain = alone.state_elements, largest = std::ranges::max(alone.parameters, {}, &at::Tensor::numel).numel();
    for (const int world_size : {2, 4}) {
      for (const std::string& strategy : kSharded) {
        int64_t sum = 0;
        for (const Trained& rank : train_on_ranks(world_size, strategy, {.optimizer = optimizer})) {
          EXPECT_LE(rank.state_elements, plain / world_size + (strategy == kWhole ? largest : 1500 / 8)) << strategy;  // a bucket's
          sum += rank.state_elements;
        }
        EXPECT_EQ(sum, plain);
      }
    }
  }
}

// It sends nothing, its parameters are all its own, and both halves of a step take the link's time.
TEST(Sharded, OneRankThatStandsForManyTrainsAsAloneAndWaitsForTheLink) {
  const ModelledLink link = parse_link(kLateLink, 4);
  for (const std::string& strategy : kSharded) {
    SCOPED_TRACE(strategy);
    const RunSetup setup{.steps = 4};
    Trained alone, of_many;
    run_ranks(1, [&](const ProcessGroup& group) { alone = train(group, strategy, setup); });
    run_ranks_with(1, {.timeout = std::chrono::seconds(60), .link = link},
                   [&](const ProcessGroup& group) { of_many = train(group, strategy, setup); });
    EXPECT_TRUE(same_bits(of_many.parameters, alone.parameters));
    ASSERT_FALSE(of_many.buckets.empty());
    for (const BucketStats& bucket : of_many.buckets) {
      EXPECT_GE(bucket.end_s - bucket.launch_s, share_time(link, bucket.bytes_on_wire).alone_s);
    }
    EXPECT_EQ(alone.forward_wait_s, 0);
    EXPECT_GT(of_many.forward_wait_s, 0) << "no module waited for the parameters that its bucket gathers";
  }
}

TEST(Slices, OfAnyLengthsTravelAndAddUp) {
  run_ranks(3, [](const ProcessGroup& group) {
    const at::Tensor expected = at::arange(10, at::kDouble);
    for (const SliceLengths& lengths : {SliceLengths{4, 2, 4}, SliceLengths{6, 0, 4}, SliceLengths{0, 10, 0}}) {
      const at::Tensor bucket = expected / 4 * std::vector<double>{2, 1, 1}[static_cast<size_t>(group.rank)];
      SlicedBucket slices(lengths);
      wait(group, slices.launch(group, bucket).work, "slices");
      slices.finish(group, bucket);
      const at::Tensor own = slices.own(group, bucket).clone();
      EXPECT_TRUE(at::equal(own, slices.own(group, expected)));
      bucket.fill_(-1);
      slices.own(group, bucket).copy_(own);
      slices.gather(group, bucket);
      slices.wait_for_gather(group, [] { return std::string("slices"); });
      EXPECT_TRUE(at::equal(bucket, expected));
    }
  });
}

TEST(Slices, OfALargeBucketTravelInPiecesAndAddUp) {
  run_ranks(3, [](const ProcessGroup& group) {
    const at::Tensor expected = at::arange(3 * 1'000'003, at::kInt).to(at::kFloat);  // two pieces of unequal length
    const at::Tensor bucket = expected * std::vector<double>{0.5, 0.25, 0.25}[static_cast<size_t>(group.rank)];
    SlicedBucket slices;
    const BucketReduction reduction = slices.launch(group, bucket);
    ASSERT_TRUE(reduction.finish);
    reduction.finish();
    wait(group, reduction.work, "slices");
    slices.finish(group, bucket);
    const at::Tensor own = slices.own(group, bucket).clone();
    EXPECT_TRUE(at::equal(own, slices.own(group, expected)));
    bucket.zero_();
    slices.own(group, bucket).copy_(own);
    slices.gather(group, bucket);
    slices.wait_for_gather(group, [] { return std::string("slices"); });
    EXPECT_TRUE(at::equal(bucket, expected));
  });
}

}  // namespace
}  // namespace firkin
