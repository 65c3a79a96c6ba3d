// Groups of ranks on GPUs: what is chosen, what is refused, and the sums.
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <gmock/gmock.h>

#include "../comm/thread_ranks.h"
#include "firkin/base/error.h"
#include "gpus.h"

namespace firkin {
namespace {

using OneGpu = NeedsGpus<1>;
using TwoGpus = NeedsGpus<2>;

constexpr const char* kGlooAndNccl = "cpu:gloo,cuda:nccl";

GroupOptions within_a_minute(const std::string& backend) {
  return {.backend = backend, .timeout = std::chrono::seconds(60)};
}

// Sums on the CPU and on the GPU, and a broadcast.
void expect_collectives(const ProcessGroup& group) {
  for (const c10::Device device : {c10::Device(c10::kCPU), group.device}) {
    at::Tensor values = at::full({1000}, group.rank + 1.0, at::TensorOptions(device));
    all_reduce(group, values);
    const double sum = group.size * (group.size + 1) / 2.0;
    EXPECT_TRUE(at::equal(values.cpu(), at::full({1000}, sum))) << device.str();
    broadcast(group, {values.mul_(group.rank)}, group.size - 1);
    EXPECT_TRUE(at::equal(values.cpu(), at::full({1000}, sum * (group.size - 1)))) << device.str();
  }
}

TEST(Cuda, WithoutAGpuNcclIsRefusedInOneLine) {
  if (device_count() > 0) GTEST_SKIP() << "there is a GPU";
  EXPECT_THAT([] { run_ranks_with(1, within_a_minute("nccl"), [](const ProcessGroup&) {}); },
              testing::ThrowsMessage<InputError>(testing::HasSubstr("expected gloo")));
}

TEST_F(OneGpu, ARankAloneIsOnItOverNccl) {
  run_ranks_with(1, within_a_minute("auto"), [](const ProcessGroup& group) {
    EXPECT_EQ(group.device, c10::Device(c10::kCUDA, 0));
    EXPECT_EQ(group.backend, kGlooAndNccl);
    expect_collectives(group);
    expect_collectives(companion(group));
  });
}

TEST_F(OneGpu, RanksThatShareItTalkOverGloo) {
  const int ranks = device_count() + 1;
  run_ranks_with(ranks, within_a_minute("auto"), [](const ProcessGroup& group) {
    EXPECT_TRUE(group.device.is_cuda());
    EXPECT_EQ(group.backend, "gloo");
    expect_collectives(group);
  });
}

TEST_F(OneGpu, MoreRanksThanGpusAreRefusedByNcclInOneLine) {
  const int ranks = device_count() + 1;
  EXPECT_THAT([&] { run_ranks_with(ranks, within_a_minute("nccl"), [](const ProcessGroup&) {}); },
              testing::ThrowsMessage<InputError>(testing::AllOf(testing::HasSubstr("more than one rank uses cuda:0"),
                                                                testing::HasSubstr("expected a GPU for every rank, or gloo"))));
}

TEST_F(OneGpu, ANumberThatIsNotThereIsBadInput) {
  const c10::Device beyond(c10::kCUDA, static_cast<c10::DeviceIndex>(device_count()));
  EXPECT_THROW(run_ranks_with(1, {.device = beyond}, [](const ProcessGroup&) {}), InputError);
}

TEST_F(TwoGpus, EveryRankHasOneOfItsOwnOverNccl) {
  run_ranks_with(device_count(), within_a_minute("auto"), [](const ProcessGroup& group) {
    EXPECT_EQ(group.device, c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(group.rank)));
    EXPECT_EQ(group.backend, kGlooAndNccl);
    expect_collectives(group);
    expect_collectives(companion(group));
  });
}

}  // namespace
}  // namespace firkin
