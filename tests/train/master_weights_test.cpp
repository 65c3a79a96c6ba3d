// Training in bfloat16, with and without copies of the parameters in float32.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>

#include "../comm/thread_ranks.h"
#include "tiny_training.h"
#include "train/checkpoint.h"

namespace firkin {
namespace {

using Tensors = std::vector<at::Tensor>;

// Every weight is 1/64 or -1/64, and every gain is 1: the same in either type, and as far as can be from the next value in bfloat16. Half
// of the way to it is 2^-15 for a weight (below 1/64, values are 2^-14 apart), and 2^-9 for a gain.
TransformerLM model_of_type(at::ScalarType type) {
  static std::mutex one_at_a_time;  // LibTorch's generator is one for the process
  const std::lock_guard lock(one_at_a_time);
  const TransformerLM drawn = TinyTraining::model();
  TransformerLM net(kTinyModel, at::TensorOptions(type));
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < net->parameters().size(); ++i) {
    const at::Tensor from = drawn->parameters()[i];
    net->parameters()[i].copy_(from.dim() >= 2 ? from.sign() / 64 : at::ones_like(from));
  }
  return net;
}

// AdamW changes a parameter by at most the learning rate (Kingma and Ba 2015, section 2.1), and this much of it for weight decay.
constexpr double kLearningRate = 1e-5;
static_assert(1.1 * kLearningRate < 0.5 / 16384, "less than half of the way to the next value");

struct Trained {
  double held_before = 0, held_after = 0;
  Tensors before = {}, after = {};
};

Trained train_slowly(at::ScalarType type, bool master_weights, const std::string& strategy = "bucketed", int world_size = 1,
                     int steps = 100) {
  TinyTraining training;
  training.settings.schedule = {.kind = ScheduleKind::kConstant, .peak = kLearningRate, .steps = steps};
  training.settings.adamw.master_weights = master_weights;
  Trained trained;
  run_ranks(world_size, [&](const ProcessGroup& group) {
    at::set_num_threads(1);  // of this rank: threads that wait for each other in every small product take turns on a busy machine
    const TransformerLM net = model_of_type(type);
    const auto trainer = training.trainer(group, net, strategy);
    const auto copies = [&net] {
      Tensors tensors;
      for (const at::Tensor& parameter : net->parameters()) tensors.push_back(parameter.detach().clone());
      return tensors;
    };
    const Tensors before = copies();
    const double held_before = trainer->evaluate(1000).value();
    for (int i = 0; i < steps; ++i) trainer->step(false);
    const double held_after = trainer->evaluate(1000).value();
    trainer->module();  // drained
    if (group.rank == 0) trained = {held_before, held_after, before, copies()};
  });
  return trained;
}

// Gains are too far from their next values to reach one in so few steps.
constexpr int kMatrices = 16;

int count_of_changed(const Trained& trained, int64_t least_dimensions) {
  int changed = 0;
  for (size_t i = 0; i < trained.before.size(); ++i) {
    if (trained.before[i].dim() >= least_dimensions && !at::equal(trained.before[i], trained.after[i])) ++changed;
  }
  return changed;
}

TEST(Trainer, InBf16MasterWeightsLearnWhereRoundingLosesEveryUpdate) {
  const Trained exact = train_slowly(at::kFloat, true);
  const Trained with = train_slowly(at::kBFloat16, true);
  const Trained without = train_slowly(at::kBFloat16, false);
  EXPECT_EQ(count_of_changed(without, 1), 0);
  EXPECT_EQ(without.held_after, without.held_before);
  EXPECT_EQ(count_of_changed(with, 2), kMatrices);
  const double learned = exact.held_before - exact.held_after;
  EXPECT_GT(learned, 0);
  EXPECT_NEAR(with.held_after, exact.held_after, 0.1 * learned);
}

TEST(Trainer, InBf16MasterWeightsAreTheSameUnderEveryStrategy) {
  const Trained expected = train_slowly(at::kBFloat16, true, "flat", 2, 20);
  for (const char* strategy : {"bucketed", "ordered", "sharded"}) {
    const Trained found = train_slowly(at::kBFloat16, true, strategy, 2, 20);
    EXPECT_EQ(found.held_after, expected.held_after) << strategy;
    for (size_t i = 0; i < expected.after.size(); ++i) EXPECT_TRUE(at::equal(found.after[i], expected.after[i])) << strategy << " " << i;
  }
}

TEST(Trainer, InBf16MasterWeightsStepAsParametersInFloat32Do) {
  const TransformerLM rounded = model_of_type(at::kBFloat16);
  const TransformerLM precise = model_of_type(at::kFloat);
  const auto on_masters = make_adamw(*rounded, {});
  const auto on_parameters = make_adamw(*precise, {});
  for (int step = 0; step < 5; ++step) {
    for (size_t i = 0; i < rounded->parameters().size(); ++i) {
      const at::Tensor gradient = at::sin(at::arange(rounded->parameters()[i].numel(), at::kFloat) + step).to(at::kBFloat16);
      rounded->parameters()[i].mutable_grad() = gradient.view(rounded->parameters()[i].sizes());
      precise->parameters()[i].mutable_grad() = gradient.view(rounded->parameters()[i].sizes()).to(at::kFloat);
    }
    for (TrainingAdamW* optimizer : {on_masters.get(), on_parameters.get()}) {
      set_learning_rate(*optimizer, 1e-3 / (step + 1));
      optimizer->step();
    }
    for (size_t i = 0; i < rounded->parameters().size(); ++i) {
      const at::Tensor expected = precise->parameters()[i].detach();
      EXPECT_TRUE(at::equal(on_masters->stepped(rounded->parameters()[i]), expected)) << i;
      EXPECT_TRUE(at::equal(rounded->parameters()[i].detach(), expected.to(at::kBFloat16))) << i;
    }
  }
}

TEST(Trainer, InBf16MasterWeightsLeaveParametersWithoutGradientAlone) {
  const TransformerLM net = model_of_type(at::kBFloat16);
  const auto optimizer = make_adamw(*net, {});
  const at::Tensor first = net->parameters()[0], second = net->parameters()[1];
  second.mutable_grad() = at::ones_like(second.detach());
  optimizer->step();
  EXPECT_EQ(optimizer->state_of(first), nullptr);
  EXPECT_EQ(optimizer->state_of(second)->step(), 1);
  EXPECT_EQ(optimizer->state_of(second)->exp_avg().scalar_type(), at::kFloat);
}

TEST(Trainer, ParametersInFloat32HaveNoMasters) {
  const TransformerLM net = model_of_type(at::kFloat);
  const auto optimizer = make_adamw(*net, {});
  for (const at::Tensor& parameter : net->parameters()) {
    EXPECT_FALSE(optimizer->has_master(parameter));
    EXPECT_TRUE(optimizer->stepped(parameter).is_same(parameter));
  }
}

}  // namespace
}  // namespace firkin
