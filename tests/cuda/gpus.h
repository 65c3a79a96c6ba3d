// Tests that need GPUs say so, and are skipped visibly where there are too few.
#pragma once

#include <gtest/gtest.h>

#include "firkin/comm/device.h"

namespace firkin {

template <int kGpus>
class NeedsGpus : public testing::Test {
 protected:
  void SetUp() override {
    if (device_count() < kGpus) GTEST_SKIP() << "needs " << kGpus << " GPUs, and sees " << device_count();
  }
};
using OneGpu = NeedsGpus<1>;
using TwoGpus = NeedsGpus<2>;
using FourGpus = NeedsGpus<4>;

inline const c10::Device kFirstGpu(c10::kCUDA, 0);

}  // namespace firkin
