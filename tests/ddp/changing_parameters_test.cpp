// Parameters that are thawed, frozen, added or replaced while the training runs, with parameters_changed() and without: what comes out is
// what one process computes from the batches of all ranks, and the same bits on every rank, or every rank has the same error, which names
// them.
#include "../comm/thread_ranks.h"
#include "firkin/ddp/data_parallel.h"
#include "firkin/ddp/module_parameters.h"
#include "firkin/ddp/overlapped_optimizer.h"
#include "tensors.h"

namespace firkin {
namespace {

constexpr int kProgramSteps = 6;

torch::nn::Linear seeded_linear(int64_t inputs, int64_t outputs, uint64_t seed) {
  torch::nn::Linear linear(inputs, outputs);
  linear->to(at::kDouble);
  seed_parameters(*linear, seed);
  return linear;
}

// Three layers, to which a fourth may be added before the last.
struct ChangingNet : torch::nn::Module {
  explicit ChangingNet(uint64_t seed) { seed_parameters(*this, seed); }
  at::Tensor loss(const at::Tensor& x) {
    at::Tensor h = torch::tanh(middle->forward(torch::tanh(first->forward(x))));
    if (added) h = torch::tanh(added->forward(h));
    return last->forward(h).pow(2).mean();
  }
  torch::nn::Linear first = register_module("first", seeded_linear(5, 7, 0));
  torch::nn::Linear middle = register_module("middle", seeded_linear(7, 7, 0));
  torch::nn::Linear last = register_module("last", seeded_linear(7, 2, 0));
  torch::nn::Linear added = nullptr;
};

// A frozen parameter that kept its last gradient, zeroed or not, would still be stepped by an optimiser with momentum.
void set_trainable(torch::nn::Module& module, bool trainable) {
  for (at::Tensor& parameter : module.parameters()) {
    parameter.set_requires_grad(trainable);
    if (!trainable) parameter.mutable_grad().reset();
  }
}

// A rank's training, or that of one process with the batches of all ranks. With the number of the repeat strategies, ends of a step, ways
// to zero gradients, the step in which something changes and the rank that offends take turns, each with each.
struct ChangingTraining {
  ChangingTraining(int turn, int all_ranks, const ProcessGroup* of_rank) : repeat(turn), ranks(all_ranks), group(of_rank), net(seed()) {}

  void wrap() {
    if (is_alone()) return;
    constexpr std::array kTurns = {"bucketed", "overlap", "flat", "naive", "ordered"};
    DataParallelOptions options;
    options.strategy = find_strategy(kTurns.at(static_cast<size_t>(repeat) % kTurns.size()));
    options.cap.cap_bytes = 200;
    options.finish_with_backward = repeat % 2 == 0;
    ddp.emplace(net, *group, options);
  }

  bool is_alone() const { return group == nullptr; }
  bool is_offender() const { return !is_alone() && group->rank == repeat % ranks; }
  // Of this rank's own values; rank 0's are those of the process alone.
  uint64_t seed() const { return seed_of_all() + 10 * static_cast<uint64_t>(is_alone() ? 0 : group->rank); }
  uint64_t seed_of_all() const { return 100 * static_cast<uint64_t>(repeat); }

  // Of this rank's batch; alone, the mean over the batches of all ranks.
  at::Tensor loss(int step, int micro = 0) {
    at::Tensor sum = at::zeros({}, at::kDouble);
    for (int rank = 0; rank < ranks; ++rank) {
      if (!is_alone() && rank != group->rank) continue;
      sum = sum + net.loss(seeded_randn({4, 5}, static_cast<uint64_t>((((repeat * 20) + step) * 4 + rank) * 4 + micro)));
    }
    return is_alone() ? sum / ranks : sum;
  }
  void zero_grad() { optimizer.zero_grad(repeat / 2 % 2 == 0); }
  void backward(const at::Tensor& loss) {
    loss.backward();
    if (ddp) ddp->finish_gradient_synchronization();  // does nothing where backward has done it
  }
  void train(int step) {
    zero_grad();
    backward(loss(step));
    optimizer.step();
  }
  // Trains, but in the step in which something changes.
  void train_all(const std::function<void(int step)>& step_of_change) {
    for (int step = 0; step < kProgramSteps; ++step) step == repeat % 4 ? step_of_change(step) : train(step);
  }
  // Of ranks: the step fails on every one. Alone it does not take place.
  void expect_failure(const std::function<void()>& failing_step, const testing::Matcher<std::string>& says) {
    if (is_alone()) return;
    EXPECT_THAT(message_of<StepError>(failing_step), says);
    for (const auto& [name, parameter] : trainable_parameters(net)) EXPECT_FALSE(parameter.grad().defined()) << name;
    failures.push_back(ddp->last_failure());
  }

