// What travels in place of a bucket's gradients: compressed, or as a hook of the program's says.
#include "../test.h"
#include "known_gradients.h"
#include "tensors.h"

#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/csrc/distributed/c10d/comm.hpp>

namespace firkin {
namespace {

// The mean gradient of one parameter on two ranks whose gradients are x and -x/3, and the statistics of the step.
struct Outcome {
  at::Tensor expected;
  at::Tensor gradient;
  DataParallelStats stats;
};

Outcome reduce_with(const GradientHook& hook, at::ScalarType dtype = at::kFloat) {
  const auto reduce = [&](const ProcessGroup& group) {
    const at::Tensor x = seeded_randn({1000}, 3).to(dtype);
    Parameters module;
    at::Tensor w = module.add("w", at::zeros({1000}, dtype));
    DataParallelOptions options;
    options.gradient_hook = hook;
    DataParallel ddp(module, group, options);
    for (int step = 0; step < 2; ++step) {
      module.zero_grad();
      (w * (group.rank == 0 ? x : x / -3)).sum().backward();
      ddp.finish_gradient_synchronization();
    }
    return Outcome{x / 3, w.grad().clone(), ddp.stats()};
  };
  return results_of(2, reduce)[0];
}

struct Compression {
  const char* name;
  GradientHook hook;
  at::ScalarType dtype;
  int64_t bytes_on_wire;      // of 1000 elements
  double relative, absolute;  // how far the mean may be off
};

TEST(GradientHook, CompressionHalvesTheBytesOfWiderGradientsToItsBitsOfPrecision) {
  for (const auto& [name, hook, dtype, bytes_on_wire, relative, absolute] :
       {Compression{"none", {}, at::kFloat, 4000, 1e-6, 1e-7},
        {"bf16: 8 bits", bf16_compression(), at::kFloat, 2000, 3.0 / 256, 1e-3},
        {"fp16: 11 bits", fp16_compression(), at::kFloat, 2000, 3.0 / 2048, 2e-4},
        {"another dtype is left alone", fp16_compression(), at::kBFloat16, 2000, 3.0 / 256, 1e-2}}) {
    SCOPED_TRACE(name);
    const Outcome outcome = reduce_with(hook, dtype);
    EXPECT_TRUE(at::allclose(outcome.gradient, outcome.expected, relative, absolute));
    EXPECT_EQ(outcome.stats.buckets[0].bytes, dtype == at::kFloat ? 4000 : 2000);
    EXPECT_EQ(outcome.stats.buckets[0].bytes_on_wire, bytes_on_wire);
    const bool is_exact = at::allclose(outcome.gradient.to(at::kFloat), outcome.expected.to(at::kFloat), 1e-5, 1e-7);
    EXPECT_EQ(is_exact, bytes_on_wire == 4000);
  }
}

TEST(GradientHook, Fp16CompressionDividesBeforeItCasts) {
  run_ranks(2, [](const ProcessGroup& group) {
    Parameters module({5});
    module.add("wide", at::zeros({3}, at::kDouble));
    DataParallelOptions options;
    options.gradient_hook = fp16_compression();
    DataParallel ddp(module, group, options);
    for (int step = 0; step < 3; ++step) {  // the gradient is autograd's own, or lies in its bucket already
      module.zero_grad(/*set_to_none=*/step < 2);
      module.loss(group.rank == 1 ? 1e5 : 0).backward();  // beyond float16, and its half is not
      for (const at::Tensor& p : module.all) EXPECT_TRUE(at::allclose(p.grad(), at::full_like(p, 5e4), 1.0 / 1024)) << p.grad();
    }
  });
}

// Sums over the program's own group, and divides afterwards.
class MeanHook : public c10d::CppCommHookInterface<ProcessGroup> {
 public:
  using CppCommHookInterface::CppCommHookInterface;

  c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& bucket) override {
    said += fmt::format("{}{}:", bucket.getIndex(), bucket.isLast() ? " last" : "");
    const auto gradients = bucket.getGradients();
    const auto parameters = bucket.getParameters();
    for (size_t i = 0; i < gradients.size(); ++i) {
      EXPECT_EQ(gradients[i].sizes(), parameters[i].sizes());
      said += fmt::format(" {}", gradients[i].numel());
    }
    said += fmt::format(" of {}; ", bucket.getBuffer().numel());
    const auto sum = start_all_reduce(state_, bucket.getBufferRef())->getFuture();
    return sum->then(
        [size = state_.size](c10::ivalue::Future& future) -> c10::IValue {     // may be called when the hook is gone
          return c10d::detail::parseCppCommHookResult(future.value()) / size;  // in memory of its own
        },
        c10::TensorType::get());
  }

  std::string said;
};

// Hooks that fail or are refused: tests/python/comm_hooks_test.py.
TEST(CommHook, SeesWholeBucketsInOrderAndItsResultBecomesTheGradients) {
  run_ranks(2, [](const ProcessGroup& group) {
    Parameters module({3, 5, 2});  // 20 + 12 bytes, and 8: in the first step in reverse order
    const auto hook = std::make_shared<MeanHook>(group);
    DataParallelOptions options = with_strategy("bucketed", 32);
    options.gradient_hook = comm_hook("mean", hook);
    DataParallel ddp(module, group, options);
    for (int step = 0; step < 3; ++step) {
      hook->said.clear();
      module.zero_grad();
      module.loss(rank_value(group)).backward();
      module.expect_gradients(kMean);
    }
    EXPECT_THAT(hook->said, Eq("0: 2 5 of 7; 1 last: 3 of 3; "));
  });
}

// The hook that autograd keeps one of per tensor: where Python's register_post_accumulate_grad_hook() puts its own.
struct Users : torch::autograd::PostAccumulateGradHook {
  explicit Users(std::function<void(const at::Tensor&)> call_in) : call(std::move(call_in)) {}
  void operator()(const torch::autograd::Variable& tensor) override { call(tensor); }
  std::function<void(const at::Tensor&)> call;
};

void set_users_hook(const at::Tensor& tensor, std::function<void(const at::Tensor&)> call) {
  torch::autograd::impl::set_post_acc_grad_hooks(tensor, std::make_unique<Users>(std::move(call)));
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
