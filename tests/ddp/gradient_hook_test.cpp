#include "firkin/ddp/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "../comm/thread_ranks.h"
#include "firkin/ddp/data_parallel.h"
#include "seeded.h"

#include <torch/torch.h>

namespace firkin {
namespace {

// The mean gradient of one parameter on two ranks whose gradients are x and -x/3, and the statistics of the step.
struct Outcome {
  at::Tensor expected;
  at::Tensor gradient;
  DataParallelStats stats;
};

Outcome reduce_with(const GradientHook& hook, at::ScalarType dtype = at::kFloat) {
  Outcome outcome;
  run_ranks(2, [&](const ProcessGroup& group) {
    const at::Tensor x = seeded_randn({1000}, 3).to(dtype);
    struct Module : torch::nn::Module {
    } module;
    at::Tensor w = module.register_parameter("w", at::zeros({1000}, dtype));
    DataParallelOptions options;
    options.gradient_hook = hook;
    DataParallel ddp(module, group, options);
    for (int step = 0; step < 2; ++step) {
      module.zero_grad();
      (w * (group.rank == 0 ? x : x / -3)).sum().backward();
      ddp.finish_gradient_synchronization();
    }
    if (group.rank == 0) outcome = {x / 3, w.grad().clone(), ddp.stats()};
  });
  return outcome;
}

TEST(GradientHook, WithoutCompressionTheSumIsInTheGradientsDtype) {
  const Outcome outcome = reduce_with(plain_all_reduce());
  EXPECT_TRUE(at::allclose(outcome.gradient, outcome.expected, 1e-6, 1e-7));
  EXPECT_EQ(outcome.stats.buckets[0].bytes_on_wire, 4000);
}

TEST(GradientHook, Bf16HalvesTheBytesWithEightBitsOfPrecision) {
  const Outcome outcome = reduce_with(bf16_compression());
  EXPECT_TRUE(at::allclose(outcome.gradient, outcome.expected, 3.0 / 256, 1e-3));
  EXPECT_FALSE(at::allclose(outcome.gradient, outcome.expected, 1e-5, 1e-7));
  EXPECT_EQ(outcome.stats.buckets[0].bytes, 4000);
  EXPECT_EQ(outcome.stats.buckets[0].bytes_on_wire, 2000);
}

TEST(GradientHook, Fp16HalvesTheBytesWithElevenBitsOfPrecision) {
  const Outcome outcome = reduce_with(fp16_compression());
  EXPECT_TRUE(at::allclose(outcome.gradient, outcome.expected, 3.0 / 2048, 2e-4));
  EXPECT_EQ(outcome.stats.buckets[0].bytes_on_wire, 2000);
}

TEST(GradientHook, CompressionLeavesOtherDtypesAlone) {
  const Outcome outcome = reduce_with(fp16_compression(), at::kBFloat16);
  EXPECT_EQ(outcome.stats.buckets[0].bytes_on_wire, 2000);
  EXPECT_TRUE(at::allclose(outcome.gradient, outcome.expected, 3.0 / 256, 1e-2));
}

TEST(GradientHook, TheUsersOwnHookSeesEveryBucket) {
  std::atomic<int64_t> elements = 0;
  GradientHook doubled = plain_all_reduce();
  doubled.start = [&elements](const ProcessGroup& group, at::Tensor bucket) -> BucketReduction {
    elements += bucket.numel();
    bucket.mul_(2);
    return {start_all_reduce(group, bucket), {}};
  };
  const Outcome outcome = reduce_with(doubled);
  EXPECT_EQ(elements, 2 * 2 * 1000);  // two ranks, two steps
  EXPECT_TRUE(at::allclose(outcome.gradient, 2 * outcome.expected, 1e-6, 1e-7));
}

}  // namespace
}  // namespace firkin
