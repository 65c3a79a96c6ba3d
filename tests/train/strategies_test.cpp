// A training's losses, whatever the strategy and the number of ranks.
#include <gtest/gtest.h>

#include <mutex>

#include "../comm/thread_ranks.h"
#include "firkin/ddp/module_parameters.h"
#include "tiny_training.h"

namespace firkin {
namespace {

constexpr int kSteps = 50;

struct TrainedWith {
  const char* name;
  const char* strategy;
  double clip_norm = 1;
  double clip_each_norm = 0;
  bool automatic_buckets = false;
};

// Buckets of one, two, three tensors, and so on.
BucketPlan growing_buckets(int64_t tensors) {
  BucketPlan plan;
  for (int64_t first = 0, count = 1; first < tensors; first += count, ++count) {
    plan.buckets.push_back({.first = first, .count = std::min(count, tensors - first)});
  }
  return plan;
}

DataParallelOptions options_of(const TrainedWith& setting, const TransformerLM& net) {
  DataParallelOptions options;
  options.strategy = find_strategy(setting.strategy);
  options.cap.cap_bytes = 4096;
  if (options.strategy.grouping == Grouping::kPlan) options.plan = growing_buckets(std::ssize(trainable_parameters(*net)));
  if (setting.automatic_buckets) options.buckets = automatic({});
  return options;
}

std::vector<double> losses_with(const TrainedWith& setting, int world_size) {
  static std::mutex one_at_a_time;  // LibTorch's generator is one for the process
  TinyTraining training;
  training.settings.clip_norm = setting.clip_norm;
  training.settings.clip_each_norm = setting.clip_each_norm;
  std::vector<double> losses;
  run_ranks(world_size, [&](const ProcessGroup& group) {
    at::set_num_threads(1);
    std::unique_lock lock(one_at_a_time);
    TransformerLM net = TinyTraining::model();
    lock.unlock();
    const auto loss = [net](const TokenBatch& batch) mutable { return language_model_loss(net->forward(batch.tokens), batch.targets); };
    Trainer trainer(group, net.ptr(), loss, training.data(), training.settings, options_of(setting, net));
    for (int i = 0; i < kSteps; ++i) {
      const double mean = trainer.step(false).loss;
      if (group.rank == 0) losses.push_back(mean);
    }
  });
  return losses;
}

class Strategies : public testing::TestWithParam<TrainedWith> {};

TEST_P(Strategies, TrainTheSameOnOneTwoAndFourRanks) {
  const TrainedWith& setting = GetParam();
  const std::vector<double> expected =
      losses_with({.name = "", .strategy = "flat", .clip_norm = setting.clip_norm, .clip_each_norm = setting.clip_each_norm}, 1);
  EXPECT_LT(expected.back(), 0.7 * expected.front());
  for (const int world_size : {1, 2, 4}) {
    SCOPED_TRACE(world_size);
    const std::vector<double> losses = losses_with(setting, world_size);
    ASSERT_EQ(losses.size(), expected.size());
    for (size_t i = 0; i < losses.size(); ++i) EXPECT_NEAR(losses[i], expected[i], 1e-4) << "step " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(All, Strategies,
                         testing::Values(TrainedWith{"naive", "naive"}, TrainedWith{"flat", "flat"}, TrainedWith{"overlap", "overlap"},
                                         TrainedWith{"bucketed", "bucketed"}, TrainedWith{"planned", "planned"},
                                         TrainedWith{"ordered", "ordered"}, TrainedWith{"sharded", "sharded"},
                                         TrainedWith{"orderedWithoutClipping", "ordered", 0},
                                         TrainedWith{"orderedWithClippingOfEach", "ordered", 0, 0.1},
                                         TrainedWith{"automatic", "bucketed", 1, 0, true}),
                         [](const auto& setting) { return std::string(setting.param.name); });

}  // namespace
}  // namespace firkin
