// Parameters that are thawed, frozen, added or replaced while the training runs: with parameters_changed(), and without.
#include "firkin/ddp/overlapped_optimizer.h"
#include "real_programs.h"

#include "../test.h"

namespace firkin {
namespace {

class ChangingParameters : public OnRanks {};

void add_layer(Net& net, torch::optim::Optimizer& optimizer, uint64_t seed) {
  net.added = net.register_module("added", seeded_linear(7, 7, seed));
  optimize_also(net.added->parameters(), optimizer);
}

// A new head, as for another task: it takes the place of the old one in the optimiser.
void replace_head(Net& net, torch::optim::Optimizer& optimizer, uint64_t seed) {
  const torch::nn::Linear old = net.last;
  net.last = net.replace_module("last", seeded_linear(7, 2, seed));
  for (at::Tensor& parameter : optimizer.param_groups()[0].params()) {
    if (!parameter.is_same(old->weight) && !parameter.is_same(old->bias)) continue;
    optimizer.state().erase(parameter.unsafeGetTensorImpl());
    parameter = parameter.is_same(old->weight) ? net.last->weight : net.last->bias;
  }
}

// Of what was trained before, nothing is: only the middle, which was frozen.
void train_the_other_half(Net& net, torch::optim::Optimizer& /*optimizer*/, uint64_t /*seed*/) {
  for (torch::nn::Module* part : {static_cast<torch::nn::Module*>(net.first.get()), static_cast<torch::nn::Module*>(net.last.get())}) {
    set_trainable(*part, false);
  }
  set_trainable(*net.middle, true);
}

// What happens to the net at one moment of a program. seed: of values.
struct Change {
  const char* name;
  std::function<void(Net& net, torch::optim::Optimizer& optimizer, uint64_t seed)> make;
  bool brings_values = false;
  const char* parameter = nullptr;  // that an error may name
  bool thaws_middle = false;
};

const std::vector<Change>& changes() {
  static const std::vector<Change> all = {
      {.name = "thaw",
       .make = [](Net& net, auto&, uint64_t) { set_trainable(*net.middle, true); },
       .parameter = "middle.",
       .thaws_middle = true},
      {.name = "freeze", .make = [](Net& net, auto&, uint64_t) { set_trainable(*net.first, false); }, .parameter = "first."},
      {.name = "the other half", .make = train_the_other_half, .parameter = "middle.", .thaws_middle = true},
      {.name = "add", .make = add_layer, .brings_values = true, .parameter = "added."},
      {.name = "replace", .make = replace_head, .brings_values = true, .parameter = "last."},
  };
  return all;
}

// Trains while `change` happens before one of the steps. on_change: takes that step's place; without, it is a step like the others.
Program program_with(const Change& change, bool same_values, bool tells,
                     const std::function<void(World&, DataParallel&, Net&, torch::optim::Optimizer&, int step)>& on_change = {}) {
  return with_net(change.thaws_middle, [=](World& world, DataParallel* ddp, Net& net, torch::optim::SGD& optimizer) {
    for (int step = 0; step < kProgramSteps; ++step) {
      if (step != world.repeat() % 4) {
        world.train(ddp, net, optimizer, step);
        continue;
      }
      change.make(net, optimizer, 7000 + (same_values ? world.seed_of_all() : world.seed()));
      if (tells && ddp) ddp->parameters_changed();
      if (!on_change) {
        world.train(ddp, net, optimizer, step);
      } else if (ddp) {
        on_change(world, *ddp, net, optimizer, step);
      }
    }
  });
}

TEST_P(ChangingParameters, WithoutAWordTheVeryStepIncludesThemWhereTheirValuesAreTheSameOnAllRanks) {
  for (const Change& change : changes()) {
    SCOPED_TRACE(change.name);
    expect_what_one_process_computes(program_with(change, /*same_values=*/true, /*tells=*/false));
  }
}

TEST_P(ChangingParameters, WithParametersChangedTheyHaveRank0sValuesAndTheVeryStepIncludesThem) {
  for (const Change& change : changes()) {
    SCOPED_TRACE(change.name);
    expect_what_one_process_computes(program_with(change, /*same_values=*/false, /*tells=*/true));
  }
}

TEST_P(ChangingParameters, WithoutAWordValuesThatDifferFailTheStepOnEveryRankAndThenAreRank0s) {
  for (const Change& change : changes()) {
    if (!change.brings_values) continue;
    SCOPED_TRACE(change.name);
    expect_what_one_process_computes(program_with(
        change, /*same_values=*/false, /*tells=*/false, [&change](World& world, DataParallel& ddp, Net& net, auto& optimizer, int step) {
          const std::string error = message_of<StepError>([&] { world.train(&ddp, net, optimizer, step); });
          EXPECT_THAT(error, AllOf(HasSubstr(change.parameter), HasSubstr("parameters_changed()")));
          for (const at::Tensor& parameter : net.parameters()) EXPECT_FALSE(parameter.grad().defined());
          world.note(ddp.last_failure());
        }));
  }
}

// Values that differed, which they do in every other repeat, are rank 0's on all ranks afterwards: the error was another one, and nobody
// would say it again.
TEST_P(ChangingParameters, AnOrdinaryFailureInThatStepLosesNothingAndTheNextStepIncludesThem) {
  int turn = 0;
  for (const Change& change : changes()) {
    SCOPED_TRACE(change.name);
    const auto failing = [&change](bool same_values) {
      return program_with(change, same_values, /*tells=*/false, [](World& world, DataParallel& ddp, Net& net, auto& optimizer, int step) {
        if (world.is_offender()) {
          ddp.abandon_step("no more memory");
        } else {
          EXPECT_THAT(message_of<StepError>([&] { world.train(&ddp, net, optimizer, step); }), HasSubstr("no more memory"));
        }
        for (const at::Tensor& parameter : net.parameters()) {
          EXPECT_FALSE(parameter.requires_grad() && parameter.grad().defined());
        }
        world.note(ddp.last_failure());
      });
    };
    ++turn;
    expect_what_one_process_computes([&](World& world) { return failing((world.repeat() + turn) % 2 == 0)(world); });
  }
}

TEST_P(ChangingParameters, AccumulatedGradientsOfThemAreInTheStep) {
  expect_what_one_process_computes(
      with_net(/*freezes_middle=*/true, [](World& world, DataParallel* ddp, Net& net, torch::optim::SGD& optimizer) {
        for (int step = 0; step < kProgramSteps; ++step) {
          if (step == world.repeat() % 4) set_trainable(*net.middle, true);
          optimizer.zero_grad(world.zeroes_to_none());
          if (ddp) ddp->set_gradient_synchronization(false);
          world.loss(net, step, /*micro=*/0).backward();
          if (ddp) ddp->set_gradient_synchronization(true);
          world.backward(ddp, world.loss(net, step, /*micro=*/1));
          optimizer.step();
        }
      }));
}

TEST_P(ChangingParameters, ALayerThatIsThawedAndFrozenByTurnsTrainsInEveryOtherStep) {
  expect_what_one_process_computes(with_net([](World& world, DataParallel* ddp, Net& net, torch::optim::SGD& optimizer) {
    for (int step = 0; step < 2 * kProgramSteps; ++step) {
      set_trainable(*net.middle, step % 2 == 0);
      optimizer.zero_grad();
      world.backward(ddp, world.loss(net, step));
      EXPECT_EQ(net.middle->weight.grad().defined(), step % 2 == 0);
      optimizer.step();
    }
  }));
}

// The rest of the ranks follow, and the training goes on.
TEST_P(ChangingParameters, RanksThatTrainDifferentSetsAllHearWhichParameter) {
  for (const Change& change : {changes()[0], changes()[1]}) {
    SCOPED_TRACE(change.name);
    expect_what_one_process_computes(
        with_net(change.thaws_middle, [&change](World& world, DataParallel* ddp, Net& net, torch::optim::SGD& optimizer) {
          for (int step = 0; step < kProgramSteps; ++step) {
            const bool changes_now = step == world.repeat() % 4;
            if (changes_now && ddp) {
              if (world.is_offender()) change.make(net, optimizer, 0);
              EXPECT_THAT(message_of<StepError>([&] { world.train(ddp, net, optimizer, step); }), HasSubstr(change.parameter));
              for (const at::Tensor& parameter : net.parameters()) {
                EXPECT_FALSE(parameter.requires_grad() && parameter.grad().defined());
              }
              world.note(ddp->last_failure());
            }
            if (changes_now) change.make(net, optimizer, 0);
            if (!changes_now) world.train(ddp, net, optimizer, step);
          }
        }));
  }
}

TEST_P(ChangingParameters, ParametersChangedSaysOnEveryRankWhereTheirSetsDiffer) {
  expect_the_same_on_every_rank(with_net([](World& world, DataParallel* ddp, Net& net, torch::optim::SGD& optimizer) {
    world.train(ddp, net, optimizer, 0);
    if (world.is_offender()) set_trainable(*net.middle, false);
    EXPECT_THAT(message_of<RuntimeError>([&] { ddp->parameters_changed(); }), HasSubstr("middle.weight"));
    set_trainable(*net.middle, false);
    ddp->parameters_changed();
    world.train(ddp, net, optimizer, 1);
  }));
}

TEST_P(ChangingParameters, ParametersChangedWithoutAChangeChangesNothing) {
  expect_what_one_process_computes(with_net([](World& world, DataParallel* ddp, Net& net, torch::optim::SGD& optimizer) {
    for (int step = 0; step < kProgramSteps; ++step) {
      if (ddp) ddp->parameters_changed();
      world.train(ddp, net, optimizer, step);
    }
  }));
}

TEST_P(ChangingParameters, RanksWithoutDataInAJoinSectionFollow) {
  expect_the_same_on_every_rank(
      with_net(/*freezes_middle=*/true, [](World& world, DataParallel* ddp, Net& net, torch::optim::SGD& optimizer) {
        world.train(ddp, net, optimizer, 0);
        set_trainable(*net.middle, true);
        ddp->parameters_changed();
        for (int step = 1; step <= 1 + world.rank(); ++step) world.train(ddp, net, optimizer, step);
        ddp->join([&] {
          EXPECT_TRUE(net.middle->weight.grad().defined());
          optimizer.step();
        });
      }));
}

// No hook is on what the module holds then, so that only a step of the optimiser tells.
TEST(ReplacedParameters, AllAtOnceAreAnErrorAtTheOptimizersNextStep) {
  run_ranks(2, [](const ProcessGroup& group) {
    Net net(0);
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

INSTANTIATE_TEST_SUITE_P(Ranks, ChangingParameters, kFewRuns, name_of_runs);
INSTANTIATE_TEST_SUITE_P(Full, ChangingParameters, kManyRuns, name_of_runs);

}  // namespace
}  // namespace firkin
