// Whatever DataParallel does on a device is in order by events, on whatever streams a program works. Found without a GPU: see
// checked_device.h.
#include <ATen/ops/ones.h>
#include <c10/core/DeviceGuard.h>

#include <latch>

#include "../comm/process_ranks.h"
#include "../ddp/device_course.h"
#include "../torch.h"
#include "bench/step_runner.h"
#include "checked_device.h"
#include "firkin/tune/tune.h"
#include "workload/workload.h"

namespace firkin::streams {
namespace {

class Streams : public testing::Test {
 protected:
  void SetUp() override { register_checked_device(); }
};

// On both devices: the same numbers, and no races on the one that looks for them.
void expect_in_order(const Course& course, int ranks = 2) {
  const double tolerance = course.hook.wire_dtype || course.dtype != at::kDouble ? 2e-2 : 1e-12;
  const auto trained = results_of(ranks, [&](const ProcessGroup& group) {
    const Tensors on_cpu = train(course, group, c10::kCPU);
    const c10::DeviceGuard guard(checked_device(group.rank));
    const Tensors on_device = train(course, with_checked_device(group), checked_device(group.rank));
    expect_near(on_device, on_cpu, tolerance);
    return on_device;
  });
  for (const Tensors& rank : trained) EXPECT_TRUE(same_bits(rank, trained[0]));
  EXPECT_THAT(Clocks::all().take_races(), IsEmpty());
}

struct Place {
  const char* name;
  Course course;
  int ranks = 2;
};

const Place kPlaces[] = {
    {"Plain", {}},
    {"OnThreeRanks", {}, 3},
    {"StepsOnAnotherStream", {.on_a_side_stream = true}},
    {"GradientsOnTwoStreams", {.with_two_gradients_streams = true}},
    {"StepsOnAnotherAndGradientsOnTwo", {.on_a_side_stream = true, .with_two_gradients_streams = true}},
    {"GradientsStayInTheBuckets", {.zero_in_place = true, .with_two_gradients_streams = true}},
    {"AStepFails", {.steps = 5, .on_a_side_stream = true, .with_two_gradients_streams = true, .a_step_fails = true}},
    {"TheStepEndsWithACall", {.on_a_side_stream = true, .with_two_gradients_streams = true, .with_joined_end = false}},
    {"Compressed", {.hook = bf16_compression(), .with_two_gradients_streams = true}},
};

class EveryStrategyOnStreams : public Streams, public testing::WithParamInterface<std::tuple<std::string, Place>> {};

TEST_P(EveryStrategyOnStreams, IsInOrder) {
  const auto& [strategy, place] = GetParam();
  Course course = place.course;
  course.strategy = strategy;
  expect_in_order(course, place.ranks);
}

INSTANTIATE_TEST_SUITE_P(Strategies, EveryStrategyOnStreams,
                         Combine(Values("naive", "flat", "overlap", "bucketed", "planned"), ValuesIn(kPlaces)),
                         [](const auto& test) { return std::get<0>(test.param) + std::get<1>(test.param).name; });

TEST_F(Streams, OrderedIsInOrder) {
  expect_in_order({.strategy = "ordered", .steps = 6});
  expect_in_order({.strategy = "ordered", .steps = 6, .on_a_side_stream = true, .with_two_gradients_streams = true});
}

const ShardedOptions kShardedOptions[] = {{}, {.whole_parameters = true}, {.master_weights = true}};

// These ranks are processes.
TEST_F(Streams, TwoRanksOnOneDeviceAreInOrder) {
  std::vector<Course> courses;
  for (const char* strategy : {"naive", "flat", "overlap", "bucketed", "planned", "ordered"}) {
    courses.push_back({.strategy = strategy, .steps = 6, .on_a_side_stream = strategy == std::string("ordered")});
  }
  for (const ShardedOptions& options : kShardedOptions) {
    courses.push_back({.strategy = "sharded", .steps = 6, .on_a_side_stream = true, .clips = true, .sharded = options});
  }
  run_ranks_in_processes(2, {.timeout = std::chrono::seconds(60)}, [&](const ProcessGroup& group) {
    for (const Course& course : courses) {
      SCOPED_TRACE(course.strategy);
      const Tensors on_cpu = train(course, group, c10::kCPU);
      const c10::DeviceGuard guard(checked_device(0));
      const Tensors on_device = train(course, with_checked_device(group, checked_device(0)), checked_device(0));
      expect_near(on_device, on_cpu, 1e-12);
      EXPECT_THAT(Clocks::all().take_races(), IsEmpty());
    }
  });
}

class ShardedOnStreams : public Streams, public testing::WithParamInterface<ShardedOptions> {};

TEST_P(ShardedOnStreams, IsInOrder) {
  const at::ScalarType dtype = GetParam().master_weights ? at::kBFloat16 : at::kDouble;
  const Course course{.strategy = "sharded", .steps = 6, .sharded = GetParam(), .dtype = dtype};
  Course on_streams = course;
  on_streams.on_a_side_stream = on_streams.with_two_gradients_streams = on_streams.clips = true;
  Course failing = on_streams;
  failing.a_step_fails = true;
  expect_in_order(course);
  expect_in_order(on_streams);
  expect_in_order(failing);
  expect_in_order(on_streams, 3);
}

INSTANTIATE_TEST_SUITE_P(Options, ShardedOnStreams, ValuesIn(kShardedOptions), [](const auto& test) {
  return test.param.whole_parameters ? "Whole" : test.param.master_weights ? "Masters" : "Even";
});

// Runs `body` on ranks that have a device each. options: doubles there.
using Body = std::function<void(const ProcessGroup& group, const at::TensorOptions& options)>;
void on_devices(int ranks, const Body& body) {
  run_ranks(ranks, [&](const ProcessGroup& cpu_group) {
    const c10::Device device = checked_device(cpu_group.rank);
    const c10::DeviceGuard guard(device);
    body(with_checked_device(cpu_group), at::TensorOptions(device).dtype(at::kDouble));
  });
}

// The same on one rank over a modelled link, which `waits` times; no race must be left.
void on_linked_device(const ModelledLink& link, const std::function<void(const ProcessGroup& group, const CheckedTimer& waits)>& body) {
  run_ranks(1, [&](const ProcessGroup& cpu_group) {
    const c10::Device device = checked_device(0);
    const c10::DeviceGuard guard(device);
    auto timer = std::make_unique<CheckedTimer>(device);
    const CheckedTimer& waits = *timer;
    body(with_linked_device(cpu_group, device, link, std::move(timer)), waits);
  });
  EXPECT_THAT(Clocks::all().take_races(), IsEmpty());
}

// What the CPU waits for from now on counts, on all ranks.
void forget_host_waits(const ProcessGroup& group) {
  barrier(group);
  Clocks::all().take_host_waits();
  barrier(group);
}

// A link of 1 ms, and 1 ms for 125 bytes, for one rank of two.
const ModelledLink kLink{.world = 2, .bits_per_s = 1e6 * 1514 / 1448, .latency_s = 0.5e-3};

TEST_F(Streams, AModelledLinkCountsFromWhenACollectiveWasJoinedAndFromTheEndOfTheOneBefore) {
  on_linked_device(kLink, [](const ProcessGroup& group, const CheckedTimer& timer) {
    Tensors buckets;
    for (const int64_t bytes : {1250, 125, 12500}) buckets.push_back(at::ones({bytes}, at::TensorOptions(at::kByte).device(group.device)));
    std::vector<Work> works;
    for (const at::Tensor& bucket : buckets) works.push_back(start_all_reduce(group, bucket));
    for (const Work& work : works) wait(group, work, "an all-reduce");
    ASSERT_EQ(timer.count(), 6);  // joined and ended, of each
    int64_t last_end = 0;
    for (int64_t i = 0; i < 3; ++i) {
      const auto [alone_s, gap_s] = all_reduce_time(kLink, static_cast<int64_t>(buckets[static_cast<size_t>(i)].nbytes()));
      const int64_t alone = timer.ns(2 * i) + std::llround(alone_s * 1e9);
      const int64_t end = i == 0 ? alone : std::max<int64_t>(alone, last_end + std::llround(gap_s * 1e9));
      EXPECT_EQ(timer.ns(2 * i + 1), end) << "collective " << i;
      last_end = end;
    }
    for (const at::Tensor& bucket : buckets) EXPECT_TRUE(at::equal(bucket.to(at::kCPU), at::ones({bucket.numel()}, at::kByte)));
  });
}

// On the CPU over the real link of one rank, which sends nothing; on the device as one of two.
TEST_F(Streams, OneRankOverAModelledLinkTrainsAsAlone) {
  for (const char* strategy : {"naive", "flat", "overlap", "bucketed", "planned", "ordered", "sharded"}) {
    SCOPED_TRACE(strategy);
    const Course course{.strategy = strategy, .steps = 6, .on_a_side_stream = true};
    Tensors on_cpu;
    run_ranks(1, [&](const ProcessGroup& group) { on_cpu = train(course, group, c10::kCPU); });
    on_linked_device(kLink, [&](const ProcessGroup& linked, const CheckedTimer& waits) {
      const Tensors on_device = train(course, linked, linked.device);
      expect_near(on_device, on_cpu, 1e-12);
      EXPECT_GE(waits.count(), 2 * course.steps);
    });
  }
}

// One rank after another would hide nothing here: what is counted is of all ranks.
TEST_F(Streams, NothingInASteadyStepWaitsForTheDevice) {
  for (const char* strategy : {"naive", "flat", "overlap", "bucketed", "planned", "sharded"}) {
    on_devices(2, [&](const ProcessGroup& group, const at::TensorOptions& options) {
      LayeredNet net(options);
      Training training(*net, group, options_of({.strategy = strategy}, *net));
      const at::Tensor batch = batch_of(0, group.rank, options);
      for (int step = 0; step < 5; ++step) {
        if (step == 3) forget_host_waits(group);
        training.zero_grad();
        net->forward(batch).pow(2).mean().backward();
        training.step();
      }
      barrier(group);
      if (group.rank == 0) {
        EXPECT_THAT(Clocks::all().take_host_waits(), IsEmpty()) << strategy;
      }
    });
  }
}

TEST_F(Streams, AnAuditFindsWhatDiffersAndWaitsOnce) {
  const auto negate_one = [](at::Tensor weight) { weight[6][3].mul_(-1); };
  const auto swap = [](at::Tensor weight) { weight.copy_(weight.flip(0)); };
  const auto zero = [](at::Tensor weight) { weight.zero_(); };
  for (const std::function<void(at::Tensor)>& damage : {std::function<void(at::Tensor)>(negate_one), {swap}, {zero}}) {
    for (const at::ScalarType dtype : {at::kDouble, at::kBFloat16}) {
      on_devices(2, [&](const ProcessGroup& group, const at::TensorOptions& options) {
        LayeredNet net(options.dtype(dtype));
        DataParallel ddp(*net, group);
        forget_host_waits(group);
        ddp.audit();
        barrier(group);
        if (group.rank == 0) {
          EXPECT_THAT(Clocks::all().take_host_waits(), SizeIs(2));  // one of each rank
        }
        const at::NoGradGuard no_grad;
        if (group.rank == 1) damage(net->layers[2]->weight.detach());
        EXPECT_THAT(message_of<AuditError>([&] { ddp.audit(); }), HasSubstr("third.weight differs between rank 0 and"));
      });
    }
  }
}

// All phases; the times are the CPU's, on which the operations run. But for all-reduces, the audit before the first step, and where ordered
// chooses a launch order, nothing waits for the device.
TEST_F(Streams, AutomaticBucketsAreInOrderAndTimedByEvents) {
  for (const char* strategy : {"bucketed", "ordered"}) {
    SCOPED_TRACE(strategy);
    std::vector<std::string> log;
    std::vector<Tensors> parameters(2);
    on_devices(2, [&](const ProcessGroup& group, const at::TensorOptions& options) {
      LayeredNet net(options);
      DataParallelOptions settings = with_strategy(strategy, 1);
      settings.buckets = automatic({.budget_s = 0.2, .profile_steps = 3, .trial_pairs = 6, .trial_steps = 2});
      settings.buckets->log = [&log](const std::string& line) { log.push_back(line); };
      Training training(*net, group, settings);
      DataParallel& ddp = training.ddp;
      for (int step = 0; step < 100 && ddp.stats().automatic != AutomaticPhase::kSettled; ++step) {
        const auto phase = ddp.stats().automatic;
        forget_host_waits(group);
        training.zero_grad();
        net->forward(batch_of(step, group.rank, options)).pow(2).mean().backward();
        training.step();
        barrier(group);
        const bool goes_on = phase == ddp.stats().automatic && phase != AutomaticPhase::kMeasuring;
        if (step > 0 && goes_on && group.rank == 0 && strategy == std::string("bucketed")) {
          EXPECT_THAT(Clocks::all().take_host_waits(), IsEmpty()) << "in step " << step;
        }
      }
      EXPECT_EQ(ddp.stats().automatic, AutomaticPhase::kSettled);
      ddp.drain();
      parameters[static_cast<size_t>(group.rank)] = copies(net->parameters());
    });
    EXPECT_THAT(log, Not(IsEmpty()));
    EXPECT_TRUE(same_bits(parameters[0], parameters[1]));
    EXPECT_THAT(Clocks::all().take_races(), IsEmpty());
  }
}

// Layers of two tensors, whose gradients are ready every 2 ms.
TEST_F(Streams, AReplayWaitsOnTheStreamThatComputes) {
  const TensorProfile layers{.names = {"b.weight", "b.bias", "a.weight", "a.bias"},
                             .bytes = {800, 40, 800, 40},
                             .ready_s = {2e-3, 4e-3, 6e-3, 8e-3},
                             .backward_s = 8e-3,
                             .needed_s = {1e-3, 1e-3, 0, 0},
                             .forward_s = 2e-3};
  for (const char* strategy : {"bucketed", "ordered", "sharded"}) {
    on_linked_device(kLink, [&](const ProcessGroup& group, const CheckedTimer& /*waits*/) {
      const auto timer = std::make_shared<CheckedTimer>(group.device);
      Workload workload = make_replay_workload(layers, group.device, timer);
      StepRunner runner(group, workload, options_of({.strategy = strategy}, *workload.module));
      for (int step = 0; step < 4; ++step) {
        const int64_t first = timer->count();
        runner.step(step);
        // Forward begins; both modules are waited for, await, and then its end; backward begins; four gradients.
        ASSERT_EQ(timer->count(), first + 1 + 2 * 2 + 1 + 1 + 4);
        const int64_t backward = first + 6;
        for (int64_t i = 0; i < 4; ++i) EXPECT_EQ(timer->ns(backward + 1 + i) - timer->ns(backward), 2'000'000 * (i + 1));
      }
      runner.drain();
    });
  }
}

// Four layers over a link that takes 10 s for each: the first layer's gradients are ready last and needed first. What backward and the link
// take passes on the device alone, and the CPU queues it in milliseconds.
TEST_F(Streams, OrderedChoosesItsLaunchOrderByTheTimesOfTheDevice) {
  const TensorProfile layers{.names = {"fourth.weight", "third.weight", "second.weight", "first.weight"},
                             .bytes = {4000, 4000, 4000, 4000},
                             .ready_s = {1, 2, 3, 4},
                             .backward_s = 4,
                             .needed_s = {3, 2, 1, 0},
                             .forward_s = 4};
  const ModelledLink slow{.world = 2, .bits_per_s = 3200.0 * 1514 / 1448, .latency_s = 0};
  const auto chooses = [](int step) { return step == 2 || step == 4 || step == 8 || step == 16; };
  on_linked_device(slow, [&](const ProcessGroup& group, const CheckedTimer& /*waits*/) {
    const Workload workload = make_replay_workload(layers, group.device, std::make_shared<CheckedTimer>(group.device));
    DataParallel ddp(*workload.module, group, with_strategy("ordered", 1));
    OverlappedOptimizer optimizer(ddp, *workload.optimizer);
    for (int step = 0; step < 24; ++step) {
      Clocks::all().take_host_waits();
      const int64_t events = timing_events();
      workload.loss(step).backward();
      optimizer.step();
      const bool is_timed = timing_events() > events;
      EXPECT_EQ(is_timed, step <= 16) << "in step " << step;  // 16 to 23 are forgotten when the next choice is due, after 32
      const bool waited = !Clocks::all().take_host_waits().empty();
      if (step > 0) {
        EXPECT_EQ(waited, chooses(step)) << "in step " << step;
      }
      if (step > 2) {
        EXPECT_THAT(ddp.plan().launch_order, ElementsAre(0, 3, 2, 1)) << "in step " << step;
      }
    }
  });
}

TEST_F(Streams, AStepFunctionIsProfiledByEvents) {
  std::vector<std::vector<std::string>> order(2);
  run_ranks(1, [&](const ProcessGroup& cpu_group) {
    for (const c10::Device device : {c10::Device(c10::kCPU), checked_device(0)}) {
      const c10::DeviceGuard guard(device);
      const ProcessGroup group = device.is_cpu() ? cpu_group : with_checked_device(cpu_group, device);
      const at::TensorOptions options = at::TensorOptions(device).dtype(at::kDouble);
      LayeredNet net(options);
      torch::optim::SGD optimizer(net->parameters(), 0.1);
      const at::Tensor batch = batch_of(0, 0, options);
      const ModuleProfile measured = profile(
          *net, [&] { plain_step(net, optimizer, batch); }, group, 4);
      order[device.is_cpu() ? 0 : 1] = measured.tensors.names;
      EXPECT_GT(measured.bare_backward_s, 0);
      EXPECT_GT(measured.tensors.ready_s[0], 0);
      EXPECT_LE(measured.tensors.ready_s.back(), measured.tensors.backward_s);
      EXPECT_THROW(profile(
                       *net, [] {}, group, 4),
                   InputError);
    }
  });
  EXPECT_EQ(order[0].size(), 6U);
  EXPECT_EQ(order[1], order[0]);
  EXPECT_THAT(Clocks::all().take_races(), IsEmpty());
}

TEST_F(Streams, CrossedWaitsAreToldAfterAnAudit) {
  std::latch done(2);
  on_devices(2, [&](const ProcessGroup& group, const at::TensorOptions& /*options*/) {
    expect_crossed_waits_to_be_told(group, [&] { done.arrive_and_wait(); });
  });
}

TEST_F(Streams, AModuleOnADeviceThatTheGroupDoesNotCarryIsBadInput) {
  run_ranks(1, [](const ProcessGroup& group) {
    LayeredNet net{at::TensorOptions(checked_device(0))};
    EXPECT_THAT([&] { DataParallel ddp(*net, group); }, ThrowsMessage<InputError>(AllOf(HasSubstr("checked:0"), HasSubstr("no backend"))));
  });
}

}  // namespace
}  // namespace firkin::streams
