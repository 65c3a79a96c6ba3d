// Groups over a modelled link: the sums are real, and nothing is there before its time.
#include <sys/resource.h>

#include <atomic>
#include <latch>

#include "../base/temporary_folder.h"
#include "../torch.h"
#include "comm/backends.h"
#include "firkin/comm/modelled_link.h"
#include "thread_ranks.h"

namespace firkin {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

// 1 Mbit/s of payload: 125 bytes take a millisecond.
ModelledLink slow_link(int64_t world, double latency_s = 0) {
  return {.world = world, .bits_per_s = 1e6 * 1514 / 1448, .latency_s = latency_s};
}

at::Tensor bytes(int64_t count) {
  return at::ones({count}, at::kByte);
}

// Ranks as threads, over `link`: nobody goes while another still wants something.
void run_linked(int size, const ModelledLink& link, const std::function<void(const ProcessGroup&)>& body) {
  std::latch done(size);
  run_ranks_with(size, {.timeout = 60s, .link = link}, [&](const ProcessGroup& group) {
    body(group);
    done.arrive_and_wait();
  });
}

double seconds_of_all_reduce(const ProcessGroup& group, int64_t count) {
  const auto started = Clock::now();
  all_reduce(group, bytes(count));
  return std::chrono::duration<double>(Clock::now() - started).count();
}

TEST(LinkedGroup, AllReduceSumsAndTakesTheLinksTime) {
  run_linked(2, slow_link(2), [](const ProcessGroup& group) {
    at::Tensor values = at::arange(3125, at::kFloat) + group.rank;
    const auto started = Clock::now();
    all_reduce(group, values);
    EXPECT_GE(Clock::now() - started, 100ms);
    EXPECT_TRUE(at::equal(values, 2 * at::arange(3125, at::kFloat) + 1));
    EXPECT_EQ(group.link, "1.046 Mbit/s, 0 s, 2 ranks");
  });
}

TEST(LinkedGroup, BroadcastPaysAndABarrierDoesNot) {
  run_linked(2, slow_link(2, 1e-3), [](const ProcessGroup& group) {
    at::Tensor values = at::full({25'000}, group.rank, at::kByte);
    const auto started = Clock::now();
    broadcast(group, {values}, 1);
    EXPECT_GE(Clock::now() - started, 201ms);
    EXPECT_TRUE(at::equal(values, at::ones({25'000}, at::kByte)));
  });
  run_linked(2, slow_link(2, 30), [](const ProcessGroup& group) {
    const auto started = Clock::now();
    barrier(group);
    EXPECT_LT(Clock::now() - started, 30s);
  });
}

TEST(LinkedGroup, AnAllToAllAndAnAllGatherPayHalfAnAllReduce) {
  run_linked(2, slow_link(2), [](const ProcessGroup& group) {
    at::Tensor values = at::full({25'000}, group.rank, at::kByte);
    at::Tensor received = at::empty_like(values);
    auto started = Clock::now();
    wait(group, start_all_to_all(group, received, values), "an all-to-all");
    EXPECT_GE(Clock::now() - started, 100ms);
    EXPECT_EQ(received.sum().item<int64_t>(), 12'500);
    started = Clock::now();
    wait(group, start_all_gather(group, received, values.narrow(0, 0, 12'500)), "an all-gather");
    EXPECT_GE(Clock::now() - started, 100ms);
    EXPECT_EQ(received.sum().item<int64_t>(), 12'500);
  });
}

TEST(LinkedGroup, OneRankOfManyPaysForAll) {
  run_linked(1, slow_link(2048), [](const ProcessGroup& group) {
    EXPECT_GE(seconds_of_all_reduce(group, 12'500), 0.199);
    EXPECT_THAT(all_gather(group, {7.0}), ElementsAre(ElementsAre(7.0)));
  });
}

TEST(LinkedGroup, CollectivesWaitForTheLinkInTheirOrder) {
  run_linked(2, slow_link(2), [](const ProcessGroup& group) {
    std::vector<at::Tensor> tensors{bytes(12'500), bytes(10), bytes(6'250)};
    std::vector<Clock::time_point> ends(3);
    std::vector<Work> under_way;
    const auto started = Clock::now();
    for (size_t i = 0; i < 3; ++i) {
      under_way.push_back(start_all_reduce(group, tensors[i]));
      under_way[i]->getFuture()->addCallback([&ends, i](c10::ivalue::Future&) { ends[i] = Clock::now(); }, false);
    }
    for (size_t i = 3; i-- > 0;) wait(group, under_way[i], "an all-reduce");  // the last first: nothing depends on who waits
    EXPECT_GE(ends[0] - started, 100ms);
    EXPECT_GE(ends[1], ends[0]);
    EXPECT_GE(ends[2] - started, 150ms);
    for (const at::Tensor& tensor : tensors) EXPECT_TRUE(tensor.eq(2).all().item<bool>());
  });
}

TEST(LinkedGroup, TheLinkStartsWhenTheLastRankHasCome) {
  std::atomic<Clock::rep> last{0};
  run_linked(2, slow_link(2), [&](const ProcessGroup& group) {
    if (group.rank == 1) {
      std::this_thread::sleep_for(150ms);
      last = Clock::now().time_since_epoch().count();
    }
    all_reduce(group, bytes(12'500));
    EXPECT_GE(Clock::now().time_since_epoch() - Clock::duration(last.load()), 100ms);
  });
}

TEST(LinkedGroup, AWorkIsIncompleteUntilItsTimeAndCanBeWaitedForTwice) {
  run_linked(2, slow_link(2), [](const ProcessGroup& group) {
    at::Tensor tensor = bytes(25'000);
    const auto started = Clock::now();
    const Work work = start_all_reduce(group, tensor);
    while (!work->isCompleted()) std::this_thread::sleep_for(1ms);
    EXPECT_GE(Clock::now() - started, 200ms);
    EXPECT_TRUE(work->isSuccess());
    wait(group, work, "an all-reduce");
    wait(group, work, "an all-reduce");
    EXPECT_TRUE(work->getFuture()->completed());
    EXPECT_TRUE(work->getFuture()->value().isTensorList());  // as c10d's Reducer expects
    EXPECT_TRUE(work->result().at(0).is_same(tensor));
  });
}

TEST(LinkedGroup, WaitingUsesNoProcessor) {
  const auto used = [] {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    return static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           1e-6 * static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
  };
  run_linked(2, slow_link(2), [&](const ProcessGroup& group) {
    barrier(group);
    const double before = used();
    const double waited = seconds_of_all_reduce(group, 50'000);
    EXPECT_GE(waited, 0.4);
    EXPECT_LT(used() - before, waited / 2);  // of both ranks, each of which has waited as long
  });
}

TEST(LinkedGroup, ARankThatDoesNotComeIsNamedLongBeforeTheLinksTime) {
  std::vector<std::string> losses;
  const auto started = Clock::now();
  run_linked(2, slow_link(2, 1000), [&](ProcessGroup group) {
    group.timeout = 500ms;
    if (group.rank == 1) return;
    const Work first = start_all_reduce(group, bytes(4));
    const Work second = start_all_reduce(group, bytes(4));
    losses = {loss_of([&] { wait(group, first, "bucket 3 of step 17"); }), loss_of([&] { wait(group, second, "bucket 3 of step 17"); })};
    EXPECT_TRUE(first->getFuture()->hasError());
  });
  EXPECT_LT(Clock::now() - started, 60s);
  EXPECT_THAT(losses[0], AllOf(HasSubstr("rank 1 ("), HasSubstr("did not reach bucket 3 of step 17 [Gloo: ")));
  EXPECT_EQ(losses[1], losses[0]);
}

TEST(LinkedGroup, ARankThatGivesUpIsHeardOfWhileTheLinkIsBusy) {
  const auto started = Clock::now();
  run_linked(2, slow_link(2, 1000), [](const ProcessGroup& group) {
    const Work work = start_all_reduce(group, bytes(4));
    if (group.rank == 1) {
      EXPECT_THROW(give_up(group, "out of memory"), GroupError);
      return;
    }
    EXPECT_THROW(wait(group, work, "bucket 3"), GroupError);
  });
  EXPECT_LT(Clock::now() - started, 30s);  // the group has 60
}

TEST(LinkedGroup, EndsWhatIsUnderWayBeforeItGoes) {
  run_ranks(2, [](const ProcessGroup& made) {
    std::atomic<int> ended = 0;
    {
      const ProcessGroup group = make_process_group(made.store, made.rank, made.size, {.timeout = 60s, .link = slow_link(2)});
      barrier(group);
      for (int i = 0; i < 3; ++i) {
        start_all_reduce(group, bytes(1250))->getFuture()->addCallback([&](c10::ivalue::Future&) { ++ended; }, false);
      }
    }
    EXPECT_EQ(ended, 3);
  });
}

TEST(LinkedGroup, RefusesALinkForFewerRanksThanThereAre) {
  EXPECT_THROW(make_process_group(c10::make_intrusive<c10d::HashStore>(), 0, 2, {.link = slow_link(1)}), InputError);
}

// A backend whose all-reduces end when a test says so.
struct HandBackend final : c10d::Backend {
  HandBackend() : c10d::Backend(0, 1) {}
  const std::string getBackendName() const override { return "hand"; }  // NOLINT(readability-const-return-type)
  Work allreduce(std::vector<at::Tensor>& tensors, const c10d::AllreduceOptions& /*options*/) override {
    return calls.emplace_back(c10::make_intrusive<OwnWork>(0, c10d::OpType::ALLREDUCE, nullptr, tensors));
  }
  std::vector<c10::intrusive_ptr<OwnWork>> calls;
};

TEST(LinkedBackend, AFailureDoesNotWaitForThoseBeforeIt) {
  const auto inner = c10::make_intrusive<HandBackend>();
  const auto linked = make_linked_backend(inner, slow_link(2));
  std::vector<at::Tensor> tensors{bytes(1)};
  const Work first = linked->allreduce(tensors, {});
  const Work second = linked->allreduce(tensors, {});
  ASSERT_EQ(inner->calls.size(), 4u);  // each is two: the data, and the arrival of all ranks
  inner->calls[2]->complete(std::make_exception_ptr(RuntimeError("broken")));
  inner->calls[3]->complete(std::make_exception_ptr(RuntimeError("broken again")));
  EXPECT_EQ(message_of<RuntimeError>([&] { second->wait(); }), "broken");
  EXPECT_FALSE(first->isCompleted());
  inner->calls[0]->complete(nullptr);
  inner->calls[1]->complete(nullptr);
  EXPECT_TRUE(first->wait());
}

constexpr double kPayloadOfGbit = 1e9 / 8 * 1448 / 1514;  // bytes per second

std::string refusal_of(const std::string& text, int64_t world = 2) {
  return message_of<InputError>([&] { parse_link(text, world); });
}

class LinkTable : public testing::Test {
 protected:
  LinkTable() {
    folder_.write("link.csv",
                  "bytes,world_size,median_s,gap_s\n1000,2048,0.001,0.0005\n3000,2048,0.002,0.001\n1000,2,0.0001,\n3000,2,0.0002,\n");
  }
  const TemporaryFolder folder_;
  const std::string file_ = folder_.path / "link.csv";
};

TEST(ParseLink, TakesARateAndALatency) {
  const ModelledLink link = parse_link("200mbit,1ms", 4);
  EXPECT_EQ(link.bits_per_s, 200e6);
  EXPECT_EQ(link.latency_s, 1e-3);
  EXPECT_EQ(link.world, 4);
  EXPECT_EQ(describe(link), "200 Mbit/s, 1 ms, 4 ranks");
}

TEST(ParseLink, HasALatencyOfItsOwn) {
  EXPECT_EQ(parse_link("1gbit", 2).latency_s, kDefaultLinkLatency);
  EXPECT_EQ(parse_link("2.5gbit,0us", 2).latency_s, 0);
}

TEST(ParseLink, TakesTheMultiprocessorsThatACollectiveHolds) {
  const ModelledLink link = parse_link("200mbit,1ms,sms=16", 4);
  EXPECT_EQ(link.sms, 16);
  EXPECT_EQ(link.latency_s, 1e-3);
  EXPECT_EQ(describe(link), "200 Mbit/s, 1 ms, 4 ranks, 16 SMs");
  EXPECT_EQ(describe(parse_link("1gbit,sms=1", 2)), "1 Gbit/s, 50 us, 2 ranks, 1 SM");
  EXPECT_EQ(parse_link("1gbit", 2).sms, 0);
  for (const char* text : {"1gbit,sms=", "1gbit,sms=0", "1gbit,sms=-1", "1gbit,sms=1.5", "1gbit,sms=2,1ms", "1gbit,sms=99999999999"}) {
    EXPECT_EQ(refusal_of(text), std::string("--link ") + text + ": expected a number of multiprocessors, such as sms=16");
  }
}

TEST(ParseLink, RefusesWhatIsNoLinkAndSaysWhatOneIs) {
  const std::string expected = ": expected RATE[,LATENCY] such as 1gbit or 200mbit,1ms, or an allreduce.csv";
  for (const char* text : {"1gbti", "1gbit,", "gbit", "1", "", "1gbit,1", "1gbit,1ms,1", "-1gbit", "1gbit,-1ms", "nangbit", "1 gbit"}) {
    EXPECT_EQ(refusal_of(text), std::string("--link ") + text + expected);
  }
  EXPECT_EQ(refusal_of("0gbit"), "--link 0gbit: expected a rate from 1kbit to 1000tbit");
  EXPECT_EQ(refusal_of("1gbit,61s"), "--link 1gbit,61s: expected a latency of at most 60s");
  EXPECT_EQ(refusal_of("1gbit", 0), "--link 1gbit: timed for 0 ranks; expected at least 1");
}

TEST(LinkTime, OfAnAllReduceIsThatOfARing) {
  const LinkTime of_two = all_reduce_time(parse_link("1gbit,1ms", 2), 10'000'000);
  EXPECT_NEAR(of_two.alone_s, 10e6 / kPayloadOfGbit + 2e-3, 1e-9);
  EXPECT_NEAR(of_two.gap_s, 10e6 / kPayloadOfGbit, 1e-9);
  EXPECT_NEAR(all_reduce_time(parse_link("1gbit,0us", 2048), 10'000'000).alone_s, 2 * 2047.0 / 2048 * 10e6 / kPayloadOfGbit, 1e-9);
  const LinkTime of_few_bytes = all_reduce_time(parse_link("1gbit,1ms", 5), 8);
  EXPECT_NEAR(of_few_bytes.alone_s, 8e-3, 1e-6);
  EXPECT_NEAR(of_few_bytes.gap_s, 4e-3, 1e-6);  // two at a time hide half
}

TEST(LinkTime, OfABroadcastIsThatOfATree) {
  EXPECT_NEAR(broadcast_time(parse_link("1gbit,1ms", 2), 1'000'000).alone_s, 1e6 / kPayloadOfGbit + 1e-3, 1e-9);
  EXPECT_NEAR(broadcast_time(parse_link("1gbit,1ms", 5), 1'000'000).alone_s, 3 * (1e6 / kPayloadOfGbit + 1e-3), 1e-9);
}

TEST(LinkTime, OfOneRankIsNothing) {
  for (const auto& time : {all_reduce_time, broadcast_time, share_time}) EXPECT_EQ(time(parse_link("1gbit", 1), 1000).alone_s, 0);
}

TEST_F(LinkTable, AShareIsHalfAnAllReduce) {
  for (const ModelledLink& link : {parse_link("1gbit,1ms", 5), parse_link(file_, 2048)}) {
    EXPECT_DOUBLE_EQ(share_time(link, 3000).alone_s, all_reduce_time(link, 3000).alone_s / 2);
    EXPECT_DOUBLE_EQ(share_time(link, 3000).gap_s, all_reduce_time(link, 3000).gap_s / 2);
  }
}

TEST_F(LinkTable, GivesTimesAndGapsAtItsWorldSize) {
  const ModelledLink link = parse_link(file_, 2048);
  EXPECT_DOUBLE_EQ(all_reduce_time(link, 1000).alone_s, 0.001);
  EXPECT_DOUBLE_EQ(all_reduce_time(link, 1000).gap_s, 0.0005);
  EXPECT_DOUBLE_EQ(all_reduce_time(link, 5000).alone_s, 0.003);
  EXPECT_DOUBLE_EQ(broadcast_time(link, 3000).alone_s, 0.002);
  EXPECT_EQ(describe(link), file_ + ", 2048 ranks");
  EXPECT_EQ(describe(parse_link(file_ + ",sms=2", 2048)), file_ + ", 2048 ranks, 2 SMs");
}

TEST_F(LinkTable, WithoutGapsIsAsSlowWhenItIsBusy) {
  EXPECT_DOUBLE_EQ(all_reduce_time(parse_link(file_, 2), 3000).gap_s, 0.0002);
}

TEST_F(LinkTable, WithoutTheWorldSizeIsRefusedWithThoseThatItHas) {
  EXPECT_THAT(refusal_of(file_, 16), AllOf(HasSubstr("world size 16"), HasSubstr("2, 2048"), HasSubstr(file_)));
  EXPECT_THAT(refusal_of("no_such_file.csv"), HasSubstr("no_such_file.csv"));
}

}  // namespace
}  // namespace firkin
