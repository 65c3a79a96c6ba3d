// Hooks of the program's own on the same parameters, and parameters that change under them.
#include "known_gradients.h"

#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

namespace firkin {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

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
      TwoParameters module;
      at::Tensor seen;
      const auto hook = [&](const at::Tensor& tensor) { seen = tensor.grad().clone(); };
      if (before) set_users_hook(module.a, hook);
      DataParallel ddp(module, group);
      if (!before) set_users_hook(module.a, hook);
      for (int step = 0; step < 3; ++step) {
        module.zero_grad();
        module.loss(rank_value(group)).backward();
        EXPECT_TRUE(at::equal(seen, at::full({4}, rank_value(group))));
        module.expect_gradients(kMean);
      }
    });
  }
}

TEST(ParameterHooks, AHookThatTakesAGradientFailsTheStepOnEveryRank) {
  run_ranks(2, [](const ProcessGroup& group) {
    TwoParameters module;
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
    TwoParameters module;
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
      TwoParameters module;
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

}  // namespace
}  // namespace firkin
