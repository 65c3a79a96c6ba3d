// What `firkin bench step` adds to the step that it measures.
//
//   cmake --build build --target step_overhead
//   build/studies/step_overhead --ranks 2
//
// What is asked of it: a step without communication within 1 % of the same step in a bare loop without DataParallel, barrier or clock
// readings inside. In each block both run once, in random order; the ratio is that of the blocks, paired.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <random>

#include "bench/step_bench.h"
#include "firkin/base/units.h"
#include "firkin/comm/run_ranks.h"
#include "firkin/ddp/data_parallel.h"
#include "firkin/stats/estimates.h"

#include <torch/torch.h>

namespace firkin {
namespace {

constexpr int kBlocks = 60;
constexpr int kSteps = 10;  // timed, per block, of either; after one to warm up
constexpr double kLargestOverhead = 1.01;

using Clock = std::chrono::steady_clock;

// About 10 ms a step on one core.
Workload make_workload() {
  torch::manual_seed(0);
  torch::nn::Sequential net;
  for (int i = 0; i < 6; ++i) net->push_back(torch::nn::Linear(384, 384));
  const at::Tensor x = at::randn({256, 384});
  Workload workload;
  workload.module = net.ptr();
  workload.parameters = net->parameters();
  workload.loss = [net, x](int64_t /*step*/) mutable { return net->forward(x).square().mean(); };
  workload.optimizer = std::make_shared<torch::optim::SGD>(workload.parameters, 0.01);
  return workload;
}

void bare_step(Workload& workload) {
  for (at::Tensor& parameter : workload.parameters) parameter.mutable_grad().reset();
  workload.loss(0).backward();
  workload.optimizer->step();
}

// Seconds per step, the median over steps.
double bare_block(Workload& workload) {
  bare_step(workload);
  std::vector<double> seconds;
  for (int i = 0; i < kSteps; ++i) {
    const auto started = Clock::now();
    bare_step(workload);
    seconds.push_back(std::chrono::duration<double>(Clock::now() - started).count());
  }
  return median(seconds);
}

// This rank's own times: those of the slowest rank would be compared with a loop that has no slower rank.
double harness_block(const ProcessGroup& group, Workload& workload) {
  DataParallelOptions options;
  options.strategy = find_strategy("none");
  options.broadcast_parameters = false;
  const std::vector<SettingSteps> result =
      measure_steps(group, workload, {{"none", options}}, {.blocks = {.most = 1}, .steps = {.timed_steps = kSteps}});
  std::vector<double> seconds;
  for (const auto& by_rank : result[0].raw_step_s) seconds.push_back(by_rank[static_cast<size_t>(group.rank)]);
  return median(seconds);
}

}  // namespace
}  // namespace firkin

int main(int argc, char** argv) {
  using namespace firkin;
  return run_ranks(argc, argv, [](const ProcessGroup& group, const std::vector<std::string>&) {
    at::set_num_threads(1);
    Workload workload = make_workload();
    std::mt19937_64 random(0);
    std::vector<double> bare;
    std::vector<double> ours;
    for (int block = 0; block < kBlocks; ++block) {
      const bool bare_first = random() % 2 == 0;
      barrier(group);
      if (bare_first) bare.push_back(bare_block(workload));
      ours.push_back(harness_block(group, workload));
      if (!bare_first) bare.push_back(bare_block(workload));
    }
    const PairedRatio ratio = paired_ratio(ours, bare);
    const bool within = ratio.ratio <= kLargestOverhead && ratio.ratio >= 1 / kLargestOverhead;
    if (group.rank == 0) {
      fmt::print("bare step {}, bench step {}: ratio {:.4f}, 95 % interval [{:.4f}, {:.4f}]{}\n", format_seconds(median(bare)),
                 format_seconds(median(ours)), ratio.ratio, ratio.interval.low, ratio.interval.high, within ? "" : ", beyond 1 %");
    }
    return group.rank == 0 && !within ? 1 : 0;  // the printed figure decides
  });
}
