// Which bucket size is best for this module on these machines, and a few steps of training with it.
//
//   own_model --ranks 2            or: torchrun --nproc-per-node 2 --no-python own_model
//   own_model --ranks 2 6 tuned    at most six blocks of measurements; the results go to the folder tuned/
#include <torch/torch.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "firkin/base/error.h"
#include "firkin/comm/run_ranks.h"
#include "firkin/ddp/data_parallel.h"
#include "firkin/tune/tune.h"

namespace {

constexpr int64_t kInputs = 256, kWidth = 512, kLayers = 6, kClasses = 10, kBatch = 32;

torch::nn::Sequential make_network() {
  torch::nn::Sequential network(torch::nn::Linear(kInputs, kWidth));
  for (int64_t layer = 0; layer < kLayers; ++layer) {
    network->push_back(torch::nn::ReLU());
    network->push_back(torch::nn::Linear(kWidth, kWidth));
  }
  network->push_back(torch::nn::Linear(kWidth, kClasses));
  return network;
}

// A step as it is written for one process; what Firkin adds lies around it. Returns the loss.
double train_step(torch::nn::Sequential& network, torch::optim::Optimizer& optimizer) {
  const at::Tensor inputs = torch::randn({kBatch, kInputs});
  const at::Tensor labels = inputs.narrow(1, 0, kClasses).argmax(1);
  optimizer.zero_grad();
  const at::Tensor loss = torch::nn::functional::cross_entropy(network->forward(inputs), labels);
  loss.backward();
  optimizer.step();
  return loss.item<double>();
}

int run(const firkin::ProcessGroup& group, const std::vector<std::string>& arguments) {
  if (arguments.size() > 2) throw firkin::InputError("'" + arguments[2] + "': expected at most a number of blocks and a folder");
  firkin::ModuleTuningOptions options;
  options.name = "own_model";
  if (!arguments.empty()) options.blocks = std::atoi(arguments[0].c_str());
  if (arguments.size() > 1) options.out = arguments[1];
  torch::nn::Sequential network = make_network();
  torch::optim::AdamW trial(network->parameters());
  const firkin::ModuleTuning tuning = firkin::tune(
      *network, [&] { train_step(network, trial); }, group, options);
  if (group.rank == 0) std::printf("%s\n", tuning.text.c_str());

  firkin::DataParallel ddp(*network, group, tuning.options);
  torch::optim::AdamW optimizer(network->parameters());
  double loss = 0;
  for (int step = 0; step < 20; ++step) loss = train_step(network, optimizer);
  if (group.rank == 0) std::printf("20 steps with %zu buckets: loss %.3f\n", ddp.stats().buckets.size(), loss);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return firkin::run_ranks(argc, argv, run);
}
