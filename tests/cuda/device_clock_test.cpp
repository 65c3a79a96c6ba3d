// A device's time is that of its work, and asking for it waits for nothing: against a kernel that only lets time pass.
// And what a modelled link leaves to others.
#include <ATen/cuda/Sleep.h>
#include <ATen/ops/full.h>
#include <c10/cuda/CUDAFunctions.h>

#include <thread>

#include "../comm/thread_ranks.h"
#include "../test.h"
#include "gpus.h"
#include "workload/workload.h"

namespace firkin {
namespace {

using HostClock = std::chrono::steady_clock;

struct Timed {
  double device_s = 0;
  double queued_s = 0;  // the CPU's time until everything was queued
  double done_s = 0;    // and until everything had run
};

Timed time_sleep(int64_t cycles) {
  const c10::Device gpu(c10::kCUDA, 0);
  c10::cuda::device_synchronize();
  const auto started = HostClock::now();
  const auto elapsed_s = [&] { return std::chrono::duration<double>(HostClock::now() - started).count(); };
  const DeviceTime from = device_now(gpu);
  at::cuda::sleep(cycles);
  const DeviceTime to = device_now(gpu);
  Timed timed{.queued_s = elapsed_s()};
  timed.device_s = seconds_between(from, to);
  timed.done_s = elapsed_s();
  return timed;
}

TEST_F(OneGpu, TheDeviceClockTimesTheWorkAndNotItsQueueing) {
  constexpr int64_t kCycles = 200'000'000;  // about a tenth of a second
  time_sleep(kCycles);                      // loads what the others need, and wakes the GPU's clock up
  const Timed once = time_sleep(kCycles);
  const Timed twice = time_sleep(2 * kCycles);
  for (const Timed& timed : {once, twice}) {
    EXPECT_LE(timed.device_s, timed.done_s);
    EXPECT_GE(timed.device_s, 0.9 * timed.done_s);
    EXPECT_LT(timed.queued_s, 0.5 * timed.device_s);
  }
  EXPECT_NEAR(twice.device_s / once.device_s, 2, 0.2);
}

// Seconds that a small kernel takes beside an all-reduce of 20 ms whose link holds so many multiprocessors.
double seconds_beside(int sms) {
  using std::chrono_literals::operator""ms;
  ModelledLink link = parse_link("1gbit,10ms", 2);
  link.sms = sms;
  double seconds = 0;
  run_ranks_with(1, {.timeout = std::chrono::seconds(60), .link = link}, [&](const ProcessGroup& group) {
    at::Tensor values = at::full({1000}, 3.0, at::TensorOptions(group.device));
    const at::Tensor gradients = values.clone();
    all_reduce(group, gradients);  // loads the kernels, as the next line does
    values.add_(1);
    synchronize(group.device);
    const Work work = start_all_reduce(group, gradients);
    std::this_thread::sleep_for(5ms);  // until the link's kernel runs
    const DeviceTime from = device_now(group.device);
    values.add_(1);
    seconds = seconds_between(from, device_now(group.device));
    wait(group, work, "an all-reduce");
  });
  return seconds;
}

TEST_F(OneGpu, AModelledLinkHoldsAsManyMultiprocessorsAsItIsAskedTo) {
  int sms = 0, major = 0;
  ASSERT_EQ(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0), cudaSuccess);
  ASSERT_EQ(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0), cudaSuccess);
  for (const int left_one : {0, sms - 1}) EXPECT_LT(seconds_beside(left_one), 5e-3) << left_one;
  if (major >= 8) {  // older ones have room for kernels without shared memory
    EXPECT_GT(seconds_beside(sms), 10e-3);
  }
  EXPECT_THAT([&] { seconds_beside(sms + 1); }, ThrowsMessage<InputError>(HasSubstr(fmt::format("expected 1 to {} multi", sms))));
}

}  // namespace
}  // namespace firkin
