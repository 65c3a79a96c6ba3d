// What a rank hears when a collective fails: who is missing, and where.

#include <latch>

#include "../torch.h"
#include "comm/group_state.h"
#include "comm/group_store.h"
#include "thread_ranks.h"

namespace firkin {
namespace {

using namespace std::chrono_literals;

// Collectives have half a second; to form the group there is more time.
std::vector<std::string> losses_soon(int size, const std::function<void(const ProcessGroup&)>& body) {
  return losses_of(size, [&](ProcessGroup group) {
    group.timeout = 500ms;
    body(group);
  });
}

TEST(GroupFailure, NamesTheRankThatDidNotComeItsHostAndThePlace) {
  const auto seen = losses_soon(2, [](const ProcessGroup& group) {
    if (group.rank == 0) wait(group, start_all_reduce(group, at::ones({4})), [] { return std::string("bucket 3 of step 17"); });
  });
  EXPECT_THAT(seen[0], AllOf(StartsWith("rank 1 (" + host_name() + ") did not reach bucket 3 of step 17 [Gloo: Timed out"),
                             Not(HasSubstr("\n")), Not(HasSubstr("gloo/"))));
}

TEST(GroupFailure, EverySurvivorNamesTheSameRankLongBeforeItsOwnTimeout) {
  const auto started = std::chrono::steady_clock::now();
  const auto seen = losses_of(3, [](ProcessGroup group) {
    if (group.rank == 0) group.timeout = 500ms;
    if (group.rank < 2) all_reduce(group, at::ones({4}));
  });
  EXPECT_LT(std::chrono::steady_clock::now() - started, kTestTimeout / 2);
  const std::string expected = "rank 2 (" + host_name() + ") did not reach an all-reduce";
  EXPECT_THAT(std::vector(seen.begin(), seen.begin() + 2), Each(StartsWith(expected)));
}

TEST(GroupFailure, NamesSeveralRanks) {
  const auto seen = losses_soon(4, [](const ProcessGroup& group) {
    if (group.rank % 2 == 0) barrier(group);
  });
  const std::string host = host_name();
  EXPECT_THAT(seen[0], StartsWith("ranks 1 (" + host + "), 3 (" + host + ") did not reach the barrier"));
}

TEST(GroupFailure, ARankThatHasLeftIsMissing) {
  run_ranks(2, [](const ProcessGroup& group) {
    if (group.rank == 1) return;
    EXPECT_THAT(loss_of([&] { all_reduce(group, at::ones({4})); }), HasSubstr("rank 1 (" + host_name() + ") did not reach an all-reduce"));
  });
}

TEST(GroupFailure, RanksAtDifferentPlacesAreToldApart) {
  const auto seen = losses_soon(2, [](const ProcessGroup& group) {
    if (group.rank == 0) return all_reduce(group, at::ones({4}));
    barrier(group);
  });
  const std::string host = host_name();
  EXPECT_THAT(seen[0], StartsWith("no rank is missing: rank 1 (" + host + ") gave up at the barrier, rank 0 at an all-reduce"));
  EXPECT_THAT(seen[1], StartsWith("no rank is missing: rank 0 (" + host + ") gave up at an all-reduce, rank 1 at the barrier"));
}

TEST(GroupFailure, EveryLaterCollectiveSaysTheSame) {
  losses_soon(2, [](const ProcessGroup& group) {
    if (group.rank == 1) return;
    const Work first = start_all_reduce(group, at::ones({4}));
    const Work second = start_all_reduce(group, at::ones({4}));
    const std::string loss = loss_of([&] { wait(group, first, "the first"); });
    EXPECT_THAT(loss, HasSubstr("did not reach the first"));
    EXPECT_EQ(loss_of([&] { wait(group, second, "the second"); }), loss);
    EXPECT_EQ(loss_of([&] { start_broadcast(group, at::ones({4}), 0); }), loss);
  });
}

TEST(GroupFailure, ThePlaceIsNotAskedForWhenAllGoesWell) {
  run_ranks(2, [](const ProcessGroup& group) {
    int asked = 0;
    wait(group, start_all_reduce(group, at::ones({4})), [&] { return std::to_string(++asked); });
    EXPECT_EQ(asked, 0);
  });
}

// A store whose host can be stopped: then it answers nothing until it is let go.
class StoppableStore : public c10d::HashStore {
 public:
  ~StoppableStore() override { go_on(); }
  void stop() { stopped_ = true; }
  void go_on() {
    stopped_ = false;
    stopped_.notify_all();
  }
  bool check(const std::vector<std::string>& keys) override {
    stopped_.wait(true);
    return c10d::HashStore::check(keys);
  }

