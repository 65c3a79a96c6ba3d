// start_or(): what ranks agree on, in ceil(log2 W) hops; and waits of ranks that cross.

#include <atomic>
#include <latch>

#include "../torch.h"
#include "comm/group_state.h"
#include "comm/group_store.h"
#include "thread_ranks.h"

namespace firkin {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

// The bytes of one rank: few bits are set, so that a rank that is left out shows.
at::Tensor bytes_of_rank(int rank, int64_t call, int64_t count) {
  const at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(1000 * call + rank));
  at::Tensor bytes = at::ones({count}, at::kByte);
  for (int i = 0; i < 3; ++i) bytes.bitwise_and_(at::randint(0, 256, {count}, generator, at::kByte));
  return bytes;
}

at::Tensor or_of_ranks(int size, int64_t call, int64_t count) {
  at::Tensor result = at::zeros({count}, at::kByte);
  for (int rank = 0; rank < size; ++rank) result.bitwise_or_(bytes_of_rank(rank, call, count));
  return result;
}

int ceil_log2(int ranks) {
  int rounds = 0;
  while ((1 << rounds) < ranks) ++rounds;
  return rounds;
}

void agree(const ProcessGroup& group, int64_t count) {
  wait(group, start_or(group, at::zeros({count}, at::kByte)), "the agreement of step 17");
}

class Agreement : public testing::TestWithParam<int> {};

