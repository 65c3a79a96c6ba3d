// Ranks that wait for each other in different wrapped modules.
#include "../../src/comm/group_state.h"

#include <gmock/gmock.h>

#include <latch>

#include "firkin/base/error.h"
#include "thread_ranks.h"

#include <torch/torch.h>

namespace firkin {
namespace {

using namespace std::chrono_literals;
using testing::Each;
using testing::HasSubstr;

constexpr int64_t kA = 0, kB = 1;

// One wrapped module's part of a training: its steps are all-reduces over connections of its own.
class Stepped {
 public:
  Stepped(const ProcessGroup& group, std::string name) : connections_(take_connections(group)), name_(std::move(name)) {}
  void step() {
    note_step(connections_.group(), connections_.number(), ++step_);
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
  const auto started = std::chrono::steady_clock::now();
  const auto losses = losses_of(2, 60s, [](const ProcessGroup& group) {
    Stepped a(group, "module A"), b(group, "module B");
    for (int i = 0; i < 4; ++i) a.step();
    b.step();
    (group.rank == 0 ? a : b).step();
  });
  EXPECT_THAT(losses, Each("rank 0 waits in step 5 of module A, rank 1 in step 2 of module B: every rank must step wrapped modules in the "
                           "same order (after a failed forward, call abandon_step())"));
  EXPECT_LT(std::chrono::steady_clock::now() - started, 30s);
}

TEST(CrossedWaits, OfTwoRanksAreHeardOfByTheOthers) {
  const auto losses = losses_of(3, 60s, [](const ProcessGroup& group) {
    Stepped a(group, "module A"), b(group, "module B");
    if (group.rank < 2) return (group.rank == 0 ? a : b).step();
    all_reduce(group, at::ones({4}));
  });
  EXPECT_THAT(losses, Each(HasSubstr("rank 0 waits in step 1 of module A, rank 1 in step 1 of module B")));
}

TEST(CrossedWaits, ALateRankIsNone) {
  run_ranks(2, [&](const ProcessGroup& group) {
    Stepped a(group, "module A"), b(group, "module B");
    a.step();
    if (group.rank == 1) std::this_thread::sleep_for(3 * kTestLooks);
    b.step();  // rank 0 leaves a note here
    if (group.rank == 0) std::this_thread::sleep_for(2 * kTestLooks);
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
      if (group.rank == 0) std::this_thread::sleep_for(3 * kTestLooks);
      a.step();
    });
    both.arrive_and_wait();
    if (group.rank == 1) std::this_thread::sleep_for(3 * kTestLooks);
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
  EXPECT_EQ(parsed->place.name, "module B of two lines");
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
