// The strategies that leave things on their way when a step ends, ordered its gradients and sharded its parameters, train as bucketed does.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "training.h"

namespace firkin {
namespace {

struct Kind {
  const char* name;
  TrainingSetup setup;
  bool shards = true;
};

class Late : public testing::TestWithParam<std::tuple<Kind, int>> {};

// Over a link so slow that something is on its way at the end of every step; on two ranks, where a sum has one order only.
TEST_P(Late, TrainsAsBucketedToTheLastBit) {
  const auto& [kind, steps] = GetParam();
  TrainingSetup setup = kind.setup;
  setup.dtype = at::kFloat;
  setup.steps = steps;
  std::vector<std::string> strategies = {"bucketed", "ordered"};
  if (kind.shards) strategies.insert(strategies.end(), kSharded.begin(), kSharded.end());
  const std::vector<TrainedRanks> trained = train_on_ranks(2, under(strategies, setup), kLateLink);
  const Trained& bucketed = trained[0][0];
  EXPECT_EQ(bucketed.late, 0);
  for (size_t i = 0; i < strategies.size(); ++i) {
    SCOPED_TRACE(strategies[i]);
    for (const Trained& rank : trained[i]) {
      EXPECT_TRUE(same_bits(rank.parameters, bucketed.parameters));
      if (i == 0) continue;
      EXPECT_GT(rank.late, 0) << "nothing was under way when a step ended: this test has shown nothing";
      EXPECT_GT(rank.stats.awaited_bytes, 0);
      EXPECT_GT(rank.stats.forward_wait_s, 0);
    }
  }
}

const auto kCompresses = [](DataParallelOptions& options) { options.gradient_hook = bf16_compression(); };

const auto kKinds = testing::Values(Kind{"sgd", {}}, Kind{"adamw", {.optimizer = "AdamW"}}, Kind{"adam", {.optimizer = "Adam"}},
                                    Kind{"rmsprop", {.optimizer = "RMSprop"}}, Kind{"adagrad", {.optimizer = "Adagrad"}},
                                    Kind{"groups", {.optimizer = "Groups"}}, Kind{"accumulates", {.micro_batches = 3}},
                                    Kind{"zeroes_in_place", {.zeroes_in_place = true}, false}, Kind{"bf16", {.set = kCompresses}, false},
                                    Kind{"adamw_accumulates_bf16", {.optimizer = "AdamW", .micro_batches = 2, .set = kCompresses}, false});
const auto name_of_kind = [](const auto& test) { return std::string(std::get<Kind>(test.param).name); };

INSTANTIATE_TEST_SUITE_P(EightSteps, Late, testing::Combine(kKinds, testing::Values(8)), name_of_kind);
INSTANTIATE_TEST_SUITE_P(Full, Late, testing::Combine(kKinds, testing::Values(50)), name_of_kind);

// Gradients are clipped by the norm of all of them, wherever a rank has which.
TEST(LateClipping, IsByTheGlobalNorm) {
  for (const int world_size : {1, 2, 3}) {
    const auto trained = train_on_ranks(world_size, under({"bucketed", "ordered", "sharded"}, {.steps = 8, .max_norm = 0.05}), kLateLink);
    EXPECT_TRUE(same_bits(trained[1][0].parameters, trained[0][0].parameters));
    EXPECT_LE(relative_difference(trained[2][0].parameters, trained[0][0].parameters), 1e-12);
    EXPECT_EQ(trained[1][0].late, 0);
    for (const TrainedRanks& ranks : trained) expect_equal_ranks(ranks);
  }
}

}  // namespace
}  // namespace firkin
