// Random programs. As many as one likes, from any seed on:
//
//   FIRKIN_CHAOS=2000 FIRKIN_TEST_SEED=17 build/tests/ddp_test --file=chaos_test.cpp --first
#include "chaos.h"

#include "../test.h"

namespace firkin {
namespace {

// After every step all ranks are equal, or all ranks have the same failure.
void expect_no_chaos(uint64_t seed) {
  const auto wrong = run_chaos_sequence(seed);
  EXPECT_FALSE(wrong) << wrong.value_or("");
}

TEST(Chaos, OtherSequencesInEveryCommit) {
  for_each_chaos({}, 20, "ddp_test", expect_no_chaos);
}

TEST(ChaosFull, TheSameSequencesAlways) {
  for_each_chaos(0, 150, "ddp_test", expect_no_chaos);
}

}  // namespace
}  // namespace firkin
