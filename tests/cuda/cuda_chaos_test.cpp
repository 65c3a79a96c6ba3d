// Random programs with failures (tests/ddp/chaos.h). Their ranks are threads, so each needs a GPU of its own.

#include "../ddp/chaos.h"
#include "gpus.h"

namespace firkin {
namespace {

TEST_F(FourGpus, AfterEveryStepOfRandomProgramsAllRanksAreEqualOrHaveTheSameFailure) {
  const auto over_gloo = [](const auto& store, int rank, int size) {
    return make_process_group(store, rank, size, {.backend = "gloo", .timeout = kChaosTimeout});
  };
  for (uint64_t seed = 0; seed < 30; ++seed) expect_no_chaos(seed, over_gloo);
}

}  // namespace
}  // namespace firkin
