// The GPUs of this machine, as NVIDIA's driver names them: no header and no library of CUDA is needed.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace firkin {

// Empty where there is no driver, or where it does not say.
struct GpuState {
  std::vector<std::string> models;  // one for each GPU, by its place on the bus; those of other processes and containers too
  std::string driver;               // its version
};

// root: where proc/ lies, "/" but for tests.
GpuState gpu_state(const std::filesystem::path& root = "/");

// "2 x NVIDIA H100 80GB HBM3, driver 570.86.15"; empty without a GPU.
std::string describe(const GpuState& gpus);

}  // namespace firkin
