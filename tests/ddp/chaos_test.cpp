// A bounded number of random programs; ddp_chaos runs more of them.
#include "chaos.h"

#include <gtest/gtest.h>

namespace firkin {
namespace {

constexpr auto kTimeout = std::chrono::seconds(20);
constexpr uint64_t kSequencesPerTest = 15;

class Chaos : public testing::TestWithParam<uint64_t> {};

TEST_P(Chaos, AfterEveryStepAllRanksAreEqualOrAllRanksHaveTheSameFailure) {
  for (uint64_t seed = GetParam(); seed < GetParam() + kSequencesPerTest; ++seed) {
    const auto wrong = run_chaos_sequence(seed, kTimeout);
    EXPECT_FALSE(wrong) << wrong.value_or("") << "\nagain: build/tests/ddp_chaos --sequences 1 --seed " << seed;
  }
}

INSTANTIATE_TEST_SUITE_P(FirstSeed, Chaos, testing::Range<uint64_t>(0, 150, kSequencesPerTest));

}  // namespace
}  // namespace firkin
