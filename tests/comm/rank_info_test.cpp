#include "firkin/comm/rank_info.h"

#include <gmock/gmock.h>

#include <string>

#include "firkin/base/error.h"
#include "launcher_environment.h"

namespace firkin {
namespace {

using RankInfoFromEnvironment = LauncherEnvironment;

TEST_F(RankInfoFromEnvironment, IsAbsentWithoutALauncher) {
  EXPECT_FALSE(rank_info_from_environment().has_value());
}

// What a launcher sets for local rank 1.
struct Launch {
  const char* variables;
  int rank = 1;
  int world_size = 2;
  int local_world_size = 2;
  const char* master_address = "127.0.0.1";
  int master_port = 29500;
};

const Launch kLaunches[] = {
    {"RANK=3 LOCAL_RANK=1 WORLD_SIZE=4 LOCAL_WORLD_SIZE=2 MASTER_ADDR=head MASTER_PORT=1234", 3, 4, 2, "head", 1234},
    {"OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=2"},
    {"SLURM_PROCID=5 SLURM_STEP_NUM_TASKS=8 SLURM_STEP_NUM_NODES=2 SLURM_LOCALID=1 SLURM_STEP_NODELIST=gpu[07-08]", 5, 8, 4, "gpu07"},
    {"PMI_RANK=1 PMI_SIZE=2 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=2"},
    {"MV2_COMM_WORLD_RANK=1 MV2_COMM_WORLD_SIZE=2 MV2_COMM_WORLD_LOCAL_RANK=1 MV2_COMM_WORLD_LOCAL_SIZE=2"},
    {"JSM_NAMESPACE_RANK=1 JSM_NAMESPACE_SIZE=2 JSM_NAMESPACE_LOCAL_RANK=1 JSM_NAMESPACE_LOCAL_SIZE=2"},
    {"FLUX_TASK_RANK=1 FLUX_JOB_SIZE=2 FLUX_TASK_LOCAL_ID=1"},
};

TEST_F(RankInfoFromEnvironment, ReadsEveryLauncherThatSaysEnough) {
  for (const Launch& launch : kLaunches) {
    SCOPED_TRACE(launch.variables);
    clear();
    set(launch.variables);
    const RankInfo info = rank_info_from_environment().value();
    EXPECT_EQ(info.rank, launch.rank);
    EXPECT_EQ(info.world_size, launch.world_size);
    EXPECT_EQ(info.local_rank, 1);
    EXPECT_EQ(info.local_world_size, launch.local_world_size);
    EXPECT_EQ(info.master_address, launch.master_address);
    EXPECT_EQ(info.master_port, launch.master_port);
  }
}

TEST_F(RankInfoFromEnvironment, IgnoresASlurmBatchScriptThatIsNoStep) {
  set("SLURM_PROCID=0 SLURM_LOCALID=0");
  EXPECT_FALSE(rank_info_from_environment().has_value());
}

TEST_F(RankInfoFromEnvironment, ReadsSlurmsOwnVariablesBesideThoseOfItsPmi) {
  set("SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=2 SLURM_LOCALID=0 SLURM_STEP_NUM_NODES=2 SLURM_STEP_NODELIST=n[1-2] PMI_RANK=1 PMI_SIZE=2");
  EXPECT_EQ(rank_info_from_environment().value().master_address, "n1");
}

TEST_F(RankInfoFromEnvironment, IsNothingForAShellInsideAJobThatStartsRanksItself) {
  set("SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=1 SLURM_LOCALID=0");
  EXPECT_FALSE(rank_info_unless_alone().has_value());
  EXPECT_EQ(rank_info_from_environment().value().world_size, 1);
  set("RANK=0 WORLD_SIZE=1");  // torchrun starts programs, no shells
  EXPECT_EQ(rank_info_unless_alone().value().world_size, 1);
}

TEST_F(RankInfoFromEnvironment, AsksForTheMeetingPointWhereTorchrunsVariablesAreHalfSet) {
  set("RANK=1 WORLD_SIZE=2");
  EXPECT_THAT([] { rank_info_from_environment(); },
              testing::ThrowsMessage<InputError>(
                  testing::StrEq("MASTER_ADDR is not set, though RANK is: expected the host of rank 0, as torchrun would set it")));
}

TEST_F(RankInfoFromEnvironment, RefusesHalfASetAndImpossibleRanks) {
  for (const char* variables : {
           "RANK=0",
           "RANK=0 WORLD_SIZE=two",
           "RANK=2 WORLD_SIZE=2",
           "RANK=0 WORLD_SIZE=2 MASTER_PORT=70000",
           // On several machines mpirun does not say where rank 0 is.
           "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=2",
           // Of these launchers nobody hears how many ranks there are.
           "PMIX_RANK=1",
           "ALPS_APP_PE=1",
           "PALS_RANKID=1",
       }) {
    clear();
    set(variables);
    EXPECT_THROW(rank_info_from_environment(), InputError) << variables;
  }
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
