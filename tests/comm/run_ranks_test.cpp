#include "firkin/comm/run_ranks.h"

#include <cstdlib>

#include "../test.h"
#include "firkin/comm/rank_info.h"
#include "launcher_environment.h"
#include "process_ranks.h"

namespace firkin {
namespace {

using RankInfoFromEnvironment = LauncherEnvironment;

// What a call of run_ranks() did. --ranks N itself starts this binary again, so tests/install covers it with a real program.
struct Outcome {
  int exit_code = -1;
  int world_size = 0;  // that the body saw; 0: it did not run
  std::vector<std::string> arguments;
  std::string message;  // on standard error
};

class RunRanks : public LauncherEnvironment {
 protected:
  static Outcome run(
      std::vector<const char*> words, const std::function<int()>& result = [] { return 0; }) {
    words.insert(words.begin(), "/some/where/trainer");
    Outcome outcome;
    testing::internal::CaptureStderr();
    outcome.exit_code = run_ranks(static_cast<int>(words.size()), words.data(), [&](const ProcessGroup& group, const auto& arguments) {
      outcome.world_size = group.size;
      outcome.arguments = arguments;
      return result();
    });
    outcome.message = testing::internal::GetCapturedStderr();
    return outcome;
  }
};

TEST_F(RunRanks, RunsAsTheOnlyRankWithoutALauncher) {
  const Outcome outcome = run({"--epochs", "3"}, [] { return 7; });
  EXPECT_EQ(outcome.exit_code, 7);
  EXPECT_EQ(outcome.world_size, 1);
  EXPECT_THAT(outcome.arguments, ElementsAre("--epochs", "3"));
}

TEST_F(RunRanks, StartsRanksFromAShellInsideASlurmJob) {
  set("SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=1 SLURM_LOCALID=0");
  EXPECT_EQ(run({}).world_size, 1);
  EXPECT_THAT(run({"--ranks", "0"}).message, HasSubstr("--ranks 0: expected 1 to"));
}

TEST(LocalLaunch, DoesNotWaitForAProcessThatARankLeftBehind) {
  const auto started = std::chrono::steady_clock::now();
  run_ranks_in_processes(2, {}, [](const ProcessGroup& group) {
    if (group.rank == 1) {
      EXPECT_EQ(std::system("sleep 60 &"), 0);
    }
  });
  EXPECT_LT(std::chrono::steady_clock::now() - started, std::chrono::seconds(50));
}

// With 2 it ends as after an InputError, of which the rank has said everything.
TEST(LocalLaunch, NamesTheRankThatEndedWithAnyOtherCodeThanZero) {
  if (rank_info_from_environment()) {
    const std::array words = {"trainer"};
    std::_Exit(run_ranks(1, words.data(), [](const ProcessGroup& group, const auto& /*arguments*/) {
      const std::string end = std::getenv("FIRKIN_TEST_END");
      barrier(group);  // a rank that leaves while the other still connects is another error
      if (group.rank == 0) return 0;
      if (end == "2 by exit()") std::exit(2);
      if (end == "2 by an error") throw InputError("digits.csv: empty");
      return std::stoi(end);
    }));
  }
  constexpr std::array<std::pair<const char*, const char*>, 4> kLines = {
      {{"2", "[rank 1] trainer: rank 1 ended with exit code 2\n"},
       {"2 by exit()", "[rank 1] trainer: rank 1 ended with exit code 2\n"},
       {"2 by an error", "[rank 1] trainer: digits.csv: empty\n"},
       {"7", "firkin: rank 1 failed with exit code 7"}}};
  for (const auto& [end, line] : kLines) {
    setenv("FIRKIN_TEST_END", end, 1);
    testing::internal::CaptureStderr();
    const std::vector<std::string> arguments = {"--gtest_filter=LocalLaunch.NamesTheRankThatEndedWithAnyOtherCodeThanZero",
                                                "--gtest_brief=1"};
    EXPECT_EQ(launch_local_ranks(2, arguments), std::stoi(end));
    const std::string said = testing::internal::GetCapturedStderr();
    EXPECT_THAT(said, HasSubstr(line));
    EXPECT_EQ(said.find("rank 1 "), said.rfind("rank 1 ")) << said;
  }
}

TEST_F(RunRanks, RejectsANumberOfRanksThatIsNone) {
  for (const char* text : {"0", "-1", "two", "2x", "", "1025"}) {
    const Outcome outcome = run({"--ranks", text});
    EXPECT_EQ(outcome.exit_code, 2);
    EXPECT_EQ(outcome.world_size, 0);
    EXPECT_EQ(outcome.message, std::string("trainer: --ranks ") + text + ": expected 1 to 1024\n");
  }
  EXPECT_EQ(run({"--ranks"}).message, "trainer: --ranks: expected a number after it, 1 to 1024\n");
}

TEST_F(RunRanks, RejectsRanksThatTheLauncherContradicts) {
  set("RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1");
  const Outcome outcome = run({"--ranks=3"});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_EQ(outcome.world_size, 0);
  EXPECT_EQ(outcome.message, "trainer: --ranks 3: a launcher started 2 ranks; leave --ranks out\n");
}

TEST_F(RunRanks, TurnsInputErrorsIntoExitCode2AndOthersInto1) {
  const Outcome input = run({}, []() -> int { throw InputError("digits.csv:3: 2 fields, expected 3"); });
  EXPECT_EQ(input.exit_code, 2);
  EXPECT_EQ(input.message, "trainer: digits.csv:3: 2 fields, expected 3\n");
  const Outcome other = run({}, []() -> int { throw std::runtime_error("shapes differ\nbacktrace"); });
  EXPECT_EQ(other.exit_code, 1);
  EXPECT_EQ(other.message, "trainer: shapes differ\n");
}

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
    {"PMI_RANK=1 PMI_SIZE=2 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=2 SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=1 SLURM_LOCALID=0"},
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
  EXPECT_THAT(
      [] { rank_info_from_environment(); },
      ThrowsMessage<InputError>(StrEq("MASTER_ADDR is not set, though RANK is: expected the host of rank 0, as torchrun would set it")));
}

TEST_F(RankInfoFromEnvironment, SaysWhichVariableKeepsAnotherLaunchersRankFromBeingUsed) {
  set("WORLD_SIZE=4 SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=4 SLURM_LOCALID=1 SLURM_STEP_NODELIST=n1");
  const auto message = [] { return message_of<InputError>([] { rank_info_from_environment(); }); };
  EXPECT_EQ(message(), "RANK is not set, though WORLD_SIZE is: so SLURM_PROCID is not used; unset WORLD_SIZE, or set both");
  clear();
  set("WORLD_SIZE=4");
  EXPECT_EQ(message(), "RANK is not set, though WORLD_SIZE is: expected both, or neither");
}

TEST_F(RankInfoFromEnvironment, RefusesHalfASetAndImpossibleRanks) {
  for (const char* variables : {
           "RANK=0",
           "WORLD_SIZE=2",
           "OMPI_COMM_WORLD_SIZE=2",
           "PMI_SIZE=2",
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
  EXPECT_EQ(first_slurm_host("rack[0-1]_blade[3]"), "rack0_blade3");
  EXPECT_EQ(first_slurm_host("r[02,7]n[5-6].local,login"), "r02n5.local");
  for (const char* text : {"", ",a", "gpu[07-08", "gpu[]", "gpu]7"}) EXPECT_THROW(first_slurm_host(text), InputError) << text;
}

}  // namespace
}  // namespace firkin
