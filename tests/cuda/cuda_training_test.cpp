// Training on GPUs gives what training on CPUs gives, with every strategy.
#include <ATen/ops/allclose.h>

#include "../comm/process_ranks.h"
#include "../ddp/layered_net.h"
#include "../ddp/throw_in_backward.h"
#include "../ddp/training.h"
#include "../test.h"
#include "gpus.h"

#include <torch/torch.h>

namespace firkin {
namespace {

using OneGpu = NeedsGpus<1>;
using TwoGpus = NeedsGpus<2>;

constexpr int kSteps = 5;
constexpr std::array kStrategies = {"naive", "flat", "overlap", "bucketed", "planned", "ordered", "sharded"};

struct Course {
  std::string strategy;
  GradientHook hook = {};
  at::ScalarType dtype = at::kFloat;
  bool a_step_fails = false;  // rank 1's
  ShardedOptions sharded = {};
};

DataParallelOptions options_of(const Course& course, const torch::nn::Module& module) {
  DataParallelOptions options = with_strategy(course.strategy, 300);
  options.gradient_hook = course.hook;
  if (course.strategy == "planned") {
    const auto tensors = static_cast<int64_t>(trainable_parameters(module).size());
    options.plan = BucketPlan{{{0, 2}, {2, tensors - 2}}, {}};
  }
  return options;
}

// Returns the parameters, on the CPU.
Tensors train(const Course& course, const ProcessGroup& group) {
  const at::TensorOptions options = at::TensorOptions(group.device).dtype(course.dtype);
  LayeredNet net(options);
  Training training(*net, group, options_of(course, *net), "SGD", course.sharded);
  for (int step = 0; step < kSteps; ++step) {
    const bool fails = course.a_step_fails && step == 2;
    training.zero_grad();
    try {
      const auto throws = [](const at::Tensor& x) { return ThrowInBackward::apply(x, "on purpose"); };
      const at::Tensor batch = batch_of(step, group.rank, options);
      const at::Tensor out = fails && group.rank == 1 ? net->forward(batch, throws) : net->forward(batch);
      out.pow(2).mean().backward();
      EXPECT_FALSE(fails);
      training.step();
    } catch (const StepError& error) {
      EXPECT_TRUE(fails);
      EXPECT_THAT(error.what(), HasSubstr("on purpose"));
    } catch (const OnPurpose&) {
      EXPECT_TRUE(fails);
    }
  }
  training.ddp.drain();
  Tensors parameters;
  for (const at::Tensor& parameter : net->parameters()) parameters.push_back(parameter.detach().cpu().to(at::kFloat));
  return parameters;
}

std::vector<Tensors> train_on_ranks(int ranks, const Course& course, const GroupOptions& options) {
  std::vector<Tensors> result(static_cast<size_t>(ranks));
  run_ranks_with(ranks, options, [&](const ProcessGroup& group) { result[static_cast<size_t>(group.rank)] = train(course, group); });
  return result;
}

void expect_as_on_the_cpu(int ranks, const Course& course, const std::string& backend, double tolerance) {
  SCOPED_TRACE(fmt::format("{} on {} over {}", course.strategy, ranks, backend));
  const Course in_float{.strategy = course.strategy, .a_step_fails = course.a_step_fails, .sharded = course.sharded};
  const auto on_cpu = train_on_ranks(ranks, in_float, {.device = c10::Device(c10::kCPU)});
  const auto on_gpu = train_on_ranks(ranks, course, {.backend = backend});
  for (const Tensors& parameters : on_gpu) {
    EXPECT_TRUE(same_bits(parameters, on_gpu[0]));
    for (size_t i = 0; i < parameters.size(); ++i) {
      EXPECT_TRUE(at::allclose(parameters[i], on_cpu[0][i], tolerance, tolerance)) << "parameter " << i;
    }
  }
}

// Ranks that share a device (all have the first one): the CPU's numbers, and the same on every rank.
void expect_as_on_the_cpu_in_processes(int ranks, c10::Device device, const std::vector<Course>& courses, double tolerance) {
  run_ranks_in_processes(ranks, {.backend = "gloo", .device = device}, [&](const ProcessGroup& on_device) {
    ProcessGroup on_cpu = on_device;
    on_cpu.device = c10::kCPU;
    for (const Course& course : courses) {
      SCOPED_TRACE(fmt::format("{} on rank {} of {}", course.strategy, on_device.rank, ranks));
      const Course in_float{.strategy = course.strategy, .a_step_fails = course.a_step_fails, .sharded = course.sharded};
      const Tensors expected = train(in_float, on_cpu);
      const Tensors actual = train(course, on_device);
      Tensors of_rank_0;
      for (const at::Tensor& parameter : actual) of_rank_0.push_back(parameter.clone());
      broadcast(on_cpu, of_rank_0, 0);
      EXPECT_TRUE(same_bits(actual, of_rank_0));
      for (size_t i = 0; i < actual.size(); ++i) {
        EXPECT_TRUE(at::allclose(actual[i], expected[i], tolerance, tolerance)) << "parameter " << i;
      }
    }
  });
}

std::vector<Course> every_strategy(bool a_step_fails) {
  std::vector<Course> courses;
  for (const char* strategy : kStrategies) courses.push_back({.strategy = strategy, .a_step_fails = a_step_fails});
  courses.push_back({.strategy = "sharded", .a_step_fails = a_step_fails, .sharded = {.whole_parameters = true}});
  return courses;
}

const c10::Device kFirstGpu(c10::kCUDA, 0);

// What the tests of a GPU stand on, where there is none.
TEST(Cuda, RanksInProcessesTrainOnTheCpuAsOnTheCpu) {
  expect_as_on_the_cpu_in_processes(2, c10::kCPU, every_strategy(/*a_step_fails=*/true), 0);
}

TEST_F(OneGpu, OneRankOverNcclTrainsAsOnTheCpu) {
  for (const char* strategy : kStrategies) {
    expect_as_on_the_cpu(1, {.strategy = strategy}, "nccl", 1e-5);
    expect_as_on_the_cpu(1, {.strategy = strategy, .dtype = at::kBFloat16}, "nccl", 3e-2);
  }
}

TEST_F(OneGpu, TwoRanksThatShareItTrainAsOnTheCpu) {
  expect_as_on_the_cpu_in_processes(2, kFirstGpu, every_strategy(/*a_step_fails=*/false), 1e-5);
}
TEST_F(OneGpu, ThreeRanksThatShareItTrainAsOnTheCpu) {
  expect_as_on_the_cpu_in_processes(3, kFirstGpu, every_strategy(/*a_step_fails=*/false), 1e-5);
}

TEST_F(OneGpu, AnAuditFindsOneElementThatDiffers) {
  run_ranks_in_processes(2, {.backend = "gloo", .device = kFirstGpu}, [](const ProcessGroup& group) {
    LayeredNet net{at::TensorOptions(group.device).dtype(at::kBFloat16)};
    DataParallel ddp(*net, group);
    EXPECT_NO_THROW(ddp.audit());
    if (group.rank == 1) net->layers[2]->weight.detach()[6][3].mul_(-1);
    EXPECT_THAT([&] { ddp.audit(); }, ThrowsMessage<AuditError>(HasSubstr("third.weight differs")));
  });
}

TEST_F(OneGpu, CompressedGradientsTrainNearlyAsOnTheCpu) {
  expect_as_on_the_cpu_in_processes(
      2, kFirstGpu, {{.strategy = "bucketed", .hook = bf16_compression()}, {.strategy = "bucketed", .hook = fp16_compression()}}, 1e-2);
}

TEST_F(OneGpu, AnExceptionInBackwardIsEveryRanksError) {
  expect_as_on_the_cpu_in_processes(2, kFirstGpu, every_strategy(/*a_step_fails=*/true), 1e-5);
}

TEST_F(TwoGpus, RanksTrainOverNcclAsOnTheCpu) {
  for (int ranks = 2; ranks <= std::min(device_count(), 4); ++ranks) {
    for (const char* strategy : kStrategies) {
      expect_as_on_the_cpu(ranks, {.strategy = strategy}, "nccl", 1e-5);
      expect_as_on_the_cpu(ranks, {.strategy = strategy, .a_step_fails = true}, "nccl", 1e-5);
    }
  }
}

}  // namespace
}  // namespace firkin
