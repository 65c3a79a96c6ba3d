// Random programs with failures (tests/ddp/chaos.h). Their ranks are threads, so each needs a GPU of its own.

#include "../ddp/chaos.h"
#include "../test.h"
#include "gpus.h"

namespace firkin {
namespace {

constexpr auto kTimeout = std::chrono::seconds(20);
constexpr uint64_t kSequences = 30;

TEST_F(FourGpus, AfterEveryStepOfRandomProgramsAllRanksAreEqualOrHaveTheSameFailure) {
  const auto over_gloo = [](const auto& store, int rank, int size, auto timeout) {
    return make_process_group(store, rank, size, {.backend = "gloo", .timeout = timeout});
  };
  for (uint64_t seed = 0; seed < kSequences; ++seed) {
    const auto wrong = run_chaos_sequence(seed, kTimeout, over_gloo, /*on_devices=*/true);
    EXPECT_FALSE(wrong) << wrong.value_or("");
  }
}

}  // namespace
}  // namespace firkin
