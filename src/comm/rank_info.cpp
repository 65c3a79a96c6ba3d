#include "firkin/comm/rank_info.h"

#include <fmt/format.h>

#include <charconv>
#include <cstdlib>

#include "firkin/base/error.h"

namespace firkin {
namespace {

std::optional<std::string> variable(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr || *value == '\0') return std::nullopt;
  return value;
}

int number(const char* name) {
  const auto text = variable(name);
  if (!text) throw InputError(fmt::format("{} is not set, though other variables of the same launcher are", name));
  int value = 0;
  const char* end = text->data() + text->size();
  const auto parsed = std::from_chars(text->data(), end, value);
  if (parsed.ec != std::errc() || parsed.ptr != end || value < 0) {
    throw InputError(fmt::format("{}={}: expected a number, 0 or more", name, *text));
  }
  return value;
}

int number_or(const char* name, int fallback) {
  return variable(name) ? number(name) : fallback;
}

RankInfo checked(RankInfo info) {
  if (info.world_size < 1 || info.rank >= info.world_size) {
    throw InputError(fmt::format("rank {} of world size {}: expected a rank below the world size", info.rank, info.world_size));
  }
  if (info.master_port < 1 || info.master_port > 65535) {
    throw InputError(fmt::format("MASTER_PORT={}: expected a port, 1 to 65535", info.master_port));
  }
  return info;
}

RankInfo from_torchrun() {
  RankInfo info;
  info.rank = number("RANK");
  info.world_size = number("WORLD_SIZE");
  info.local_rank = number_or("LOCAL_RANK", info.rank);
  info.local_world_size = number_or("LOCAL_WORLD_SIZE", info.world_size);
  info.master_address = variable("MASTER_ADDR").value_or(info.master_address);
  info.master_port = number_or("MASTER_PORT", info.master_port);
  return checked(info);
}

RankInfo from_open_mpi() {
  RankInfo info;
  info.rank = number("OMPI_COMM_WORLD_RANK");
  info.world_size = number("OMPI_COMM_WORLD_SIZE");
  info.local_rank = number("OMPI_COMM_WORLD_LOCAL_RANK");
  info.local_world_size = number("OMPI_COMM_WORLD_LOCAL_SIZE");
  const auto address = variable("MASTER_ADDR");
  if (!address && info.local_world_size != info.world_size) {
    throw InputError("MASTER_ADDR is not set; mpirun over several machines needs it: mpirun -x MASTER_ADDR=HOST ...");
  }
  info.master_address = address.value_or(info.master_address);
  info.master_port = number_or("MASTER_PORT", info.master_port);
  return checked(info);
}

RankInfo from_slurm() {
  RankInfo info;
  info.rank = number("SLURM_PROCID");
  info.world_size = number("SLURM_STEP_NUM_TASKS");
  info.local_rank = number("SLURM_LOCALID");
  info.local_world_size = info.world_size / std::max(1, number_or("SLURM_STEP_NUM_NODES", 1));
  const auto nodes = variable("SLURM_STEP_NODELIST");
  info.master_address = variable("MASTER_ADDR").value_or(nodes ? first_slurm_host(*nodes) : info.master_address);
  info.master_port = number_or("MASTER_PORT", info.master_port);
  return checked(info);
}

}  // namespace

std::string first_slurm_host(const std::string& node_list) {
  const size_t bracket = node_list.find_first_of("[,");
  std::string host = node_list.substr(0, bracket);
  if (bracket != std::string::npos && node_list[bracket] == '[') {
    host += node_list.substr(bracket + 1, node_list.find_first_of("-,]", bracket) - bracket - 1);
  }
  if (host.empty()) throw InputError(fmt::format("SLURM_STEP_NODELIST={}: expected a list of nodes", node_list));
  return host;
}

std::optional<RankInfo> rank_info_from_environment() {
  if (variable("RANK") || variable("WORLD_SIZE")) return from_torchrun();
  if (variable("OMPI_COMM_WORLD_RANK")) return from_open_mpi();
  // A batch script has SLURM_PROCID as well; only a step started by srun has its number of tasks.
  if (variable("SLURM_PROCID") && variable("SLURM_STEP_NUM_TASKS")) return from_slurm();
  return std::nullopt;
}

}  // namespace firkin
