#include "firkin/comm/process_group.h"

#include <latch>

#include "../torch.h"
#include "thread_ranks.h"

namespace firkin {
namespace {

using namespace std::chrono_literals;

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

TEST_P(Collectives, ABroadcastSendsTheRootsValuesAtOnceOrLater) {
  run_ranks(GetParam(), [](const ProcessGroup& group) {
    const int root = group.size - 1;
    at::Tensor values = at::full({3}, group.rank, at::kLong);
    broadcast(group, {values}, root);
    EXPECT_TRUE(at::equal(values, at::full({3}, root, at::kLong)));
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
      EXPECT_THAT(rows[static_cast<size_t>(rank)], ElementsAre(1.0 * rank, -0.5 * rank));
    }
  });
}

TEST_P(Collectives, AnAllToAllGivesEachRankItsSliceOfAll) {
  run_ranks(GetParam(), [](const ProcessGroup& group) {
    const at::Tensor input = at::arange(2 * group.size, at::kDouble) + 100 * group.rank;
    at::Tensor output = at::zeros_like(input);
    wait(group, start_all_to_all(group, output, input), "an all-to-all");
    for (int rank = 0; rank < group.size; ++rank) {
      EXPECT_TRUE(at::equal(output.narrow(0, 2 * rank, 2), at::arange(2 * group.rank, 2 * group.rank + 2, at::kDouble) + 100 * rank));
    }
  });
}

TEST_P(Collectives, AnAllGatherGivesEverySliceToAllAlsoInPlace) {
  run_ranks(GetParam(), [](const ProcessGroup& group) {
    at::Tensor all = at::full({3 * group.size}, -1, at::kFloat);
    at::Tensor ours = all.narrow(0, 3 * group.rank, 3);
    ours.fill_(group.rank);
    wait(group, start_all_gather(group, all, ours), "an all-gather");
    EXPECT_TRUE(at::equal(all, at::arange(group.size, at::kFloat).repeat_interleave(3)));
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, Collectives, Values(1, 2, 3, 4));

TEST(ProcessGroup, AnUnknownBackendIsBadInput) {
  EXPECT_THROW(make_process_group(c10::make_intrusive<c10d::HashStore>(), 0, 1, {.backend = "pigeon"}), InputError);
}

TEST(ProcessGroup, OfAnotherMakerIsUsedAsItIs) {
  run_ranks(2, [](const ProcessGroup& theirs) {
    const ProcessGroup group = adopt_process_group(theirs.c10d, {.timeout = 60s});
    EXPECT_EQ(group.rank, theirs.rank);
    EXPECT_EQ(group.c10d->getBackend(at::kCPU), theirs.c10d->getBackend(at::kCPU));
    const Connections taken = take_connections(group);
    for (const ProcessGroup& each : {group, taken.group()}) expect_sum(each);
  });
}

TEST(ProcessGroup, AnAdoptedOneTellsWhoIsMissing) {
  run_ranks(2, [](const ProcessGroup& theirs) {
    const ProcessGroup group = adopt_process_group(theirs.c10d, {.timeout = 60s});
    const std::string loss = loss_of([&] { group.rank == 1 ? give_up(group, "a reason of its own") : all_reduce(group, at::ones({4})); });
    EXPECT_THAT(loss, HasSubstr("a reason of its own"));
    if (group.rank == 0) {
      EXPECT_THAT(loss, HasSubstr("rank 1"));
    }
  });
}

// Stands in for NCCL, for tensors that have no memory: remembers how it was waited for.
class NamedNccl final : public c10d::Backend {
 public:
  NamedNccl() : c10d::Backend(0, 1) {}
  const std::string getBackendName() const override { return "nccl"; }  // NOLINT(readability-const-return-type)
  Work allreduce(std::vector<at::Tensor>& /*tensors*/, const c10d::AllreduceOptions& /*options*/) override {
    struct Waited final : c10d::Work {
      explicit Waited(NamedNccl& backend) : of(backend) {}
      bool wait(std::chrono::milliseconds timeout) override {
        of.waits.push_back(timeout);
        return true;
      }
      NamedNccl& of;
    };
    return c10::make_intrusive<Waited>(*this);
  }

  std::vector<std::chrono::milliseconds> waits;
};

ProcessGroup with_gloo_and(const c10::intrusive_ptr<NamedNccl>& nccl, const ProcessGroup& made) {
  using Type = c10d::ProcessGroup::BackendType;
  auto both = c10::make_intrusive<c10d::ProcessGroup>(made.store, made.rank, made.size);
  both->setBackend(c10::kCPU, Type::GLOO, made.c10d->getBackend(c10::kCPU));
  both->setBackend(c10::kMeta, Type::NCCL, nccl);
  return adopt_process_group(both, {});
}

TEST(ProcessGroup, ACollectiveOfNcclIsKnownByTheNameOfItsBackendAndNeverWaitedForWithATimeout) {
  run_ranks(1, [](const ProcessGroup& made) {
    const auto nccl = c10::make_intrusive<NamedNccl>();
    const ProcessGroup group = with_gloo_and(nccl, made);
    const Work work = start_all_reduce(group, at::empty({4}, at::kMeta));
    wait(group, work, "an all-reduce");
    work->wait(std::chrono::seconds(1));  // by someone else
    EXPECT_THAT(nccl->waits, ElementsAre(kNoTimeout, kNoTimeout));
  });
}

TEST(ProcessGroup, OfAnotherMakerThatHasNothingForTheCpuGetsAGlooOfItsOwn) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  run_ranks(2, [&](const ProcessGroup& made) {
    auto theirs = c10::make_intrusive<c10d::ProcessGroup>(store, made.rank, made.size);
    theirs->setBackend(c10::kMeta, c10d::ProcessGroup::BackendType::NCCL, c10::make_intrusive<NamedNccl>());
    const ProcessGroup group = adopt_process_group(theirs, {.timeout = 60s});
    expect_sum(group);
    expect_sum(take_connections(group).group());
    EXPECT_EQ(group.c10d->getBackend(c10::kMeta), theirs->getBackend(c10::kMeta));
    EXPECT_THAT(theirs->getDeviceTypes(), ElementsAre(c10::Device(c10::kMeta)));  // left as it was
  });
}

TEST(ProcessGroup, OfAnotherMakerThatHasNoBackendAtAllGetsAGlooOfItsOwn) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  run_ranks(2, [&](const ProcessGroup& made) {
    expect_sum(adopt_process_group(c10::make_intrusive<c10d::ProcessGroup>(store, made.rank, made.size), {}));
  });
}

// A c10d::FileStore deletes its file when nobody holds it any longer.
TEST(ProcessGroup, ThatIsGoneHoldsItsStoreNoLonger) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  expect_sum(make_process_group(store, 0, 1, {.timeout = 60s}));
  const auto until = std::chrono::steady_clock::now() + 10s;  // a thread that has answered may still be ending
  while (store.use_count() > 1 && std::chrono::steady_clock::now() < until) std::this_thread::yield();
  EXPECT_EQ(store.use_count(), 1U);
}

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

TEST(Connections, ShareTheBackendOfADevice) {
  run_ranks(1, [](const ProcessGroup& made) {
    const auto nccl = c10::make_intrusive<NamedNccl>();
    const ProcessGroup group = with_gloo_and(nccl, made);
    const Connections taken = take_connections(group);
    EXPECT_FALSE(share_gloo(taken.group(), group));
    EXPECT_EQ(taken.group().c10d->getBackend(c10::kMeta), nccl);
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
  run_ranks(2, [&](const ProcessGroup& group) {
    {
      Connections broken = take_connections(group);
      if (group.rank == 0) start_all_reduce(broken.group(), at::ones({4}));  // rank 1 never comes
      broken.abandon();
    }
    expect_sum(take_connections(group).group());
    expect_sum(group);
    done.arrive_and_wait();
  });
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
