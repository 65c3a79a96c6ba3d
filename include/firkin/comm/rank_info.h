// This process's rank, as its launcher states it in the environment.
//
//   const std::optional<RankInfo> info = rank_info_from_environment();
//   if (info) group = connect(*info, options);  // started by torchrun, mpirun or srun
#pragma once

#include <optional>
#include <string>

namespace firkin {

struct RankInfo {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;        // on this machine
  int local_world_size = 1;  // ranks on this machine
  std::string master_address = "127.0.0.1";
  int master_port = 29500;  // c10d's default
};

// A larger number of ranks on one machine is taken for a mistake.
inline constexpr int kMostLocalRanks = 1024;

// Reads the variables of the launcher that started this process: torchrun's (RANK, WORLD_SIZE, MASTER_ADDR,
// MASTER_PORT, ...), else those of Open MPI, MVAPICH2, jsrun, Flux, a Slurm job step (SLURM_PROCID, ...) or Hydra
// (MPICH and Intel MPI). Launchers other than torchrun do not name a meeting point: MASTER_ADDR and MASTER_PORT do, by
// default this machine (for Slurm, the first node of the step) and port 29500.
//
// Returns nothing if there is no launcher. Throws InputError if a launcher's variables are incomplete or not numbers,
// if MASTER_ADDR is missing where ranks are on several machines, and for a launcher that does not say how many ranks
// there are (PMIX_RANK alone).
std::optional<RankInfo> rank_info_from_environment();

// The same for programs that start ranks themselves: also returns nothing if a launcher other than torchrun started a
// single process. That may be a shell inside a job (`srun --pty bash`), whose programs have the launcher's variables
// but are not its ranks.
std::optional<RankInfo> rank_info_unless_alone();

// The first host of a Slurm node list: "gpu[03-07,9],login" -> "gpu03". Throws InputError for anything else than a
// list.
std::string first_slurm_host(const std::string& node_list);

}  // namespace firkin