 private:
  std::atomic<bool> stopped_ = false;
};

TEST(GroupFailure, AStoreThatDoesNotAnswerIsTheMessage) {
  auto store = c10::make_intrusive<StoppableStore>();
  std::latch formed(2), done(2);
  const auto rank_body = [&](int rank) {
    ProcessGroup group = make_process_group(store, rank, 2, {.timeout = kTestTimeout, .poll_every = kTestPollEvery});
    group.timeout = 500ms;
    formed.arrive_and_wait();
    store->stop();
    if (rank == 0) {
      EXPECT_THAT(loss_of([&] { all_reduce(group, at::ones({4})); }),
                  StartsWith("the store does not answer: an unknown rank did not reach an all-reduce [Gloo: Timed out"));
    }
    done.arrive_and_wait();
  };
  std::thread other([&] { rank_body(1); });
  rank_body(0);
  other.join();
  store->go_on();
}

TEST(GroupFailure, OverNcclSaysWhatParametersAreWorth) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  ProcessGroup group;
  group.state = std::make_shared<GroupState>(store, StoreHost::kElsewhere, GroupOptions{}, DeviceBackend::kNccl);
  const std::string loss = "out of memory; parameters may hold partial sums: load a checkpoint";
  EXPECT_EQ(loss_of([&] { give_up(group, "out of memory"); }), loss);
  EXPECT_EQ(loss_of([&] { barrier(group); }), loss);
}

TEST(NameRanks, CutsAMultitudeShort) {
  std::vector<NamedRank> ranks;
  for (int rank = 0; rank < 100; ++rank) ranks.push_back({rank, rank < 8 ? "a" : ""});
  EXPECT_EQ(name_ranks(ranks), "ranks 0 (a), 1 (a), 2 (a), 3 (a), 4 (a), 5 (a), 6 (a), 7 (a) and 92 more");
  EXPECT_EQ(name_ranks({{5, ""}}), "rank 5");
}

TEST(BackendText, IsTheFirstLineWithoutThePlaceInTheOtherProjectsSourcesAndWithoutItsAdvice) {
  const std::pair<const char*, const char*> texts[] = {
      {"[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:1234",
       "Connection closed by peer [127.0.0.1]:1234"},
      {"[../third_party/gloo/gloo/transport/tcp/pair.cc:534] Read error [::1]:33844: Connection reset by peer",
       "Read error [::1]:33844: Connection reset by peer"},
      {"[/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 2000ms for recv operation to complete. This "
       "may indicate a possible application crash on rank 0 or a network set up issue.",
       "Timed out waiting 2000ms for recv operation to complete"},
      {"[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:534] Read error [127.0.0.1]:24757: Connection reset by peer. This is "
       "typically caused by a remote worker hanging or bugs in the application. Check the logs of the remote worker before reporting an "
       "error. GLHF! \xf0\x9f\x8f\x96",
       "Read error [127.0.0.1]:24757: Connection reset by peer"},
      {"Operation timed out!\nException raised from wait at Work.cpp:102", "Operation timed out!"},
      {"[127.0.0.1]:1234 is gone", "[127.0.0.1]:1234 is gone"},
      {"[a/b.cc:x] odd", "[a/b.cc:x] odd"},
      {"[unfinished", "[unfinished"},
      {"", ""},
  };
  for (const auto& [text, shown] : texts) EXPECT_EQ(shorten_backend_text(text), shown);
}

}  // namespace
}  // namespace firkin
