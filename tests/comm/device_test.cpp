#include "firkin/comm/device.h"

#include "../test.h"
#include "comm/gathering.h"
#include "thread_ranks.h"

namespace firkin {
namespace {

ProcessGroup group_of_one(const GroupOptions& options) {
  return make_process_group(c10::make_intrusive<c10d::HashStore>(), 0, 1, options);
}

// What is said where there is no GPU. tests/cuda has the rest.
class WithoutGpu : public testing::Test {
 protected:
  void SetUp() override {
    if (device_count() > 0) GTEST_SKIP() << "there is a GPU";
  }
};

TEST(Device, OfTheCpuNeedsNothing) {
  EXPECT_EQ(device_for_rank("cpu", 3), c10::Device(c10::kCPU));
  use_device(c10::kCPU);
  synchronize(c10::kCPU);
}

TEST(Device, ThatIsNeitherCpuNorGpuIsBadInput) {
  EXPECT_THAT([] { device_for_rank("tpu", 0); }, ThrowsMessage<InputError>(HasSubstr("device tpu: expected cpu, cuda or auto")));
}

TEST_F(WithoutGpu, AutoIsTheCpu) {
  EXPECT_EQ(device_for_rank("auto", 1), c10::Device(c10::kCPU));
}

TEST_F(WithoutGpu, CudaIsBadInputInOneLine) {
  EXPECT_THAT([] { device_for_rank("cuda", 0); },
              ThrowsMessage<InputError>(AllOf(HasSubstr("device cuda: "), HasSubstr("; expected cpu"), Not(HasSubstr("\n")))));
  EXPECT_THROW(group_of_one({.device = c10::Device(c10::kCUDA, 0)}), InputError);
}

TEST_F(WithoutGpu, AGroupIsOnTheCpuOverGloo) {
  const ProcessGroup group = group_of_one({});
  EXPECT_EQ(group.device, c10::Device(c10::kCPU));
  EXPECT_EQ(group.backend, "gloo");
  EXPECT_TRUE(can_carry(group, c10::kCPU));
  EXPECT_FALSE(can_carry(group, c10::kMeta));
}

TEST_F(WithoutGpu, NcclIsBadInputInOneLine) {
  for (const char* backend : {"nccl", "cpu:gloo,cuda:nccl"}) {
    EXPECT_THAT([&] { group_of_one({.backend = backend}); },
                ThrowsMessage<InputError>(AllOf(HasSubstr(backend), HasSubstr("expected gloo"), Not(HasSubstr("\n")))));
  }
}

TEST(Device, NcclOverAModelledLinkIsBadInput) {
  EXPECT_THAT([] { group_of_one({.backend = "nccl", .link = parse_link("1gbit", 1)}); },
              ThrowsMessage<InputError>(HasSubstr("over a modelled link, which replaces it; expected auto or gloo")));
}

TEST(Device, MultiprocessorsOfACpuAreBadInput) {
  EXPECT_THAT([] { group_of_one({.device = c10::kCPU, .link = parse_link("1gbit,sms=16", 1)}); },
              ThrowsMessage<InputError>(HasSubstr("a modelled link with sms=16 on the CPU; expected a GPU")));
}

// What two ranks with these GPUs are told.
std::string why_not_nccl(const std::vector<std::string>& gpus) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  const auto gather = [&](int rank) {
    return gather_ranks(store, {.rank = rank, .size = 2, .gpu = gpus.at(static_cast<size_t>(rank)), .gpu_name = "cuda:0"},
                        std::chrono::steady_clock::now() + std::chrono::seconds(60));
  };
  std::string other;
  std::thread rank_1([&] { other = gather(1).why_not_nccl; });
  const std::string reason = gather(0).why_not_nccl;
  rank_1.join();
  EXPECT_EQ(reason, other);
  return reason;
}

TEST(SharedGpus, NcclNeedsAGpuOfItsOwnForEveryRank) {
  EXPECT_EQ(why_not_nccl({"a", "b"}), "");
  EXPECT_THAT(why_not_nccl({"a", ""}), HasSubstr("1 of 2 ranks have no GPU"));
  EXPECT_THAT(why_not_nccl({"a", "a"}), HasSubstr("more than one rank uses cuda:0"));
}

}  // namespace
}  // namespace firkin
