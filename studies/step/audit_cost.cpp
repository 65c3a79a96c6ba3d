// What the audit adds to training: the time of its checksums beside that of the steps between two audits.
//
//   cmake --build build --target audit_cost
//   build/studies/audit_cost --ranks 2
//
// What is asked of it: at most 0.1 % of the training, with an audit every 100 steps (the default) of parameters and AdamW's state. The
// model is a stack of linear layers whose step is short for its parameters; a checksum and the steps before it are timed in turn.
#include <fmt/format.h>

#include <chrono>

#include "ddp/audit.h"
#include "ddp/optimizer_state.h"
#include "firkin/base/units.h"
#include "firkin/comm/run_ranks.h"
#include "firkin/ddp/data_parallel.h"
#include "firkin/stats/estimates.h"

#include <torch/torch.h>

namespace firkin {
namespace {

constexpr int kBlocks = 20;
constexpr int kSteps = 5;  // of a block
constexpr double kLargestShare = 0.001;

double seconds_of(const std::function<void()>& body) {
  const auto started = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
}

std::vector<NamedTensor> state_of(const torch::optim::Optimizer& optimizer) {
  std::vector<NamedTensor> tensors;
  for (const auto& [parameter, state] : optimizer.state()) {
    for (const auto& [field, tensor] : fields_of(*state).tensors) tensors.push_back({field, *tensor});
  }
  return tensors;
}

int measure(const ProcessGroup& group) {
  at::set_num_threads(1);
  torch::manual_seed(0);
  torch::nn::Sequential net;
  for (int i = 0; i < 8; ++i) net->push_back(torch::nn::Linear(1024, 1024));
  const at::Tensor x = at::randn({256, 1024});
  torch::optim::AdamW optimizer(net->parameters());
  DataParallelOptions options;
  options.audit_every = 0;
  DataParallel ddp(*net, group, options);
  const std::vector<NamedTensor> parameters = trainable_parameters(*net);
  const auto step = [&] {
    optimizer.zero_grad();
    net->forward(x).square().mean().backward();
    optimizer.step();
  };
  step();
  step();
  std::vector<double> step_s;
  std::vector<double> audit_s;
  uint64_t checksum = 0;
  for (int block = 0; block < kBlocks; ++block) {
    for (int i = 0; i < kSteps; ++i) step_s.push_back(seconds_of(step));
    audit_s.push_back(seconds_of([&] {
      for (const uint64_t each : checksums_of(parameters)) checksum ^= each;
      for (const uint64_t each : checksums_of(state_of(optimizer))) checksum ^= each;
    }));
  }
  const double share = median(audit_s) / (median(step_s) * static_cast<double>(DataParallelOptions().audit_every));
  const bool within = share <= kLargestShare;
  if (group.rank == 0) {
    fmt::print("step {}, checksums {} (of {:x}): {:.4f} % of 100 steps{}\n", format_seconds(median(step_s)),
               format_seconds(median(audit_s)), checksum, 100 * share, within ? "" : ", beyond 0.1 %");
  }
  return group.rank == 0 && !within ? 1 : 0;
}

}  // namespace
}  // namespace firkin

int main(int argc, char** argv) {
  using namespace firkin;
  return run_ranks(argc, argv, [](const ProcessGroup& group, const std::vector<std::string>&) { return measure(group); });
}
