// What the kernel's files say of this machine and of what a control group leaves of it, in a folder that looks like /.
#include "firkin/base/machine.h"

#include <sched.h>

#include "../test.h"
#include "temporary_folder.h"

namespace firkin {
namespace {

// Of a process in this group.
class GroupFiles : public TemporaryFolder {
 public:
  explicit GroupFiles(const std::string& group) { write("proc/self/cgroup", group + "\n"); }
  void limit(const std::string& file, const std::string& text) const { write("sys/fs/cgroup/" + file, text + "\n"); }
};

TEST(CpuQuota, IsNoneWithoutControlGroups) {
  EXPECT_EQ(cpu_quota(TemporaryFolder().path), std::nullopt);
  EXPECT_EQ(cpu_quota(GroupFiles("0::/").path), std::nullopt);  // the root group has no such file
}

TEST(CpuQuota, OfVersion2IsTheLeastFromTheProcessesGroupUpwards) {
  const GroupFiles root("0::/job/step");
  root.limit("job/step/cpu.max", "max 100000");
  EXPECT_EQ(cpu_quota(root.path), std::nullopt);
  root.limit("job/cpu.max", "250000 100000");
  EXPECT_EQ(cpu_quota(root.path), 2.5);
  root.limit("job/step/cpu.max", "300000 100000");
  EXPECT_EQ(cpu_quota(root.path), 2.5);
  root.limit("job/step/cpu.max", "50000 100000");
  EXPECT_EQ(cpu_quota(root.path), 0.5);
}

TEST(CpuQuota, OfVersion1IsTheLeastFromTheProcessesGroupUpwards) {
  const GroupFiles root("5:memory:/elsewhere\n1:cpu,cpuacct:/job/step\n0::/");
  root.limit("cpu/job/step/cpu.cfs_quota_us", "-1");
  root.limit("cpu/job/step/cpu.cfs_period_us", "100000");
  EXPECT_EQ(cpu_quota(root.path), std::nullopt);
  root.limit("cpu/job/cpu.cfs_quota_us", "400000");
  root.limit("cpu/job/cpu.cfs_period_us", "100000");
  EXPECT_EQ(cpu_quota(root.path), 4);
}

// Without a namespace of its own a container reads the host's names of groups, while only its own group is mounted.
TEST(CpuQuota, IsFoundWhereAContainerSeesOnlyItsOwnGroup) {
  for (const char* group : {"0::/docker/4f", "0::/../../elsewhere"}) {
    const GroupFiles root(group);
    root.limit("cpu.max", "150000 100000");
    EXPECT_EQ(cpu_quota(root.path), 1.5) << group;
  }
}

TEST(AllowedCpus, FollowTheAffinityMask) {
  std::thread([] {  // the mask is a thread's
    EXPECT_GE(allowed_cpus().size(), 1u);
    cpu_set_t mask;
    ASSERT_EQ(sched_getaffinity(0, sizeof mask, &mask), 0);
    int first = 0;
    while (!CPU_ISSET(first, &mask)) ++first;
    CPU_ZERO(&mask);
    CPU_SET(first, &mask);
    ASSERT_EQ(sched_setaffinity(0, sizeof mask, &mask), 0);
    EXPECT_THAT(allowed_cpus(), ElementsAre(first));
    EXPECT_EQ(usable_cpus(), 1);
  })
      .join();
}

TEST(ThreadsPerRank, AreWhatTheEnvironmentSaysOrAnEqualShareOfEightAndAtLeastOne) {
  for (const auto& [ranks, threads] : {std::pair{2, 4}, {3, 2}, {9, 1}, {0, 8}}) {  // 0: a launcher that does not say
    EXPECT_EQ(threads_per_rank(ranks, nullptr, 8), threads) << ranks;
  }
  for (const auto& [text, threads] : {std::pair{"1", 1}, {" 3", 3}, {"6,2", 6}}) EXPECT_EQ(threads_per_rank(2, text, 8), threads) << text;
  for (const char* text : {"", " ", "0", "-2", "two", "2x", "99999999999"}) EXPECT_EQ(threads_per_rank(2, text, 8), 4) << text;
}

TEST(Gpus, AreNamedByTheirDriver) {
  const TemporaryFolder folder;
  for (const char* place : {"0000:04:00.0", "0000:84:00.0"}) {
    folder.write(std::filesystem::path("proc/driver/nvidia/gpus") / place / "information",
                 "Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   \t\t 42\n");
  }
  folder.write("proc/driver/nvidia/version",
               "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15  Tue Jan 21 2025\nGCC version:  12.3\n");
  EXPECT_EQ(gpus_in_words(folder.path), "2 x NVIDIA H100 80GB HBM3, driver 570.86.15");
}

TEST(Host, IsReadFromTheKernelsFiles) {
  const GroupFiles root("0::/");
  root.write("proc/cpuinfo", "processor\t: 0\nmodel name\t: A CPU @ 2.10GHz\nmodel name\t: another\n");
  root.write("proc/loadavg", "0.50 1.25 2.00 1/234 5678\n");
  root.write("proc/meminfo", "MemTotal:   100 kB\nMemAvailable:   64 kB\n");
  root.limit("cpu.max", "150000 100000");
  root.write("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "powersave\n");
  const Host machine = this_host(root.path);
  EXPECT_EQ(machine.cpu, "A CPU @ 2.10GHz");
  EXPECT_EQ(machine.load, 0.5);
  EXPECT_EQ(available_memory_bytes(root.path), 64 * 1024);
  EXPECT_EQ(machine.cpu_quota, 1.5);
  EXPECT_EQ(machine.governor, "powersave");
}

TEST(Host, OfThisMachineNamesIt) {
  const Host machine = this_host();
  EXPECT_NE(machine.host, "");
  EXPECT_NE(machine.os, "");
  EXPECT_GE(machine.cores, machine.usable_cores);
  EXPECT_GE(machine.usable_cores, 1);
  EXPECT_GT(available_memory_bytes(), 0);
}

TEST(Host, IsEmptyWhereTheKernelDoesNotSay) {
  const TemporaryFolder empty;
  const Host machine = this_host(empty.path);
  EXPECT_EQ(machine.cpu, "");
  EXPECT_FALSE(machine.governor);
  EXPECT_FALSE(machine.cpu_quota);
  EXPECT_FALSE(machine.load);
  EXPECT_NE(machine.host, "");
  EXPECT_EQ(gpus_in_words(empty.path), "");
  EXPECT_EQ(available_memory_bytes(empty.path), std::numeric_limits<int64_t>::max());
}

TEST(AvailableMemory, IsWhatTheTightestGroupLeaves) {
  const GroupFiles root("0::/job/step");
  root.write("proc/meminfo", "MemAvailable: 1000 kB\n");
  root.limit("job/step/memory.max", "max");
  root.limit("job/step/memory.current", "5000");
  EXPECT_EQ(available_memory_bytes(root.path), 1000 * 1024);
  root.limit("job/memory.max", "300000");
  root.limit("job/memory.current", "100000");
  EXPECT_EQ(available_memory_bytes(root.path), 200000);
  root.limit("job/step/memory.max", "6000");
  EXPECT_EQ(available_memory_bytes(root.path), 1000);
  root.limit("job/step/memory.current", "7000");
  EXPECT_EQ(available_memory_bytes(root.path), 0);
}

TEST(AvailableMemory, CountsFilesThatTheKernelCanDrop) {
  const GroupFiles root("0::/");
  root.limit("memory.max", "1000");
  root.limit("memory.current", "900");
  root.limit("memory.stat", "anon 200\nfile 700\ninactive_anon 1\ninactive_file 600");
  EXPECT_EQ(available_memory_bytes(root.path), 700);
}

TEST(AvailableMemory, IsWhatAGroupOfVersion1Leaves) {
  const GroupFiles root("4:memory:/job\n0::/");
  root.limit("memory/memory.limit_in_bytes", "9223372036854771712");  // none
  root.limit("memory/memory.usage_in_bytes", "2000");
  EXPECT_GE(available_memory_bytes(root.path), int64_t{1} << 62);
  root.limit("memory/job/memory.limit_in_bytes", "1000");
  root.limit("memory/job/memory.usage_in_bytes", "400");
  root.limit("memory/job/memory.stat", "inactive_file 7\ntotal_inactive_file 100");
  EXPECT_EQ(available_memory_bytes(root.path), 700);
}

}  // namespace
}  // namespace firkin
