#include "train/training_loop.h"

#include <gtest/gtest.h>
#include <stdlib.h>

namespace firkin {
namespace {

TEST(RunIds, OfAJobWithANameAreItsName) {
  const RunId first{.job = "night", .agent = "a:/tmp/1"};
  EXPECT_TRUE(is_same_run(first, {.job = "night", .agent = "b:/tmp/2"}, 0));
  EXPECT_FALSE(is_same_run(first, {.job = "day", .agent = "a:/tmp/1"}, 1));
  EXPECT_FALSE(is_same_run(first, {.job = "none", .agent = "a:/tmp/1"}, 1));
}

TEST(RunIds, OfAJobWithoutANameAreTheAgents) {
  const RunId first{.job = "none", .agent = "a:/tmp/1"};
  EXPECT_TRUE(is_same_run(first, {.job = "none", .agent = "a:/tmp/1"}, 0));
  EXPECT_FALSE(is_same_run(first, {.job = "none", .agent = "a:/tmp/2"}, 3)) << "a new torchrun on the same node";
  EXPECT_FALSE(is_same_run(first, {.job = "none", .agent = "b:/tmp/2"}, 0));
  EXPECT_TRUE(is_same_run(first, {.job = "none", .agent = "b:/tmp/2"}, 1)) << "rank 0 was on a node that is lost";
}

TEST(RunIds, ComeBackFromTheirText) {
  for (const RunId& run : {RunId{.job = "a@b", .agent = "host:/tmp/x"}, RunId{.job = "none", .agent = "host:"}}) {
    const RunId read = run_id_from(text_of(run));
    EXPECT_EQ(read.job, run.job);
    EXPECT_EQ(read.agent, run.agent);
  }
}

TEST(RunIds, ComeFromTheEnvironmentOfTorchrun) {
  unsetenv("TORCHELASTIC_RUN_ID");
  EXPECT_FALSE(run_id_from_environment().has_value());
  setenv("TORCHELASTIC_RUN_ID", "night", 1);
  setenv("TORCHELASTIC_ERROR_FILE", "/tmp/torchelastic_x/night_y/attempt_2/0/error.json", 1);
  const auto run = run_id_from_environment();
  ASSERT_TRUE(run.has_value());
  EXPECT_EQ(run->job, "night");
  EXPECT_TRUE(run->agent.ends_with(":/tmp/torchelastic_x/night_y")) << run->agent;
  unsetenv("TORCHELASTIC_ERROR_FILE");
  EXPECT_TRUE(run_id_from_environment()->agent.ends_with(":"));
  unsetenv("TORCHELASTIC_RUN_ID");
}

}  // namespace
}  // namespace firkin
