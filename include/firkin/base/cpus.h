// The CPUs that this process may really use: a container or a job scheduler grants fewer than the machine has.
//
//   at::set_num_threads(threads_per_rank(info.local_world_size));
#pragma once

#include <filesystem>
#include <optional>

namespace firkin {

// CPUs in this process's affinity mask (taskset, mpirun --bind-to, cpusets). At least 1.
int allowed_cpus();

// How many CPUs' worth of time the control groups of this process grant it, the least of its own and of those around it (version 2:
// cpu.max; version 1: cpu.cfs_quota_us); none when they set no limit. root: where proc/ and sys/ lie, "/" but for tests.
std::optional<double> cpu_quota(const std::filesystem::path& root = "/");

// The least of the two, rounded down: a thread more than the quota grants makes all of them wait for the next period. At least 1.
int usable_cpus();

// Compute threads for each of `local_world_size` ranks on this machine: OMP_NUM_THREADS where that is a positive number (of a list, its
// first), otherwise an equal share of usable_cpus(). Where a launcher binds each rank to CPUs of its own, set OMP_NUM_THREADS: a rank
// cannot tell its own CPUs from those that all share. At least 1.
int threads_per_rank(int local_world_size);

// The same of given values; omp_num_threads: null when it is not set.
int threads_per_rank(int local_world_size, const char* omp_num_threads, int cpus);

}  // namespace firkin
