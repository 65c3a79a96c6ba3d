// Whatever DataParallel does on a device is in order by events, on whatever streams a program works. Found without a GPU: see clocks.h.
#include <ATen/ops/allclose.h>
#include <ATen/ops/ones.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "../comm/process_ranks.h"
#include "../comm/thread_ranks.h"
#include "../ddp/layered_net.h"
#include "../ddp/tensors.h"
#include "../ddp/throw_in_backward.h"
#include "checked_backend.h"
#include "checked_device.h"
#include "firkin/base/error.h"
#include "firkin/ddp/data_parallel.h"
#include "firkin/ddp/module_parameters.h"
#include "firkin/ddp/overlapped_optimizer.h"

#include <torch/csrc/autograd/variable.h>
#include <torch/torch.h>

namespace firkin::streams {
namespace {

using testing::IsEmpty;
using testing::Not;
using testing::SizeIs;

// What is left of earlier tests is forgotten.
class Streams : public testing::Test {
 protected:
  void SetUp() override {
    register_checked_device();
    Clocks::all().take_races();
    Clocks::all().take_host_waits();
  }
};

// How a rank trains.
struct Course {
  std::string strategy = "bucketed";
  GradientHook hook = plain_all_reduce();
  int steps = 4;
  bool zero_in_place = false;               // zero_grad() leaves the gradients where they are: in the buckets
  bool on_a_side_stream = false;            // steps run on another stream than the one on which DataParallel was made
  bool with_two_gradients_streams = false;  // gradients of every other parameter are accumulated on a stream of their own
  bool a_step_fails = false;
  bool with_joined_end = true;  // finish_with_backward
  bool overlapped = false;
};

DataParallelOptions options_of(const Course& course, const torch::nn::Module& module) {
  DataParallelOptions options;
  options.strategy = find_strategy(course.strategy);
  options.cap.cap_bytes = 600;
  options.gradient_hook = course.hook;
  options.finish_with_backward = course.with_joined_end;
  if (course.strategy == "planned") {
    const auto tensors = static_cast<int64_t>(trainable_parameters(module).size());
    options.plan = BucketPlan{{{0, 2}, {2, tensors - 2}}, {}};
  }
  return options;
}

// Returns the parameters, on the CPU.
Tensors train(const Course& course, const ProcessGroup& group, c10::Device device) {
  const at::TensorOptions options = at::TensorOptions(device).dtype(at::kDouble);
  LayeredNet net(options);
  std::vector<decltype(torch::autograd::impl::grad_accumulator({}))>
      accumulators;  // a node belongs to the stream on which it was made first
  if (course.with_two_gradients_streams && !device.is_cpu()) {
    const c10::Stream other = new_stream(device);
    wait_for(other, current_stream_of(device));
    const c10::StreamGuard guard(other);
    for (size_t i = 0; i < net->parameters().size(); i += 2) {
      accumulators.push_back(torch::autograd::impl::grad_accumulator(net->parameters()[i]));
    }
  }
  DataParallel ddp(*net, group, options_of(course, *net));
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  OverlappedOptimizer overlapped(ddp, optimizer);
  std::optional<c10::StreamGuard> side;
  if (course.on_a_side_stream && !device.is_cpu()) {
    const c10::Stream stream = new_stream(device);
    wait_for(stream, current_stream_of(device));
    side.emplace(stream);
  }
  for (int step = 0; step < course.steps; ++step) {
    const bool fails = course.a_step_fails && step == 2;
    optimizer.zero_grad(/*set_to_none=*/!course.zero_in_place);
    try {
      const auto throws = [](const at::Tensor& x) { return ThrowInBackward::apply(x, "on purpose"); };
      const at::Tensor batch = batch_of(step, group.rank, options);
      const at::Tensor out = fails && group.rank == 1 ? net->forward(batch, throws) : net->forward(batch);
      out.pow(2).mean().backward();
      ddp.finish_gradient_synchronization();
      if (course.overlapped) {
        overlapped.step();
      } else {
        optimizer.step();
      }
    } catch (const StepError&) {
      EXPECT_TRUE(fails);
    } catch (const OnPurpose&) {
      EXPECT_TRUE(fails);
    }
  }
  overlapped.drain();
  if (side) wait_for(side->original_stream(), side->current_stream());  // the parameters' memory is that one's
  Tensors parameters;
  for (const at::Tensor& parameter : net->parameters()) parameters.push_back(parameter.detach().to(at::kCPU));
  return parameters;
}

// On both devices: the same numbers, and no races on the one that looks for them.
void expect_in_order(const Course& course, int ranks = 2) {
  std::vector<Tensors> on_device(static_cast<size_t>(ranks));
  std::vector<Tensors> on_cpu(static_cast<size_t>(ranks));
  run_ranks(ranks, [&](const ProcessGroup& group) {
    on_cpu[static_cast<size_t>(group.rank)] = train(course, group, c10::kCPU);
    const c10::DeviceGuard guard(checked_device(group.rank));
    on_device[static_cast<size_t>(group.rank)] = train(course, with_checked_device(group), checked_device(group.rank));
  });
  const double tolerance = course.hook.wire_dtype ? 2e-2 : 1e-12;
  for (size_t rank = 0; rank < on_device.size(); ++rank) {
    EXPECT_TRUE(same_bits(on_device[rank], on_device[0])) << "rank " << rank;
    for (size_t i = 0; i < on_device[rank].size(); ++i) {
      EXPECT_TRUE(at::allclose(on_device[rank][i], on_cpu[rank][i], tolerance, tolerance)) << "rank " << rank << ", parameter " << i;
    }
  }
  EXPECT_THAT(Clocks::all().take_races(), IsEmpty());
}

// Two ranks on one device, which are processes.
void expect_in_order_on_one_device(const Course& course) {
  run_ranks_in_processes(2, {.timeout = std::chrono::seconds(60)}, [&](const ProcessGroup& group) {
    const Tensors on_cpu = train(course, group, c10::kCPU);
    const c10::DeviceGuard guard(checked_device(0));
    const Tensors on_device = train(course, with_checked_device(group, checked_device(0)), checked_device(0));
    for (size_t i = 0; i < on_device.size(); ++i) {
      EXPECT_TRUE(at::allclose(on_device[i], on_cpu[i], 1e-12, 1e-12)) << "rank " << group.rank << ", parameter " << i;
    }
    EXPECT_THAT(Clocks::all().take_races(), IsEmpty());
  });
}

TEST_F(Streams, WorkOnAnotherStreamIsARaceUnlessAnEventOrdersIt) {
  const c10::Device device = checked_device(0);
  at::Tensor values = at::ones({8}, at::TensorOptions(device));
  const c10::Stream first = current_stream_of(device);
  const c10::Stream second = new_stream(device);
  {
    const c10::StreamGuard guard(second);
    values.mul_(2);
    EXPECT_THAT(Clocks::all().take_races(), Not(IsEmpty()));
  }
  wait_for(first, second);
  values.mul_(2);
  EXPECT_THAT(Clocks::all().take_races(), IsEmpty());
  EXPECT_TRUE(at::equal(values.to(at::kCPU), at::full({8}, 4.0F)));
}

TEST_F(Streams, MemoryThatIsFreedWhileAnotherStreamUsesItIsARace) {
  const c10::Device device = checked_device(0);
  const c10::Stream second = new_stream(device);
  at::Tensor values = at::ones({8}, at::TensorOptions(device));
  wait_for(second, current_stream_of(device));
  {
    const c10::StreamGuard guard(second);
    const at::Tensor sum = values.sum();
  }
  values.reset();
  EXPECT_THAT(Clocks::all().take_races(), SizeIs(1));
}

class EveryStrategyOnStreams : public Streams, public testing::WithParamInterface<std::string> {};

TEST_P(EveryStrategyOnStreams, IsInOrder) {
  expect_in_order({.strategy = GetParam()});
}
TEST_P(EveryStrategyOnStreams, IsInOrderWhereTwoRanksShareTheDevice) {
  expect_in_order_on_one_device({.strategy = GetParam()});
}
TEST_P(EveryStrategyOnStreams, IsInOrderOnThreeRanks) {
  expect_in_order({.strategy = GetParam()}, 3);
}
TEST_P(EveryStrategyOnStreams, IsInOrderWhereStepsRunOnAnotherStream) {
  expect_in_order({.strategy = GetParam(), .on_a_side_stream = true});
}
TEST_P(EveryStrategyOnStreams, IsInOrderWhereGradientsComeOnTwoStreams) {
  expect_in_order({.strategy = GetParam(), .with_two_gradients_streams = true});
  expect_in_order({.strategy = GetParam(), .on_a_side_stream = true, .with_two_gradients_streams = true});
}
TEST_P(EveryStrategyOnStreams, IsInOrderWhereGradientsStayInTheBuckets) {
  expect_in_order({.strategy = GetParam(), .zero_in_place = true, .with_two_gradients_streams = true});
}
TEST_P(EveryStrategyOnStreams, IsInOrderAfterAStepThatFailed) {
  expect_in_order({.strategy = GetParam(), .steps = 5, .on_a_side_stream = true, .with_two_gradients_streams = true, .a_step_fails = true});
}
TEST_P(EveryStrategyOnStreams, IsInOrderWhereTheStepEndsWithACall) {
  expect_in_order({.strategy = GetParam(), .on_a_side_stream = true, .with_two_gradients_streams = true, .with_joined_end = false});
}
TEST_P(EveryStrategyOnStreams, IsInOrderWithCompression) {
  expect_in_order({.strategy = GetParam(), .hook = bf16_compression(), .with_two_gradients_streams = true});
}

INSTANTIATE_TEST_SUITE_P(Strategies, EveryStrategyOnStreams, testing::Values("naive", "flat", "overlap", "bucketed", "planned"),
                         [](const auto& test) { return test.param; });

TEST_F(Streams, OrderedIsInOrderWhereTwoRanksShareTheDevice) {
  expect_in_order_on_one_device({.strategy = "ordered", .steps = 6, .on_a_side_stream = true, .overlapped = true});
}

TEST_F(Streams, OrderedIsInOrder) {
  expect_in_order({.strategy = "ordered", .steps = 6, .overlapped = true});
  expect_in_order({.strategy = "ordered", .steps = 6, .on_a_side_stream = true, .with_two_gradients_streams = true, .overlapped = true});
}

// One rank after another would hide nothing here: what is counted is of all ranks.
TEST_F(Streams, NothingInASteadyStepWaitsForTheDevice) {
  for (const char* strategy : {"naive", "flat", "overlap", "bucketed", "planned"}) {
    run_ranks(2, [&](const ProcessGroup& cpu_group) {
      const c10::Device device = checked_device(cpu_group.rank);
      const c10::DeviceGuard guard(device);
      const ProcessGroup group = with_checked_device(cpu_group);
      const at::TensorOptions options = at::TensorOptions(device).dtype(at::kDouble);
      LayeredNet net(options);
      DataParallel ddp(*net, group, options_of({.strategy = strategy}, *net));
      torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
      const at::Tensor batch = batch_of(0, group.rank, options);
      for (int step = 0; step < 5; ++step) {
        if (step == 3) {
          barrier(group);
          Clocks::all().take_host_waits();
          barrier(group);
        }
        optimizer.zero_grad();
        net->forward(batch).pow(2).mean().backward();
        optimizer.step();
      }
      barrier(group);
      const std::vector<std::string> waits = group.rank == 0 ? Clocks::all().take_host_waits() : std::vector<std::string>{};
      EXPECT_THAT(waits, IsEmpty()) << strategy;
    });
  }
}

TEST_F(Streams, AModuleOnADeviceThatTheGroupDoesNotCarryIsBadInput) {
  run_ranks(1, [](const ProcessGroup& group) {
    LayeredNet net{at::TensorOptions(checked_device(0))};
    EXPECT_THAT([&] { DataParallel ddp(*net, group); },
                testing::ThrowsMessage<InputError>(testing::AllOf(testing::HasSubstr("checked:0"), testing::HasSubstr("no backend"))));
  });
}

}  // namespace
}  // namespace firkin::streams
