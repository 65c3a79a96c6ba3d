// Random programs with failures (tests/ddp/chaos.h) on the device that looks for races: what a step that failed leaves under way is where
// streams are forgotten most easily.
#include <c10/core/impl/VirtualGuardImpl.h>

#include "../ddp/chaos.h"
#include "checked_device.h"

namespace firkin::streams {
namespace {

// Everything is in order too. Ranks train on the stream that their thread finds, or on one of their own.
void expect_no_chaos_on_streams(uint64_t seed) {
  register_checked_device();
  expect_no_chaos(seed, [seed](const auto& store, int rank, int size) {
    const ProcessGroup group = with_checked_device(chaos_group_on_cpu(store, rank, size));
    const c10::impl::VirtualGuardImpl guard(c10::kPrivateUse1);
    if (seed % 2 == 1) guard.exchangeStream(new_stream(group.device));
    return group;
  });
  EXPECT_THAT(Clocks::all().take_races(), IsEmpty());
}

TEST(StreamsChaos, OtherSequencesInEveryCommit) {
  for_each_chaos({}, 10, "streams_test", expect_no_chaos_on_streams);
}

TEST(StreamsChaosFull, TheSameSequencesAlways) {
  for_each_chaos(0, 60, "streams_test", expect_no_chaos_on_streams);
}

}  // namespace
}  // namespace firkin::streams
