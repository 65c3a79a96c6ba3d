// Ranks as processes of this test program. Ranks that share a device must be processes: autograd has one thread for each device, and a rank
// that waits for another in it would keep the other from ever coming.
#pragma once

#include "../test.h"
#include "firkin/comm/process_group.h"
#include "firkin/comm/rank_info.h"
#include "firkin/comm/run_ranks.h"

namespace firkin {

// To be called once in a test: starts the program `ranks` times with this test alone. There, the same call runs `body`, whose failed
// expectations are that rank's failure.
inline void run_ranks_in_processes(int ranks, const GroupOptions& options, const std::function<void(const ProcessGroup&)>& body) {
  if (rank_info_from_environment()) {
    const ProcessGroup group = connect(options);
    body(group);
    return barrier(group);  // rank 0 has nothing that the others still need
  }
  const testing::TestInfo& test = *testing::UnitTest::GetInstance()->current_test_info();
  const std::string filter = fmt::format("--gtest_filter={}.{}", test.test_suite_name(), test.name());
  EXPECT_EQ(launch_local_ranks(ranks, std::vector<std::string>{filter, "--gtest_brief=1"}), 0)
      << "a rank failed; its expectations are above";
}

}  // namespace firkin
