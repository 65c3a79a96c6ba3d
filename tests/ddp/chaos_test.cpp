// A bounded number of random programs; ddp_chaos runs more of them.
#include "chaos.h"

#include "../test.h"

namespace firkin {
namespace {

constexpr auto kTimeout = std::chrono::seconds(60);

// After every step all ranks are equal, or all ranks have the same failure.
void expect_no_chaos(uint64_t first_seed, uint64_t sequences) {
  for (uint64_t seed = first_seed; seed < first_seed + sequences; ++seed) {
    const auto wrong = run_chaos_sequence(seed, kTimeout);
    EXPECT_FALSE(wrong) << wrong.value_or("") << "\nagain: build/tests/ddp_chaos --sequences 1 --seed " << seed;
  }
}

TEST(Chaos, OtherSequencesInEveryCommit) {
  expect_no_chaos(first_chaos_seed(), 20);
}

TEST(ChaosFull, TheSameSequencesAlways) {
  expect_no_chaos(0, 150);
}

}  // namespace
}  // namespace firkin
