#include "model/transformer_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "firkin/base/error.h"
#include "firkin/base/units.h"

namespace firkin {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::string memory_error(const MemoryEstimate& estimate, int local_ranks, int64_t available_bytes) {
  try {
    check_training_memory(estimate, local_ranks, available_bytes);
  } catch (const InputError& error) {
    return error.what();
  }
  return "no error";
}

TEST(TrainingMemory, CountsTheSecondCopyOfTheGradients) {
  const MemoryEstimate little{.parameters = 100, .gradients = 100, .activations = 30};
  EXPECT_EQ(little.step(), 230);
  EXPECT_EQ(little.total(), 300);
  const MemoryEstimate much{.parameters = 100, .gradients = 100, .activations = 500};
  EXPECT_EQ(much.total(), 700);
}

TEST(TrainingMemory, OfXlIsThreeTimesItsParameters) {
  const MemoryEstimate xl = estimate_training_memory(find_model("xl").config, 4, 128, 4);
  EXPECT_LT(xl.activations, xl.gradients);
  EXPECT_EQ(xl.total(), 3 * xl.parameters);
  EXPECT_GT(xl.parameters, 7 * kGiB);
}

TEST(TrainingMemory, OfXlOnTwoRanksIsRefusedWhereItDoesNotFit) {
  const MemoryEstimate xl = estimate_training_memory(find_model("xl").config, 4, 128, 4);
  EXPECT_THAT(memory_error(xl, 2, 24 * kGiB), AllOf(HasSubstr("for 2 ranks here; 24 GiB are available"), HasSubstr("fewer ranks")));
  EXPECT_EQ(memory_error(xl, 2, 80 * kGiB), "no error");
  const MemoryEstimate demo = estimate_training_memory(find_model("demo").config, 4, 128, 4);
  EXPECT_EQ(memory_error(demo, 2, 2 * kGiB), "no error");
}

TEST(TrainingMemory, IsSharedByTheRanksOfAMachine) {
  const MemoryEstimate estimate{.parameters = kGiB, .gradients = kGiB, .activations = 0};
  const int64_t needed = process_bytes(estimate);
  EXPECT_GT(needed, estimate.total());
  EXPECT_EQ(memory_error(estimate, 1, needed), "no error");
  EXPECT_EQ(memory_error(estimate, 0, needed), "no error");  // a launcher that does not say
  EXPECT_NE(memory_error(estimate, 1, needed - 1), "no error");
  EXPECT_EQ(memory_error(estimate, 2, 2 * needed), "no error");
  EXPECT_NE(memory_error(estimate, 2, 2 * needed - 2), "no error");
}

}  // namespace
}  // namespace firkin
