// Training on GPUs gives what training on CPUs gives, with every strategy.
#include "../comm/process_ranks.h"
#include "../ddp/device_course.h"
#include "../test.h"
#include "gpus.h"

namespace firkin {
namespace {

constexpr std::array kStrategies = {"naive", "flat", "overlap", "bucketed", "planned", "ordered", "sharded"};

// What a course is compared with on the CPU.
Course in_float(Course course) {
  course.hook = {};
  course.dtype = at::kFloat;
  return course;
}

std::vector<Tensors> train_on_ranks(int ranks, const Course& course, const GroupOptions& options) {
  std::vector<Tensors> result(static_cast<size_t>(ranks));
  run_ranks_with(ranks, options,
                 [&](const ProcessGroup& group) { result[static_cast<size_t>(group.rank)] = train(course, group, group.device); });
  return result;
}

void expect_as_on_the_cpu(int ranks, const Course& course, const std::string& backend, double tolerance) {
  SCOPED_TRACE(fmt::format("{} on {} over {}", course.strategy, ranks, backend));
  const auto on_cpu = train_on_ranks(ranks, in_float(course), {.device = c10::Device(c10::kCPU)});
  const auto on_gpu = train_on_ranks(ranks, course, {.backend = backend});
  for (const Tensors& parameters : on_gpu) {
    EXPECT_TRUE(same_bits(parameters, on_gpu[0]));
    expect_near(parameters, on_cpu[0], tolerance);
  }
}

// Ranks that share a device (all have the first one): the CPU's numbers, and the same on every rank.
void expect_as_on_the_cpu_in_processes(int ranks, c10::Device device, const std::vector<Course>& courses, double tolerance) {
  run_ranks_in_processes(ranks, {.backend = "gloo", .device = device}, [&](const ProcessGroup& on_device) {
    ProcessGroup on_cpu = on_device;
    on_cpu.device = c10::kCPU;
    for (const Course& course : courses) {
      SCOPED_TRACE(fmt::format("{} on rank {} of {}", course.strategy, on_device.rank, ranks));
      const Tensors expected = train(in_float(course), on_cpu, c10::kCPU);
      const Tensors actual = train(course, on_device, on_device.device), of_rank_0 = copies(actual);
      broadcast(on_cpu, of_rank_0, 0);
      EXPECT_TRUE(same_bits(actual, of_rank_0));
      expect_near(actual, expected, tolerance);
    }
  });
}

std::vector<Course> every_strategy(bool a_step_fails) {
  std::vector<Course> courses;
  for (const char* strategy : kStrategies)
    courses.push_back({.strategy = strategy, .steps = 5, .a_step_fails = a_step_fails, .dtype = at::kFloat});
  courses.push_back(courses.back());
  courses.back().sharded.whole_parameters = true;
  return courses;
}

// What the tests of a GPU stand on, where there is none.
TEST(Cuda, RanksInProcessesTrainOnTheCpuAsOnTheCpu) {
  expect_as_on_the_cpu_in_processes(2, c10::kCPU, every_strategy(/*a_step_fails=*/true), 0);
}

TEST_F(OneGpu, OneRankOverNcclTrainsAsOnTheCpu) {
  for (const char* strategy : kStrategies) {
    expect_as_on_the_cpu(1, {.strategy = strategy, .dtype = at::kFloat}, "nccl", 1e-5);
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
      2, kFirstGpu, {{.hook = bf16_compression(), .dtype = at::kFloat}, {.hook = fp16_compression(), .dtype = at::kFloat}}, 1e-2);
}

TEST_F(OneGpu, AnExceptionInBackwardIsEveryRanksError) {
  expect_as_on_the_cpu_in_processes(2, kFirstGpu, every_strategy(/*a_step_fails=*/true), 1e-5);
}

TEST_F(TwoGpus, RanksTrainOverNcclAsOnTheCpu) {
  for (int ranks = 2; ranks <= std::min(device_count(), 4); ++ranks) {
    for (const char* strategy : kStrategies) {
      expect_as_on_the_cpu(ranks, {.strategy = strategy, .dtype = at::kFloat}, "nccl", 1e-5);
      expect_as_on_the_cpu(ranks, {.strategy = strategy, .a_step_fails = true, .dtype = at::kFloat}, "nccl", 1e-5);
    }
  }
}

}  // namespace
}  // namespace firkin
