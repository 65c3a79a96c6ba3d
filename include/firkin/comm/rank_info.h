// This process's rank, as its launcher states it in the environment.
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

// Reads the variables of torchrun (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT, ...), else of Open MPI's mpirun (OMPI_COMM_WORLD_*), else of
// a Slurm job step (SLURM_PROCID, ...). The last two do not name a meeting point: MASTER_ADDR and MASTER_PORT do, by default this machine
// (for Slurm, the first node of the step) and port 29500.
//
// Returns nothing if there is no launcher. Throws InputError if a launcher's variables are incomplete or not numbers.
std::optional<RankInfo> rank_info_from_environment();

// The first host of a Slurm node list: "gpu[03-07,9],login" -> "gpu03". Throws InputError if there is none.
std::string first_slurm_host(const std::string& node_list);

}  // namespace firkin
