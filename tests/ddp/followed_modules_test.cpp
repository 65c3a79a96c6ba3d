// The module is followed, not remembered: programs that change what a wrapped module holds, under every strategy.
#include <sstream>

#include "programs.h"

#include "../test.h"

namespace firkin {
namespace {

Tensors buffers_of_training(Trainee& trainee, FollowedNet& net) {
  for (int step = 0; step < kSteps; ++step) train(trainee, net, step);
  return net.buffers();
}

// A running mean of what the rank has seen: rank 0's, after every step.
at::Tensor centred(FollowedNet& net, const at::Tensor& x) {
  const at::NoGradGuard no_grad;
  net.level.mul_(0.7).add_(x.mean(0).to(net.level.scalar_type()), 0.3);
  return x - net.level.to(x.scalar_type());
}

Tensors registers_a_buffer_in_its_first_forward(Trainee& trainee, FollowedNet& net) {
  net.before = [](FollowedNet& self, const at::Tensor& x) {
    if (!self.level.defined()) self.level = self.register_buffer("level", at::zeros({kWidth}, doubles()));
    return centred(self, x);
  };
  return buffers_of_training(trainee, net);
}

Tensors replaces_a_module_that_has_buffers_only(Trainee& trainee, FollowedNet& net) {
  const auto make = [] {
    torch::nn::BatchNorm1d norm(torch::nn::BatchNorm1dOptions(kWidth).affine(false));
    norm->to(at::kDouble);
    return norm;
  };
  torch::nn::BatchNorm1d norm = net.register_module("norm", make());
  net.before = [&norm](FollowedNet& /*self*/, const at::Tensor& x) { return norm->forward(x); };
  for (int step = 0; step < kSteps; ++step) {
    if (step == 2) norm = net.replace_module("norm", make());
    train(trainee, net, step);
  }
  return net.buffers();
}

Tensors lets_a_buffer_grow_and_gives_it_another_dtype(Trainee& trainee, FollowedNet& net) {
  at::Tensor bank = net.register_buffer("bank", at::zeros({0, kWidth}, doubles()));
  net.level = net.register_buffer("level", at::zeros({kWidth}, doubles()));
  net.before = [bank](FollowedNet& self, const at::Tensor& x) mutable {
    const at::NoGradGuard no_grad;
    bank.set_data(at::cat({bank, x.narrow(0, 0, 2)}));
    if (bank.size(0) == 6) self.level.set_data(self.level.to(at::kFloat));
    return centred(self, x) + bank.mean(0);
  };
  return buffers_of_training(trainee, net);
}

Tensors goes_back_to_a_checkpoint(Trainee& trainee, FollowedNet& net) {
  std::stringstream saved;
  for (int step = 0; step < kSteps; ++step) {
    train(trainee, net, step);
    trainee.drain();
    if (step == 1) {
      torch::serialize::OutputArchive archive;
      net.save(archive);
      archive.save_to(saved);
    } else if (step == 3) {
      torch::serialize::InputArchive archive;
      archive.load_from(saved);
      net.load(archive);
    }
  }
  return {};
}

// An average of the first layer's parameters that a forward moves, before it calls that layer.
Tensors averages_in_forward(Trainee& trainee, FollowedNet& net) {
  at::Tensor average = net.register_buffer("average", net.first->weight.detach().clone());
  net.before = [&trainee, average](FollowedNet& self, const at::Tensor& x) {
    const at::NoGradGuard no_grad;
    if (!trainee.is_by_hand()) trainee.ddp().receive_parameters(*self.first);
    average.mul_(0.8).add_(self.first->weight, 0.2);
    return x + average.mean();
  };
  return buffers_of_training(trainee, net);
}

constexpr ProgramByHand kPrograms[] = {
    {"registers a buffer in its first forward", registers_a_buffer_in_its_first_forward},
    {"replaces a module that has buffers only", replaces_a_module_that_has_buffers_only},
    {"lets a buffer grow, and gives another a new dtype", lets_a_buffer_grow_and_gives_it_another_dtype},
    {"goes back to a checkpoint", goes_back_to_a_checkpoint},
    {"averages parameters in forward", averages_in_forward},
};

class FollowedModules : public testing::TestWithParam<int> {};

TEST_P(FollowedModules, TrainAsByHand) {
  run_ranks(GetParam(), [](const ProcessGroup& group) { expect_as_by_hand(group, kPrograms); });
}

// A weight that a forward computes anew stands in the place of a parameter.
struct Dropping : torch::nn::Module {
  Dropping() { seed_parameters(*this, 9); }
  struct Inner : torch::nn::Module {
    at::Tensor forward(const at::Tensor& x) {
      await_parameters(*this);
      return at::matmul(x, parameters_["weight"]);
    }
    void put(const at::Tensor& computed) {
      parameters_.contains("weight") ? void(parameters_["weight"] = computed) : void(parameters_.insert("weight", computed));
    }
  };
  at::Tensor loss(const at::Tensor& x, int step) {
    await_parameters(*this);
    inner->put(raw * (0.5 + 0.1 * step));
    return inner->forward(x).pow(2).mean();
  }
  std::shared_ptr<Inner> inner = register_module("inner", std::make_shared<Inner>());
  at::Tensor raw = register_parameter("raw", at::empty({kWidth, 3}, doubles()));
};

// LibTorch lists the parameters of a module that stands twice under both names, and its optimisers step them twice.
struct Twice : torch::nn::Module {
  Twice() {
    register_module("again", layer);
    seed_parameters(*this, 3);
  }
  at::Tensor loss(const at::Tensor& x, int /*step*/) { return layer->forward(layer->forward(x)).pow(2).mean(); }
  Layer layer = register_module("layer", Layer(kWidth, kWidth, doubles()));
};

template <typename Net>
Tensors train_net(const ProcessGroup& group, const std::string& strategy) {
  Net net;
  Trainee trainee(group, net, strategy);
  for (int step = 0; step < kSteps; ++step) {
    trainee.zero_grad();
    trainee.backward(net.loss(trainee.batch(step), step));
    trainee.step();
  }
  trainee.drain();
  return copies(trainee.leaves());
}

TEST_P(FollowedModules, AComputedTensorInAParametersPlaceIsNone) {
  run_ranks(GetParam(), [](const ProcessGroup& group) {
    expect_as_by_hand(group, kComparedStrategies, [&](const std::string& strategy) { return train_net<Dropping>(group, strategy); });
  });
}

TEST_P(FollowedModules, AModuleThatStandsTwiceIsSteppedTwiceAndIsRefusedUnderSharded) {
  run_ranks(GetParam(), [](const ProcessGroup& group) {
    expect_as_by_hand(group, {kComparedStrategies.begin(), kComparedStrategies.end() - 1},
                      [&](const std::string& strategy) { return train_net<Twice>(group, strategy); });
    EXPECT_THAT(error_of([&] { train_net<Twice>(group, "sharded"); }), HasSubstr("the module again is layer as well"));
  });
}

TEST_P(FollowedModules, BuffersThatDifferInShapeFailTheStepOnEveryRankAndNameTheBufferUntilTheyAreAlike) {
  run_ranks(GetParam(), [](const ProcessGroup& group) {
    for (const std::string& strategy : kComparedStrategies) {
      SCOPED_TRACE(strategy);
      FollowedNet net;
      at::Tensor bank = net.register_buffer("bank", at::zeros({2, kWidth}, doubles()));
      Trainee trainee(group, net, strategy);
      train(trainee, net, 0);
      bank.set_data(at::full({2 + group.rank, kWidth}, 1.0 + group.rank, doubles()));
      for (int step = 1; step < 3; ++step) {
        EXPECT_THAT(error_of([&] { train(trainee, net, step); }), AllOf(HasSubstr("buffer bank [2, 6]"), HasSubstr("buffer bank [3, 6]")));
      }
      bank.set_data(at::full({4, kWidth}, 1.0 + group.rank, doubles()));
      train(trainee, net, 3);
      EXPECT_TRUE(at::equal(bank, at::ones({4, kWidth}, doubles())));
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, FollowedModules, Values(2, 3));

}  // namespace
}  // namespace firkin
