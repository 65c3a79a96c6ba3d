// c10d::Reducer under the same contract as our own buckets.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "../comm/thread_ranks.h"
#include "firkin/ddp/data_parallel.h"
#include "throw_in_backward.h"

#include <torch/torch.h>

namespace firkin {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

struct Module : torch::nn::Module {
  at::Tensor a = register_parameter("a", at::ones({4}));
  at::Tensor b = register_parameter("b", at::ones({4}));
  at::Tensor c = register_parameter("c", at::ones({4}));
};

DataParallelOptions by_torch(bool views) {
  DataParallelOptions options;
  options.strategy = find_strategy("torch");
  options.cap.cap_bytes = 16;
  options.torch_bucket_views = views;
  return options;
}

// On two ranks, with gradients as views of the Reducer's buckets and as copies.
void on_two_ranks(const std::function<void(const ProcessGroup&, DataParallelOptions)>& body) {
  for (const bool views : {true, false}) {
    SCOPED_TRACE(views);
    run_ranks(2, [&](const ProcessGroup& group) { body(group, by_torch(views)); });
  }
}

void forget_gradients(const Module& module) {
  for (const at::Tensor& parameter : module.parameters()) parameter.mutable_grad().reset();
}

// Mean over two ranks: 1.5.
double scale_of(const ProcessGroup& group) {
  return 1.0 + group.rank;
}

TEST(TorchStrategy, FindUnusedParametersCountsAnUnusedGradientAsZeroAndAnUnusedParameterGetsNone) {
  on_two_ranks([](const ProcessGroup& group, DataParallelOptions options) {
    options.find_unused_parameters = true;
    Module module;
    DataParallel ddp(module, group, options);
    for (int step = 0; step < 4; ++step) {
      forget_gradients(module);
      (group.rank == step % 2 ? module.a + module.b : module.a).sum().backward();
      EXPECT_TRUE(at::equal(module.a.grad(), at::ones({4})));
      EXPECT_TRUE(at::equal(module.b.grad(), at::full({4}, 0.5)));
      EXPECT_FALSE(module.c.grad().defined());
    }
  });
}

TEST(TorchStrategy, AMissingGradientIsTheSameErrorOnAllRanks) {
  on_two_ranks([](const ProcessGroup& group, const DataParallelOptions& options) {
    Module module;
    DataParallel ddp(module, group, options);
    for (int step = 0; step < 3; ++step) {
      forget_gradients(module);
      const auto backward = [&] { (group.rank == 1 && step == 1 ? module.a + module.b : module.a + module.b + module.c).sum().backward(); };
      if (step == 1) {
        EXPECT_THAT(backward, ThrowsMessage<StepError>(HasSubstr("rank 1: no gradient for c;")));
      } else {
        backward();
        EXPECT_TRUE(at::equal(module.c.grad(), at::ones({4})));
      }
    }
  });
}

TEST(TorchStrategy, ABackwardThatThrowsOnOneRankIsHeardOfByAllAndTheNextStepWorks) {
  on_two_ranks([](const ProcessGroup& group, const DataParallelOptions& options) {
    Module module;
    DataParallel ddp(module, group, options);
    for (int step = 0; step < 5; ++step) {
      forget_gradients(module);
      const bool breaks = step == 0 || step == 3;
      at::Tensor early = module.a * scale_of(group);
      if (breaks && group.rank == 1) early = ThrowInBackward::apply(early, "broke");
      const auto backward = [&] { (early + (module.b + module.c) * scale_of(group)).sum().backward(); };
      if (breaks) {
        EXPECT_THAT(backward, ThrowsMessage<std::exception>(HasSubstr("broke")));
        ASSERT_TRUE(ddp.last_failure().has_value());
        EXPECT_EQ(*ddp.last_failure(), (StepFailure{.rank = 1, .step = step, .reason = "broke"}));
      } else {
        backward();
        for (const at::Tensor& p : module.parameters()) EXPECT_TRUE(at::equal(p.grad(), at::full({4}, 1.5)));
      }
    }
  });
}

TEST(TorchStrategy, AccumulatesWhereSynchronisationIsOff) {
  on_two_ranks([](const ProcessGroup& group, const DataParallelOptions& options) {
    Module module;
    DataParallel ddp(module, group, options);
    for (int step = 0; step < 3; ++step) {
      forget_gradients(module);
      for (int micro = 0; micro < 3; ++micro) {
        ddp.set_gradient_synchronization(micro == 2);
        ((module.a + module.b + module.c) * scale_of(group)).sum().backward();
        if (micro < 2) {
          EXPECT_TRUE(at::equal(module.a.grad(), at::full({4}, (micro + 1) * scale_of(group))));
        }
      }
      for (const at::Tensor& p : module.parameters()) EXPECT_TRUE(at::equal(p.grad(), at::full({4}, 4.5)));
    }
  });
}

TEST(TorchStrategy, CanEndItsStepsExplicitly) {
  on_two_ranks([](const ProcessGroup& group, DataParallelOptions options) {
    options.finish_with_backward = false;
    Module module;
    DataParallel ddp(module, group, options);
    for (int step = 0; step < 3; ++step) {
      forget_gradients(module);
      ((module.a + module.b + module.c) * scale_of(group)).sum().backward();
      ddp.finish_gradient_synchronization();
      EXPECT_TRUE(at::equal(module.a.grad(), at::full({4}, 1.5)));
      EXPECT_EQ(ddp.stats().steps, step + 1);
    }
  });
}

}  // namespace
}  // namespace firkin
