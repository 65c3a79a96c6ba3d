// Backwards inside a backward: only the outermost one ends a step.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "../comm/thread_ranks.h"
#include "checkpoint.h"
#include "firkin/ddp/data_parallel.h"
#include "throw_in_backward.h"

namespace firkin {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

struct Module : torch::nn::Module {
  at::Tensor a = register_parameter("a", at::ones({4}));
  at::Tensor b = register_parameter("b", at::ones({4}));
};

DataParallelOptions one_tensor_per_bucket() {
  DataParallelOptions options;
  options.strategy = find_strategy("overlap");
  return options;
}

// The scales of two ranks are 1 and 3.
double scale_of(const ProcessGroup& group) {
  return 1.0 + 2 * group.rank;
}

TEST(CheckpointedBackward, AParameterUsedInsideAndOutsideIsSentWhenBothGradientsAreThere) {
  run_ranks(2, [](const ProcessGroup& group) {
    Module module;
    DataParallel ddp(module, group, one_tensor_per_bucket());
    Checkpoint::Body body = [&module](const at::Tensor& x) { return x * module.a; };
    for (int step = 0; step < 4; ++step) {
      module.zero_grad();
      const at::Tensor inside = Checkpoint::apply(module.b * 1.0, &body);
      ((inside + module.a) * scale_of(group)).sum().backward();
      EXPECT_TRUE(at::equal(module.a.grad(), at::full({4}, 4.0)));
      EXPECT_TRUE(at::equal(module.b.grad(), at::full({4}, 2.0)));
    }
    EXPECT_EQ(ddp.stats().steps, 4);
  });
}

TEST(CheckpointedBackward, AStepEndsWithTheOuterBackwardWhenEveryParameterLiesInside) {
  run_ranks(2, [](const ProcessGroup& group) {
    Module module;
    DataParallel ddp(module, group, one_tensor_per_bucket());
    Checkpoint::Body first = [&module](const at::Tensor& x) { return x * module.a; };
    Checkpoint::Body second = [&module](const at::Tensor& x) { return x + module.b; };
    for (int step = 0; step < 3; ++step) {
      module.zero_grad();
      const at::Tensor x = torch::ones({4}, torch::requires_grad());
      const at::Tensor hidden = Checkpoint::apply(x * scale_of(group), &first);
      Checkpoint::apply(hidden, &second).sum().backward();
      EXPECT_EQ(ddp.stats().steps, step + 1);
      EXPECT_TRUE(at::equal(module.a.grad(), at::full({4}, 2.0)));
      EXPECT_TRUE(at::equal(module.b.grad(), at::ones({4})));
    }
  });
}

TEST(CheckpointedBackward, AnOuterBackwardThatThrowsAfterAnInnerOneEndedWellIsAFailedStep) {
  run_ranks(2, [](const ProcessGroup& group) {
    Module module;
    DataParallel ddp(module, group, one_tensor_per_bucket());
    Checkpoint::Body body = [&module](const at::Tensor& x) { return x * module.a; };
    for (int step = 0; step < 4; ++step) {
      module.zero_grad();
      at::Tensor hidden = module.b * scale_of(group);
      if (step % 2 == 0 && group.rank == 1) hidden = ThrowInBackward::apply(hidden, "the outer one broke");
      const auto backward = [&] { Checkpoint::apply(hidden, &body).sum().backward(); };
      if (step % 2 == 0) {
        EXPECT_THAT(backward, ThrowsMessage<std::exception>(HasSubstr("the outer one broke")));
        ASSERT_TRUE(ddp.last_failure().has_value());
        EXPECT_EQ(ddp.last_failure()->rank, 1);
        EXPECT_EQ(ddp.last_failure()->reason, "the outer one broke");
        EXPECT_FALSE(module.a.grad().defined());
      } else {
        backward();
        EXPECT_TRUE(at::equal(module.a.grad(), at::full({4}, 2.0)));
        EXPECT_TRUE(at::equal(module.b.grad(), at::full({4}, 2.0)));
      }
    }
  });
}

TEST(CheckpointedBackward, MoreGradientsThanInTheStepsBeforeAreRefusedOnceAndExpectedAfterwards) {
  run_ranks(2, [](const ProcessGroup& group) {
    Module module;
    DataParallel ddp(module, group, one_tensor_per_bucket());
    Checkpoint::Body body = [&module](const at::Tensor& x) { return x * module.a; };
    const auto step = [&](bool checkpointed) {
      module.zero_grad();
      const at::Tensor inside = checkpointed ? Checkpoint::apply(module.b * 1.0, &body) : body(module.b * 1.0);
      ((inside + module.a) * scale_of(group)).sum().backward();
    };
    step(false);
    EXPECT_THAT([&] { step(true); }, ThrowsMessage<RuntimeError>(HasSubstr("a received more gradients")));
    ASSERT_TRUE(ddp.last_failure().has_value());
    step(true);
    EXPECT_TRUE(at::equal(module.a.grad(), at::full({4}, 4.0)));
    step(false);  // and fewer are no trouble
    EXPECT_TRUE(at::equal(module.a.grad(), at::full({4}, 4.0)));
  });
}

}  // namespace
}  // namespace firkin
