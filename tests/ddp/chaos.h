// Random programs that use DataParallel in every way that its header allows, failures included: either all ranks are fine and equal, or all
// ranks know that they are not.
//
//   if (auto wrong = run_chaos_sequence(17, std::chrono::seconds(60))) fmt::print("{}\n", *wrong);
//
// chaos_test.cpp runs some, or thousands of them.
#pragma once

#include "../test.h"
#include "firkin/comm/process_group.h"

namespace firkin {

// The group of a rank's thread, whose device the rank trains on. Called on that thread.
using MakeChaosGroup =
    std::function<ProcessGroup(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, std::chrono::milliseconds timeout)>;

// Gloo on the CPU.
ProcessGroup chaos_group_on_cpu(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, std::chrono::milliseconds timeout);

// Calls expect_none(seed) for `count` seeds from `first` on, and says each before, so that a crash or a timeout shows it. Without `first`
// from $FIRKIN_TEST_SEED on, which tools/test sets to the commit, and $FIRKIN_CHAOS times. program: of build/tests, which runs one again.
void for_each_chaos(std::optional<uint64_t> first, uint64_t count, const char* program, const std::function<void(uint64_t)>& expect_none);

// One sequence: 2 to 4 ranks (threads), a random model, random options, and some steps in which ranks accumulate, throw, abandon, join, or
// simply train. After every step the ranks compare what they have. The same seed is the same program.
//
// timeout: of the collectives; a rank that is 30 s later than that counts as hanging.
// Returns what went wrong, with the step and what every rank did in it; nothing when all was well. Throws nothing of DataParallel's. When a
// rank does not even come back after its collectives timed out, its thread is left behind.
//
// on_devices: no rank steps two modules in another order than the others, since these share a device's backend, as over NCCL: what that
// does with buckets that don't belong together is its own affair.
std::optional<std::string> run_chaos_sequence(uint64_t seed, std::chrono::milliseconds timeout = std::chrono::seconds(60),
                                              const MakeChaosGroup& make_group = chaos_group_on_cpu, bool on_devices = false);

}  // namespace firkin
