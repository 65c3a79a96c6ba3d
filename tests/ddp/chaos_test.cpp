// Random programs. As many as one likes, from any seed on:
//
//   FIRKIN_CHAOS=2000 FIRKIN_TEST_SEED=17 build/tests/ddp_test --file=chaos_test.cpp --first
#include "chaos.h"

#include <cstdlib>

#include "../test.h"

namespace firkin {
namespace {

constexpr auto kTimeout = std::chrono::seconds(60);

// After every step all ranks are equal, or all ranks have the same failure.
void expect_no_chaos(uint64_t first_seed, uint64_t sequences) {
  for (uint64_t seed = first_seed; seed < first_seed + sequences; ++seed) {
    const auto wrong = run_chaos_sequence(seed, kTimeout);
    EXPECT_FALSE(wrong) << wrong.value_or("") << "\nagain: FIRKIN_CHAOS=1 FIRKIN_TEST_SEED=" << seed
                        << " build/tests/ddp_test --file=chaos_test.cpp --first";
  }
}

TEST(Chaos, OtherSequencesInEveryCommit) {
  const char* sequences = std::getenv("FIRKIN_CHAOS");
  expect_no_chaos(first_chaos_seed(), sequences == nullptr ? 20 : std::stoull(sequences));
}

TEST(ChaosFull, TheSameSequencesAlways) {
  expect_no_chaos(0, 150);
}

}  // namespace
}  // namespace firkin
