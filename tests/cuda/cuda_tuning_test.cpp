// What measures with a clock of the GPU, automatic buckets and firkin::tune(), on ranks that share one; and ranks that wait for each other.
// On the CPU too: what the tests of a GPU stand on, where there is none.

#include "../comm/process_ranks.h"
#include "../ddp/device_course.h"
#include "firkin/tune/tune.h"
#include "gpus.h"

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

namespace firkin {
namespace {

class TwoRanksOn : public testing::TestWithParam<c10::Device> {
 protected:
  void SetUp() override {
    if (GetParam().is_cuda() && device_count() == 0) GTEST_SKIP() << "needs 1 GPUs, and sees " << device_count();
  }
  static void run_two_ranks(const std::function<void(const ProcessGroup&, const at::TensorOptions& floats)>& body) {
    run_ranks_in_processes(2, {.backend = "gloo", .device = GetParam()},
                           [&](const ProcessGroup& group) { body(group, at::TensorOptions(group.device).dtype(at::kFloat)); });
  }
};

TEST_P(TwoRanksOn, AutomaticBucketsSettle) {
  run_two_ranks([](const ProcessGroup& group, const at::TensorOptions& floats) {
    LayeredNet net(floats);
    DataParallelOptions options;
    options.cap.cap_bytes = 1;
    options.buckets = automatic({.budget_s = 0.2, .profile_steps = 3, .trial_pairs = 6, .trial_steps = 2});
    DataParallel ddp(*net, group, options);
    torch::optim::SGD optimizer(net->parameters(), 0.1);
    for (int i = 0; i < 100 && ddp.stats().automatic != AutomaticPhase::kSettled; ++i) {
      plain_step(net, optimizer, batch_of(i, group.rank, floats));
    }
    EXPECT_EQ(ddp.stats().automatic, AutomaticPhase::kSettled);
    EXPECT_NO_THROW(ddp.audit());
  });
}

TEST_P(TwoRanksOn, CrossedWaitsAreToldAfterAnAudit) {
  run_two_ranks([](const ProcessGroup& outer, const at::TensorOptions& /*floats*/) {
    const auto store = c10::make_intrusive<c10d::PrefixStore>("crossed", outer.store);
    const ProcessGroup group = make_process_group(store, outer.rank, outer.size, {.backend = "gloo", .device = outer.device});
    expect_crossed_waits_to_be_told(group, [&] { barrier(outer); });
  });
}

class TwoRanksTuneOn : public TwoRanksOn {};

TEST_P(TwoRanksTuneOn, ChoosingAndPuttingTheModuleBack) {
  run_two_ranks([](const ProcessGroup& group, const at::TensorOptions& floats) {
    LayeredNet net(floats);
    torch::optim::SGD optimizer(net->parameters(), 0.1);
    const at::Tensor batch = batch_of(0, group.rank, floats);
    const auto own_step = [&] { plain_step(net, optimizer, batch); };
    const Tensors before = copies(net->parameters());
    ModuleTuningOptions options;
    options.seconds = 10;
    options.blocks = 4;
    options.profile_steps = 4;
    options.allreduce_seconds = 0.5;
    options.progress = false;
    const ModuleTuning tuning = tune(*net, own_step, group, options);
    EXPECT_TRUE(same_bits(copies(net->parameters()), before));
    EXPECT_GT(tuning.profile.bare_backward_s, 0);
    EXPECT_TRUE(std::ranges::is_sorted(tuning.profile.tensors.ready_s));
    EXPECT_EQ(tuning.profile.tensors.names.size(), before.size());
    DataParallel ddp(*net, group, tuning.options);
    for (int i = 0; i < 3; ++i) own_step();
    EXPECT_NO_THROW(ddp.audit());
  });
}

const auto kDevices = Values(c10::Device(c10::kCPU), kFirstGpu);
std::string name_of_device(const testing::TestParamInfo<c10::Device>& info) {
  return info.param.is_cuda() ? "Gpu" : "Cpu";
}
INSTANTIATE_TEST_SUITE_P(Cuda, TwoRanksOn, kDevices, name_of_device);
INSTANTIATE_TEST_SUITE_P(Cuda, TwoRanksTuneOn, Values(kFirstGpu), name_of_device);
INSTANTIATE_TEST_SUITE_P(Full, TwoRanksTuneOn, Values(c10::Device(c10::kCPU)), name_of_device);

}  // namespace
}  // namespace firkin
