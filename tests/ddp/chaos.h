// Random programs that use DataParallel in every way that its header allows, failures included: either all ranks are fine and equal, or all
// ranks know that they are not.
//
//   for_each_chaos({}, 20, "ddp_test", [](uint64_t seed) { expect_no_chaos(seed); });
//
// chaos_test.cpp runs some, or thousands of them.
#pragma once

#include "../test.h"
#include "firkin/comm/process_group.h"

namespace firkin {

inline constexpr std::chrono::seconds kChaosTimeout(60);  // of collectives

// The group of a rank's thread, whose device the rank trains on. Called on that thread.
using MakeChaosGroup = std::function<ProcessGroup(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size)>;

// Gloo on the CPU.
ProcessGroup chaos_group_on_cpu(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size);

// Calls body(seed) for `count` seeds from `first` on, and says each before, so that a crash or a timeout shows it. Without `first` from
// $FIRKIN_TEST_SEED on, which tools/test sets to the commit, and $FIRKIN_CHAOS times. program: of build/tests, which runs one again.
void for_each_chaos(std::optional<uint64_t> first, uint64_t count, const char* program, const std::function<void(uint64_t)>& body);

// One sequence: 2 to 4 ranks (threads), a random model, random options, and some steps in which ranks accumulate, throw, abandon, join, or
// simply train. After every step the ranks compare what they have. The same seed is the same program.
//
// A rank that is 30 s later than the collectives' timeout counts as hanging; one that does not even come back then is left behind.
void expect_no_chaos(uint64_t seed, const MakeChaosGroup& make_group = chaos_group_on_cpu);

}  // namespace firkin
