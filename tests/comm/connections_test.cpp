// Further connections of one group, which are lent.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <latch>

#include "firkin/base/error.h"
#include "thread_ranks.h"

#include <torch/torch.h>

namespace firkin {
namespace {

using namespace std::chrono_literals;

bool share_gloo(const ProcessGroup& one, const ProcessGroup& other) {
  return one.c10d->getBackend(c10::kCPU) == other.c10d->getBackend(c10::kCPU);
}

TEST(Connections, AreLostWithTheGroup) {
  run_ranks(2, [](const ProcessGroup& group) {
    const Connections taken = take_connections(group);
    EXPECT_THROW(give_up(group, "a reason of its own"), GroupError);
    EXPECT_THROW(start_all_reduce(taken.group(), at::ones({3})), GroupError);
    EXPECT_THROW(take_connections(group), GroupError);
  });
}

// Of a device that has its own way, as NCCL is.
class OtherBackend final : public c10d::Backend {
 public:
  OtherBackend() : c10d::Backend(0, 1) {}
  const std::string getBackendName() const override { return "other"; }  // NOLINT(readability-const-return-type)
};

TEST(Connections, ShareTheBackendOfADevice) {
  using Type = c10d::ProcessGroup::BackendType;
  run_ranks(1, [](const ProcessGroup& made) {
    auto both = c10::make_intrusive<c10d::ProcessGroup>(made.store, made.rank, made.size);
    both->setBackend(c10::kCPU, Type::GLOO, made.c10d->getBackend(c10::kCPU));
    both->setBackend(c10::kXPU, Type::CUSTOM, c10::make_intrusive<OtherBackend>());
    const ProcessGroup group = adopt_process_group(both, {});
    const Connections taken = take_connections(group);
    EXPECT_FALSE(share_gloo(taken.group(), group));
    EXPECT_EQ(taken.group().c10d->getBackend(c10::kXPU), both->getBackend(c10::kXPU));
  });
}

TEST(Connections, AreNeverSharedAndHaveNumbers) {
  run_ranks(2, [](const ProcessGroup& group) {
    const Connections first = take_connections(group), second = take_connections(group);
    EXPECT_FALSE(share_gloo(first.group(), second.group()));
    EXPECT_FALSE(share_gloo(first.group(), group));
    for (const ProcessGroup& each : {second.group(), group, first.group()}) expect_sum(each);
    EXPECT_EQ(first.number(), 0);
    EXPECT_EQ(second.number(), 1);
  });
}

TEST(Connections, ThatWereGivenBackAreLentAgain) {
  run_ranks(2, [](const ProcessGroup& group) {
    std::optional<Connections> first = take_connections(group);
    const ProcessGroup lent = first->group();
    std::optional<Connections> second = take_connections(group);
    first.reset();
    const Connections third = take_connections(group);
    EXPECT_TRUE(share_gloo(third.group(), lent));
    EXPECT_EQ(third.number(), 2);
    expect_sum(third.group());
    second.emplace(take_connections(group));  // what it held goes back after another was taken
    EXPECT_FALSE(share_gloo(second->group(), lent));
  });
}

TEST(Connections, ThatOneRankStillUsesAreNotLentToTheOthers) {
  run_ranks(3, [](const ProcessGroup& group) {
    std::optional<Connections> first = take_connections(group);
    const ProcessGroup lent = first->group();
    if (group.rank != 1) first.reset();
    const Connections second = take_connections(group);
    EXPECT_FALSE(share_gloo(second.group(), lent));
    expect_sum(second.group());
  });
}

TEST(Connections, ThatWereAbandonedAreNeverLentAgainAndNobodyWaitsForWhatIsUnderWayThere) {
  const auto started = std::chrono::steady_clock::now();
  std::latch done(2);
  run_ranks(
      2,
      [&](const ProcessGroup& group) {
        {
          Connections broken = take_connections(group);
          if (group.rank == 0) start_all_reduce(broken.group(), at::ones({4}));  // rank 1 never comes
          broken.abandon();
        }
        expect_sum(take_connections(group).group());
        expect_sum(group);
        done.arrive_and_wait();
      },
      60s);
  EXPECT_LT(std::chrono::steady_clock::now() - started, 30s);
}

TEST(Connections, MayOutliveEveryHandleOfTheGroup) {
  run_ranks(2, [](ProcessGroup group) {
    const Connections taken = take_connections(group);
    group = {};
    expect_sum(taken.group());
  });
}

}  // namespace
}  // namespace firkin