TEST_P(Agreement, IsTheOrOfAllRanks) {
  run_ranks(GetParam(), [](const ProcessGroup& group) {
    const Connections connections = take_connections(group);
    int64_t call = 0;
    for (const int64_t count : {1, 63, 1000, 65'520, 65'521, 200'000}) {
      const at::Tensor bytes = bytes_of_rank(group.rank, ++call, count);
      wait(connections.group(), start_or(connections.group(), bytes), "the agreement");
      EXPECT_TRUE(at::equal(bytes, or_of_ranks(group.size, call, count))) << count;
    }
  });
}

TEST_P(Agreement, ManyMayBeUnderWayAndAreWaitedForInAnyOrder) {
  run_ranks(GetParam(), [](const ProcessGroup& group) {
    const Connections taken = take_connections(group);
    const ProcessGroup& beside = taken.group();
    constexpr int64_t kCalls = 200;
    std::vector<at::Tensor> bytes;
    std::vector<Work> under_way;
    for (int64_t call = 0; call < kCalls; ++call) {
      bytes.push_back(bytes_of_rank(group.rank, call, 40 + call));
      under_way.push_back(start_or(beside, bytes.back()));
    }
    for (int64_t call = kCalls; call-- > 0;) {
      const auto i = static_cast<size_t>(call);
      wait(beside, under_way[i], "an agreement");
      EXPECT_TRUE(under_way[i]->isCompleted());
      EXPECT_TRUE(at::equal(bytes[i], or_of_ranks(group.size, call, 40 + call)));
    }
  });
}

// A Gloo that counts the messages of one rank.
class CountingBackend final : public c10d::Backend {
 public:
  CountingBackend(c10::intrusive_ptr<c10d::Backend> gloo, std::atomic<int>& sent)
      : c10d::Backend(gloo->getRank(), gloo->getSize()), gloo_(std::move(gloo)), sent_(sent) {}
  const std::string getBackendName() const override { return "gloo"; }  // NOLINT(readability-const-return-type)
  Work send(std::vector<at::Tensor>& tensors, int rank, int tag) override {
    ++sent_;
    return gloo_->send(tensors, rank, tag);
  }
  Work recv(std::vector<at::Tensor>& tensors, int rank, int tag) override { return gloo_->recv(tensors, rank, tag); }

 private:
  c10::intrusive_ptr<c10d::Backend> gloo_;
  std::atomic<int>& sent_;
};

TEST_P(Agreement, SendsOneMessagePerRound) {
  run_ranks(GetParam(), [](const ProcessGroup& made) {
    std::atomic<int> sent = 0;
    auto counted = c10::make_intrusive<c10d::ProcessGroup>(made.store, made.rank, made.size);
    counted->setBackend(c10::kCPU, c10d::ProcessGroup::BackendType::GLOO,
                        c10::make_intrusive<CountingBackend>(made.c10d->getBackend(c10::kCPU), sent));
    const ProcessGroup group = adopt_process_group(counted, {.timeout = 60s});
    for (int call = 1; call <= 3; ++call) {
      wait(group, start_or(group, at::zeros({1000}, at::kByte)), "an agreement");
      EXPECT_EQ(sent, call * ceil_log2(made.size));
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, Agreement, Range(1, 8));

TEST(AgreementOfRanks, TellsFuturesAndGivesItsTensor) {
  run_ranks(2, [](const ProcessGroup& group) {
    const Connections taken = take_connections(group);
    const at::Tensor bytes = at::full({4}, 1 << group.rank, at::kByte);
    const Work work = start_or(taken.group(), bytes);
    std::atomic<int> told = 0;
    work->getFuture()->addCallback([&](c10::ivalue::Future&) { ++told; }, false);
    wait(taken.group(), work, "the agreement");
    EXPECT_EQ(told, 1);
    EXPECT_TRUE(work->result().at(0).is_same(bytes));
    EXPECT_TRUE(at::equal(bytes, at::full({4}, 3, at::kByte)));
  });
}

TEST(AgreementOfRanks, NamesTheRankThatNeverComes) {
  const auto losses = losses_of(3, [](const ProcessGroup& group) {
    const Connections taken = take_connections(group);
    ProcessGroup beside = taken.group();
    beside.timeout = 500ms;
    if (group.rank < 2) agree(beside, 8);
  });
  const std::string missing = "rank 2 (" + host_name() + ") did not reach the agreement of step 17";
  EXPECT_THAT(losses[0], HasSubstr(missing));
  EXPECT_THAT(losses[1], HasSubstr(missing));
}

TEST(AgreementOfRanks, NamesTheRankThatHasLeftLongBeforeTheTimeoutAndNobodyWaitsForWhatIsUnderWay) {
  const auto started = Clock::now();
  run_ranks(2, [](const ProcessGroup& group) {
    const Connections taken = take_connections(group);
    if (group.rank == 1) return;
    EXPECT_THAT(loss_of([&] { agree(taken.group(), 8); }), HasSubstr("rank 1 (" + host_name() + ") did not reach the agreement"));
    EXPECT_THROW(start_or(taken.group(), at::zeros({8}, at::kByte)), GroupError);
  });
  EXPECT_LT(Clock::now() - started, 30s);
}

TEST(AgreementOfRanks, AGroupThatGoesWaitsForNoRank) {
  const auto started = Clock::now();
  auto store = c10::make_intrusive<c10d::HashStore>();
  std::latch gone(1);
  std::thread never_comes([&] {
    const ProcessGroup group = make_process_group(store, 1, 2, {.timeout = 60s});
    const Connections connections = take_connections(group);
    gone.wait();
  });
  Work unfinished;
  {
    const ProcessGroup group = make_process_group(store, 0, 2, {.timeout = 60s});
    unfinished = start_or(take_connections(group).group(), at::zeros({8}, at::kByte));
  }
  gone.count_down();
  never_comes.join();
  EXPECT_THROW(unfinished->wait(), std::exception);
  EXPECT_LT(Clock::now() - started, 30s);
}

TEST(AgreementOfRanks, LengthsThatDifferAreAnErrorThatNamesBothAndNotTheEndOfTheProcess) {
  for (const auto& [of_rank_0, of_rank_1] : {std::pair{40, 50'000}, {200'000, 65'520}}) {  // the first piece of 200,000 bytes is 65,520
    const auto losses = losses_of(2, [&, first = of_rank_0, second = of_rank_1](const ProcessGroup& group) {
      agree(take_connections(group).group(), group.rank == 0 ? first : second);
    });
    EXPECT_THAT(losses[0], HasSubstr(fmt::format("rank 1 sends {} bytes in its call 0 of start_or(), rank 0 has {} bytes in call 0",
                                                 of_rank_1, of_rank_0)));
    EXPECT_NE(losses[1], "");
  }
}

TEST(AgreementOfRanks, ACallbackThatThrowsIsTheWorksError) {
  run_ranks(1, [](const ProcessGroup& made) {
    const ProcessGroup group =
        make_process_group(c10::make_intrusive<c10d::HashStore>(), 0, 1, {.link = parse_link("1gbit,50ms", made.size + 1)});
    const Work work = start_or(group, at::zeros({8}, at::kByte));
    work->getFuture()->addCallback([](c10::ivalue::Future&) { throw RuntimeError("thrown by a callback"); }, false);
    EXPECT_THROW(wait(group, work, "the agreement"), GroupError);
  });
}

TEST(AgreementOfRanks, OverAModelledLinkEveryRoundTakesAHop) {
  for (const int size : {1, 2, 3, 4}) {
    // 8 ranks: three hops of 30 ms, however few there are here.
    run_ranks_with(size, {.timeout = 60s, .link = ModelledLink{.world = 8, .bits_per_s = 1e9, .latency_s = 30e-3}},
                   [](const ProcessGroup& group) {
                     const Connections taken = take_connections(group);
                     const at::Tensor bytes = bytes_of_rank(group.rank, 0, 100);
                     const auto started = Clock::now();
                     wait(taken.group(), start_or(taken.group(), bytes), "the agreement");
                     EXPECT_GE(Clock::now() - started, 90ms);
                     EXPECT_TRUE(at::equal(bytes, or_of_ranks(group.size, 0, 100)));
                   });
  }
}

TEST(AgreementOfRanks, IsOfBytesOnTheCpu) {
  run_ranks(1, [](const ProcessGroup& group) {
    EXPECT_THROW(start_or(group, at::zeros({8})), InputError);
    EXPECT_THROW(start_or(group, at::zeros({8, 2}, at::kByte).t()), InputError);
  });
}

constexpr int64_t kA = 0, kB = 1;

// One wrapped module's part of a training: its steps are all-reduces over connections of its own.
class Stepped {
 public:
  Stepped(const ProcessGroup& group, std::string name) : connections_(take_connections(group)), name_(std::move(name)) {}
  void step() {
    record_step(connections_.group(), connections_.number(), ++step_);
    ProcessGroup group = connections_.group();
    group.place = {connections_.number(), step_, name_};
    wait(group, start_all_reduce(group, at::ones({4})), [this] { return "a step of " + name_; });
  }

 private:
  Connections connections_;
  std::string name_;
  int64_t step_ = 0;
};

TEST(CrossedWaits, AreAnErrorOnEveryRankThatNamesBothModules) {
  const auto started = Clock::now();
  const auto losses = losses_of(2, [](const ProcessGroup& group) {
    Stepped a(group, "module A"), b(group, "module B");
    for (int i = 0; i < 4; ++i) a.step();
    b.step();
    (group.rank == 0 ? a : b).step();
  });
  EXPECT_THAT(losses, Each("rank 0 waits in step 5 of module A, rank 1 in step 2 of module B: every rank must step wrapped modules in the "
                           "same order (after a failed forward, call abandon_step())"));
  EXPECT_LT(Clock::now() - started, 30s);
}

TEST(CrossedWaits, OfTwoRanksAreHeardOfByTheOthers) {
  const auto losses = losses_of(3, [](const ProcessGroup& group) {
    Stepped a(group, "module A"), b(group, "module B");
    if (group.rank < 2) return (group.rank == 0 ? a : b).step();
    all_reduce(group, at::ones({4}));
  });
  EXPECT_THAT(losses, Each(HasSubstr("rank 0 waits in step 1 of module A, rank 1 in step 1 of module B")));
}

// Until a rank has said in the store that it waits in this step.
void await_note(const ProcessGroup& group, int rank, const std::string& module, int64_t step) {
  for (;; std::this_thread::yield()) {
    const auto note = parse_wait_note(value_of(*group.store, fmt::format("at/{}", rank)));
    if (note && note->place.name == module && note->place.step == step) return;
  }
}

TEST(CrossedWaits, ALateRankIsNone) {
  run_ranks(2, [&](const ProcessGroup& group) {
    Stepped a(group, "module A"), b(group, "module B");
    a.step();
    if (group.rank == 1) await_note(group, 0, "module B", 1);
    b.step();  // rank 0 leaves a note here
    if (group.rank == 0) await_note(group, 1, "module A", 2);
    a.step();  // and rank 1, which finds the old one, here
    b.step();
  });
}

TEST(CrossedWaits, OfRanksThatStepFromSeveralThreadsNothingIsConcluded) {
  run_ranks(2, [&](const ProcessGroup& group) {
    Stepped a(group, "module A"), b(group, "module B");
    b.step();
    std::latch both(2);
    std::thread beside([&] {
      a.step();
      both.arrive_and_wait();
      if (group.rank == 0) std::this_thread::sleep_for(3 * kTestPollEvery);
      a.step();
    });
    both.arrive_and_wait();
    if (group.rank == 1) std::this_thread::sleep_for(3 * kTestPollEvery);
    b.step();
    beside.join();
  });
}

// Member by member: GCC 12 takes the braces of a temporary for uninitialised.
WaitNote waiting_in(int64_t wrapper, int64_t step, const std::map<int64_t, int64_t>& begun) {
  WaitNote note;
  note.place.wrapper = wrapper;
  note.place.step = step;
  note.place.name = "module B\nof two lines";
  note.begun = begun;
  return note;
}

TEST(WaitNote, SurvivesTheStore) {
  const WaitNote note = waiting_in(kB, 17, {{kA, 5}, {kB, 17}});
  const auto parsed = parse_wait_note(to_text(note));
  ASSERT_TRUE(parsed);
  EXPECT_EQ(parsed->place.wrapper, kB);
  EXPECT_EQ(parsed->place.step, 17);
  EXPECT_EQ(parsed->place.name, note.place.name);
  EXPECT_EQ(parsed->begun, note.begun);
  EXPECT_FALSE(parse_wait_note(""));
  EXPECT_FALSE(parse_wait_note("17"));
}

TEST(WaitNote, IsCrossedOnlyWhereNeitherHasBegunTheOthersStep) {
  const WaitNote in_a = waiting_in(kA, 5, {{kA, 5}, {kB, 2}});
  EXPECT_TRUE(are_crossed(in_a, waiting_in(kB, 3, {{kA, 4}, {kB, 3}})));
  EXPECT_FALSE(are_crossed(in_a, waiting_in(kB, 3, {{kA, 5}, {kB, 3}})));  // it will come to B
  EXPECT_FALSE(are_crossed(in_a, waiting_in(kB, 2, {{kA, 4}, {kB, 2}})));  // an old note, or a slow network
  EXPECT_FALSE(are_crossed(in_a, waiting_in(kA, 4, {{kA, 4}, {kB, 2}})));
  EXPECT_TRUE(are_crossed(waiting_in(kA, 1, {{kA, 1}}), waiting_in(kB, 1, {{kB, 1}})));
}

}  // namespace
}  // namespace firkin
