// Backwards inside a backward: only the outermost one ends a step.
#include "checkpoint.h"
#include "known_gradients.h"

namespace firkin {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

TEST(CheckpointedBackward, AParameterUsedInsideAndOutsideIsSentWhenBothGradientsAreThere) {
  run_ranks(2, [](const ProcessGroup& group) {
    TwoParameters module;
    DataParallel ddp(module, group, with_strategy("overlap"));
    Checkpoint::Body body = [&module](const at::Tensor& x) { return x * module.a; };
    for (int step = 0; step < 4; ++step) {
      module.zero_grad();
      const at::Tensor inside = Checkpoint::apply(module.b * 1.0, &body);
      ((inside + module.a) * rank_value(group)).sum().backward();
      EXPECT_TRUE(at::equal(module.a.grad(), at::full({4}, 2 * kMean)));
      EXPECT_TRUE(at::equal(module.b.grad(), at::full({4}, kMean)));
    }
    EXPECT_EQ(ddp.stats().steps, 4);
  });
}

TEST(CheckpointedBackward, AStepEndsWithTheOuterBackwardWhenEveryParameterLiesInside) {
  run_ranks(2, [](const ProcessGroup& group) {
    TwoParameters module;
    DataParallel ddp(module, group, with_strategy("overlap"));
    Checkpoint::Body first = [&module](const at::Tensor& x) { return x * module.a; };
    Checkpoint::Body second = [&module](const at::Tensor& x) { return x + module.b; };
    for (int step = 0; step < 3; ++step) {
      module.zero_grad();
      const at::Tensor x = torch::ones({4}, torch::requires_grad());
      const at::Tensor hidden = Checkpoint::apply(x * rank_value(group), &first);
      Checkpoint::apply(hidden, &second).sum().backward();
      EXPECT_EQ(ddp.stats().steps, step + 1);
      EXPECT_TRUE(at::equal(module.a.grad(), at::full({4}, kMean)));
      EXPECT_TRUE(at::equal(module.b.grad(), at::ones({4})));
    }
  });
}

TEST(CheckpointedBackward, AnOuterBackwardThatThrowsAfterAnInnerOneEndedWellIsAFailedStep) {
  run_ranks(2, [](const ProcessGroup& group) {
    TwoParameters module;
    DataParallel ddp(module, group, with_strategy("overlap"));
    Checkpoint::Body body = [&module](const at::Tensor& x) { return x * module.a; };
    for (int step = 0; step < 4; ++step) {
      module.zero_grad();
      at::Tensor hidden = module.b * rank_value(group);
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
        EXPECT_TRUE(at::equal(module.a.grad(), at::full({4}, kMean)));
        EXPECT_TRUE(at::equal(module.b.grad(), at::full({4}, kMean)));
      }
    }
  });
}

TEST(CheckpointedBackward, MoreGradientsThanInTheStepsBeforeAreRefusedOnceAndExpectedAfterwards) {
  run_ranks(2, [](const ProcessGroup& group) {
    TwoParameters module;
    DataParallel ddp(module, group, with_strategy("overlap"));
    Checkpoint::Body body = [&module](const at::Tensor& x) { return x * module.a; };
    const auto step = [&](bool checkpointed) {
      module.zero_grad();
      const at::Tensor inside = checkpointed ? Checkpoint::apply(module.b * 1.0, &body) : body(module.b * 1.0);
      ((inside + module.a) * rank_value(group)).sum().backward();
    };
    step(false);
    EXPECT_THAT([&] { step(true); }, ThrowsMessage<RuntimeError>(HasSubstr("a received more gradients")));
    ASSERT_TRUE(ddp.last_failure().has_value());
    step(true);
    EXPECT_TRUE(at::equal(module.a.grad(), at::full({4}, 2 * kMean)));
    step(false);  // and fewer are no trouble
    EXPECT_TRUE(at::equal(module.a.grad(), at::full({4}, 2 * kMean)));
  });
}

TEST(CheckpointedBackward, AParameterThatTheFirstStepLeftOutMayGetSeveralGradientsLater) {
  run_ranks(2, [](const ProcessGroup& group) {
    TwoParameters module;
    DataParallelOptions options = with_strategy("overlap");
    options.find_unused_parameters = true;
    DataParallel ddp(module, group, options);
    Checkpoint::Body body = [&module](const at::Tensor& x) { return x * module.a; };
    for (int step = 0; step < 4; ++step) {
      module.zero_grad();
      const at::Tensor b = module.b * 1.0;
      ((step == 0 ? b : Checkpoint::apply(b, &body) + module.a) * rank_value(group)).sum().backward();
      EXPECT_TRUE(at::equal(module.b.grad(), at::full({4}, kMean)));
      if (step > 0) {
        EXPECT_TRUE(at::equal(module.a.grad(), at::full({4}, 2 * kMean)));
      }
    }
  });
}

}  // namespace
}  // namespace firkin
