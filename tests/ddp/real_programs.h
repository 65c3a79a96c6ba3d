// What tests of whole training programs share: a program runs on every rank, and once more alone with the batches of all ranks.
//
//   expect_what_one_process_computes(with_net([](World& world, DataParallel* ddp, Net& net, torch::optim::SGD& optimizer) {
//     for (int step = 0; step < 6; ++step) world.train(ddp, net, optimizer, step);
//   }));
#pragma once

#include "../comm/thread_ranks.h"
#include "../torch.h"
#include "firkin/ddp/data_parallel.h"
#include "tensors.h"

namespace firkin {

inline constexpr int kProgramSteps = 6;                            // of most programs
inline constexpr auto kProgramTimeout = std::chrono::seconds(60);  // of a collective; who waits for it has been told nothing

// Three layers, to which a fourth may be added before the last; everything in double.
struct Net : torch::nn::Module {
  explicit Net(uint64_t seed) {
    to(at::kDouble);
    seed_parameters(*this, seed);
  }
  at::Tensor loss(const at::Tensor& x) {
    at::Tensor h = torch::tanh(middle->forward(torch::tanh(first->forward(x))));
    if (added) h = torch::tanh(added->forward(h));
    return last->forward(h).pow(2).mean();
  }
  torch::nn::Linear first = register_module("first", torch::nn::Linear(5, 7));
  torch::nn::Linear middle = register_module("middle", torch::nn::Linear(7, 7));
  torch::nn::Linear last = register_module("last", torch::nn::Linear(7, 2));
  torch::nn::Linear added = nullptr;
};

inline torch::nn::Linear seeded_linear(int64_t inputs, int64_t outputs, uint64_t seed) {
  torch::nn::Linear linear(inputs, outputs);
  linear->to(at::kDouble);
  seed_parameters(*linear, seed);
  return linear;
}

// A frozen parameter that kept its last gradient, zeroed or not, would still be stepped by an optimiser with momentum.
inline void set_trainable(torch::nn::Module& module, bool trainable) {
  for (at::Tensor& parameter : module.parameters()) {
    parameter.set_requires_grad(trainable);
    if (!trainable) parameter.mutable_grad().reset();
  }
}

inline torch::optim::SGD sgd(const torch::nn::Module& module) {
  return torch::optim::SGD(module.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
}

inline void optimize_also(const Tensors& parameters, torch::optim::Optimizer& optimizer) {
  for (const at::Tensor& parameter : parameters) optimizer.param_groups()[0].params().push_back(parameter);
}

// The place where a program runs: a rank, or alone where all ranks' batches are.
class World {
 public:
  World(const ProcessGroup& group, int repeat) : group_(&group), rank_(group.rank), size_(group.size), repeat_(repeat) {}
  World(int size, int repeat) : size_(size), repeat_(repeat) {}

  bool is_alone() const { return group_ == nullptr; }
  int rank() const { return rank_; }  // alone: 0
  int size() const { return size_; }
  int repeat() const { return repeat_; }
  const ProcessGroup& group() const { return *group_; }
  // The rank that is another one in every repeat.
  int offender() const { return repeat_ % size_; }
  bool is_offender() const { return !is_alone() && rank_ == offender(); }
  // Of this rank's own initial values; rank 0's are those of the program alone.
  uint64_t seed() const { return static_cast<uint64_t>(100 * repeat_ + 10 * rank_); }
  uint64_t seed_of_all() const { return static_cast<uint64_t>(100 * repeat_); }

  // Strategies, ends of a step and ways to zero gradients take turns, each with each.
  DataParallelOptions options() const {
    constexpr std::array kTurns = {"bucketed", "overlap", "flat", "naive", "ordered"};
    DataParallelOptions options;
    options.strategy = find_strategy(kTurns[static_cast<size_t>(repeat_) % kTurns.size()]);
    options.cap.cap_bytes = 200;
    options.finish_with_backward = repeat_ % 2 == 0;
    return options;
  }
  bool zeroes_to_none() const { return repeat_ / 2 % 2 == 0; }

  // None when alone.
  std::unique_ptr<DataParallel> wrap(torch::nn::Module& module, const DataParallelOptions& with) const {
    return is_alone() ? nullptr : std::make_unique<DataParallel>(module, *group_, with);
  }
  std::unique_ptr<DataParallel> wrap(torch::nn::Module& module) const { return wrap(module, options()); }

  // `loss` of this rank's batch; alone, its mean over the batches of all ranks.
  at::Tensor mean_loss(int step, const std::function<at::Tensor(const at::Tensor& x)>& loss, int micro = 0) const {
    if (!is_alone()) return loss(batch(step, rank_, micro));
    at::Tensor sum = loss(batch(step, 0, micro));
    for (int rank = 1; rank < size_; ++rank) sum = sum + loss(batch(step, rank, micro));
    return sum / size_;
  }
  at::Tensor loss(Net& net, int step, int micro = 0) const {
    return mean_loss(
        step, [&net](const at::Tensor& x) { return net.loss(x); }, micro);
  }

  void backward(DataParallel* ddp, const at::Tensor& loss) const {
    loss.backward();
    if (ddp != nullptr) ddp->finish_gradient_synchronization();  // does nothing where backward has done it
  }
  // One step as users write it.
  void train(DataParallel* ddp, Net& net, torch::optim::Optimizer& optimizer, int step) const {
    optimizer.zero_grad(zeroes_to_none());
    backward(ddp, loss(net, step));
    optimizer.step();
  }

  // What must be the same on every rank.
  void note(const std::string& what) { notes_.push_back(what); }
  void note(const std::optional<StepFailure>& failure) {
    note(failure ? fmt::format("step {}, rank {}: {}", failure->step, failure->rank, failure->reason) : "no failure");
  }
  const std::vector<std::string>& notes() const { return notes_; }

 private:
  at::Tensor batch(int step, int rank, int micro) const {
    return seeded_randn({4, 5}, static_cast<uint64_t>((((repeat_ * 20) + step) * 4 + rank) * 4 + micro));
  }

  const ProcessGroup* group_ = nullptr;
  int rank_ = 0;
  int size_ = 1;
  int repeat_ = 0;
  std::vector<std::string> notes_;
};

using Program = std::function<Tensors(World&)>;  // returns copies of what it has trained

using NetProgram = std::function<void(World&, DataParallel* ddp, Net&, torch::optim::SGD&)>;  // ddp: none where it runs alone

// Of one Net, whose middle may be frozen at first, and its SGD.
inline Program with_net(bool freezes_middle, const NetProgram& body) {
  return [=](World& world) {
    Net net(world.seed());
    if (freezes_middle) set_trainable(*net.middle, false);
    const auto ddp = world.wrap(net);
    torch::optim::SGD optimizer = sgd(net);
    body(world, ddp.get(), net, optimizer);
    return copies(net.parameters());
  };
}
inline Program with_net(const NetProgram& body) {
  return with_net(false, body);
}

// How often, and on how many ranks, a test runs its program: World takes turns with the number of the repeat.
struct Runs {
  int ranks;
  int first;  // repeat
  int repeats;
};

// Every strategy with either end of a step, every offender and every way to zero gradients; and, with the second tier's that go on from
// there, each of these with most others.
inline const auto kFewRuns = testing::Values(Runs{2, 0, 5}, Runs{3, 5, 5});
inline const auto kManyRuns = testing::Values(Runs{2, 5, 15}, Runs{3, 10, 15});
inline std::string name_of_runs(const testing::TestParamInfo<Runs>& info) {
  return fmt::format("{}", info.param.ranks);
}

class OnRanks : public testing::TestWithParam<Runs> {
 protected:
  // All repeats on one group: making it takes longer than most programs.
  void expect_what_one_process_computes(const Program& program) {
    const auto [ranks, first, repeats] = GetParam();
    const std::vector<Tensors> trained = run_on_ranks(program, first, repeats);
    for (int i = 0; i < repeats && !HasFailure(); ++i) {
      SCOPED_TRACE(testing::Message() << "repeat " << first + i);
      World alone(ranks, first + i);
      const Tensors expected = program(alone);
      const Tensors& ours = trained[static_cast<size_t>(i)];
      ASSERT_EQ(ours.size(), expected.size());
      for (size_t t = 0; t < expected.size(); ++t) {
        EXPECT_TRUE(at::allclose(ours[t], expected[t], 1e-9, 1e-11))
            << "tensor " << t << " is off by " << (ours[t] - expected[t]).abs().max().item<double>() << " from one process's";
      }
    }
  }

  // For programs that one process cannot run, or that end in an error. repeats: all, or so many. at_once: that run side by side, where each
  // waits.
  void expect_the_same_on_every_rank(const Program& program) { expect_the_same_on_every_rank(GetParam().repeats, 1, program); }
  void expect_the_same_on_every_rank(int repeats, const Program& program) { expect_the_same_on_every_rank(repeats, 1, program); }
  void expect_the_same_on_every_rank(int repeats, int at_once, const Program& program) {
    const int end = GetParam().first + repeats;
    for (int first = GetParam().first; first < end && !HasFailure(); first += at_once) {
      std::vector<std::thread> threads;
      for (int repeat = first; repeat < std::min(end, first + at_once); ++repeat) {
        threads.emplace_back([&, repeat] {
          SCOPED_TRACE(testing::Message() << "repeat " << repeat);
          EXPECT_NO_THROW(run_on_ranks(program, repeat, 1));
        });
      }
      for (std::thread& thread : threads) thread.join();
    }
  }

 private:
  // Runs some repeats on one group of ranks. Returns what rank 0 has trained in each.
  static std::vector<Tensors> run_on_ranks(const Program& program, int first, int count) {
    struct Outcome {
      Tensors trained;
      std::vector<std::string> notes;
    };
    const auto ranks = static_cast<size_t>(GetParam().ranks);
    std::vector<std::vector<Outcome>> outcomes(ranks, std::vector<Outcome>(static_cast<size_t>(count)));
    run_ranks(
        GetParam().ranks,
        [&](const ProcessGroup& group) {
          for (int i = 0; i < count; ++i) {
            World world(group, first + i);
            Outcome& outcome = outcomes[static_cast<size_t>(group.rank)][static_cast<size_t>(i)];
            outcome.trained = program(world);
            outcome.notes = world.notes();
          }
        },
        kProgramTimeout);
    std::vector<Tensors> trained;
    for (size_t i = 0; i < static_cast<size_t>(count); ++i) {
      SCOPED_TRACE(testing::Message() << "repeat " << static_cast<size_t>(first) + i);
      const Outcome& rank0 = outcomes[0][i];
      EXPECT_FALSE(rank0.trained.empty());
      for (size_t rank = 1; rank < ranks; ++rank) {
        const Outcome& other = outcomes[rank][i];
        EXPECT_EQ(other.notes, rank0.notes) << "rank " << rank;
        EXPECT_EQ(other.trained.size(), rank0.trained.size()) << "rank " << rank;
        for (size_t t = 0; t < std::min(other.trained.size(), rank0.trained.size()); ++t) {
          EXPECT_TRUE(at::equal(other.trained[t], rank0.trained[t])) << "tensor " << t << " differs between ranks 0 and " << rank;
        }
      }
      trained.push_back(rank0.trained);
    }
    return trained;
  }
};

}  // namespace firkin
