// The module is followed, not remembered: programs that change what a wrapped module holds, keep what it gives them, or step by themselves,
// under every strategy, against the same program with means taken by hand.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <sstream>

#include "layered_net.h"
#include "training.h"

namespace firkin {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr int kSteps = 5;
constexpr int64_t kWidth = 6;
const std::vector<std::string> kStrategies = {"bucketed", "planned", "ordered", "sharded"};  // the last one keeps no gradients
const std::string kHandMade;

at::TensorOptions doubles() {
  return {at::kDouble};
}

// A module in training on one rank: wrapped, or with means taken by hand.
class Trainee {
 public:
  Trainee(const ProcessGroup& group, torch::nn::Module& net, const std::string& strategy, int64_t audit_every = 100)
      : group_(group), net_(net), leaves_(net.parameters()) {
    if (strategy == kHandMade) {
      plain_ = std::make_unique<torch::optim::SGD>(leaves_, torch::optim::SGDOptions(0.1).momentum(0.9));
      return;
    }
    DataParallelOptions options = with_strategy(strategy, 200);
    options.audit_every = audit_every;
    if (options.strategy.grouping == Grouping::kPlan) options.plan = one_tensor_per_bucket(trainable_parameters(net).size());
    training_.emplace(net, group, options);
    // LibTorch's optimisers step twice what stands twice.
    if (training_->plain) training_->plain->param_groups()[0].params() = leaves_;
  }

  bool is_by_hand() const { return !training_; }
  DataParallel& ddp() { return training_->ddp; }
  const Tensors& leaves() const { return leaves_; }
  at::Tensor batch(int step, int micro = 0) const { return batch_of(4 * step + micro, group_.rank, doubles()); }

  void backward(const at::Tensor& loss) {
    loss.backward();
    if (!is_by_hand()) return;
    for (const NamedTensor& parameter : trainable_parameters(net_)) {
      at::Tensor mean = parameter.tensor.grad() / group_.size;
      all_reduce(group_, mean);
      parameter.tensor.mutable_grad().copy_(mean);
    }
    for (const at::Tensor& buffer : net_.buffers()) {
      at::Tensor sent = buffer.clone();
      Work work = start_broadcast(group_, sent, 0);
      wait(group_, work, "a buffer");
      at::NoGradGuard no_grad;
      buffer.data().copy_(sent);
    }
  }
  // Of this rank alone.
  void backward_alone(const at::Tensor& loss) {
    const bool before = is_by_hand() || ddp().set_gradient_synchronization(false);
    loss.backward();
    if (!is_by_hand()) ddp().set_gradient_synchronization(before);
  }
  void step() { is_by_hand() ? void(plain_->step()) : training_->step(); }
  void zero_grad(bool to_none = true) {
    if (training_ && training_->overlapped) return training_->overlapped->zero_grad(to_none);
    for (at::Tensor& leaf : leaves_) {
      if (!leaf.grad().defined()) continue;
      to_none ? leaf.mutable_grad().reset() : void(leaf.mutable_grad().zero_());
    }
  }
  void drain() {
    if (!is_by_hand()) ddp().drain();
  }

 private:
  ProcessGroup group_;
  torch::nn::Module& net_;
  Tensors leaves_;
  std::unique_ptr<torch::optim::SGD> plain_;  // by hand, or
  std::optional<Training> training_;
};

// Two layers that await, and what a forward does to buffers before them.
struct FollowedNet : torch::nn::Module {
  FollowedNet() { seed_parameters(*this, 5); }
  at::Tensor loss(const at::Tensor& x) {
    await_parameters(*this);
    const at::Tensor input = before ? before(*this, x) : x;
    return second->forward(first->forward(input)).pow(2).mean();
  }
  Layer first = register_module("first", Layer(kWidth, 7, doubles()));
  Layer second = register_module("second", Layer(7, 3, doubles()));
  std::function<at::Tensor(FollowedNet& net, const at::Tensor& x)> before;
  at::Tensor level;
};

void train(Trainee& trainee, FollowedNet& net, int step) {
  trainee.zero_grad();
  trainee.backward(net.loss(trainee.batch(step)));
  trainee.step();
}

Tensors buffers_of_training(Trainee& trainee, FollowedNet& net) {
  for (int step = 0; step < kSteps; ++step) train(trainee, net, step);
  return net.buffers();
}

void write(const Tensors& to, const Tensors& values) {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < values.size(); ++i) to[i].copy_(values[i]);
}

