// Random programs. As many as one likes, from any seed on:
//
//   FIRKIN_CHAOS=2000 FIRKIN_TEST_SEED=17 build/tests/ddp_test --file=chaos_test.cpp --first
#include "chaos.h"

namespace firkin {
namespace {

TEST(Chaos, OtherSequencesInEveryCommit) {
  for_each_chaos({}, 20, "ddp_test", [](uint64_t seed) { expect_no_chaos(seed); });
}

TEST(ChaosFull, TheSameSequencesAlways) {
  for_each_chaos(0, 150, "ddp_test", [](uint64_t seed) { expect_no_chaos(seed); });
}

}  // namespace
}  // namespace firkin
