// The machine a rank runs on: results must state it, because timings depend on it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace firkin {

// One machine that ranks run on. Fields keep their defaults if the kernel does not report them.
struct Host {
  std::string host;
  std::string cpu;                           // its model
  std::string os;                            // "Linux 6.8.0 x86_64"
  int64_t cores = 0;                         // the machine's online CPUs
  int64_t usable_cores = 0;                  // in the affinity mask
  std::optional<double> cpu_quota = {};      // the control group's, in cores
  std::optional<std::string> governor = {};  // the first CPU's; none in most virtual machines
  std::optional<double> load = {};           // running and waiting processes over the last minute
  std::vector<int64_t> ranks = {};           // those on it, if the caller has set them
};

// This machine, now. root: where proc/ and sys/ lie, "/" except in tests.
Host this_host(const std::filesystem::path& root = "/");

// Bytes that processes here can still allocate without swapping: the smaller of what the kernel reports as available
// and what this process's control groups leave (versions 1 and 2, its own and those around it; files the kernel can
// drop count as free). On systems other than Linux, or if the kernel does not say, the largest int64_t.
int64_t available_memory_bytes(const std::filesystem::path& root = "/");

// The CPUs this process may use: a container or a job scheduler may grant fewer than the machine has.
//
//   at::set_num_threads(threads_per_rank(info.local_world_size));

// The CPUs in this process's affinity mask (taskset, mpirun --bind-to, cpusets), by number; none if the kernel does not
// say.
std::vector<int64_t> allowed_cpus();

// CPU time the control groups of this process grant it, in CPUs: the smallest of its own and those around it (version
// 2: cpu.max; version 1: cpu.cfs_quota_us); none if they set no limit. root: as above.
std::optional<double> cpu_quota(const std::filesystem::path& root = "/");

// The smaller of the two, rounded down: one thread more than the quota allows makes all threads wait for the next
// period. At least 1.
int usable_cpus();

// Compute threads for each of `local_world_size` ranks on this machine: OMP_NUM_THREADS if it is a positive number (the
// first, if it is a list), otherwise an equal share of usable_cpus(). At least 1. If a launcher binds each rank to its
// own CPUs, set OMP_NUM_THREADS: a rank cannot tell its own CPUs from shared ones.
int threads_per_rank(int local_world_size);

// The same for given values. omp_num_threads is null if the variable is not set.
int threads_per_rank(int local_world_size, const char* omp_num_threads, int cpus);

// The GPUs of this machine as NVIDIA's driver reports them, read without any CUDA header or library. Empty without a
// driver.
struct GpuState {
  std::vector<std::string> models;  // one per GPU, in bus order, including those of other processes and containers
  std::string driver;               // its version
};

// root: where proc/ lies, "/" except in tests.
GpuState gpu_state(const std::filesystem::path& root = "/");

// "2 x NVIDIA H100 80GB HBM3, driver 570.86.15"; empty without a GPU.
std::string describe(const GpuState& gpus);

}  // namespace firkin