void add(const Tensors& to, const std::function<at::Tensor(const at::Tensor&)>& value) {
  const at::NoGradGuard no_grad;
  for (at::Tensor leaf : to) leaf.add_(value(leaf), 0.1);
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

Tensors goes_forward_twice_through_a_batch_norm(Trainee& trainee, FollowedNet& net) {
  torch::nn::BatchNorm1d norm = net.register_module("norm", torch::nn::BatchNorm1d(torch::nn::BatchNorm1dOptions(kWidth).affine(false)));
  norm->to(at::kDouble);
  net.before = [&norm](FollowedNet& /*self*/, const at::Tensor& x) { return norm->forward(x); };
  for (int step = 0; step < kSteps; ++step) {
    trainee.zero_grad();
    const at::Tensor first = net.loss(trainee.batch(step));
    const at::Tensor second = net.loss(trainee.batch(step, 1));
    trainee.backward(first);
    trainee.drain();
    trainee.backward(second);
    trainee.step();
  }
  return net.buffers();
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

// Sharpness-aware minimisation: climbs by its own gradient, takes the mean there, and goes back.
Tensors climbs_and_goes_back(Trainee& trainee, FollowedNet& net) {
  for (int step = 0; step < kSteps; ++step) {
    const at::Tensor x = trainee.batch(step);
    trainee.zero_grad();
    trainee.backward_alone(net.loss(x));
    const Tensors here = copies(trainee.leaves());
    add(trainee.leaves(), [](const at::Tensor& leaf) { return leaf.grad(); });
    trainee.zero_grad();
    trainee.backward(net.loss(x));
    write(trainee.leaves(), here);
    trainee.step();
  }
  return {};
}

// Each rank by its own noise, in the first ones of two micro-batches.
Tensors perturbs_weights(Trainee& trainee, FollowedNet& net, int micro_batches) {
  for (int step = 0; step < kSteps; ++step) {
    trainee.zero_grad();
    trainee.drain();
    const Tensors here = copies(trainee.leaves());
    for (int micro = 0; micro < 2; ++micro) {
      const at::Tensor x = trainee.batch(step, micro);
      add(trainee.leaves(), [&](const at::Tensor&) { return micro < micro_batches ? x.mean() : at::zeros({}, doubles()); });
      micro == 0 ? trainee.backward_alone(net.loss(x)) : trainee.backward(net.loss(x));
      write(trainee.leaves(), here);
    }
    trainee.step();
  }
  return {};
}
Tensors perturbs_weights_in_a_micro_batch(Trainee& trainee, FollowedNet& net) {
  return perturbs_weights(trainee, net, 1);
}
Tensors perturbs_weights_in_every_backward(Trainee& trainee, FollowedNet& net) {
  return perturbs_weights(trainee, net, 2);
}

Tensors normalises_weights_between_micro_batches(Trainee& trainee, FollowedNet& net) {
  for (int step = 0; step < kSteps; ++step) {
    trainee.zero_grad();
    trainee.backward_alone(net.loss(trainee.batch(step)));
    {
      const at::NoGradGuard no_grad;
      net.first->weight.div_(net.first->weight.norm());
    }
    trainee.backward(net.loss(trainee.batch(step, 1)));
    trainee.step();
  }
  return {};
}

// Gradient surgery: gradients of two losses, and of all steps before, are kept; take: what of them.
Tensors keeps_gradients(Trainee& trainee, FollowedNet& net, bool to_none, const std::function<at::Tensor(const at::Tensor&)>& take) {
  Tensors kept;
  for (int step = 0; step < kSteps; ++step) {
    std::array<Tensors, 2> of_losses;
    for (int task = 0; task < 2; ++task) {
      trainee.zero_grad(to_none);
      trainee.backward(net.loss(trainee.batch(step, task)));
      trainee.drain();
      for (const at::Tensor& leaf : trainee.leaves()) of_losses[static_cast<size_t>(task)].push_back(take(leaf.grad()));
    }
    for (size_t i = 0; i < trainee.leaves().size(); ++i) {
      at::Tensor leaf = trainee.leaves()[i];
      leaf.mutable_grad() = (of_losses[0][i] - 0.5 * of_losses[1][i]).reshape(leaf.sizes()).clone();
      if (to_none) kept.insert(kept.end(), {of_losses[0][i], of_losses[1][i]});
    }
    trainee.step();
  }
  return kept;
}

Tensors keeps_gradients_themselves(Trainee& trainee, FollowedNet& net) {
  return keeps_gradients(trainee, net, /*to_none=*/true, [](const at::Tensor& gradient) { return gradient; });
}
Tensors keeps_what_lies_in_their_memory(Trainee& trainee, FollowedNet& net) {
  return keeps_gradients(trainee, net, /*to_none=*/true, [](const at::Tensor& gradient) { return gradient.detach().view(-1); });
}
Tensors keeps_copies_and_zeroes_gradients(Trainee& trainee, FollowedNet& net) {
  return keeps_gradients(trainee, net, /*to_none=*/false, [](const at::Tensor& gradient) { return gradient.clone(); });
}

// Steps with gradients that it has laid into one tensor.
Tensors lays_gradients_into_one_tensor(Trainee& trainee, FollowedNet& net) {
  int64_t elements = 0;
  for (const at::Tensor& leaf : trainee.leaves()) elements += leaf.numel();
  const at::Tensor whole = at::zeros({elements}, doubles());
  Tensors parts;
  for (at::Tensor leaf : trainee.leaves()) {
    elements -= leaf.numel();
    parts.push_back(whole.narrow(0, elements, leaf.numel()));
    leaf.mutable_grad() = parts.back().view(leaf.sizes());
  }
  for (int step = 0; step < kSteps; ++step) {
    whole.zero_();
    trainee.backward(net.loss(trainee.batch(step)));
    trainee.drain();
    const at::NoGradGuard no_grad;
    for (size_t i = 0; i < parts.size(); ++i) {
      at::Tensor leaf = trainee.leaves()[i];
      leaf.sub_(parts[i].view(leaf.sizes()), 0.1);
    }
  }
  return {whole};
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

struct Row {
  const char* name;
  Tensors (*run)(Trainee&, FollowedNet&);  // returns what else must be equal
  bool needs_gradients = false;            // of which sharded has none after a backward
  int64_t audit_every = 100;
};

constexpr Row kPrograms[] = {
    {"registers a buffer in its first forward", registers_a_buffer_in_its_first_forward},
    {"replaces a module that has buffers only", replaces_a_module_that_has_buffers_only},
    {"lets a buffer grow, and gives another a new dtype", lets_a_buffer_grow_and_gives_it_another_dtype},
    {"goes forward twice through a batch norm, then back twice", goes_forward_twice_through_a_batch_norm, true},
    {"goes back to a checkpoint", goes_back_to_a_checkpoint},
    {"climbs and goes back", climbs_and_goes_back},
    {"perturbs weights in a micro-batch", perturbs_weights_in_a_micro_batch, false, 0},
    {"perturbs weights in every backward", perturbs_weights_in_every_backward, false, 0},
    {"perturbs weights in every backward, audited", perturbs_weights_in_every_backward, false, 2},
    {"normalises weights between micro-batches", normalises_weights_between_micro_batches},
    {"keeps gradients themselves", keeps_gradients_themselves, true},
    {"keeps what lies in their memory", keeps_what_lies_in_their_memory, true},
    {"keeps copies and zeroes gradients", keeps_copies_and_zeroes_gradients, true},
    {"lays gradients into one tensor", lays_gradients_into_one_tensor, true},
    {"averages parameters in forward", averages_in_forward},
};

// What `run` returns under each strategy is what it returns by hand.
void expect_as_by_hand(const ProcessGroup& group, const std::vector<std::string>& strategies,
                       const std::function<Tensors(const std::string& strategy)>& run) {
  const Tensors by_hand = run(kHandMade);
  for (const std::string& strategy : strategies) {
    SCOPED_TRACE(fmt::format("{}, rank {}", strategy, group.rank));
    Tensors ours;
    EXPECT_EQ(error_of([&] { ours = run(strategy); }), "");
    ASSERT_EQ(ours.size(), by_hand.size());
    for (size_t i = 0; i < ours.size(); ++i) {
      ASSERT_EQ(ours[i].sizes(), by_hand[i].sizes()) << "tensor " << i;
      EXPECT_TRUE(at::allclose(ours[i], by_hand[i], 1e-6, 1e-9)) << "tensor " << i << " is off by " << (ours[i] - by_hand[i]).abs().max();
    }
  }
}

class FollowedModules : public testing::TestWithParam<int> {};

TEST_P(FollowedModules, TrainAsByHand) {
  run_ranks(GetParam(), [](const ProcessGroup& group) {
    for (const Row& program : kPrograms) {
      SCOPED_TRACE(program.name);
      std::vector<std::string> strategies = kStrategies;
      if (program.needs_gradients) strategies.pop_back();
      expect_as_by_hand(group, strategies, [&](const std::string& strategy) {
        FollowedNet net;
        Trainee trainee(group, net, strategy, program.audit_every);
        Tensors result = copies(program.run(trainee, net));
        trainee.drain();
        for (const at::Tensor& leaf : copies(trainee.leaves())) result.push_back(leaf);
        return result;
      });
    }
  });
}

TEST_P(FollowedModules, ARankThatMissesAStepIsEveryRanksErrorInTheNext) {
  run_ranks(GetParam(), [](const ProcessGroup& group) {
    for (const std::string& strategy : kStrategies) {
      for (const auto& [missed, counts] : {std::pair{0, "0 on rank 0 and 1 on rank 1"}, std::pair{3, "1 on rank 0 and 2 on rank 1"}}) {
        SCOPED_TRACE(fmt::format("{}, step {}, rank {}", strategy, missed, group.rank));
        FollowedNet net;
        Trainee trainee(group, net, strategy, /*audit_every=*/0);
        std::string said;
        for (int step = 0; step <= missed + 1 && said.empty(); ++step) {
          said = message_of<AuditError>([&, missed = missed] {
            trainee.zero_grad();
            if (group.rank != 1 || step != missed) trainee.backward(net.loss(trainee.batch(step)));
            trainee.step();
          });
        }
        EXPECT_THAT(said, HasSubstr(counts));
        for (int step = 0; step < 2; ++step) train(trainee, net, step);
        EXPECT_NO_THROW(trainee.ddp().audit());
      }
    }
  });
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
    expect_as_by_hand(group, kStrategies, [&](const std::string& strategy) { return train_net<Dropping>(group, strategy); });
  });
}

TEST_P(FollowedModules, AModuleThatStandsTwiceIsSteppedTwiceAndIsRefusedUnderSharded) {
  run_ranks(GetParam(), [](const ProcessGroup& group) {
    expect_as_by_hand(group, {kStrategies.begin(), kStrategies.end() - 1},
                      [&](const std::string& strategy) { return train_net<Twice>(group, strategy); });
    EXPECT_THAT(error_of([&] { train_net<Twice>(group, "sharded"); }), HasSubstr("the module again is layer as well"));
  });
}

TEST_P(FollowedModules, BuffersThatDifferInShapeFailTheStepOnEveryRankAndNameTheBufferUntilTheyAreAlike) {
  run_ranks(GetParam(), [](const ProcessGroup& group) {
    for (const std::string& strategy : kStrategies) {
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

TEST_P(FollowedModules, AnAuditCoversBuffersAndWhateverAnAuditedOptimiserSteps) {
  run_ranks(GetParam(), [](const ProcessGroup& group) {
    FollowedNet net;
    const at::Tensor bank = net.register_buffer("bank", at::zeros({2}, doubles()));
    at::Tensor temperature = at::ones({}, doubles()).requires_grad_();
    DataParallelOptions options;
    options.audit_every = 2;
    DataParallel ddp(net, group, options);
    Tensors stepped = net.parameters();
    stepped.push_back(temperature);
    torch::optim::SGD optimizer(stepped, 0.1);
    ddp.audit_optimizer(optimizer);
    const auto step = [&](int number) {
      optimizer.zero_grad();
      (net.loss(batch_of(number, group.rank, doubles())) * temperature.pow(2)).backward();
      temperature.mutable_grad().zero_();
      optimizer.step();
    };
    for (int number = 0; number < 3; ++number) step(number);
    ddp.audit();
    if (group.rank == 1) temperature.data().add_(1e-9);
    EXPECT_THAT(error_of([&] { ddp.audit(); }), HasSubstr("tensor 4 of the optimiser's group 0 differs between rank 0 and rank 1"));
    step(3);
    EXPECT_THAT(error_of([&] { step(4); }), HasSubstr("tensor 4 of the optimiser's group 0"));
    temperature.data().fill_(1);
    step(5);
    if (group.rank == 1) bank.data().fill_(1);  // which counts as no write: somebody else's mistake
    EXPECT_THAT(error_of([&] { ddp.audit(); }), HasSubstr("buffer bank differs between rank 0 and rank 1"));
    bank.add_(group.rank);  // a forward's
    EXPECT_EQ(error_of([&] { ddp.audit(); }), "");
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, FollowedModules, testing::Values(2, 3));

}  // namespace
}  // namespace firkin