  int repeat;
  int ranks;
  const ProcessGroup* group;
  ChangingNet net;
  std::optional<DataParallel> ddp;
  torch::optim::SGD optimizer{net.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9)};
  std::vector<std::optional<StepFailure>> failures;
};

// What happens to the net at one moment of a program. seed: of values.
struct Change {
  const char* name;
  std::function<void(ChangingNet& net, torch::optim::Optimizer& optimizer, uint64_t seed)> make;
  const char* parameter;  // that an error may name
  bool brings_values = false;
  bool thaws_middle = false;
  void operator()(ChangingTraining& training, uint64_t seed) const { make(training.net, training.optimizer, 7000 + seed); }
};

void add_layer(ChangingNet& net, torch::optim::Optimizer& optimizer, uint64_t seed) {
  net.added = net.register_module("added", seeded_linear(7, 7, seed));
  for (const at::Tensor& parameter : net.added->parameters()) optimizer.param_groups()[0].params().push_back(parameter);
}

// A new head, as for another task: it takes the place of the old one in the optimiser.
void replace_head(ChangingNet& net, torch::optim::Optimizer& optimizer, uint64_t seed) {
  const torch::nn::Linear old = net.last;
  net.last = net.replace_module("last", seeded_linear(7, 2, seed));
  for (at::Tensor& parameter : optimizer.param_groups()[0].params()) {
    if (!parameter.is_same(old->weight) && !parameter.is_same(old->bias)) continue;
    optimizer.state().erase(parameter.unsafeGetTensorImpl());
    parameter = parameter.is_same(old->weight) ? net.last->weight : net.last->bias;
  }
}

// Of what was trained before, nothing is: only the middle, which was frozen.
void train_the_other_half(ChangingNet& net, torch::optim::Optimizer& /*optimizer*/, uint64_t /*seed*/) {
  set_trainable(net, false);
  set_trainable(*net.middle, true);
}

const Change kChanges[] = {
    {"thaw", [](ChangingNet& net, auto&, uint64_t) { set_trainable(*net.middle, true); }, "middle.", false, true},
    {"freeze", [](ChangingNet& net, auto&, uint64_t) { set_trainable(*net.first, false); }, "first."},
    {"the other half", train_the_other_half, "middle.", false, true},
    {"add", add_layer, "added.", true},
    {"replace", replace_head, "last.", true},
};

using ChangingProgram = std::function<void(ChangingTraining&)>;

struct Runs {
  int ranks;
  int first;  // repeat
  int repeats;
};

class ChangingParameters : public testing::TestWithParam<Runs> {
 protected:
  // All repeats on one group: making it takes longer than most programs.
  static void expect_the_same_on_every_rank(const ChangingProgram& program, bool freezes_middle = false, bool also_alone = false) {
    const Runs runs = GetParam();
    struct Outcome {
      Tensors trained;
      std::vector<std::optional<StepFailure>> failures;
    };
    const auto run = [&](int repeat, const ProcessGroup* group) {
      ChangingTraining training(runs.first + repeat, runs.ranks, group);
      if (freezes_middle) set_trainable(*training.net.middle, false);
      training.wrap();
      program(training);
      return Outcome{copies(training.net.parameters()), training.failures};
    };
    const auto of_ranks = results_of(runs.ranks, [&](const ProcessGroup& group) {
      std::vector<Outcome> outcomes;
      for (int repeat = 0; repeat < runs.repeats; ++repeat) outcomes.push_back(run(repeat, &group));
      return outcomes;
    });
    for (int repeat = 0; repeat < runs.repeats; ++repeat) {
      SCOPED_TRACE(fmt::format("repeat {}", runs.first + repeat));
      const Outcome& of_rank_0 = of_ranks[0][static_cast<size_t>(repeat)];
      for (const auto& outcomes : of_ranks) {
        EXPECT_TRUE(outcomes[static_cast<size_t>(repeat)].failures == of_rank_0.failures);
        EXPECT_TRUE(same_bits(outcomes[static_cast<size_t>(repeat)].trained, of_rank_0.trained));
      }
      if (!also_alone) continue;
      EXPECT_LE(relative_difference(of_rank_0.trained, run(repeat, nullptr).trained), 1e-9);
    }
  }
  static void expect_what_one_process_computes(const ChangingProgram& program, bool freezes_middle = false) {
    expect_the_same_on_every_rank(program, freezes_middle, /*also_alone=*/true);
  }
  // Of every change, in a step of its own.
  static void expect_what_one_process_computes(
      const std::function<void(const Change& change, ChangingTraining& training, int step)>& step_of_change) {
    for (const Change& change : kChanges) {
      SCOPED_TRACE(change.name);
      const auto program = [&](ChangingTraining& training) {
        training.train_all([&](int step) { step_of_change(change, training, step); });
      };
      expect_what_one_process_computes(program, change.thaws_middle);
    }
  }
};

TEST_P(ChangingParameters, WithoutAWordTheVeryStepIncludesThemWhereTheirValuesAreTheSameOnAllRanks) {
  expect_what_one_process_computes([](const Change& change, ChangingTraining& training, int step) {
    change(training, training.seed_of_all());
    training.train(step);
  });
}

TEST_P(ChangingParameters, WithParametersChangedTheyHaveRank0sValuesAndTheVeryStepIncludesThem) {
  expect_what_one_process_computes([](const Change& change, ChangingTraining& training, int step) {
    change(training, training.seed());
    if (training.ddp) training.ddp->parameters_changed();
    training.train(step);
  });
}

TEST_P(ChangingParameters, WithoutAWordValuesThatDifferFailTheStepOnEveryRankAndThenAreRank0s) {
  expect_what_one_process_computes([](const Change& change, ChangingTraining& training, int step) {
    change(training, training.seed());
    if (!change.brings_values) return training.train(step);
    training.expect_failure([&] { training.train(step); }, AllOf(HasSubstr(change.parameter), HasSubstr("parameters_changed()")));
  });
}

// Values that differed, which they do in every other repeat, are rank 0's on all ranks afterwards: the error was another one, and nobody
// would say it again.
TEST_P(ChangingParameters, AnOrdinaryFailureInThatStepLosesNothingAndTheNextStepIncludesThem) {
  expect_what_one_process_computes([](const Change& change, ChangingTraining& training, int step) {
    const bool same_values = (training.repeat + (&change - kChanges)) % 2 == 0;
    change(training, same_values ? training.seed_of_all() : training.seed());
    const auto failing_step = [&] {
      if (!training.is_offender()) return training.train(step);
      training.ddp->abandon_step("no more memory");
      throw StepError(*training.ddp->last_failure());
    };
    training.expect_failure(failing_step, HasSubstr("no more memory"));
  });
}

TEST_P(ChangingParameters, AccumulatedGradientsOfThemAreInTheStep) {
  const auto program = [](ChangingTraining& training) {
    for (int step = 0; step < kProgramSteps; ++step) {
      if (step == training.repeat % 4) set_trainable(*training.net.middle, true);
      training.zero_grad();
      if (training.ddp) training.ddp->set_gradient_synchronization(false);
      training.loss(step, /*micro=*/0).backward();
      if (training.ddp) training.ddp->set_gradient_synchronization(true);
      training.backward(training.loss(step, /*micro=*/1));
      training.optimizer.step();
    }
  };
  expect_what_one_process_computes(program, /*freezes_middle=*/true);
}

TEST_P(ChangingParameters, ALayerThatIsThawedAndFrozenByTurnsTrainsInEveryOtherStep) {
  expect_what_one_process_computes([](ChangingTraining& training) {
    for (int step = 0; step < 2 * kProgramSteps; ++step) {
      set_trainable(*training.net.middle, step % 2 == 0);
      training.train(step);
      EXPECT_EQ(training.net.middle->weight.grad().defined(), step % 2 == 0);
    }
  });
}

// The rest of the ranks follow, and the training goes on.
TEST_P(ChangingParameters, RanksThatTrainDifferentSetsAllHearWhichParameter) {
  for (const Change& change : {kChanges[0], kChanges[1]}) {
    SCOPED_TRACE(change.name);
    const auto program = [&](ChangingTraining& training) {
      training.train_all([&](int step) {
        if (training.is_offender()) change(training, 0);
        training.expect_failure([&] { training.train(step); }, HasSubstr(change.parameter));
        change(training, 0);
      });
    };
    expect_what_one_process_computes(program, change.thaws_middle);
  }
}

TEST_P(ChangingParameters, ParametersChangedSaysOnEveryRankWhereTheirSetsDiffer) {
  expect_the_same_on_every_rank([](ChangingTraining& training) {
    training.train(0);
    if (training.is_offender()) set_trainable(*training.net.middle, false);
    EXPECT_THAT(message_of<RuntimeError>([&] { training.ddp->parameters_changed(); }), HasSubstr("middle.weight"));
    set_trainable(*training.net.middle, false);
    training.ddp->parameters_changed();
    training.train(1);
  });
}

TEST_P(ChangingParameters, ParametersChangedWithoutAChangeChangesNothing) {
  expect_what_one_process_computes([](ChangingTraining& training) {
    for (int step = 0; step < kProgramSteps; ++step) {
      if (training.ddp) training.ddp->parameters_changed();
      training.train(step);
    }
  });
}

TEST_P(ChangingParameters, RanksWithoutDataInAJoinSectionFollow) {
  const auto program = [](ChangingTraining& training) {
    training.train(0);
    set_trainable(*training.net.middle, true);
    training.ddp->parameters_changed();
    for (int step = 1; step <= 1 + training.group->rank; ++step) training.train(step);
    training.ddp->join([&] {
      EXPECT_TRUE(training.net.middle->weight.grad().defined());
      training.optimizer.step();
    });
  };
  expect_the_same_on_every_rank(program, /*freezes_middle=*/true);
}

// No hook is on what the module holds then, so that only a step of the optimiser tells.
TEST(ReplacedParameters, AllAtOnceAreAnErrorAtTheOptimizersNextStep) {
  run_ranks(2, [](const ProcessGroup& group) {
    ChangingNet net(0);
    DataParallel ddp(net, group);
    torch::optim::SGD plain(net.parameters(), 0.1);
    OverlappedOptimizer optimizer(ddp, plain);
    const auto train = [&](int step) {
      plain.zero_grad();
      net.loss(seeded_randn({4, 5}, static_cast<uint64_t>(2 * step + group.rank))).backward();
      optimizer.step();
    };
    train(0);
    net.first = net.replace_module("first", seeded_linear(5, 7, 1));
    net.middle = net.replace_module("middle", seeded_linear(7, 7, 2));
    net.last = net.replace_module("last", seeded_linear(7, 2, 3));
    plain.param_groups()[0].params() = net.parameters();
    EXPECT_THAT(message_of<RuntimeError>([&] { train(1); }), HasSubstr("parameters_changed() on every rank"));
    ddp.parameters_changed();
    train(2);
    EXPECT_NO_THROW(ddp.audit());
  });
}

// Every strategy with either end of a step, every offender and every way to zero gradients; and, with the second tier's that go on from
// there, each of these with most others.
std::string name_of_runs(const testing::TestParamInfo<Runs>& info) {
  return fmt::format("{}", info.param.ranks);
}
INSTANTIATE_TEST_SUITE_P(Ranks, ChangingParameters, Values(Runs{2, 0, 5}, Runs{3, 5, 5}), name_of_runs);
INSTANTIATE_TEST_SUITE_P(Full, ChangingParameters, Values(Runs{2, 5, 15}, Runs{3, 10, 15}), name_of_runs);

}  // namespace
}  // namespace firkin
