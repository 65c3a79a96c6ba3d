// What following the module adds to a step: the host's time for looking at parameters, buffers and kept gradients of a module of many
// tensors.
//
//   cmake --build build --target following_cost
//   build/studies/following_cost --ranks 1
//
// What is asked of it: at most 0.2 % of a step of the demo model. One module has a linear layer and a batch norm in each of 100 blocks; for
// the demo model, a transformer, it is compared with a forward and backward.
#include <fmt/format.h>

#include <chrono>

#include "ddp/buckets.h"
#include "ddp/module_state.h"
#include "firkin/base/units.h"
#include "firkin/comm/run_ranks.h"
#include "firkin/ddp/data_parallel.h"
#include "firkin/stats/estimates.h"
#include "workload/transformer.h"

#include <torch/torch.h>

namespace firkin {
namespace {

constexpr int kRounds = 200;
constexpr int kSteps = 7;
constexpr double kLargestShare = 0.002;

double seconds_of(const std::function<void()>& body) {
  const auto started = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
}

// Of one step.
double looking_s(const ProcessGroup& group, const torch::nn::Module& module, const char* name) {
  ParameterWatch watch(module, /*modules_too=*/false);
  watch.record();
  BufferBroadcast buffers(module, group, group);
  const std::vector<at::Tensor> parameters = tensors_of(trainable_parameters(module));
  GradientBuckets buckets(parameters, one_bucket(parameters.size()), 1);
  std::vector<double> watch_s;
  std::vector<double> buffers_s;
  std::vector<double> kept_s;
  bool any = false;
  for (int round = 0; round < kRounds; ++round) {
    watch_s.push_back(seconds_of([&] { any |= watch.has_changed(); }));
    buffers_s.push_back(seconds_of([&] { any |= buffers.read(); }));
    kept_s.push_back(seconds_of([&] { any |= buckets.leave_kept_gradients(); }));
  }
  const double sum = median(watch_s) + median(buffers_s) + median(kept_s);
  fmt::print("{}: {} parameters {}, {} buffers {}, kept gradients {}: {} a step{}\n", name, parameters.size(),
             format_seconds(median(watch_s)), module.buffers().size(), format_seconds(median(buffers_s)), format_seconds(median(kept_s)),
             format_seconds(sum), any ? ", and sees changes that are none" : "");
  return sum;
}

int measure(const ProcessGroup& group) {
  at::set_num_threads(1);
  torch::manual_seed(0);
  torch::nn::Sequential blocks;
  for (int i = 0; i < 100; ++i) {
    blocks->push_back(torch::nn::Linear(8, 8));
    blocks->push_back(torch::nn::BatchNorm1d(8));
  }
  looking_s(group, *blocks, "100 blocks with batch norm");

  const TransformerConfig config = find_model("demo").config;
  TransformerLM demo(config);
  const at::Tensor tokens = at::randint(config.vocab_size, {4, config.context_length}, at::kLong);
  std::vector<double> step_s;
  for (int step = 0; step < kSteps; ++step) {
    step_s.push_back(seconds_of([&] { demo->forward(tokens).square().mean().backward(); }));
    demo->zero_grad();
  }
  const double share = looking_s(group, *demo, "the demo model") / median(step_s);
  fmt::print("forward and backward of the demo model {}: {:.4f} % of it{}\n", format_seconds(median(step_s)), 100 * share,
             share <= kLargestShare ? "" : ", beyond 0.2 %");
  return share <= kLargestShare ? 0 : 1;
}

}  // namespace
}  // namespace firkin

int main(int argc, char** argv) {
  using namespace firkin;
  return run_ranks(argc, argv, [](const ProcessGroup& group, const std::vector<std::string>&) { return measure(group); });
}
