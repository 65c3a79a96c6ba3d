// Programs under a strategy that leaves gradients or parameters on their way, and the same under bucketed.
#pragma once

#include "layered_net.h"
#include "training.h"

namespace firkin {

// A body that awaits its parameters, under a head that does not: its gradients are there after backward.
struct HeadedNet : torch::nn::Module {
  HeadedNet() {
    head->to(at::kDouble);
    seed_parameters(*head, 9);
  }
  at::Tensor forward(const at::Tensor& x, const std::function<at::Tensor(at::Tensor)>& between = {}) {
    return head->forward(body->forward(x, between));
  }
  LayeredNet body = register_module("body", LayeredNet(at::TensorOptions(at::kDouble)));
  torch::nn::Linear head = register_module("head", torch::nn::Linear(4, 2));
};

struct ProgramSetup {
  int ranks = 2;
  std::string optimizer = "SGD";
  std::function<void(DataParallelOptions&)> set = {};
};

// Where a program runs: what one rank has at hand.
struct Place {
  Place(const ProcessGroup& process_group, const std::string& strategy, const ProgramSetup& setup)
      : group(process_group),
        training(net, group, options_of(strategy, setup), setup.optimizer, {.whole_parameters = strategy == kWhole}) {}

  at::Tensor batch(int step) const { return batch_of(step, group.rank, at::kDouble); }
  at::Tensor loss(int step) { return net.forward(batch(step)).pow(2).mean(); }
  void backward(int step) {
    training.zero_grad();
    loss(step).backward();
    training.ddp.finish_gradient_synchronization();
  }
  void train(int step) {
    backward(step);
    training.step();
  }
  void train(int first, int last) {
    for (int step = first; step < last; ++step) train(step);
  }
  Tensors parameters() { return copies(training.ddp.module().parameters()); }

  ProcessGroup group;
  HeadedNet net;
  Training training;
  Tensors also;  // what must be equal besides the parameters

 private:
  static DataParallelOptions options_of(const std::string& strategy, const ProgramSetup& setup) {
    DataParallelOptions options = with_strategy(strategy, 64);
    if (setup.set) setup.set(options);
    return options;
  }
};

using LateProgram = std::function<void(Place&)>;

// What each rank ends with.
inline std::vector<Tensors> run_late(const std::string& strategy, const LateProgram& program, const ProgramSetup& setup = {}) {
  std::vector<Tensors> result(static_cast<size_t>(setup.ranks));
  run_linked_ranks(setup.ranks, kLateLink, [&](const ProcessGroup& group) {
    Place place(group, strategy, setup);
    program(place);
    Tensors& ours = result[static_cast<size_t>(group.rank)];
    ours = place.parameters();
    ours.insert(ours.end(), place.also.begin(), place.also.end());
  });
  return result;
}

template <typename Strategies>
void expect_as_bucketed(const Strategies& strategies, const LateProgram& program, const ProgramSetup& setup = {}) {
  const std::vector<Tensors> bucketed = run_late("bucketed", program, setup);
  for (const Tensors& rank : bucketed) EXPECT_TRUE(same_bits(rank, bucketed[0]));
  for (const std::string& strategy : strategies) {
    for (const Tensors& rank : run_late(strategy, program, setup)) EXPECT_TRUE(same_bits(rank, bucketed[0])) << strategy;
  }
}

}  // namespace firkin
