// Gradients exist once, counted in the allocator.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "../comm/thread_ranks.h"
#include "firkin/bench/tensor_memory.h"
#include "firkin/ddp/data_parallel.h"

#include <torch/torch.h>

namespace firkin {
namespace {

constexpr int64_t kLayers = 8;
constexpr int64_t kWidth = 128;
constexpr int64_t kGradientBytes = kLayers * kWidth * kWidth * 4;

struct Use {
  int64_t between_steps = 0;
  int64_t peak = 0;
};

// Bytes beyond the parameters in the fourth step, and after it, on rank 0 of two.
Use memory_of(const DataParallelOptions& options) {
  Use use;
  run_ranks(2, [&](const ProcessGroup& group) {
    TensorMemory memory;
    torch::nn::Sequential net;
    for (int64_t i = 0; i < kLayers; ++i) net->push_back(torch::nn::Linear(torch::nn::LinearOptions(kWidth, kWidth).bias(false)));
    const int64_t parameters = memory.now_bytes();
    DataParallel ddp(*net, group, options);
    for (int step = 0; step < 4; ++step) {
      memory.reset_peak();
      for (at::Tensor& p : net->parameters()) p.mutable_grad().reset();
      net->forward(at::ones({1, kWidth})).sum().backward();
      ddp.finish_gradient_synchronization();
    }
    if (group.rank == 0) use = {memory.now_bytes() - parameters, memory.peak_bytes() - parameters};
  });
  return use;
}

DataParallelOptions with_cap(std::string_view strategy, int64_t cap_bytes) {
  DataParallelOptions options;
  options.strategy = find_strategy(strategy);
  options.cap.cap_bytes = cap_bytes;
  return options;
}

constexpr int64_t kLittle = kGradientBytes / 50;  // activations, small tensors

TEST(Memory, GradientsExistOnceBetweenSteps) {
  for (const char* strategy : {"naive", "flat", "overlap", "bucketed"}) {
    SCOPED_TRACE(strategy);
    const Use use = memory_of(with_cap(strategy, 3 * kWidth * kWidth * 4));
    EXPECT_GE(use.between_steps, kGradientBytes);
    EXPECT_LE(use.between_steps, kGradientBytes + kLittle);
  }
}

TEST(Memory, WhenReadyBackwardAddsOneGradientAtATime) {
  const Use use = memory_of(with_cap("bucketed", 3 * kWidth * kWidth * 4));
  EXPECT_LE(use.peak, kGradientBytes + kGradientBytes / kLayers + kLittle);
}

TEST(Memory, AsTheReducerWithItsBucketViewsAndHalfOfItWithout) {
  const Use ours = memory_of(with_cap("bucketed", kWidth * kWidth * 4));
  DataParallelOptions options = with_cap("torch", kWidth * kWidth * 4);
  const Use with_views = memory_of(options);
  options.torch_bucket_views = false;
  const Use without_views = memory_of(options);
  EXPECT_LE(ours.between_steps, with_views.between_steps + kLittle);
  EXPECT_LE(ours.peak, with_views.peak + kLittle);
  EXPECT_GE(without_views.between_steps, 2 * kGradientBytes - kLittle);
  fmt::print("gradients {} B; the most beyond parameters: bucketed {}, torch with bucket views {}, without {}\n", kGradientBytes, ours.peak,
             with_views.peak, without_views.peak);
}

}  // namespace
}  // namespace firkin
