#include "firkin/base/machine.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <thread>

#include "temporary_folder.h"

namespace firkin {
namespace {

const char* const kMountV2 = "30 23 0:26 / /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw\n";
const char* const kMountV1 = "31 23 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n";

TEST(CpuQuota, IsNoneWithoutControlGroups) {
  const TemporaryFolder root;
  EXPECT_EQ(cpu_quota(root.path), std::nullopt);
  root.write("proc/self/cgroup", "0::/\n");
  root.write("proc/self/mountinfo", kMountV2);
  EXPECT_EQ(cpu_quota(root.path), std::nullopt);  // the root group has no such file
}

TEST(CpuQuota, OfVersion2IsTheLeastFromTheProcessesGroupUpwards) {
  const TemporaryFolder root;
  root.write("proc/self/cgroup", "0::/job/step\n");
  root.write("proc/self/mountinfo", kMountV2);
  root.write("sys/fs/cgroup/job/step/cpu.max", "max 100000\n");
  EXPECT_EQ(cpu_quota(root.path), std::nullopt);
  root.write("sys/fs/cgroup/job/cpu.max", "250000 100000\n");
  EXPECT_EQ(cpu_quota(root.path), 2.5);
  root.write("sys/fs/cgroup/job/step/cpu.max", "300000 100000\n");
  EXPECT_EQ(cpu_quota(root.path), 2.5);
  root.write("sys/fs/cgroup/job/step/cpu.max", "50000 100000\n");
  EXPECT_EQ(cpu_quota(root.path), 0.5);
}

TEST(CpuQuota, OfVersion1IsTheLeastFromTheProcessesGroupUpwards) {
  const TemporaryFolder root;
  root.write("proc/self/cgroup", "5:memory:/elsewhere\n1:cpu,cpuacct:/job/step\n0::/\n");
  root.write("proc/self/mountinfo", std::string("not a line of this file\n") + kMountV1);
  const std::string group = "sys/fs/cgroup/cpu,cpuacct/job/";
  root.write(group + "step/cpu.cfs_quota_us", "-1\n");
  root.write(group + "step/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(cpu_quota(root.path), std::nullopt);
  root.write(group + "cpu.cfs_quota_us", "400000\n");
  root.write(group + "cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(cpu_quota(root.path), 4);
}

// Without a namespace of its own a container reads the host's names of groups, while only its own group is mounted.
TEST(CpuQuota, IsFoundWhereAContainerSeesOnlyItsOwnGroup) {
  const TemporaryFolder root;
  root.write("proc/self/mountinfo", "31 23 0:29 /docker/4f /sys/fs/cgroup rw - cgroup2 cgroup rw\n");
  root.write("sys/fs/cgroup/cpu.max", "150000 100000\n");
  root.write("sys/fs/cgroup/inner/cpu.max", "100000 100000\n");
  root.write("proc/self/cgroup", "0::/docker/4f\n");
  EXPECT_EQ(cpu_quota(root.path), 1.5);
  root.write("proc/self/cgroup", "0::/docker/4f/inner\n");
  EXPECT_EQ(cpu_quota(root.path), 1);
  root.write("proc/self/cgroup", "0::/../../elsewhere\n");
  EXPECT_EQ(cpu_quota(root.path), 1.5);
}

TEST(AllowedCpus, FollowTheAffinityMask) {
  std::thread([] {  // the mask is a thread's
    const int before = allowed_cpus();
    EXPECT_GE(before, 1);
    cpu_set_t mask;
    ASSERT_EQ(sched_getaffinity(0, sizeof mask, &mask), 0);
    int first = 0;
    while (!CPU_ISSET(first, &mask)) ++first;
    CPU_ZERO(&mask);
    CPU_SET(first, &mask);
    ASSERT_EQ(sched_setaffinity(0, sizeof mask, &mask), 0);
    EXPECT_EQ(allowed_cpus(), 1);
    EXPECT_EQ(usable_cpus(), 1);
  })
      .join();
}

TEST(ThreadsPerRank, AreAnEqualShareAndAtLeastOne) {
  EXPECT_EQ(threads_per_rank(2, nullptr, 8), 4);
  EXPECT_EQ(threads_per_rank(3, nullptr, 8), 2);
  EXPECT_EQ(threads_per_rank(9, nullptr, 8), 1);
  EXPECT_EQ(threads_per_rank(0, nullptr, 8), 8);  // a launcher that does not say
}

TEST(ThreadsPerRank, AreWhatTheEnvironmentSays) {
  EXPECT_EQ(threads_per_rank(2, "1", 8), 1);
  EXPECT_EQ(threads_per_rank(2, " 3", 8), 3);
  EXPECT_EQ(threads_per_rank(2, "6,2", 8), 6);
}

TEST(ThreadsPerRank, AreAnEqualShareWhereTheEnvironmentSaysNothingUseful) {
  for (const char* text : {"", " ", "0", "-2", "two", "2x", "99999999999"}) EXPECT_EQ(threads_per_rank(2, text, 8), 4) << text;
}

}  // namespace
}  // namespace firkin
