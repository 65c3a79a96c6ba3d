#include "firkin/comm/rank_info.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <regex>

#include "firkin/base/error.h"
#include "firkin/base/units.h"

namespace firkin {
namespace {

// The variables by which a launcher tells a process its rank. An empty name: the launcher has no such variable.
struct Launcher {
  const char* name;
  const char* rank;
  const char* world_size;
  const char* local_rank;
  const char* local_world_size;
  bool names_meeting_point = false;  // it sets MASTER_ADDR and MASTER_PORT
};

// In this order: the first launcher counts that has set a rank or a number of ranks.
constexpr std::array kLaunchers = {
    Launcher{"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", true},
    Launcher{"mpirun (Open MPI)", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
             "OMPI_COMM_WORLD_LOCAL_SIZE"},
    Launcher{"mpirun (MVAPICH2)", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_SIZE"},
    Launcher{"jsrun", "JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE", "JSM_NAMESPACE_LOCAL_RANK", "JSM_NAMESPACE_LOCAL_SIZE"},
    Launcher{"flux run", "FLUX_TASK_RANK", "FLUX_JOB_SIZE", "FLUX_TASK_LOCAL_ID", ""},
};

// The launcher of MPICH and Intel MPI. Comes after Slurm, whose PMI plugins set the first two variables as well.
constexpr Launcher kHydra{"mpiexec (Hydra)", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"};

// The variables for the rank of launchers that set none for the number of ranks.
constexpr std::array kRanksWithoutWorldSize = {"PMIX_RANK", "ALPS_APP_PE", "PALS_RANKID"};

std::optional<std::string> variable(const char* name) {
  const char* value = *name == '\0' ? nullptr : std::getenv(name);
  if (value == nullptr || *value == '\0') return std::nullopt;
  return value;
}

int number(const char* name) {
  const auto text = variable(name);
  if (!text) throw InputError(fmt::format("{} is not set, though other variables of the same launcher are", name));
  const auto value = parse_number<int>(*text);
  if (!value || *value < 0) throw InputError(fmt::format("{}={}: expected a number, 0 or more", name, *text));
  return *value;
}

int number_or(const char* name, int fallback) {
  return variable(name) ? number(name) : fallback;
}

// Where the ranks meet: MASTER_ADDR and MASTER_PORT if they are set.
RankInfo with_meeting_point(RankInfo info) {
  info.master_address = variable("MASTER_ADDR").value_or(info.master_address);
  info.master_port = number_or("MASTER_PORT", info.master_port);
  if (info.world_size < 1 || info.rank >= info.world_size) {
    throw InputError(fmt::format("rank {} of world size {}: expected a rank below the world size", info.rank, info.world_size));
  }
  if (info.master_port < 1 || info.master_port > 65535) {
    throw InputError(fmt::format("MASTER_PORT={}: expected a port, 1 to 65535", info.master_port));
  }
  return info;
}

// Throws InputError for a number of ranks without a rank, which may be left over from something else. Does not use
// another launcher's rank in its place, because nothing says which of the two is meant.
void check_rank(const Launcher& launcher) {
  if (variable(launcher.rank)) return;
  constexpr std::array kOthers = {"OMPI_COMM_WORLD_RANK", "SLURM_PROCID", "PMI_RANK"};
  const auto* const other = std::ranges::find_if(kOthers, [](const char* name) { return variable(name).has_value(); });
  const std::string why = other == kOthers.end() ? "expected both, or neither"
                                                 : fmt::format("so {} is not used; unset {}, or set both", *other, launcher.world_size);
  throw InputError(fmt::format("{} is not set, though {} is: {}", launcher.rank, launcher.world_size, why));
}

RankInfo from_launcher(const Launcher& launcher) {
  check_rank(launcher);
  RankInfo info;
  info.rank = number(launcher.rank);
  info.world_size = number(launcher.world_size);
  info.local_rank = number_or(launcher.local_rank, info.rank);
  info.local_world_size = number_or(launcher.local_world_size, info.world_size);
  const bool is_one_machine = !launcher.names_meeting_point && info.local_world_size == info.world_size;
  if (info.world_size > 1 && !is_one_machine && !variable("MASTER_ADDR")) {
    throw InputError(fmt::format("MASTER_ADDR is not set, though {} is: expected the host of rank 0, as {} would {}", launcher.rank,
                                 launcher.name, launcher.names_meeting_point ? "set it" : "pass it on from its own environment"));
  }
  return with_meeting_point(info);
}

RankInfo from_slurm() {
  RankInfo info;
  info.rank = number("SLURM_PROCID");
  info.world_size = number("SLURM_STEP_NUM_TASKS");
  info.local_rank = number("SLURM_LOCALID");
  info.local_world_size = info.world_size / std::max(1, number_or("SLURM_STEP_NUM_NODES", 1));
  if (const auto nodes = variable("SLURM_STEP_NODELIST")) info.master_address = first_slurm_host(*nodes);
  return with_meeting_point(info);
}

}  // namespace

std::string first_slurm_host(const std::string& node_list) {
  static const std::regex kElement(R"((?:[^,\[\]\s]|\[\d+[-,\d]*\])+(?=,|$))");  // "rack[0-1]_blade[3,5]"
  static const std::regex kNumbers(R"(\[(\d+)[^\]]*\])");
  std::smatch first;
  if (!std::regex_search(node_list, first, kElement, std::regex_constants::match_continuous)) {
    throw InputError(fmt::format("SLURM_STEP_NODELIST={}: expected a list of nodes, such as gpu[07-08],login", node_list));
  }
  return std::regex_replace(first.str(), kNumbers, "$1");
}

std::optional<RankInfo> rank_info_from_environment() {
  for (const Launcher& launcher : kLaunchers) {
    if (variable(launcher.rank) || variable(launcher.world_size)) return from_launcher(launcher);
  }
  // A batch script has SLURM_PROCID as well, but only a step that srun has started has a number of tasks. Within a
  // step, of a shell for example, Hydra may have started other ranks.
  const auto tasks = variable("SLURM_STEP_NUM_TASKS");
  const bool is_within_step = variable(kHydra.world_size) && variable(kHydra.world_size) != tasks;
  if (variable("SLURM_PROCID") && tasks && !is_within_step) return from_slurm();
  if (variable(kHydra.rank) || variable(kHydra.world_size)) return from_launcher(kHydra);
  for (const char* rank : kRanksWithoutWorldSize) {
    if (!variable(rank)) continue;
    throw InputError(fmt::format(
        "{} is set, but nothing says how many ranks this launcher started; set RANK, WORLD_SIZE, LOCAL_RANK and MASTER_ADDR for each",
        rank));
  }
  return std::nullopt;
}

std::optional<RankInfo> rank_info_unless_alone() {
  const auto info = rank_info_from_environment();
  const bool is_torchrun = variable("RANK") || variable("WORLD_SIZE");
  return info && (info->world_size > 1 || is_torchrun) ? info : std::nullopt;
}

}  // namespace firkin
