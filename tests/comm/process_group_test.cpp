#include "firkin/comm/process_group.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "firkin/base/error.h"
#include "firkin/comm/group_error.h"
#include "thread_ranks.h"

#include <torch/torch.h>

namespace firkin {
namespace {

class Collectives : public testing::TestWithParam<int> {};

TEST_P(Collectives, AllReduceSumsOverTheRanks) {
  run_ranks(GetParam(), [](const ProcessGroup& group) {
    at::Tensor values = at::arange(5, at::kDouble) + group.rank;
    all_reduce(group, values);
    const double ranks = group.size;
    const at::Tensor expected = at::arange(5, at::kDouble) * ranks + ranks * (ranks - 1) / 2;
    EXPECT_TRUE(at::equal(values, expected));
  });
}

TEST_P(Collectives, BroadcastSendsTheRootsValues) {
  run_ranks(GetParam(), [](const ProcessGroup& group) {
    const int root = group.size - 1;
    at::Tensor values = at::full({3}, group.rank, at::kLong);
    broadcast(group, {values}, root);
    EXPECT_TRUE(at::equal(values, at::full({3}, root, at::kLong)));
  });
}

TEST_P(Collectives, ABroadcastCanBeStartedAndWaitedForLater) {
  run_ranks(GetParam(), [](const ProcessGroup& group) {
    const int root = group.size - 1;
    std::vector<at::Tensor> tensors;
    std::vector<Work> started;
    for (int i = 0; i < 3; ++i) {
      tensors.push_back(at::full({3}, 10 * i + group.rank, at::kLong));
      started.push_back(start_broadcast(group, tensors.back(), root));
    }
    for (const Work& work : started) wait(group, work, "a broadcast");
    for (int i = 0; i < 3; ++i) EXPECT_TRUE(at::equal(tensors[static_cast<size_t>(i)], at::full({3}, 10 * i + root, at::kLong)));
  });
}

TEST_P(Collectives, AllGatherGivesEveryRanksValuesToAll) {
  run_ranks(GetParam(), [](const ProcessGroup& group) {
    const auto rows = all_gather(group, {1.0 * group.rank, -0.5 * group.rank});
    ASSERT_EQ(rows.size(), static_cast<size_t>(group.size));
    for (int rank = 0; rank < group.size; ++rank) {
      EXPECT_THAT(rows[static_cast<size_t>(rank)], testing::ElementsAre(1.0 * rank, -0.5 * rank));
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, Collectives, testing::Values(1, 2, 3, 4));

TEST(ProcessGroup, ACollectiveThatARankMissesTimesOut) {
  EXPECT_THROW(run_ranks(
                   2,
                   [](const ProcessGroup& group) {
                     if (group.rank == 1) return;
                     all_reduce(group, at::ones({4}));
                   },
                   std::chrono::milliseconds(500)),
               GroupError);
}

TEST(ProcessGroup, AnUnknownBackendIsBadInput) {
  EXPECT_THROW(make_process_group(c10::make_intrusive<c10d::HashStore>(), 0, 1, {.backend = "pigeon"}), InputError);
}

TEST(ProcessGroup, OfAnotherMakerIsUsedAsItIs) {
  run_ranks(2, [](const ProcessGroup& theirs) {
    const ProcessGroup group = adopt_process_group(theirs.c10d, {.timeout = std::chrono::seconds(20)});
    EXPECT_EQ(group.rank, theirs.rank);
    EXPECT_EQ(group.c10d->getBackend(at::kCPU), theirs.c10d->getBackend(at::kCPU));
    for (const ProcessGroup& each : {group, companion(group)}) {
      at::Tensor values = at::ones({3});
      all_reduce(each, values);
      EXPECT_TRUE(at::equal(values, at::full({3}, 2)));
    }
  });
}

TEST(ProcessGroup, AnAdoptedOneTellsWhoIsMissing) {
  EXPECT_THAT(
      [] {
        run_ranks(
            2,
            [](const ProcessGroup& theirs) {
              const ProcessGroup group = adopt_process_group(theirs.c10d, {.timeout = std::chrono::seconds(20)});
              if (group.rank == 1) give_up(group, "a reason of its own");
              all_reduce(group, at::ones({4}));
            },
            std::chrono::seconds(20));
      },
      testing::ThrowsMessage<GroupError>(testing::HasSubstr("rank 1")));
}

TEST(ProcessGroup, OneWithoutGlooIsBadInput) {
  const auto group = c10::make_intrusive<c10d::ProcessGroup>(c10::make_intrusive<c10d::HashStore>(), 0, 1);
  EXPECT_THAT([&] { adopt_process_group(group, {}); }, testing::ThrowsMessage<InputError>(testing::HasSubstr("backend none")));
}

}  // namespace
}  // namespace firkin
