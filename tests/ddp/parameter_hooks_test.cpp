// Hooks of the program's own on the same parameters, and parameters that change under them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "../comm/thread_ranks.h"
#include "firkin/base/error.h"
#include "firkin/ddp/data_parallel.h"

#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/torch.h>

namespace firkin {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

struct Two : torch::nn::Module {
  at::Tensor a = register_parameter("a", at::ones({4}));
  at::Tensor b = register_parameter("b", at::ones({4}));
  at::Tensor loss(double factor) const { return factor * (a * a + b * b).sum(); }
};

// The hook that autograd keeps one of per tensor: where Python's register_post_accumulate_grad_hook() puts its own.
struct Users : torch::autograd::PostAccumulateGradHook {
  explicit Users(std::function<void(const at::Tensor&)> call_in) : call(std::move(call_in)) {}
  void operator()(const torch::autograd::Variable& tensor) override { call(tensor); }
  std::function<void(const at::Tensor&)> call;
};

void set_users_hook(const at::Tensor& tensor, std::function<void(const at::Tensor&)> call) {
  torch::autograd::impl::set_post_acc_grad_hooks(tensor, std::make_unique<Users>(std::move(call)));
}

TEST(ParameterHooks, AUsersHookSeesTheRanksOwnGradientAndEveryRankGetsTheMean) {
  for (const bool before : {true, false}) {
    run_ranks(2, [&](const ProcessGroup& group) {
      Two module;
      at::Tensor seen;
      const auto hook = [&](const at::Tensor& tensor) { seen = tensor.grad().clone(); };
      if (before) set_users_hook(module.a, hook);
      DataParallel ddp(module, group);
      if (!before) set_users_hook(module.a, hook);
      for (int step = 0; step < 3; ++step) {
        module.zero_grad();
        module.loss(group.rank + 1).backward();
        EXPECT_TRUE(at::equal(seen, at::full({4}, 2.0 * (group.rank + 1))));
        EXPECT_TRUE(at::equal(module.a.grad(), at::full({4}, 3.0)));
        EXPECT_TRUE(at::equal(module.b.grad(), at::full({4}, 3.0)));
      }
    });
  }
}

TEST(ParameterHooks, AHookThatTakesAGradientFailsTheStepOnEveryRank) {
  run_ranks(2, [](const ProcessGroup& group) {
    Two module;
    DataParallel ddp(module, group);
    if (group.rank == 1) set_users_hook(module.a, [](const at::Tensor& tensor) { tensor.mutable_grad().reset(); });
    EXPECT_THAT([&] { module.loss(1).backward(); },
                ThrowsMessage<std::exception>(HasSubstr("a hook removed the gradient of a before it was averaged")));
    EXPECT_FALSE(module.b.grad().defined());
    ASSERT_TRUE(ddp.last_failure());
    EXPECT_EQ(ddp.last_failure()->rank, 1);
  });
}

TEST(ParameterHooks, AParameterThatChangesItsTypeIsNamed) {
  run_ranks(2, [](const ProcessGroup& group) {
    Two module;
    DataParallel ddp(module, group);
    module.loss(1).backward();
    module.to(at::kDouble);
    module.zero_grad();
    EXPECT_THAT([&] { module.loss(1).backward(); },
                ThrowsMessage<RuntimeError>(AllOf(HasSubstr("the dtype, device or shape of"), HasSubstr("a new DataParallel"))));
  });
}

// A hook of the program's frees ours, and may come to lie at the same address.
TEST(ParameterHooks, LeaveTheProgramsOwnOnesWhereTheyAre) {
  run_ranks(1, [](const ProcessGroup& group) {
    for (int i = 0; i < 100; ++i) {
      Two module;
      int before = 0;
      int after = 0;
      module.b.register_hook([&before](const at::Tensor&) { ++before; });
      {
        const DataParallel ddp(module, group);
        module.a.register_hook([&after](const at::Tensor&) { ++after; });
        module.loss(1).backward();
      }
      module.loss(1).backward();
      ASSERT_EQ(before, 2);
      ASSERT_EQ(after, 2) << "lost in trial " << i;
    }
  });
}

TEST(ParameterHooks, GoWithTheirOwner) {
  run_ranks(1, [](const ProcessGroup& group) {
    Two module;
    { const DataParallel ddp(module, group); }
    EXPECT_TRUE(torch::autograd::impl::hooks(module.a).empty());
    const DataParallel again(module, group);
    module.loss(1).backward();
    EXPECT_EQ(again.stats().steps, 1);
  });
}

}  // namespace
}  // namespace firkin
