// The machine that a rank runs on: what a result must state about it, since timings depend on it.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace firkin {

// Texts are empty, and other values none, where the kernel does not say.
struct MachineState {
  std::string host;
  std::string cpu;               // its model
  std::string operating_system;  // "Linux 6.8.0 x86_64"
  int cpus = 0;                  // of the machine, online
  int allowed_cpus = 0;          // in the affinity mask
  std::optional<double> cpu_quota;
  std::string governor;                               // of the first CPU's clock: "performance", "powersave"; none in most virtual machines
  std::optional<std::array<double, 3>> load_average;  // processes that run or wait, over 1, 5 and 15 minutes
  int64_t available_memory_bytes = 0;
};

// As it is now. root: where proc/ and sys/ lie, "/" but for tests.
MachineState machine_state(const std::filesystem::path& root = "/");

// Bytes that processes here can still allocate without swapping: the least of what the kernel says is available and what the limits of this
// process's control groups leave (versions 1 and 2, its own and those around it; files that the kernel can drop count as free). Elsewhere
// than on Linux, and when the kernel does not say, the largest int64_t.
int64_t available_memory_bytes(const std::filesystem::path& root = "/");

}  // namespace firkin
