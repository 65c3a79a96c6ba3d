#include "firkin/comm/rank_info.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "firkin/base/error.h"

namespace firkin {
namespace {

// Sets variables for one test, after clearing those of every launcher.
class RankInfoFromEnvironment : public testing::Test {
 protected:
  void SetUp() override { clear(); }
  void TearDown() override { clear(); }

  static void set(const std::map<std::string, std::string>& variables) {
    for (const auto& [name, value] : variables) setenv(name.c_str(), value.c_str(), 1);
  }

 private:
  static void clear() {
    for (const char* name : {"RANK",
                             "LOCAL_RANK",
                             "WORLD_SIZE",
                             "LOCAL_WORLD_SIZE",
                             "MASTER_ADDR",
                             "MASTER_PORT",
                             "OMPI_COMM_WORLD_RANK",
                             "OMPI_COMM_WORLD_SIZE",
                             "OMPI_COMM_WORLD_LOCAL_RANK",
                             "OMPI_COMM_WORLD_LOCAL_SIZE",
                             "SLURM_PROCID",
                             "SLURM_STEP_NUM_TASKS",
                             "SLURM_STEP_NUM_NODES",
                             "SLURM_LOCALID",
                             "SLURM_STEP_NODELIST",
                             "PMI_RANK",
                             "PMI_SIZE",
                             "MPI_LOCALRANKID",
                             "MPI_LOCALNRANKS",
                             "MV2_COMM_WORLD_RANK",
                             "MV2_COMM_WORLD_SIZE",
                             "MV2_COMM_WORLD_LOCAL_RANK",
                             "MV2_COMM_WORLD_LOCAL_SIZE",
                             "JSM_NAMESPACE_RANK",
                             "JSM_NAMESPACE_SIZE",
                             "JSM_NAMESPACE_LOCAL_RANK",
                             "JSM_NAMESPACE_LOCAL_SIZE",
                             "FLUX_TASK_RANK",
                             "FLUX_JOB_SIZE",
                             "FLUX_TASK_LOCAL_ID",
                             "PMIX_RANK",
                             "ALPS_APP_PE",
                             "PALS_RANKID"}) {
      unsetenv(name);
    }
  }
};

TEST_F(RankInfoFromEnvironment, IsAbsentWithoutALauncher) {
  EXPECT_FALSE(rank_info_from_environment().has_value());
}

TEST_F(RankInfoFromEnvironment, ReadsTorchrun) {
  set({{"RANK", "3"},
       {"LOCAL_RANK", "1"},
       {"WORLD_SIZE", "4"},
       {"LOCAL_WORLD_SIZE", "2"},
       {"MASTER_ADDR", "head"},
       {"MASTER_PORT", "1234"}});
  const RankInfo info = rank_info_from_environment().value();
  EXPECT_EQ(info.rank, 3);
  EXPECT_EQ(info.local_rank, 1);
  EXPECT_EQ(info.world_size, 4);
  EXPECT_EQ(info.local_world_size, 2);
  EXPECT_EQ(info.master_address, "head");
  EXPECT_EQ(info.master_port, 1234);
}

TEST_F(RankInfoFromEnvironment, ReadsMpirunOnOneMachine) {
  set({{"OMPI_COMM_WORLD_RANK", "1"},
       {"OMPI_COMM_WORLD_SIZE", "2"},
       {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
       {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}});
  const RankInfo info = rank_info_from_environment().value();
  EXPECT_EQ(info.rank, 1);
  EXPECT_EQ(info.master_address, "127.0.0.1");
}

TEST_F(RankInfoFromEnvironment, AsksForTheMeetingPointOfMpirunOnSeveralMachines) {
  set({{"OMPI_COMM_WORLD_RANK", "1"},
       {"OMPI_COMM_WORLD_SIZE", "4"},
       {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
       {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}});
  EXPECT_THROW(rank_info_from_environment(), InputError);
}

TEST_F(RankInfoFromEnvironment, ReadsASlurmStep) {
  set({{"SLURM_PROCID", "5"},
       {"SLURM_STEP_NUM_TASKS", "8"},
       {"SLURM_STEP_NUM_NODES", "2"},
       {"SLURM_LOCALID", "1"},
       {"SLURM_STEP_NODELIST", "gpu[07-08]"}});
  const RankInfo info = rank_info_from_environment().value();
  EXPECT_EQ(info.rank, 5);
  EXPECT_EQ(info.world_size, 8);
  EXPECT_EQ(info.local_world_size, 4);
  EXPECT_EQ(info.master_address, "gpu07");
}

TEST_F(RankInfoFromEnvironment, IgnoresASlurmBatchScriptThatIsNoStep) {
  set({{"SLURM_PROCID", "0"}, {"SLURM_LOCALID", "0"}});
  EXPECT_FALSE(rank_info_from_environment().has_value());
}

TEST_F(RankInfoFromEnvironment, ReadsEveryLauncherThatSaysEnough) {
  const std::vector<std::map<std::string, std::string>> launchers = {
      {{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "2"}},
      {{"MV2_COMM_WORLD_RANK", "1"}, {"MV2_COMM_WORLD_SIZE", "2"}, {"MV2_COMM_WORLD_LOCAL_RANK", "1"}, {"MV2_COMM_WORLD_LOCAL_SIZE", "2"}},
      {{"JSM_NAMESPACE_RANK", "1"}, {"JSM_NAMESPACE_SIZE", "2"}, {"JSM_NAMESPACE_LOCAL_RANK", "1"}, {"JSM_NAMESPACE_LOCAL_SIZE", "2"}},
      {{"FLUX_TASK_RANK", "1"}, {"FLUX_JOB_SIZE", "2"}, {"FLUX_TASK_LOCAL_ID", "1"}},
  };
  for (const auto& variables : launchers) {
    SCOPED_TRACE(variables.begin()->first);
    SetUp();
    set(variables);
    const RankInfo info = rank_info_from_environment().value();
    EXPECT_EQ(info.rank, 1);
    EXPECT_EQ(info.world_size, 2);
    EXPECT_EQ(info.local_rank, 1);
    EXPECT_EQ(info.local_world_size, 2);
  }
}

TEST_F(RankInfoFromEnvironment, ReadsSlurmsOwnVariablesBesideThoseOfItsPmi) {
  set({{"SLURM_PROCID", "1"},
       {"SLURM_STEP_NUM_TASKS", "2"},
       {"SLURM_LOCALID", "0"},
       {"SLURM_STEP_NUM_NODES", "2"},
       {"SLURM_STEP_NODELIST", "n[1-2]"},
       {"PMI_RANK", "1"},
       {"PMI_SIZE", "2"}});
  EXPECT_EQ(rank_info_from_environment().value().master_address, "n1");
}

TEST_F(RankInfoFromEnvironment, RefusesALauncherThatDoesNotSayHowManyRanksThereAre) {
  for (const char* name : {"PMIX_RANK", "ALPS_APP_PE", "PALS_RANKID"}) {
    SetUp();
    set({{name, "1"}});
    EXPECT_THROW(rank_info_from_environment(), InputError);
  }
}

TEST_F(RankInfoFromEnvironment, IsNothingForAShellInsideAJobThatStartsRanksItself) {
  set({{"SLURM_PROCID", "0"}, {"SLURM_STEP_NUM_TASKS", "1"}, {"SLURM_LOCALID", "0"}});
  EXPECT_FALSE(rank_info_unless_alone().has_value());
  EXPECT_EQ(rank_info_from_environment().value().world_size, 1);
  set({{"RANK", "0"}, {"WORLD_SIZE", "1"}});  // torchrun starts programs, no shells
  EXPECT_EQ(rank_info_unless_alone().value().world_size, 1);
}

TEST_F(RankInfoFromEnvironment, AsksForTheMeetingPointWhereTorchrunsVariablesAreHalfSet) {
  set({{"RANK", "1"}, {"WORLD_SIZE", "2"}});
  try {
    rank_info_from_environment();
    FAIL() << "expected an error";
  } catch (const InputError& error) {
    EXPECT_STREQ(error.what(), "MASTER_ADDR is not set, though RANK is: expected the host of rank 0, as torchrun would set it");
  }
}

TEST_F(RankInfoFromEnvironment, RejectsHalfASetAndImpossibleRanks) {
  set({{"RANK", "0"}});
  EXPECT_THROW(rank_info_from_environment(), InputError);
  set({{"WORLD_SIZE", "two"}});
  EXPECT_THROW(rank_info_from_environment(), InputError);
  set({{"RANK", "2"}, {"WORLD_SIZE", "2"}});
  EXPECT_THROW(rank_info_from_environment(), InputError);
  set({{"RANK", "0"}, {"MASTER_PORT", "70000"}});
  EXPECT_THROW(rank_info_from_environment(), InputError);
}

TEST(FirstSlurmHost, IsTheFirstOfAList) {
  EXPECT_EQ(first_slurm_host("gpu[03-07,9],login"), "gpu03");
  EXPECT_EQ(first_slurm_host("gpu[4,6-7]"), "gpu4");
  EXPECT_EQ(first_slurm_host("alone"), "alone");
  EXPECT_EQ(first_slurm_host("a,b"), "a");
  EXPECT_THROW(first_slurm_host(""), InputError);
}

}  // namespace
}  // namespace firkin
