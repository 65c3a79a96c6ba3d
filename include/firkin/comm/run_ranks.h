// One main() for `--ranks N`, torchrun, mpirun and srun:
//
//   int main(int argc, char** argv) {
//     return firkin::run_ranks(argc, argv, [](const firkin::ProcessGroup& group, const std::vector<std::string>& arguments) {
//       return train(group, arguments);
//     });
//   }
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "firkin/comm/process_group.h"

namespace firkin {

// What a rank runs. arguments: the command line without the program's name and `--ranks N`. Returns the exit code.
using RankBody = std::function<int(const ProcessGroup& group, const std::vector<std::string>& arguments)>;

// Runs `body` and returns the exit code for main().
//
// Under a launcher (see rank_info_from_environment()) this process is a rank: it meets the others and runs `body`. With `--ranks N` or
// `--ranks=N` (1 to kMostLocalRanks) and no launcher, N processes of this program start on this machine (see launch_local_ranks()), each
// running `body`. Otherwise `body` runs here, as the only rank of a group of one. A rank computes with its share of the machine's cores,
// unless OMP_NUM_THREADS is set. LibTorch logs errors only, unless TORCH_CPP_LOG_LEVEL is set: c10d warns with pages of backtraces when
// another rank is gone, and this rank's own error names it.
//
// Lets no exception derived from std::exception escape: InputError (from `body` too) becomes one line on standard error and exit code 2,
// any other exit code 1. `--ranks` that contradicts the launcher's number of ranks is an InputError. Call it once, from main().
int run_ranks(int argc, const char* const* argv, const RankBody& body, const GroupOptions& options = {});

// More ranks than this on one machine are treated as a mistake.
inline constexpr int kMostLocalRanks = 1024;

}  // namespace firkin
