// Programs under every strategy, against the same program with means taken by hand, or under bucketed.
//
//   constexpr ProgramByHand kPrograms[] = {{"plain steps", plain_steps}};
//   expect_as_by_hand(group, kPrograms);
//
//   expect_as_bucketed(kSharded, [](Place& place) { place.train(0, 3); });  // over a link that leaves gradients or parameters on their way
#pragma once

#include <span>

#include "layered_net.h"
#include "training.h"

namespace firkin {

inline constexpr int kSteps = 5;
inline constexpr int64_t kWidth = 6;
inline const std::vector<std::string> kComparedStrategies = {"bucketed", "planned", "ordered",
                                                             "sharded"};  // the last one keeps no gradients
inline const std::string kHandMade;

inline at::TensorOptions doubles() {
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

inline void train(Trainee& trainee, FollowedNet& net, int step) {
  trainee.zero_grad();
  trainee.backward(net.loss(trainee.batch(step)));
  trainee.step();
}

struct ProgramByHand {
  const char* name;
  Tensors (*run)(Trainee&, FollowedNet&);  // returns what else must be equal
  bool needs_gradients = false;            // of which sharded has none after a backward
  int64_t audit_every = 100;
};

// What `run` returns under each strategy is what it returns by hand.
inline void expect_as_by_hand(const ProcessGroup& group, const std::vector<std::string>& strategies,
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

inline void expect_as_by_hand(const ProcessGroup& group, std::span<const ProgramByHand> programs) {
  for (const ProgramByHand& program : programs) {
    SCOPED_TRACE(program.name);
    std::vector<std::string> strategies = kComparedStrategies;
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
}

// ---- Over a slow link.

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

// What each rank ends with: the same.
inline Tensors run_late(const std::string& strategy, const LateProgram& program, const ProgramSetup& setup = {}) {
  const auto run = [&](const ProcessGroup& group) {
    Place place(group, strategy, setup);
    program(place);
    Tensors ours = place.parameters();
    ours.insert(ours.end(), place.also.begin(), place.also.end());
    return ours;
  };
  const std::vector<Tensors> ranks = results_of(setup.ranks, run, kLateLink);
  for (const Tensors& rank : ranks) EXPECT_TRUE(same_bits(rank, ranks[0])) << strategy;
  return ranks[0];
}

template <typename Strategies>
void expect_as_bucketed(const Strategies& strategies, const LateProgram& program, const ProgramSetup& setup = {}) {
  const Tensors bucketed = run_late("bucketed", program, setup);
  for (const std::string& strategy : strategies) EXPECT_TRUE(same_bits(run_late(strategy, program, setup), bucketed)) << strategy;
}

}  // namespace firkin
