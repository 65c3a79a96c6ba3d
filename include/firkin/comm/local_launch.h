// `--ranks N`: starts N processes of this program on this machine, without a launcher.
#pragma once

#include <span>
#include <string>

namespace firkin {

// Starts `ranks` processes of this binary with the given arguments (argv[1..]) and torchrun's variables set, and waits for them.
//
// They meet at a store in this process that listens on loopback only, on a port the system chooses, so simultaneous launches do not meet.
// Rank 0 keeps this process's standard output and error; lines of other ranks appear on standard error as "[rank 1] ...". If a rank dies or
// fails, the others are ended (SIGTERM, then SIGKILL after three seconds) and a line names it. SIGINT and SIGTERM to this process end all
// ranks; ranks do not outlive it.
//
// Returns the exit code for this process: 0 if every rank succeeded, else the failing rank's code, or 1 if a signal ended it. Throws
// RuntimeError if processes cannot be started.
int launch_local_ranks(int ranks, std::span<const std::string> arguments);

}  // namespace firkin
