// One main() for `--ranks N`, torchrun, mpirun and srun:
//
//   int main(int argc, char** argv) {
//     return firkin::run_ranks(
//         argc, argv, [](const firkin::ProcessGroup& group, const std::vector<std::string>& arguments) {
//           return train(group, arguments);
//         });
//   }
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "firkin/comm/process_group.h"

namespace firkin {

// What a rank runs. arguments: the command line without the program's name and `--ranks N`. Returns the exit code.
using RankBody = std::function<int(const ProcessGroup& group, const std::vector<std::string>& arguments)>;

// Runs `body` and returns the exit code for main().
//
// Under a launcher (see rank_info_unless_alone()) this process is a rank: it meets the others and runs `body`. With
// `--ranks N` or `--ranks=N` (1 to kMostLocalRanks) and no launcher, N processes of this program start on this machine
// (launch_local_ranks()), each running `body`. Otherwise `body` runs here, as the only rank of a group of one. A rank
// computes with its share of the machine's cores, unless OMP_NUM_THREADS is set. LibTorch logs errors only, unless
// TORCH_CPP_LOG_LEVEL is set: c10d warns with pages of backtraces when another rank is gone, and this rank's own error
// names it.
//
// Catches every std::exception: InputError (from `body` too) becomes one line on standard error and exit code 2, any
// other exit code 1. A `--ranks` that contradicts the launcher's number of ranks is an InputError. Call it once, from
// main().
int run_ranks(int argc, const char* const* argv, const RankBody& body, const GroupOptions& options = {});

// Starts `ranks` processes of this binary with the given arguments (argv[1..]) and torchrun's variables set, and waits
// for them.
//
// They meet at a store in this process. It listens on loopback only, on a port that the system chooses, so that
// simultaneous launches do not meet. Rank 0 keeps this process's standard output and error; lines of other ranks appear
// on standard error as "[rank 1] ...". If a rank dies or fails, the others are ended (SIGTERM, then SIGKILL after three
// seconds) and a line names it, except if it exits with 2: such a rank has printed what is wrong with its input, as
// run_ranks() does. SIGINT and SIGTERM to this process end all ranks; ranks do not outlive it.
//
// Returns the exit code for this process: 0 if every rank succeeded, else the failing rank's code, or 1 if a signal
// ended it. Throws RuntimeError if processes cannot be started.
int launch_local_ranks(int ranks, std::span<const std::string> arguments);

}  // namespace firkin
