// How ranks meet: several groups over one store, and who is to blame when a group cannot be formed.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>

#include "../torch.h"
#include "comm/gathering.h"
#include "firkin/comm/process_group.h"
#include "launcher_environment.h"
#include "thread_ranks.h"

#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

namespace firkin {
namespace {

using namespace std::chrono_literals;

// A socket on loopback at a port that the system gives nobody else meanwhile. Unless it listens itself, who sets SO_REUSEADDR, as
// LibTorch's store does, can listen there.
class LoopbackPort {
 public:
  explicit LoopbackPort(bool listening = false) : socket_(socket(AF_INET, SOCK_STREAM, 0)) {
    const int on = 1;
    EXPECT_EQ(setsockopt(socket_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on), 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    EXPECT_EQ(bind(socket_, reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(getsockname(socket_, reinterpret_cast<sockaddr*>(&address), &size), 0);
    port_ = ntohs(address.sin_port);
    if (listening) listen(socket_, SOMAXCONN);
  }
  ~LoopbackPort() { close(socket_); }
  LoopbackPort(const LoopbackPort&) = delete;
  LoopbackPort& operator=(const LoopbackPort&) = delete;

  int number() const { return port_; }

 private:
  int socket_;
  int port_ = 0;
};

RankInfo rank_at(int rank, int size, int port) {
  return {.rank = rank, .world_size = size, .local_rank = rank, .local_world_size = size, .master_port = port};
}

void run_threads(int count, const std::function<void(int)>& body) {
  std::vector<std::thread> threads;
  for (int i = 0; i < count; ++i) threads.emplace_back(body, i);
  for (std::thread& thread : threads) thread.join();
}

std::string failure_of(const std::function<void()>& body) {
  return message_of<RuntimeError>(body);
}

void expect_both_work(const ProcessGroup& first, const ProcessGroup& second) {
  for (int i = 0; i < 2; ++i) {
    expect_sum(first);
    expect_sum(second);
  }
}

constexpr std::chrono::milliseconds kForOthers{2000};  // for another thread to take its next steps

// Until another thread has come as far as this key (gathering.h).
void await_key(c10d::Store& store, const std::string& key) {
  while (!store.check({key})) std::this_thread::sleep_for(1ms);
}

// A store that knows how often it was asked, as whoever waits in it does again and again.
class AskedStore : public c10d::HashStore {
 public:
  int64_t add(const std::string& key, int64_t value) override {
    count();
    return HashStore::add(key, value);
  }
  bool check(const std::vector<std::string>& keys) override {
    count();
    return HashStore::check(keys);
  }
  // Until another thread has looked around. No more than one may ask meanwhile.
  void await_another() const {
    for (int asked = asked_, enough = asked + 5; asked < enough; asked = asked_) asked_.wait(asked);
  }

 private:
  void count() {
    ++asked_;
    asked_.notify_all();
  }
  std::atomic<int> asked_ = 0;
};

class Rendezvous : public LauncherEnvironment {
 protected:
  c10::intrusive_ptr<AskedStore> store = c10::make_intrusive<AskedStore>();  // of all attempts, as torchrun's agent keeps it
  const LoopbackPort reserved;
  const int port = reserved.number();
};

TEST_F(Rendezvous, TakesTheRankFromTheLauncher) {
  set(fmt::format("RANK=0 WORLD_SIZE=1 MASTER_PORT={}", port));
  const ProcessGroup group = connect();
  EXPECT_EQ(group.rank, 0);
  expect_sum(group);
}

TEST_F(Rendezvous, SaysHowToStartAProgramThatNoLauncherStarted) {
  EXPECT_THAT(message_of<InputError>([] { connect(); }),
              StartsWith("no launcher started this process: RANK and WORLD_SIZE are not set; start it with mpirun or srun"));
}

TEST_F(Rendezvous, TwoGroupsOverOneStoreWorkAtOnce) {
  run_threads(3, [&](int rank) {
    const ProcessGroup first = make_process_group(store, rank, 3, {});
    const ProcessGroup second = make_process_group(store, rank, 3, {});
    expect_both_work(first, second);
  });
}

TEST_F(Rendezvous, TwoGroupsOfOneMeetingPointWorkAtOnce) {
  run_threads(2, [&](int rank) {
    const ProcessGroup first = connect(rank_at(rank, 2, port), {});
    const ProcessGroup second = connect(rank_at(rank, 2, port), {});
    expect_both_work(first, second);
    barrier(second);  // rank 0 takes the store away with its groups
  });
}

TEST_F(Rendezvous, WhenAllRanksAreStartedAgainTheyMeetNothingOfAnEarlierAttempt) {
  run_threads(2, [&](int rank) { expect_sum(make_process_group(store, rank, 2, {})); });
  EXPECT_NE(failure_of([&] { make_process_group(store, 0, 2, {.timeout = 200ms}); }), "");  // the other rank died before
  run_threads(2, [&](int rank) {
    if (rank == 0) store->await_another();  // rank 1 finds what rank 0 has left first
    expect_sum(make_process_group(store, rank, 2, {}));
  });
}

TEST_F(Rendezvous, ARankThatHasLeftAGroupWaitsForTheOthersToFormTheNext) {
  for (const int early : {0, 1}) {
    store = c10::make_intrusive<AskedStore>();  // of another job
    run_threads(3, [&](int rank) {
      {
        const ProcessGroup first = make_process_group(store, rank, 3, {});
        expect_sum(first);
        if (rank != early) store->await_another();
      }
      expect_sum(make_process_group(store, rank, 3, {}));
    });
  }
}

TEST_F(Rendezvous, ARankThatIsStartedAgainAloneIsLeftOut) {
  run_threads(2, [&](int rank) {
    const ProcessGroup group = make_process_group(store, rank, 2, {});
    if (rank == 0) {
      EXPECT_EQ(failure_of([&] { make_process_group(store, 1, 2, {.timeout = 300ms}); }),
                "rank 1 cannot form a group of 2 within 300 ms: the others have formed one without this process; after a failure start "
                "all ranks again");
    }
    expect_sum(group);  // it does not trouble the others
  });
}

std::chrono::steady_clock::time_point in(std::chrono::milliseconds time) {
  return std::chrono::steady_clock::now() + time;
}

TEST_F(Rendezvous, ARankThatDiedBeforeAllHadArrivedIsReplaced) {
  std::thread rank_0([&] { expect_sum(make_process_group(store, 0, 3, {})); });
  await_key(*store, "firkin/1/size");
  EXPECT_FALSE(gather_ranks(store, {.rank = 1, .size = 3}, in(300ms)).complete);
  run_threads(2, [&](int i) { expect_sum(make_process_group(store, i + 1, 3, {})); });
  rank_0.join();
}

TEST_F(Rendezvous, Rank0ThatDiedBeforeAllHadArrivedIsReplaced) {
  EXPECT_FALSE(gather_ranks(store, {.rank = 0, .size = 2}, in(50ms)).complete);  // and leaves no mark
  run_threads(2, [&](int rank) {
    if (rank == 0) store->await_another();
    expect_sum(make_process_group(store, rank, 2, {}));
  });
}

TEST_F(Rendezvous, WhoeverWaitsInAStoreWhoseHostDiesEndsAtOnce) {
  const c10d::TCPStoreOptions server{.port = static_cast<uint16_t>(port), .isServer = true, .waitWorkers = false};
  auto rank_0s = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", server);
  const auto started = std::chrono::steady_clock::now();
  std::string failure;
  std::thread rank_1([&] { failure = failure_of([&] { connect(rank_at(1, 2, port), {.timeout = 60s}); }); });
  await_key(*rank_0s, "firkin/groups");
  rank_0s.reset();
  rank_1.join();
  EXPECT_THAT(failure,
              StartsWith(fmt::format("rank 1 cannot meet the others at 127.0.0.1:{}: the store there, on rank 0, failed: ", port)));
  EXPECT_LT(std::chrono::steady_clock::now() - started, 30s);
}

TEST_F(Rendezvous, NothingIsKnownOfTheOthersWithoutRank0) {
  EXPECT_EQ(failure_of([&] { make_process_group(store, 1, 4, {.timeout = 200ms}); }),
            "rank 1 cannot form a group of 4 within 200 ms: rank 0 has not arrived");
}

TEST_F(Rendezvous, RanksThatContradictEachOtherSaySoOnEveryRank) {
  struct Start {
    int rank, size;
  };
  const std::vector<std::pair<std::vector<Start>, std::string>> cases = {
      {{{0, 2}, {1, 3}}, ": rank 0 was started as one of 2; expected one number of ranks for all"},
      {{{0, 3}, {1, 3}, {1, 3}}, ": another process on " + host_name() + " has this rank; expected one for each rank"},
  };
  for (const auto& [starts, why] : cases) {
    store = c10::make_intrusive<AskedStore>();  // of another job
    run_threads(static_cast<int>(starts.size()), [&](int i) {
      const auto [rank, size] = starts[static_cast<size_t>(i)];
      const std::string message = message_of<InputError>([&] { make_process_group(store, rank, size, {.timeout = 60s}); });
      EXPECT_THAT(message, AllOf(StartsWith(fmt::format("rank {} cannot meet the others: rank 1 of ", rank)), HasSubstr(why)));
    });
  }
}

TEST_F(Rendezvous, OneOfTwoRanks0SaysThatThereIsAnother) {
  std::string refusal;
  std::thread first([&] { refusal = error_of([&] { make_process_group(store, 0, 2, {.timeout = 60s}); }); });
  await_key(*store, "firkin/groups");
  EXPECT_THAT(failure_of([&] { make_process_group(store, 0, 2, {.timeout = 200ms}); }), HasSubstr("rank 1 has not arrived"));
  first.join();
  EXPECT_THAT(refusal, HasSubstr("another process on " + host_name() + " has this rank"));
}

TEST_F(Rendezvous, HasATimeoutOfItsOwnWhichIsNeverLongerThanTheCollectives) {
  const auto failure = [&](const GroupOptions& options) { return failure_of([&] { make_process_group(store, 0, 2, options); }); };
  EXPECT_EQ(failure({.rendezvous_timeout = 300ms}), "rank 0 cannot form a group of 2 within 300 ms: rank 1 has not arrived");
  EXPECT_EQ(failure({.timeout = 200ms}), "rank 0 cannot form a group of 2 within 200 ms: rank 1 has not arrived");
}

TEST_F(Rendezvous, NamesTheRankThatHasNotArrivedOnEveryOther) {
  const auto started = std::chrono::steady_clock::now();
  run_threads(2, [&](int rank) {
    const auto timeout = rank == 0 ? kForOthers : 60000ms;  // rank 1 hears of rank 0's end
    const std::string limit = rank == 0 ? "2 s" : "60 s";
    EXPECT_EQ(failure_of([&] { make_process_group(store, rank, 3, {.timeout = timeout}); }),
              "rank " + std::to_string(rank) + " cannot form a group of 3 within " + limit + ": rank 2 has not arrived");
  });
  EXPECT_LT(std::chrono::steady_clock::now() - started, 30s);
}

// On standard error, once that takes long.
TEST_F(Rendezvous, SaysForWhomARankWaits) {
  const GroupOptions options{.device = c10::Device(c10::kCPU), .rendezvous_timeout = 60s, .report_after = 1ms};
  testing::internal::CaptureStderr();
  run_threads(3, [&](int rank) {
    std::this_thread::sleep_for(std::array{900ms, 0ms, 1500ms}[static_cast<size_t>(rank)]);
    expect_sum(connect(rank_at(rank, 3, port), options));
  });
  const std::string said = testing::internal::GetCapturedStderr();
  const std::string at = fmt::format("of 3 at 127.0.0.1:{} has waited for", port);
  EXPECT_THAT(said, ContainsRegex(fmt::format("firkin: rank 1 {} rank 0 for", at)));
  EXPECT_THAT(said, ContainsRegex(fmt::format("firkin: rank 0 {} ranks? (1, )?2 for", at)));
}

TEST_F(Rendezvous, NamesTheMeetingPoint) {
  EXPECT_EQ(failure_of([&] { connect(rank_at(0, 3, port), {.timeout = 300ms}); }),
            "rank 0 cannot form a group of 3 at 127.0.0.1:" + std::to_string(port) + " within 300 ms: ranks 1, 2 have not arrived");
}

TEST_F(Rendezvous, NamesTheRankThatArrivedButDidNotConnect) {
  std::thread rank_1([&] { gather_ranks(store, {.rank = 1, .size = 2}, in(60s)); });
  EXPECT_THAT(failure_of([&] { make_process_group(store, 0, 2, {.timeout = kForOthers}); }),
              StartsWith("rank 0 cannot form a group of 2 within 2 s: rank 1 (" + host_name() + ") arrived but did not connect"));
  rank_1.join();
}

TEST_F(Rendezvous, SaysWhereNobodyListens) {
  EXPECT_THAT(failure_of([&] { connect(rank_at(1, 2, port), {.timeout = 300ms}); }),
              StartsWith(fmt::format("rank 1 cannot meet the others at 127.0.0.1:{}: the store there, on rank 0, ", port)));
}

TEST_F(Rendezvous, SaysThatNothingResolvesTheMeetingPoint) {
  RankInfo info = rank_at(1, 2, 29500);
  info.master_address = "no-such-host.invalid";
  EXPECT_THAT(message_of<InputError>([&] { connect(info, {.rendezvous_timeout = 300ms}); }),
              AllOf(StartsWith("rank 1 cannot meet the others at no-such-host.invalid:29500: "),
                    HasSubstr("expected MASTER_ADDR to be the host of rank 0")));
}

TEST_F(Rendezvous, TakesTimeoutsUpToTheLargestAndNoneBelowAMillisecond) {
  const auto largest = std::chrono::milliseconds::max();
  expect_sum(make_process_group(c10::make_intrusive<c10d::HashStore>(), 0, 1, {.timeout = largest, .rendezvous_timeout = largest}));
  run_threads(2, [&](int rank) { expect_sum(make_process_group(store, rank, 2, {.timeout = largest, .rendezvous_timeout = largest})); });
  for (const std::chrono::milliseconds timeout : {0ms, -1ms, std::chrono::milliseconds::min()}) {
    EXPECT_THROW(make_process_group(store, 0, 1, {.timeout = timeout}), InputError);
    EXPECT_THROW(make_process_group(store, 0, 1, {.rendezvous_timeout = timeout}), InputError);
  }
}

TEST_F(Rendezvous, TakesSeveralInterfacesOfGloo) {
  setenv("GLOO_SOCKET_IFNAME", "lo,lo", 1);
  run_threads(2, [&](int rank) { expect_sum(make_process_group(store, rank, 2, {})); });
  unsetenv("GLOO_SOCKET_IFNAME");
}

TEST_F(Rendezvous, GivesUpOnAMeetingPointThatIsStopped) {
  const LoopbackPort stopped(true);  // the system accepts connections for a process that never reads
  const auto started = std::chrono::steady_clock::now();
  EXPECT_THAT(failure_of([&] { connect(rank_at(1, 2, stopped.number()), {.timeout = 300ms}); }),
              StartsWith("rank 1 cannot meet the others at 127.0.0.1:" + std::to_string(stopped.number()) + ": "));
  EXPECT_LT(std::chrono::steady_clock::now() - started, 30s);
}

}  // namespace
}  // namespace firkin
