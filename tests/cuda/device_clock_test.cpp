// A device's time is that of its work, and asking for it waits for nothing: against a kernel that only lets time pass.
#include <ATen/cuda/Sleep.h>
#include <c10/cuda/CUDAFunctions.h>

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

}  // namespace
}  // namespace firkin
