#include "train/trainer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <mutex>

#include "../comm/thread_ranks.h"
#include "tiny_training.h"

namespace firkin {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

// LibTorch's generator is one for the process: ranks that are threads make their models one after another.
TransformerLM locked_model() {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  return TinyTraining::model();
}

std::vector<double> losses_of(const TinyTraining& training, int world_size, const std::string& strategy, int steps) {
  std::vector<double> losses(static_cast<size_t>(steps));
  run_ranks(world_size, [&](const ProcessGroup& group) {
    const auto trainer = training.trainer(group, locked_model(), strategy);
    for (int i = 0; i < steps; ++i) {
      const StepReport report = trainer->step(false);
      if (group.rank == 0) losses[static_cast<size_t>(i)] = report.loss;
    }
  });
  return losses;
}

void expect_close(const std::vector<double>& losses, const std::vector<double>& expected, double tolerance) {
  ASSERT_EQ(losses.size(), expected.size());
  for (size_t i = 0; i < losses.size(); ++i) EXPECT_NEAR(losses[i], expected[i], tolerance) << "step " << i;
}

TEST(Trainer, OrderedWithoutClippingHasNoNorm) {
  TinyTraining training;
  training.settings.clip_norm = 0;
  run_ranks(2, [&](const ProcessGroup& group) {
    EXPECT_FALSE(training.trainer(group, locked_model(), "ordered")->step(false).gradient_norm.has_value());
    EXPECT_TRUE(training.trainer(group, locked_model(), "flat")->step(false).gradient_norm.has_value());
  });
}

TEST(Trainer, LossesDoNotDependOnTheMicroBatch) {
  TinyTraining training;
  const std::vector<double> whole = losses_of(training, 2, "bucketed", 20);
  training.settings.micro_batch = 3;  // passes of 3 and of 1
  expect_close(losses_of(training, 2, "bucketed", 20), whole, 1e-4);
}

TEST(Trainer, GradientsAreScaledToTheNormAndNotBelow) {
  TinyTraining training;
  training.settings.clip_norm = 0.01;
  run_ranks(1, [&](const ProcessGroup& group) {
    const TransformerLM net = locked_model();
    const auto trainer = training.trainer(group, net);
    EXPECT_GT(trainer->step(false).gradient_norm.value(), 0.1);  // as it was before
    double squares = 0;
    for (const at::Tensor& parameter : net->parameters()) squares += parameter.grad().square().sum().item<double>();
    EXPECT_NEAR(std::sqrt(squares), 0.01, 1e-5);
  });
}

TEST(Trainer, NormsAndBiasesDoNotDecay) {
  const TransformerLM net = locked_model();
  const auto optimizer = make_adamw(*net, {.weight_decay = 0.3});
  ASSERT_EQ(optimizer->param_groups().size(), 2U);
  const auto decay = [&](size_t group) {
    return static_cast<const torch::optim::AdamWOptions&>(optimizer->param_groups()[group].options()).weight_decay();
  };
  EXPECT_EQ(decay(0), 0.3);
  EXPECT_EQ(decay(1), 0);
  EXPECT_EQ(optimizer->param_groups()[1].params().size(), 5U);  // two norms a block, and the last
  for (const at::Tensor& parameter : optimizer->param_groups()[1].params()) EXPECT_EQ(parameter.dim(), 1);
}

TEST(Trainer, TheHeldPartHasOneLossWhateverTheNumberOfRanks) {
  const TinyTraining training;
  double alone = 0;
  run_ranks(1, [&](const ProcessGroup& group) { alone = training.trainer(group, locked_model())->evaluate(11).value(); });
  EXPECT_NEAR(alone, std::log(128), 0.2);
  run_ranks(4, [&](const ProcessGroup& group) { EXPECT_NEAR(training.trainer(group, locked_model())->evaluate(11).value(), alone, 1e-5); });
}

TEST(Trainer, AllRanksHearThatOneIsToStop) {
  const TinyTraining training;
  run_ranks(2, [&](const ProcessGroup& group) {
    const auto trainer = training.trainer(group, locked_model());
    EXPECT_FALSE(trainer->step(false).stop);
    EXPECT_TRUE(trainer->step(group.rank == 1).stop);
  });
}

TEST(Trainer, ABatchThatRanksCannotShareEquallyIsBadInput) {
  TinyTraining training;
  training.settings.batch = 9;
  EXPECT_THAT([&] { losses_of(training, 2, "bucketed", 1); }, ThrowsMessage<InputError>(HasSubstr("expected a multiple of the number")));
}

// The loss of rank 1 is spoilt in step 3.
std::unique_ptr<Trainer> exploding_trainer(const TinyTraining& training, const ProcessGroup& group, const TransformerLM& net,
                                           const std::string& strategy, const Trainer** self) {
  auto loss = [net = net, self, rank = group.rank](const TokenBatch& batch) mutable {
    const at::Tensor finite = language_model_loss(net->forward(batch.tokens), batch.targets);
    return rank == 1 && (*self)->next_step() == 3 ? finite * std::numeric_limits<double>::quiet_NaN() : finite;
  };
  DataParallelOptions options;
  options.strategy = find_strategy(strategy);
  return std::make_unique<Trainer>(group, net.ptr(), loss, training.data(), training.settings, options);
}

TEST(Trainer, ALossThatIsNotANumberOnOneRankIsNamedOnAllAndNothingHasChanged) {
  const TinyTraining training;
  run_ranks(2, [&](const ProcessGroup& group) {
    const TransformerLM net = locked_model();
    const Trainer* self = nullptr;
    const auto trainer = exploding_trainer(training, group, net, "bucketed", &self);
    self = trainer.get();
    for (int i = 0; i < 3; ++i) trainer->step(false);
    const at::Tensor before = net->parameters()[0].detach().clone();
    EXPECT_THAT([&] { trainer->step(false); },
                ThrowsMessage<NonFiniteError>(AllOf(HasSubstr("step 3: rank 1: loss nan"), HasSubstr("gradient of lm_head.weight"))));
    EXPECT_TRUE(at::equal(net->parameters()[0].detach(), before));
    EXPECT_EQ(trainer->next_step(), 3);
  });
}

TEST(Trainer, AStepThatIsSkippedLeavesParametersAndTheNextOneIsSound) {
  for (const char* strategy : {"bucketed", "ordered", "sharded"}) {
    for (const double clip_norm : {1.0, 0.0}) {
      SCOPED_TRACE(testing::Message() << strategy << " " << clip_norm);
      TinyTraining training;
      training.settings.on_nonfinite = OnNonFinite::kSkip;
      training.settings.clip_norm = clip_norm;
      run_ranks(2, [&](const ProcessGroup& group) {
        const TransformerLM net = locked_model();
        const Trainer* self = nullptr;
        const auto trainer = exploding_trainer(training, group, net, strategy, &self);
        self = trainer.get();
        for (int i = 0; i < 3; ++i) trainer->step(false);
        trainer->module();  // drained
        const at::Tensor before = net->parameters()[0].detach().clone();
        EXPECT_THAT(trainer->step(false).skipped, HasSubstr("step 3: rank 1: loss nan"));
        trainer->module();
        EXPECT_TRUE(at::equal(net->parameters()[0].detach(), before));
        for (int i = 0; i < 3; ++i) EXPECT_TRUE(std::isfinite(trainer->step(false).loss));
      });
    }
  }
}

}  // namespace
}  // namespace firkin
