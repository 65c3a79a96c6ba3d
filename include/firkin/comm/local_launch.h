// `--ranks N`: N processes of this program on this machine, without any launcher.
#pragma once

#include <span>
#include <string>

namespace firkin {

// Starts `ranks` processes of this same binary with the given arguments (argv[1..]) and torchrun's variables set, and waits for them.
//
// The meeting point is a store in this process that listens on loopback only, at a port that the system chose, so two launches at once
// do not meet. Rank 0 has this process's standard output and error; the lines of the other ranks go to standard error as
// "[rank 1] ...". When a rank dies or fails, the others are ended (SIGTERM, and SIGKILL after three seconds) and a line says which
// rank it was; SIGINT and SIGTERM to this process end all ranks; ranks do not outlive this process.
//
// Returns the exit code for this process: 0 when every rank succeeded, the failing rank's own code, or 1 when a signal ended it.
// Throws RuntimeError when processes cannot be started.
int launch_local_ranks(int ranks, std::span<const std::string> arguments);

}  // namespace firkin
