// Flags of the subcommands that run on several ranks, and the way into those ranks.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "command.h"
#include "firkin/comm/process_group.h"

namespace firkin::cli {

struct RankFlags {
  int ranks = 2;
  CLI::Option* ranks_option = nullptr;
  double timeout_s = 1800;
  std::string backend = "auto";       // of GroupOptions
  std::string device = "auto";        // of device_for_rank()
  int threads = 0;                    // per rank; 0: the machine's cores shared among its ranks
  std::optional<std::string> link;    // of parse_link()
  std::optional<int64_t> link_world;  // without: as many as there are ranks
};
void add_rank_flags(CLI::App& app, RankFlags& flags);

// Whether ranks are on GPUs.
bool uses_gpus(const RankFlags& flags);

// Whether this process writes the result: it is rank 0, or the one that starts the ranks.
bool writes_results();

// Runs `body` in every rank: here, when a launcher (torchrun, mpirun, srun, or --ranks itself) started this process as a rank; otherwise it
// starts --ranks processes of this program, which come back here as ranks. Returns the exit code. Check all input before: then bad input is
// reported once, and before any rank starts.
int run_on_ranks(const RankFlags& flags, const std::function<void(const ProcessGroup&)>& body);

}  // namespace firkin::cli
