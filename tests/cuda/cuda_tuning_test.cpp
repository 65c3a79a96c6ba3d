// What measures with a clock of the GPU, automatic buckets and firkin::tune(), on ranks that share one; and ranks that wait for each other.

#include "../comm/process_ranks.h"
#include "../ddp/layered_net.h"
#include "../ddp/tensors.h"
#include "../torch.h"
#include "firkin/ddp/data_parallel.h"
#include "firkin/tune/tune.h"
#include "gpus.h"

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

namespace firkin {
namespace {

void run_two_ranks(c10::Device device, const std::function<void(const ProcessGroup&)>& body) {
  run_ranks_in_processes(2, {.backend = "gloo", .device = device}, body);
}

at::TensorOptions floats_on(const ProcessGroup& group) {
  return at::TensorOptions(group.device).dtype(at::kFloat);
}

Tensors on_cpu(const torch::nn::Module& module) {
  Tensors parameters;
  for (const at::Tensor& parameter : module.parameters()) parameters.push_back(parameter.detach().cpu().clone());
  return parameters;
}

void expect_automatic_buckets_to_settle(c10::Device device) {
  run_two_ranks(device, [](const ProcessGroup& group) {
    LayeredNet net(floats_on(group));
    DataParallelOptions options;
    options.cap.cap_bytes = 1;
    options.buckets = automatic({.budget_s = 0.2, .profile_steps = 3, .trial_pairs = 6, .trial_steps = 2});
    DataParallel ddp(*net, group, options);
    torch::optim::SGD optimizer(net->parameters(), 0.1);
    for (int step = 0; step < 100 && ddp.stats().automatic != AutomaticPhase::kSettled; ++step) {
      optimizer.zero_grad();
      net->forward(batch_of(step, group.rank, floats_on(group))).pow(2).mean().backward();
      optimizer.step();
    }
    EXPECT_EQ(ddp.stats().automatic, AutomaticPhase::kSettled);
    EXPECT_NO_THROW(ddp.audit());
  });
}

void expect_tune_to_choose_and_put_back(c10::Device device) {
  run_two_ranks(device, [](const ProcessGroup& group) {
    LayeredNet net(floats_on(group));
    torch::optim::SGD optimizer(net->parameters(), 0.1);
    const at::Tensor batch = batch_of(0, group.rank, floats_on(group));
    const auto step = [&] {
      optimizer.zero_grad();
      net->forward(batch).pow(2).mean().backward();
      optimizer.step();
    };
    const Tensors before = on_cpu(*net);
    ModuleTuningOptions options;
    options.seconds = 10;
    options.blocks = 4;
    options.profile_steps = 4;
    options.allreduce_seconds = 0.5;
    options.progress = false;
    const ModuleTuning tuning = tune(*net, step, group, options);
    EXPECT_TRUE(same_bits(on_cpu(*net), before));
    EXPECT_GT(tuning.profile.bare_backward_s, 0);
    EXPECT_TRUE(std::ranges::is_sorted(tuning.profile.tensors.ready_s));
    EXPECT_EQ(tuning.profile.tensors.names.size(), before.size());
    DataParallel ddp(*net, group, tuning.options);
    for (int i = 0; i < 3; ++i) step();
    EXPECT_NO_THROW(ddp.audit());
  });
}

// After an audit, when autograd's thread of the device has been seen to step for the thread that calls backward().
void expect_crossed_waits_to_be_told(c10::Device device) {
  run_two_ranks(device, [](const ProcessGroup& outer) {
    const auto store = c10::make_intrusive<c10d::PrefixStore>("crossed", outer.store);
    const ProcessGroup group = make_process_group(store, outer.rank, outer.size, {.backend = "gloo", .device = outer.device});
    LayeredNet nets[] = {LayeredNet(floats_on(group)), LayeredNet(floats_on(group))};
    DataParallelOptions named;
    named.name = "A";
    DataParallel a(*nets[0], group, named);
    named.name = "B";
    DataParallel b(*nets[1], group, named);
    const at::Tensor batch = batch_of(0, group.rank, floats_on(group));
    const auto step = [&](int which) { nets[which]->forward(batch).pow(2).mean().backward(); };
    for (const int which : {0, 1, 0, 1}) step(which);
    a.audit();
    EXPECT_THAT([&] { step(group.rank); }, ThrowsMessage<GroupError>(HasSubstr("rank 0 waits in step 2 of A, rank 1 in step 2 of B")));
    barrier(outer);  // the other rank has been told, too, before this one's connections go
  });
}

// What the tests of a GPU stand on, where there is none.
TEST(Cuda, OnTheCpuAutomaticBucketsSettle) {
  expect_automatic_buckets_to_settle(c10::kCPU);
}
TEST(CudaFull, OnTheCpuTuneChoosesAndPutsTheModuleBack) {
  expect_tune_to_choose_and_put_back(c10::kCPU);
}
TEST(Cuda, OnTheCpuCrossedWaitsAreTold) {
  expect_crossed_waits_to_be_told(c10::kCPU);
}

TEST_F(OneGpu, AutomaticBucketsSettle) {
  expect_automatic_buckets_to_settle(kFirstGpu);
}

TEST_F(OneGpu, TuneChoosesAndPutsTheModuleBack) {
  expect_tune_to_choose_and_put_back(kFirstGpu);
}

TEST_F(OneGpu, CrossedWaitsAreToldAfterAnAudit) {
  expect_crossed_waits_to_be_told(kFirstGpu);
}

}  // namespace
}  // namespace firkin
