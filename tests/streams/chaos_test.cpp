// Random programs with failures (tests/ddp/chaos.h) on the device that looks for races: what a step that failed leaves under way is where
// streams are forgotten most easily.
#include <c10/core/impl/VirtualGuardImpl.h>

#include "../ddp/chaos.h"
#include "../test.h"
#include "checked_device.h"

namespace firkin::streams {
namespace {

constexpr auto kTimeout = std::chrono::seconds(60);  // checked_backend.cpp's

// Ranks train on the stream that their thread finds, or on one of their own.
ProcessGroup checked_group(bool on_a_side_stream, const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                           std::chrono::milliseconds timeout) {
  const ProcessGroup group = with_checked_device(chaos_group_on_cpu(store, rank, size, timeout));
  const c10::impl::VirtualGuardImpl guard(c10::kPrivateUse1);
  if (on_a_side_stream) guard.exchangeStream(new_stream(group.device));
  return group;
}

// Everything is in order, and all ranks are equal, or all ranks have the same failure.
void expect_no_chaos(uint64_t seed) {
  register_checked_device();
  const bool on_a_side_stream = seed % 2 == 1;
  const auto make_group = [on_a_side_stream](const auto& store, int rank, int size, auto timeout) {
    return checked_group(on_a_side_stream, store, rank, size, timeout);
  };
  const auto wrong = run_chaos_sequence(seed, kTimeout, make_group, /*on_devices=*/true);
  EXPECT_FALSE(wrong) << wrong.value_or("");
  EXPECT_THAT(Clocks::all().take_races(), IsEmpty());
}

TEST(StreamsChaos, OtherSequencesInEveryCommit) {
  for_each_chaos({}, 10, "streams_test", expect_no_chaos);
}

TEST(StreamsChaosFull, TheSameSequencesAlways) {
  for_each_chaos(0, 60, "streams_test", expect_no_chaos);
}

}  // namespace
}  // namespace firkin::streams
