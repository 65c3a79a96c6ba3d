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
  std::vector<int64_t> ranks = {};           // the ranks on it, if the caller has set them
};

// Describes this machine, now. root: where proc/ and sys/ lie, "/" except in tests.
Host this_host(const std::filesystem::path& root = "/");

// Bytes that processes here can still allocate without swapping: the least of what the kernel reports and what this
// process's control groups (versions 1 and 2) leave, counting reclaimable page cache as free. The largest int64_t if
// unknown.
int64_t available_memory_bytes(const std::filesystem::path& root = "/");

// ---- The CPUs that this process may use: a container or a job scheduler may grant fewer than the machine has.
//
//   at::set_num_threads(threads_per_rank(info.local_world_size));

// The CPUs in this process's affinity mask (taskset, mpirun --bind-to, cpusets); empty if unknown.
std::vector<int64_t> allowed_cpus();

// The CPU time that control groups grant this process, in CPUs: the tightest limit on the path to the root (version 2:
// cpu.max; version 1: cpu.cfs_quota_us); none without a limit. root: as above.
std::optional<double> cpu_quota(const std::filesystem::path& root = "/");

// How many threads can compute at once: the smaller of the affinity mask and the quota, rounded down, at least 1. A
// thread beyond the quota would stall all threads until the quota's next period.
int usable_cpus();

// Compute threads for each of `local_world_size` ranks on this machine: OMP_NUM_THREADS if positive (the first of a
// list), else an equal share of usable_cpus(); at least 1. If a launcher binds ranks to CPUs of their own, set
// OMP_NUM_THREADS: a rank cannot tell its own CPUs from shared ones.
int threads_per_rank(int local_world_size);

// The same for a given value of OMP_NUM_THREADS (null: not set) and a given number of CPUs.
int threads_per_rank(int local_world_size, const char* omp_num_threads, int cpus);

// The GPUs of this machine, including those of other processes and containers, as NVIDIA's driver reports them, read
// without any CUDA header or library: "2 x NVIDIA H100 80GB HBM3, driver 570.86.15". Empty without a GPU. root: where
// proc/ lies, "/" except in tests.
std::string gpus_in_words(const std::filesystem::path& root = "/");

}  // namespace firkin
