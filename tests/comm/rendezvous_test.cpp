// How ranks meet: several groups over one store, and who is to blame when a group cannot be formed.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <thread>

#include "../../src/comm/group_store.h"
#include "../../src/comm/missing_ranks.h"
#include "firkin/base/error.h"
#include "firkin/comm/process_group.h"

#include <torch/torch.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

namespace firkin {
namespace {

using namespace std::chrono_literals;
using testing::StartsWith;

// A socket on loopback at a port that the system chose. Who does not listen there leaves the port free for another.
class LoopbackPort {
 public:
  explicit LoopbackPort(bool listening) : socket_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    EXPECT_EQ(bind(socket_, reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(getsockname(socket_, reinterpret_cast<sockaddr*>(&address), &size), 0);
    port_ = ntohs(address.sin_port);
    if (listening) listen(socket_, SOMAXCONN);
    if (!listening) close(socket_);
    open_ = listening;
  }
  ~LoopbackPort() {
    if (open_) close(socket_);
  }
  LoopbackPort(const LoopbackPort&) = delete;
  LoopbackPort& operator=(const LoopbackPort&) = delete;

  int number() const { return port_; }

 private:
  int socket_;
  int port_ = 0;
  bool open_ = false;
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
  try {
    body();
  } catch (const RuntimeError& error) {
    return error.what();
  }
  return "";
}

void expect_sum(const ProcessGroup& group) {
  at::Tensor values = at::ones({3});
  all_reduce(group, values);
  EXPECT_TRUE(at::equal(values, at::full({3}, group.size)));
}

void expect_both_work(const ProcessGroup& first, const ProcessGroup& second) {
  for (int i = 0; i < 2; ++i) {
    expect_sum(first);
    expect_sum(second);
  }
}

class Rendezvous : public testing::Test {
 protected:
  void SetUp() override { clear(); }
  void TearDown() override { clear(); }

