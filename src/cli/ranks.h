// The subcommands that run on several ranks: their flags, the way into the ranks, and how a run of several begins.
//
//   return run_on_ranks(flags, [&](const ProcessGroup& group) {
//     Results results;
//     results.run = begin_run("tune", flags.common, group);   // on every rank, before anything is measured
//     ...
//     if (group.rank == 0) finish_run(flags.common, results, {{"tensors.csv", csv}});
//   });
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

// What every subcommand that runs on ranks takes.
struct RunFlags {
  CommonFlags common;
  RankFlags ranks;
};
void add_run_flags(CLI::App& app, RunFlags& flags, const std::string& command);

// Whether ranks are on GPUs.
bool uses_gpus(const RankFlags& flags);

// How many ranks there will be: in all, and on this machine.
int world_size(const RankFlags& flags);
int local_ranks(const RankFlags& flags);

// Whether this process writes the result: it is rank 0, or the one that starts the ranks.
bool writes_results();

// Claims --out unless it is claimed, and runs `body` in every rank: here, when a launcher (torchrun, mpirun, srun, or --ranks itself)
// started this process as a rank; otherwise it starts --ranks processes of this program, which come back here as ranks. Returns the exit
// code. Check all input before: then bad input is reported once, and before any rank starts.
int run_on_ranks(RunFlags& flags, const std::function<void(const ProcessGroup&)>& body);

// start_run(), and the machines of all ranks. Collective.
RunHead begin_run(const std::string& command, const CommonFlags& common, const ProcessGroup& group);

// What differs between an earlier run and one that these flags would start here: "batch 4, now 2", "host a, now b"; empty: nothing.
std::string difference_from(const RunHead& earlier, const CommonFlags& common, const RankFlags& ranks);

}  // namespace firkin::cli
