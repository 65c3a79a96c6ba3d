// Groups of ranks on GPUs: what is chosen, what is refused, and the sums.
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>

#include "../comm/thread_ranks.h"
#include "../test.h"
#include "gpus.h"
#include "workload/workload.h"

namespace firkin {
namespace {

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
              ThrowsMessage<InputError>(HasSubstr("expected gloo")));
}

TEST_F(OneGpu, ARankAloneIsOnItOverNccl) {
  run_ranks_with(1, within_a_minute("auto"), [](const ProcessGroup& group) {
    EXPECT_EQ(group.device, c10::Device(c10::kCUDA, 0));
    EXPECT_EQ(group.backend, kGlooAndNccl);
    expect_collectives(group);
    expect_collectives(take_connections(group).group());
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
  EXPECT_THAT(
      [&] { run_ranks_with(ranks, within_a_minute("nccl"), [](const ProcessGroup&) {}); },
      ThrowsMessage<InputError>(AllOf(HasSubstr("more than one rank uses cuda:0"), HasSubstr("expected a GPU for every rank, or gloo"))));
}

TEST_F(OneGpu, ANumberThatIsNotThereIsBadInput) {
  const c10::Device beyond(c10::kCUDA, static_cast<c10::DeviceIndex>(device_count()));
  EXPECT_THROW(run_ranks_with(1, {.device = beyond}, [](const ProcessGroup&) {}), InputError);
}

// A link of 2 ms for small messages: one rank on the GPU stands for two.
TEST_F(OneGpu, AModelledLinkOccupiesAStreamForItsTimeAndNotTheCpu) {
  GroupOptions options = within_a_minute("auto");
  options.link = parse_link("1gbit,1ms", 2);
  run_ranks_with(1, options, [&](const ProcessGroup& group) {
    constexpr int kCalls = 16;
    const at::Tensor values = at::full({1000}, 3.0, at::TensorOptions(group.device));
    const LinkTime time = all_reduce_time(*options.link, static_cast<int64_t>(values.nbytes()));
    all_reduce(group, values);  // loads the kernels
    synchronize(group.device);
    const auto started = std::chrono::steady_clock::now();
    const DeviceTime from = device_now(group.device);
    std::vector<Work> works;
    for (int i = 0; i < kCalls; ++i) works.push_back(start_all_reduce(group, values));
    for (const Work& work : works) wait(group, work, "an all-reduce");
    const DeviceTime to = device_now(group.device);
    const double queued_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
    const double expected_s = time.alone_s + (kCalls - 1) * time.gap_s;
    EXPECT_NEAR(seconds_between(from, to), expected_s, 0.05 * expected_s);
    EXPECT_LT(queued_s, 0.5 * expected_s);
    EXPECT_TRUE(at::equal(values.cpu(), at::full({1000}, 3.0)));
  });
}

TEST_F(OneGpu, SeveralRanksOverAModelledLinkAreRefusedInOneLine) {
  GroupOptions options = within_a_minute("auto");
  options.link = parse_link("1gbit", 2);
  EXPECT_THAT([&] { run_ranks_with(2, options, [](const ProcessGroup&) {}); },
              ThrowsMessage<InputError>(HasSubstr("expected one rank there, which stands for all")));
}

TEST_F(TwoGpus, EveryRankHasOneOfItsOwnOverNccl) {
  run_ranks_with(device_count(), within_a_minute("auto"), [](const ProcessGroup& group) {
    EXPECT_EQ(group.device, c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(group.rank)));
    EXPECT_EQ(group.backend, kGlooAndNccl);
    expect_collectives(group);
    expect_collectives(take_connections(group).group());
  });
}

}  // namespace
}  // namespace firkin