 private:
  static void clear() {
    for (const char* name : {"TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_USE_AGENT_STORE", "RANK", "WORLD_SIZE", "MASTER_PORT",
                             "OMPI_COMM_WORLD_RANK", "SLURM_STEP_NUM_TASKS"}) {
      unsetenv(name);
    }
  }
};

TEST_F(Rendezvous, TakesTheRankFromTheLauncher) {
  setenv("RANK", "0", 1);
  setenv("WORLD_SIZE", "1", 1);
  setenv("MASTER_PORT", std::to_string(LoopbackPort(false).number()).c_str(), 1);
  const ProcessGroup group = connect();
  EXPECT_EQ(group.rank, 0);
  expect_sum(group);
}

TEST_F(Rendezvous, SaysHowToStartAProgramThatNoLauncherStarted) {
  try {
    connect();
    FAIL() << "expected an error";
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(),
                StartsWith("no launcher started this process: RANK and WORLD_SIZE are not set; start it with mpirun or srun"));
  }
}

TEST_F(Rendezvous, TwoGroupsOverOneStoreWorkAtOnce) {
  auto store = c10::make_intrusive<c10d::HashStore>();
  run_threads(3, [&](int rank) {
    const ProcessGroup first = make_process_group(store, rank, 3, {});
    const ProcessGroup second = make_process_group(store, rank, 3, {});
    expect_both_work(first, second);
  });
}

TEST_F(Rendezvous, TwoGroupsOfOneMeetingPointWorkAtOnce) {
  const int port = LoopbackPort(false).number();
  run_threads(2, [&](int rank) {
    const ProcessGroup first = connect(rank_at(rank, 2, port), {});
    const ProcessGroup second = connect(rank_at(rank, 2, port), {});
    expect_both_work(first, second);
    barrier(second);  // rank 0 takes the store away with its groups
  });
}

TEST_F(Rendezvous, ARestartMeetsNothingOfAnEarlierAttempt) {
  setenv("TORCHELASTIC_USE_AGENT_STORE", "True", 1);
  auto store = c10::make_intrusive<c10d::HashStore>();
  run_threads(2, [&](int rank) { expect_sum(make_process_group(store, rank, 2, {})); });
  EXPECT_NE(failure_of([&] { make_process_group(store, 0, 2, {.timeout = 200ms}); }), "");  // the other rank died before
  setenv("TORCHELASTIC_RESTART_COUNT", "1", 1);
  run_threads(2, [&](int rank) { expect_sum(make_process_group(store, rank, 2, {})); });
}

TEST_F(Rendezvous, OverAStoreOfTheirOwnRanksMeetWhoseNodesHaveRestartedUnequallyOften) {
  const auto meet = [](const char* restarts_of_first, const char* restarts_of_second) {
    auto store = c10::make_intrusive<c10d::HashStore>();
    setenv("TORCHELASTIC_RESTART_COUNT", restarts_of_first, 1);
    next_group_store(store, 0)->set("here", "rank 0");
    setenv("TORCHELASTIC_RESTART_COUNT", restarts_of_second, 1);
    return next_group_store(store, 1)->check({"here"});
  };
  EXPECT_TRUE(meet("1", "0"));
  setenv("TORCHELASTIC_USE_AGENT_STORE", "True", 1);
  EXPECT_FALSE(meet("1", "0"));
  EXPECT_TRUE(meet("1", "1"));
}

TEST_F(Rendezvous, NamesTheRankThatHasNotArrivedOnEveryOther) {
  auto store = c10::make_intrusive<c10d::HashStore>();
  run_threads(2, [&](int rank) {
    const auto timeout = rank == 0 ? 500ms : 60000ms;  // rank 1 hears of rank 0's end
    const std::string limit = rank == 0 ? "500 ms" : "60 s";
    EXPECT_EQ(failure_of([&] { make_process_group(store, rank, 3, {.timeout = timeout}); }),
              "rank " + std::to_string(rank) + " cannot form a group of 3 within " + limit + ": rank 2 has not arrived");
  });
}

TEST_F(Rendezvous, NamesTheMeetingPoint) {
  const int port = LoopbackPort(false).number();
  EXPECT_EQ(failure_of([&] { connect(rank_at(0, 3, port), {.timeout = 500ms}); }),
            "rank 0 cannot form a group of 3 at 127.0.0.1:" + std::to_string(port) + " within 500 ms: ranks 1, 2 have not arrived");
}

TEST_F(Rendezvous, NamesTheRankThatArrivedButDidNotConnect) {
  auto store = c10::make_intrusive<c10d::HashStore>();
  c10d::PrefixStore of_group("firkin/0/0", store);
  of_group.set("host/1", "gpu07");
  of_group.add("arrived", 1);
  EXPECT_THAT(failure_of([&] { make_process_group(store, 0, 2, {.timeout = 500ms}); }),
              StartsWith("rank 0 cannot form a group of 2 within 500 ms: rank 1 (gpu07) arrived but did not connect"));
}

TEST_F(Rendezvous, SaysWhereNobodyListens) {
  const int port = LoopbackPort(false).number();
  EXPECT_THAT(failure_of([&] { connect(rank_at(1, 2, port), {.timeout = 1s}); }),
              StartsWith("rank 1 cannot meet the others at 127.0.0.1:" + std::to_string(port) + ": "));
}

TEST_F(Rendezvous, GivesUpOnAMeetingPointThatIsStopped) {
  const LoopbackPort stopped(true);  // the system accepts connections for a process that never reads
  const auto started = std::chrono::steady_clock::now();
  EXPECT_THAT(failure_of([&] { connect(rank_at(1, 2, stopped.number()), {.timeout = 1s}); }),
              StartsWith("rank 1 cannot meet the others at 127.0.0.1:" + std::to_string(stopped.number()) + ": "));
  EXPECT_LT(std::chrono::steady_clock::now() - started, 30s);
}

}  // namespace
}  // namespace firkin
