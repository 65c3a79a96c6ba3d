#include "firkin/base/machine.h"

#include <gtest/gtest.h>

#include <limits>

#include "temporary_folder.h"

namespace firkin {
namespace {

constexpr int64_t kNotKnown = std::numeric_limits<int64_t>::max();

TEST(MachineState, IsReadFromTheKernelsFiles) {
  const TemporaryFolder root;
  root.write("proc/cpuinfo", "processor\t: 0\nmodel name\t: A CPU @ 2.10GHz\nmodel name\t: another\n");
  root.write("proc/loadavg", "0.50 1.25 2.00 1/234 5678\n");
  root.write("proc/meminfo", "MemTotal:   100 kB\nMemAvailable:   64 kB\n");
  root.write("proc/self/cgroup", "0::/\n");
  root.write("proc/self/mountinfo", "30 23 0:26 / /cg rw - cgroup2 cgroup2 rw\n");
  root.write("cg/cpu.max", "150000 100000\n");
  root.write("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "powersave\n");
  const MachineState machine = machine_state(root.path);
  EXPECT_EQ(machine.cpu, "A CPU @ 2.10GHz");
  EXPECT_EQ(machine.load_average, (std::array{0.5, 1.25, 2.0}));
  EXPECT_EQ(machine.available_memory_bytes, 64 * 1024);
  EXPECT_EQ(machine.cpu_quota, 1.5);
  EXPECT_EQ(machine.governor, "powersave");
}

TEST(MachineState, OfThisMachineNamesIt) {
  const MachineState machine = machine_state();
  EXPECT_NE(machine.host, "");
  EXPECT_NE(machine.operating_system, "");
  EXPECT_GE(machine.cpus, machine.allowed_cpus);
  EXPECT_GE(machine.allowed_cpus, 1);
  EXPECT_GT(machine.available_memory_bytes, 0);
}

TEST(MachineState, IsEmptyWhereTheKernelDoesNotSay) {
  const TemporaryFolder empty;
  const MachineState machine = machine_state(empty.path);
  EXPECT_EQ(machine.cpu + machine.governor, "");
  EXPECT_FALSE(machine.cpu_quota);
  EXPECT_FALSE(machine.load_average);
  EXPECT_NE(machine.host, "");
}

TEST(AvailableMemory, IsUnlimitedWhereTheKernelDoesNotSay) {
  const TemporaryFolder root;
  EXPECT_EQ(available_memory_bytes(root.path), kNotKnown);
}

TEST(AvailableMemory, IsWhatTheTightestGroupLeaves) {
  const TemporaryFolder root;
  root.write("proc/meminfo", "MemAvailable: 1000 kB\n");
  root.write("proc/self/cgroup", "0::/job/step\n");
  root.write("proc/self/mountinfo", "30 23 0:26 / /cg rw - cgroup2 cgroup2 rw\n");
  root.write("cg/job/step/memory.max", "max\n");
  root.write("cg/job/step/memory.current", "5000\n");
  EXPECT_EQ(available_memory_bytes(root.path), 1000 * 1024);
  root.write("cg/job/memory.max", "300000\n");
  root.write("cg/job/memory.current", "100000\n");
  EXPECT_EQ(available_memory_bytes(root.path), 200000);
  root.write("cg/job/step/memory.max", "6000\n");
  EXPECT_EQ(available_memory_bytes(root.path), 1000);
  root.write("cg/job/step/memory.current", "7000\n");
  EXPECT_EQ(available_memory_bytes(root.path), 0);
}

TEST(AvailableMemory, CountsFilesThatTheKernelCanDrop) {
  const TemporaryFolder root;
  root.write("proc/self/cgroup", "0::/\n");
  root.write("proc/self/mountinfo", "30 23 0:26 / /cg rw - cgroup2 cgroup2 rw\n");
  root.write("cg/memory.max", "1000\n");
  root.write("cg/memory.current", "900\n");
  root.write("cg/memory.stat", "anon 200\nfile 700\ninactive_anon 1\ninactive_file 600\n");
  EXPECT_EQ(available_memory_bytes(root.path), 700);
}

TEST(AvailableMemory, IsWhatAGroupOfVersion1Leaves) {
  const TemporaryFolder root;
  root.write("proc/self/cgroup", "4:memory:/job\n0::/\n");
  root.write("proc/self/mountinfo", "35 31 0:32 / /cg rw - cgroup cgroup rw,memory\n");
  root.write("cg/memory.limit_in_bytes", "9223372036854771712\n");  // none
  root.write("cg/memory.usage_in_bytes", "2000\n");
  EXPECT_GE(available_memory_bytes(root.path), int64_t{1} << 62);
  root.write("cg/job/memory.limit_in_bytes", "1000\n");
  root.write("cg/job/memory.usage_in_bytes", "400\n");
  root.write("cg/job/memory.stat", "inactive_file 7\ntotal_inactive_file 100\n");
  EXPECT_EQ(available_memory_bytes(root.path), 700);
}

}  // namespace
}  // namespace firkin
