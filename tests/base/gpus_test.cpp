#include "firkin/base/machine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "temporary_folder.h"

namespace firkin {
namespace {

TEST(Gpus, AreNamedByTheirDriver) {
  const TemporaryFolder folder;
  for (const char* place : {"0000:04:00.0", "0000:84:00.0"}) {
    folder.write(std::filesystem::path("proc/driver/nvidia/gpus") / place / "information",
                 "Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   \t\t 42\n");
  }
  folder.write("proc/driver/nvidia/version",
               "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15  Tue Jan 21 2025\nGCC version:  12.3\n");
  const GpuState gpus = gpu_state(folder.path);
  EXPECT_THAT(gpus.models, testing::SizeIs(2));
  EXPECT_EQ(describe(gpus), "2 x NVIDIA H100 80GB HBM3, driver 570.86.15");
}

TEST(Gpus, AreNoneWithoutADriver) {
  const TemporaryFolder folder;
  EXPECT_EQ(describe(gpu_state(folder.path)), "");
}

}  // namespace
}  // namespace firkin
