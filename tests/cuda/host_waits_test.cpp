// In a steady step nothing makes the CPU wait for the GPU: LibTorch itself throws where it would.
#include <c10/cuda/CUDAFunctions.h>

#include "../comm/thread_ranks.h"
#include "../ddp/layered_net.h"
#include "../torch.h"
#include "firkin/ddp/sharded_optimizer.h"
#include "gpus.h"

namespace firkin {
namespace {

class NoHostWaits {
 public:
  NoHostWaits() { c10::cuda::warning_state().set_sync_debug_mode(c10::cuda::SyncDebugMode::L_ERROR); }
  ~NoHostWaits() { c10::cuda::warning_state().set_sync_debug_mode(c10::cuda::SyncDebugMode::L_DISABLED); }
  NoHostWaits(const NoHostWaits&) = delete;
  NoHostWaits& operator=(const NoHostWaits&) = delete;
};

TEST_F(OneGpu, WhatWaitsIsNoticed) {
  const at::Tensor one = at::ones({}, at::TensorOptions(c10::kCUDA));
  const NoHostWaits watched;
  EXPECT_ANY_THROW(one.item<float>());
}

TEST_F(OneGpu, NothingInASteadyStepWaitsForIt) {
  for (const char* strategy : {"naive", "flat", "overlap", "bucketed", "sharded"}) {
    SCOPED_TRACE(strategy);
    run_ranks_with(1, {.backend = "nccl"}, [&](const ProcessGroup& group) {
      LayeredNet net{at::TensorOptions(group.device)};
      DataParallelOptions options;
      options.strategy = find_strategy(strategy);
      DataParallel ddp(*net, group, options);
      torch::optim::SGD optimizer(net->parameters(), 0.1);
      std::optional<ShardedOptimizer> sharded;
      if (options.strategy.shards) {
        sharded.emplace(ddp, [](const auto& parts) { return std::make_unique<torch::optim::SGD>(tensors_of(parts), 0.1); });
      }
      const at::Tensor batch = batch_of(0, group.rank, at::TensorOptions(group.device).dtype(at::kFloat));
      const auto step = [&] {
        optimizer.zero_grad();
        net->forward(batch).pow(2).mean().backward();
        sharded ? sharded->step() : static_cast<void>(optimizer.step());
      };
      for (int i = 0; i < 3; ++i) step();
      const NoHostWaits watched;
      for (int i = 0; i < 3; ++i) EXPECT_NO_THROW(step());
    });
  }
}

}  // namespace
}  // namespace firkin
